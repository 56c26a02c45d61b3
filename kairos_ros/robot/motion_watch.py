"""Whether the body moves as it was told: compared in every control period of a task."""

import math

import numpy as np

from kairos_ros.core.execution.early_request import CALM, Surprise
from kairos_ros.core.horizons.surprise import Joint, SurpriseWatch, Trigger
from kairos_ros.robot.guard import GuardLimits


class MotionWatch:
    """Compares what the body was told with what it does, and when to ask early, or to stop."""

    def __init__(self, watch: SurpriseWatch, hold_ns: int = 0) -> None:
        """hold_ns: a surprise that lasts for so long is a contact; 0: none is."""
        self._watch, self._hold_ns = watch, hold_ns
        self._trigger = Trigger(watch)
        self._since_ns: int | None = None  # of a surprise that lasts
        self.settle = watch.settle
        self.early = 0
        """Rounds asked for early, in the session."""
        self._departs = ""  # the joint, of the surprise that lasts, or else now
        self._failed = ""
        """Why there is no score until the next reset."""
        self.surprise = CALM
        """The newest one."""
        self.asks = False
        """Early, now."""

    @property
    def unusable(self) -> int:
        """Periods whose measurement was not finite."""
        return self._watch.unusable

    def begin(self) -> None:
        """The body was reset."""
        self._failed = ""
        try:
            self._watch.begin()
        except Exception as error:  # of a plug-in: whatever it raises
            self._failed = _raised(error)
        self._trigger = Trigger(self._watch)
        self._since_ns, self.surprise, self.asks = None, CALM, False

    def look(self, action: np.ndarray | None, state: np.ndarray, now_ns: int) -> str:
        """action: executed in the period that ends now; None: the body held. state: measured now.
        Returns why the task must end, for people; empty while it may go on. A rule that fails ends
        it, too: a contact would not be noticed."""
        score = self._score(action, state)
        if score is None:
            self.surprise, self.asks = CALM, False
            return f"failed: {self._failed}"
        if self._since_ns is None or score > self._watch.threshold:
            self._departs = self._watch.joint
        peak = self._trigger.step(score)
        self.asks = peak > 0
        self.surprise = Surprise(peak or score, self._departs)
        if score <= self._watch.threshold:
            self._since_ns = None
            return ""
        if self._since_ns is None:
            self._since_ns = now_ns
        lasted_ns = now_ns - self._since_ns
        if not self._hold_ns or lasted_ns < self._hold_ns:
            return ""
        return (
            f"failed: contact: {self._watch.joint} has not moved as its actions say for "
            f"{lasted_ns / 1e9:.2f} s (surprise {score:.1f}, threshold {self._watch.threshold:g})"
        )

    def _score(self, action: np.ndarray | None, state: np.ndarray) -> float | None:
        """Of this period; None where the rule gives none, and `_failed` says why."""
        if self._failed:
            return None
        try:
            score = float(self._watch.step(action, state))
        except Exception as error:  # of a plug-in: whatever it raises
            self._failed = _raised(error)
            return None
        if not 0.0 <= score < math.inf:
            self._failed = f"the surprise rule scored {score:g}, which is no number from 0 up"
            return None
        return score


def _raised(error: Exception) -> str:
    return f"the surprise rule raised {type(error).__name__}: {error}"


def watched_joints(limits: GuardLimits, state_names: tuple[str, ...]) -> list[Joint]:
    """What the limits of the guard say of how actions move the state: positions by `measured_by`,
    displacements by the workspace. Without names, a joint is called by its entry of the state."""

    def name(state: int) -> str:
        return state_names[state] if state < len(state_names) else f"state_{state}"

    joints = [
        Joint(name(state), action, state, position=True)
        for action, state in enumerate(limits.measured_by)
        if state >= 0
    ]
    if (box := limits.workspace) is not None:
        joints += [
            Joint(name(state), action, state, position=False)
            for action, state in zip(box.action, box.state, strict=True)
        ]
    return joints
