"""What robots say of themselves on /kairos/robot_status, judged before anything is made of it.

Names become topics: one that is no ROS name would end the node that opens it, and every later one,
as announcements are latched.
"""

import math
from collections import Counter
from collections.abc import Collection

from rclpy.impl.rcutils_logger import RcutilsLogger

from kairos_ros.core.errors import WireError
from kairos_ros.core.fleet_names import is_robot_name
from kairos_ros.core.wire_check import (
    CAMERAS,
    ID_BYTES,
    ROBOTS,
    check_text,
    is_name,
    printable,
)
from kairos_ros.msg import RobotStatus
from kairos_ros.nodes.throttle import Throttle

LONGEST_S = 1e9
"""No robot node has run for longer: 31 years."""
STATES = (RobotStatus.IDLE, RobotStatus.RUNNING, RobotStatus.HOLDING, RobotStatus.LEAVING)


class Announcements:
    """The judge of one listener.

    counters: where refusals are counted, as `refused_robot_name`, `refused_camera_name`,
    `refused_status` and `refused_robot_beyond_limit`. most: robots at a time.
    """

    def __init__(
        self, logger: RcutilsLogger, counters: Counter[str] | None = None, most: int = ROBOTS
    ) -> None:
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._most = most
        self._throttle = Throttle(logger, burst=1, every_s=10.0)

    def read(self, message: RobotStatus, known: Collection[str]) -> RobotStatus | None:
        """The status with the cameras whose names can be topics; None where it is refused.

        known: the robots that are here. They stay, whoever else comes.
        """
        robot = message.robot
        if not is_robot_name(robot):
            text = f"robot name '{printable(robot)}' is no ROS name of at most 100 characters"
            self._refuse("robot_name", f"{text}; it is ignored")
            return None
        try:
            _check(message)
        except WireError as error:
            self._refuse("status", f"a status of robot {robot} is ignored: {error}")
            return None
        if robot not in known and len(known) >= self._most:
            if message.state != RobotStatus.LEAVING:
                text = f"robot {robot} is ignored: there are {len(known)} already"
                self._refuse("robot_beyond_limit", f"{text}; raise max_robots to have more")
            return None
        keys = list(message.image_keys)
        usable = [i for i, key in enumerate(keys) if is_name(key)][:CAMERAS]
        if len(usable) < len(keys):
            odd = next((key for key in keys if not is_name(key)), None)
            why = f"at most {CAMERAS}" if odd is None else f"'{printable(odd)}' is no ROS name"
            text = f"robot {robot} has {len(keys)} cameras, {len(usable)} can be used: {why}"
            self._refuse("camera_name", text)
            for sizes in ("image_height_px", "image_width_px"):
                if len(getattr(message, sizes)) == len(keys):
                    setattr(message, sizes, [getattr(message, sizes)[i] for i in usable])
            message.image_keys = [keys[i] for i in usable]
        return message

    def refuse(self, error: WireError, raw: bytes) -> None:
        """Of a status that was not even read, as of `bounded.subscribe`."""
        self._refuse("status", f"a status is ignored: {error}")

    def _refuse(self, what: str, text: str) -> None:
        self.counters[f"refused_{what}"] += 1
        self._throttle.warning(what, text)


def _check(message: RobotStatus) -> None:
    """Raises WireError."""
    for field in ("session", "task", "server"):
        check_text(field, getattr(message, field), ID_BYTES)
    check_text("instruction", message.instruction)
    for field in ("request_image_keys", "absent_cameras"):
        cameras = getattr(message, field)
        for camera in cameras[: CAMERAS + 1]:
            check_text(field, camera, ID_BYTES)
        if len(cameras) > CAMERAS:
            raise WireError(f"{field} has {len(cameras)} entries, at most {CAMERAS} are accepted")
    if message.state not in STATES:
        raise WireError(f"state {message.state} is unknown; update one of the peers")
    for field in ("control_rate_hz", "stalled_s"):
        if not math.isfinite(getattr(message, field)):
            raise WireError(f"{field} is {getattr(message, field)}")
    if not 0 <= message.takes_goals_s <= LONGEST_S:
        raise WireError(f"takes_goals_s is {message.takes_goals_s}; it is from 0 to {LONGEST_S} s")
