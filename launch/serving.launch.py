"""The edge serving node: one batching engine for every robot that announces itself."""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import flag, serving, whole_number

ARGUMENTS = {
    "policy": ("", "LeRobot policy folder or hub id; empty: the one that ships with the package"),
    "policies": ("", "Instead, several: NAME=POLICY of each, separated by ; and the default first"),
    "memory_budget_mib": ("0", "What policies of this host may take together; 0: all stay loaded"),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "horizon": ("", "Default horizon policy, such as confidence:t=0.4; empty: as in serving.yaml"),
    "rtc": ("false", "true: guide every chunk to begin with what its robot executes meanwhile"),
    "compile": ("false", "true: torch.compile the sampler; the first start takes minutes longer"),
    "device": ("auto", "auto, cpu, cuda or cuda:N"),
    "robots": ("", "Robots to serve, such as left_*, separated by commas; empty: every robot"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    robots = [name.strip() for name in values.pop("robots", "").split(",") if name.strip()]
    policies = [text.strip() for text in values.pop("policies", "").split(";") if text.strip()]
    lists = {"robots": robots, "policies": policies}
    values["memory_budget_mib"] = whole_number("memory_budget_mib", values["memory_budget_mib"])
    values |= {name: flag(name, values[name]) for name in ("rtc", "compile")}
    return [serving(**values, **{name: listed for name, listed in lists.items() if listed})]
