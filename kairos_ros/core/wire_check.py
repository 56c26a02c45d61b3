"""What may be taken over from a wire: names, texts and durations, and how to show them to people.

Every place where a message becomes data asks here, before it keeps, logs or repeats anything.
"""

import re

from kairos_ros.core.errors import WireError

NAME_CHARS = 100
"""Longest name of a robot or a camera: `/ROBOT/camera/CAMERA/compressed` is a topic then, too."""
ID_BYTES = 128
"""Longest session or task id."""
TEXT_BYTES = 1000
"""Longest instruction, task kind, horizon policy or reason."""
LONGEST_S = 1e6
"""Longest duration. Twelve days are enough, and far from overflowing nanoseconds."""
CAMERAS = 32
"""Most cameras of one robot."""
OBSERVATIONS = 16
"""Most observations that a policy may read, the newest included."""
ROBOTS = 200
"""Most robots that a node listens to, unless its parameter `max_robots` says otherwise."""
MOST_PORT = 65535

MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading fields out of JSON that somebody else wrote may raise."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TooLargeError(WireError):
    """Longer than what is accepted; nothing of it may be kept."""


def is_name(text: str) -> bool:
    """Whether it is one part of a ROS topic's name, and not too long to be one with its suffix."""
    return len(text) <= NAME_CHARS and _NAME.fullmatch(text) is not None


def check_text(field: str, text: str, most_bytes: int = TEXT_BYTES) -> str:
    """`text`. Raises TooLargeError for more than `most_bytes` in UTF-8."""
    if 4 * len(text) > most_bytes:  # a character takes 1 to 4 bytes
        size = len(text.encode(errors="replace"))
        if size > most_bytes:
            raise TooLargeError(f"{field} of {size} bytes, at most {most_bytes} are accepted")
    return text


def check_duration(field: str, seconds: float) -> float:
    """`seconds`. Raises WireError for what is negative, not finite or beyond `LONGEST_S`."""
    if not 0 <= seconds <= LONGEST_S:
        raise WireError(f"{field} is {seconds}; a duration is from 0 to {LONGEST_S:g} s")
    return seconds


def duration_ns(field: str, seconds: float) -> int:
    """Only 0 becomes 0, which often means that there is no limit. Raises as `check_duration`."""
    nanoseconds = round(check_duration(field, seconds) * 1e9)
    return nanoseconds or int(seconds > 0)


def printable(text: str, most: int = 80) -> str:
    """`text` in one line for logs and reasons: cut, and escaped what is no printable character."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:most])
    return shown if len(text) <= most else f"{shown}... ({len(text)} characters)"
