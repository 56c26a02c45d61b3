"""Simulated arms and the serving node: the fleet of `kairos demo`, without its task driver.

Give an arm a task with: ros2 action send_goal /arm_1/execute_task kairos_ros/action/ExecuteTask
"{instruction: 'open the drawer', scene: drawer-open-v3, seed: 1}"
"""

from kairos_ros.bringup import launch_description, plan, rviz

ARGUMENTS = {
    "robots": ("8", "How many simulated arms: arm_1, arm_2, ..."),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "record": ("", "Folder of the bag to record the fleet into; empty: no bag"),
    "rviz": ("false", "true: draw the fleet for rviz, and open it"),
    "horizon": ("", "Default horizon policy, such as static:10; empty: as in serving.yaml"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    robots, record = int(values.pop("robots")), values.pop("record", "")
    view = values.pop("rviz").lower() == "true"
    nodes = plan(robots, record=record, serve=values, view=view)
    return [*nodes, rviz()] if view else nodes
