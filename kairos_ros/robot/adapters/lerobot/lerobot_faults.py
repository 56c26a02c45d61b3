"""What an error of LeRobot's driver means, by name: drivers raise many things for few reasons."""

import errno
import traceback

CABLE = "cable"
SILENT = "silent motor"
TORN = "torn packets"
LATE = "late replies"
STALE = "stale camera"
FROZEN = "frozen camera"
LIMITS = "joint out of limits"
TORQUE = "torque lost"
CALIBRATION = "not calibrated"
BUSY = "port busy"
DRIVER = "driver"

TRANSIENT = frozenset({SILENT, TORN, LATE})
"""May be gone with the next packet."""

ADVICE = {
    CABLE: "check the cable and the port",
    SILENT: "check the cables between the motors, and their power",
    TORN: "check the cables between the motors, and whether something else uses the port",
    LATE: "check the load of this host, and what is between it and the arm (hubs)",
    STALE: "check its cable; another program may have it open",
    FROZEN: "unplug the camera and plug it in again",
    LIMITS: "move it back by hand, with the power of the arm off if it holds",
    TORQUE: "check the power of the arm, and what blocks it",
    DRIVER: "see the message of LeRobot's driver",
}
SERVO_SDKS = ("scservo_sdk", "dynamixel_sdk")
"""They look into what they take for an answer: the one to an earlier question may be shorter."""
GONE = {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.EBADF, errno.EPIPE}


class LateReplyError(Exception):
    """What arrived is the answer to an earlier question."""


def reason_of(error: BaseException) -> str:
    """One of the names above, from the error or what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        if reason := _reason(seen):
            return reason
        seen = seen.__cause__ or seen.__context__
    return DRIVER


def _reason(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, LateReplyError) or (isinstance(error, IndexError) and _of_an_sdk(error)):
        return LATE
    if "no status packet" in text or "motor check failed" in text:
        return SILENT
    if "Incorrect status packet" in text:
        return TORN
    # neither termios.error nor pyserial's own exceptions are imported here for their names
    kind = f"{type(error).__module__}.{type(error).__name__}"
    number = error.args[0] if error.args else None
    if kind == "termios.error" or kind.startswith("serial.") or "Failed transmit" in text:
        return CABLE
    if isinstance(error, OSError) and number in GONE:
        return CABLE
    if isinstance(error, TimeoutError) or "read thread is not running" in text:
        return STALE
    return ""


def _of_an_sdk(error: BaseException) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals["__name__"]).startswith(SERVO_SDKS)
