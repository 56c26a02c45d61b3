"""One Franka Emika Panda: a simulated driver, or the arm behind franka_ros2.

ros2 launch kairos_ros franka.launch.py use_sim:=true
"""

from kairos_ros.arms_plan import ARGUMENTS, arm_plan
from kairos_ros.bringup import launch_description, rviz


def generate_launch_description():
    return launch_description(ARGUMENTS["franka"], _nodes)


def _nodes(values):
    view = values.get("rviz") == "true"
    return [*arm_plan("franka", values), *([rviz()] if view else [])]
