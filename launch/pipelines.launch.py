"""The models around the policy: safety, monitor and planner nodes, for robots of any host."""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import vlm

ARGUMENTS = {
    "components": (
        "safety,monitor,planner",
        "Processes, separated by commas: safety, monitor, planner, or vlm for all of them in one",
    ),
    "robots": ("", "Robots to judge, separated by commas; empty: everybody"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    robots = [name.strip() for name in values.get("robots", "").split(",") if name.strip()]
    parameters = {"robots": robots} if robots else {}
    return [vlm(one.strip(), **parameters) for one in values["components"].split(",")]
