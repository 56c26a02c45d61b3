"""Arguments of the launch files of arms. Needs nothing: `ros2 launch` has the system's Python."""

from collections.abc import Mapping

_COMMON = {
    "use_sim": ("true", "true: a simulated driver; false: the arm itself"),
    "robot": ("", "Name in the fleet; empty: the arm's with _1 behind it"),
    "driver": ("", "Namespace of the ROS 2 driver, such as /so101; empty: the contract's"),
    "contract": (
        "",
        "Contract file, or name in config/robots; empty: ARM, ARM_cameras where the policy reads "
        "pictures, or ARM_real for an arm",
    ),
    "cameras": (
        "",
        "Cameras of the simulated driver, such as front,wrist:480x640; empty: the contract's",
    ),
    "camera_map": ("", "CAMERA=NAME, separated by commas: what the policy calls a camera"),
    "absent_cameras": ("", "Cameras of the policy that the arm is without, separated by commas"),
    "policy": ("", "Policy folder, hub id or emulated:...; empty: the one for the simulated arm"),
    "serving": ("true", "false: a serving node runs elsewhere"),
    "fleet": ("", "Fleet file that names this robot, its policy and horizon, judges; empty: none"),
    "horizon": ("", "Horizon policy, such as static:10; empty: the server's"),
    "seed": ("0", "Of the simulated tasks"),
    "record": ("", "Folder of the bag to record into; empty: no bag"),
    "rviz": ("false", "true: draw the robot for rviz"),
}
_LEROBOT = {
    "id": ("", "LeRobot's name of the arm, that its calibration is kept under"),
    "lerobot": ("", "More options of adapter lerobot, as YAML: {cameras: {front: {type: ...}}}"),
}
_PORT = {"port": ("", "Serial port, such as /dev/ttyACM0, without a ROS 2 driver: LeRobot has it")}
_PORTS = {
    "left_port": ("", "Serial port of the left arm, without a ROS 2 driver: LeRobot has it"),
    "right_port": ("", "Serial port of the right arm"),
}
ARGUMENTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "so101": _COMMON | _PORT | _LEROBOT,
    "bi_so101": _COMMON | _PORTS | _LEROBOT,
    "franka": _COMMON,
}
"""Arm -> launch argument -> (default, description)."""
