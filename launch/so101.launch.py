"""One SO-101: a simulated driver, an arm behind a ROS 2 driver, or one on a serial port.

ros2 launch kairos_ros so101.launch.py use_sim:=true
"""

from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import flag, rviz
from kairos_ros.bringup.process_spec import told_plan


def generate_launch_description():
    return launch_description(ARGUMENTS["so101"], _nodes)


def _nodes(values):
    view = flag("rviz", values.get("rviz", "false"))
    return [*told_plan("arm", "plan", "so101", arguments=values), *([rviz()] if view else [])]
