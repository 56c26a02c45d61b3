"""One SO-101: a simulated driver, an arm behind a ROS 2 driver, or one on a serial port.

ros2 launch kairos_ros so101.launch.py use_sim:=true
"""

from kairos_ros.arms_arguments import ARGUMENTS
from kairos_ros.bringup import launch_description, rviz, told_plan


def generate_launch_description():
    return launch_description(ARGUMENTS["so101"], _nodes)


def _nodes(values):
    view = values.get("rviz") == "true"
    return [*told_plan("arm", "plan", "so101", arguments=values), *([rviz()] if view else [])]
