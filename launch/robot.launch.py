"""One robot node: a simulated arm, or the arm of a contract or of an adapter's options.

ros2 launch kairos_ros robot.launch.py robot:=franka_1 contract:=my_franka.yaml
"""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.robot import one_robot

ARGUMENTS = {
    "robot": ("arm_1", "Name of the robot: its namespace and its id in the fleet"),
    "contract": ("", "Contract of an arm behind ROS 2 drivers: a file, or a name in config/robots"),
    "adapter": (
        "",
        "sim, ros2, lerobot or an installed one; empty: ros2 with a contract, else sim",
    ),
    "adapter_options": ("", "NAME=VALUE with a YAML value, several separated by ; (docs/robot.md)"),
    "cameras": ("", "Of a simulated arm, such as corner2,gripperPOV:480x640; empty: none"),
    "control_rate_hz": ("", "Actions per second, a contract's own; empty: 30"),
    "policy": ("", "One of the server's policies, by name; empty: the server's default"),
    "horizon_policy": ("", "Horizon policy of its requests; empty: the server's default"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, lambda values: [one_robot(values.pop("robot"), **values)])
