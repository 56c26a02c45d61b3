"""One Franka Emika Panda: a simulated driver, or the arm behind franka_ros2.

ros2 launch kairos_ros franka.launch.py use_sim:=true
"""

from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import flag, rviz
from kairos_ros.bringup.process_spec import told_plan


def generate_launch_description():
    return launch_description(ARGUMENTS["franka"], _nodes)


def _nodes(values):
    view = flag("rviz", values.get("rviz", "false"))
    return [*told_plan("arm", "plan", "franka", arguments=values), *([rviz()] if view else [])]
