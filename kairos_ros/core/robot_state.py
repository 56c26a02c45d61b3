"""What a robot does, in one word."""

from enum import IntEnum


class RobotState(IntEnum):
    """Values are those of RobotStatus.msg."""

    IDLE = 0
    RUNNING = 1
    HOLDING = 2
    LEAVING = 3

    @property
    def text(self) -> str:
        """For people: idle, running, holding or leaving."""
        return self.name.lower()
