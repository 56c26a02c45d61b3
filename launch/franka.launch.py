"""One Franka Emika Panda: a simulated driver, or the arm behind franka_ros2.

ros2 launch kairos_ros franka.launch.py use_sim:=true
"""

from kairos_ros.arms_arguments import ARGUMENTS
from kairos_ros.bringup import launch_description, rviz, told_plan


def generate_launch_description():
    return launch_description(ARGUMENTS["franka"], _nodes)


def _nodes(values):
    view = values.get("rviz") == "true"
    return [*told_plan("arm", "plan", "franka", arguments=values), *([rviz()] if view else [])]
