"""The edge serving node: one batching engine for every robot that announces itself."""

from kairos_ros.bringup.engine_arguments import ENGINE_ARGUMENTS, engine_parameters
from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import serving

ARGUMENTS = {
    "policy": ("", "LeRobot policy folder or hub id; empty: the one that ships with the package"),
    "policies": ("", "Instead, several: NAME=POLICY of each, separated by ; and the default first"),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "horizon": ("", "Default horizon policy, such as confidence:t=0.4; empty: as in serving.yaml"),
    **ENGINE_ARGUMENTS,
    "robots": ("", "Robots to serve, such as left_*, separated by commas; empty: every robot"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    robots = [name.strip() for name in values.pop("robots", "").split(",") if name.strip()]
    policies = [text.strip() for text in values.pop("policies", "").split(";") if text.strip()]
    lists = {"robots": robots, "policies": policies}
    engine = engine_parameters(values)
    return [
        serving(**values, **engine, **{name: listed for name, listed in lists.items() if listed})
    ]
