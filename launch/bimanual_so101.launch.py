"""Two SO-101 as one robot: simulated, behind ROS 2 drivers, or on two serial ports.

ros2 launch kairos_ros bimanual_so101.launch.py use_sim:=true
"""

from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import flag, rviz
from kairos_ros.bringup.process_spec import told_plan


def generate_launch_description():
    return launch_description(ARGUMENTS["bi_so101"], _nodes)


def _nodes(values):
    view = flag("rviz", values.get("rviz", "false"))
    return [*told_plan("arm", "plan", "bi_so101", arguments=values), *([rviz()] if view else [])]
