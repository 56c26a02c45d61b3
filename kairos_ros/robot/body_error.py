"""A body that cannot go on: the arm holds or is let go, and the task fails with the reason."""

import logging
from collections import Counter

from kairos_ros.core.errors import KairosError

log = logging.getLogger(__name__)


class BodyError(KairosError):
    """Raised by an adapter from any of its methods. Nothing moves before a new task resets it."""

    def __init__(self, reason: str, text: str, *, passes: bool = False) -> None:
        """reason: a few words it is counted by in /diagnostics, such as `stale joint states`.
        passes: it may be over by itself, so that a robot without a task is asked again instead of
        being left alone."""
        super().__init__(text)
        self.reason = reason
        self.passes = passes


class BodyCondition:
    """What a robot knows of its body. Used in the control thread only."""

    def __init__(self) -> None:
        self.is_ready = False
        """It was reset once, has not failed since, and is ours to hold."""
        self.fault = ""
        """Why nothing moves before the next task; empty: it has not failed."""
        self.faults: Counter[str] = Counter()
        """By reason."""
        self.absence = ""
        """Why the body of an idle robot cannot be used just now."""
        self.absences: Counter[str] = Counter()

    def was_reset(self) -> None:
        self.is_ready = True
        self.fault = self.absence = ""

    def failed(self, error: KairosError) -> None:
        log.error("the body failed: %s", error)
        self.is_ready, self.absence = False, ""
        self.fault = str(error)
        self.faults[error.reason if isinstance(error, BodyError) else "other"] += 1

    def is_absent(self, error: BodyError) -> None:
        """Nothing is to be done, and the next task looks at the body anew."""
        if not self.absence:
            log.warning("idle, and a task would fail now: %s", error)
            self.absences[error.reason] += 1
        self.absence = str(error)

    def is_back(self) -> None:
        """It held its position, so that it can be used."""
        if self.absence:
            log.info("the body can be used again")
            self.absence = ""
