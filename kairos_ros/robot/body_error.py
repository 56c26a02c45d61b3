"""A body that cannot go on: the arm holds or is let go, and the task fails with the reason."""

from kairos_ros.core.errors import KairosError


class BodyError(KairosError):
    """Raised by an adapter from any of its methods. Nothing moves before a new task resets it."""

    def __init__(self, reason: str, text: str, *, passes: bool = False) -> None:
        """reason: a few words it is counted by in /diagnostics, such as `stale joint states`.
        passes: it may be over by itself, so that a robot without a task is asked again instead of
        being left alone."""
        super().__init__(text)
        self.reason = reason
        self.passes = passes
