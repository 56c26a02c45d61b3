"""Simulated arms and the serving node: the fleet of `kairos demo`, without its task driver.

Give an arm a task with: kairos task send arm_1 'open the drawer'
"""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import flag, plan, rviz, whole_number
from kairos_ros.bringup.serving_arguments import ENGINE_ARGUMENTS, engine_parameters

ARGUMENTS = {
    "robots": ("8", "How many simulated arms: arm_1, arm_2, ..."),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "policy": ("", "Policy folder, hub id or emulated:...; empty: the one that ships"),
    **ENGINE_ARGUMENTS,
    "cameras": (
        "",
        "Of every arm, such as corner2,gripperPOV:480x640; 1: the policy's; empty: none",
    ),
    "record": ("", "Folder of the bag to record the fleet into; empty: no bag"),
    "rviz": ("false", "true: draw the fleet for rviz, and open it"),
    "horizon": ("", "Default horizon policy, such as static:10; empty: as in serving.yaml"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    robots, view = (
        whole_number("robots", values.pop("robots", "")),
        flag("rviz", values.pop("rviz", "")),
    )
    record, cameras = values.pop("record", ""), values.pop("cameras", "")
    values |= engine_parameters(values)
    nodes = plan(robots, record=record, serve=values, view=view, cameras=cameras)
    return [*nodes, rviz()] if view else nodes
