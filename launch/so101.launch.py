"""One SO-101: a simulated driver, an arm behind a ROS 2 driver, or one on a serial port.

ros2 launch kairos_ros so101.launch.py use_sim:=true
"""

from kairos_ros.arms_plan import ARGUMENTS, arm_plan
from kairos_ros.bringup import launch_description, rviz


def generate_launch_description():
    return launch_description(ARGUMENTS["so101"], _nodes)


def _nodes(values):
    view = values.get("rviz") == "true"
    return [*arm_plan("so101", values), *([rviz()] if view else [])]
