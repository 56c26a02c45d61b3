"""One robot node, in a namespace of its own."""

from kairos_ros.bringup import launch_description, robot

ARGUMENTS = {
    "robot": ("arm_1", "Name of the robot: its namespace and its id in the fleet"),
    "adapter": ("sim", "What body it has: sim; arms have launch files of their own"),
    "horizon_policy": ("", "Horizon policy of its requests; empty: the server's default"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, lambda values: [robot(values.pop("robot"), **values)])
