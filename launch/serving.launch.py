"""The edge serving node: one batching engine for every robot that announces itself."""

from kairos_ros.bringup import launch_description, serving

ARGUMENTS = {
    "policy": ("", "LeRobot policy folder or hub id; empty: the one that ships with the package"),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "horizon": ("", "Default horizon policy, such as confidence:t=0.4; empty: as in serving.yaml"),
    "device": ("auto", "auto, cpu, cuda or cuda:N"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, lambda values: [serving(**values)])
