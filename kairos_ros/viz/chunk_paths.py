"""The newest chunks of a robot, put together from what its topics say of them."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.viz.bodies import Body

REMEMBERED = 4
"""Rounds. The one that is executed, the one after it, and some that came early."""
Key = tuple[str, str, int]
"""Session, task, round."""


@dataclass(slots=True)
class _Parts:
    states: dict[int, np.ndarray] = field(default_factory=dict)
    """Attempt -> the observed state that the request sent."""
    attempt: int = -1
    """Of the observation that the actions were made from."""
    actions: np.ndarray | None = None
    confidence: np.ndarray | None = None
    reason: str = ""
    whole: tuple[int, np.ndarray] | None = None
    """Attempt, and the chunk before it was trimmed."""
    drawn: "ChunkPath | None" = None


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """One chunk in space, for each of a robot's T tools (see `Body.paths`)."""

    round: int
    points: np.ndarray
    """float64 [T, N + 1, 3] in m, in the robot's base frame."""
    horizon: int
    """Actions that were sent; the rest of the N was trimmed away."""
    confidence: np.ndarray
    """float64 [horizon], 0 to 1."""
    reason: str
    """Why it ends there."""


class ChunkPaths:
    """Of one robot: takes requests, answers and whole chunks in any order."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Key, _Parts] = OrderedDict()

    def requested(self, key: Key, attempt: int, state: np.ndarray) -> None:
        parts = self._of(key)
        parts.states[attempt] = state
        parts.drawn = None

    def answered(
        self, key: Key, attempt: int, actions: np.ndarray, confidence: np.ndarray, reason: str
    ) -> None:
        """actions: [horizon, D]. confidence: [horizon], or of another length where unknown."""
        parts = self._of(key)
        parts.attempt, parts.actions, parts.reason = attempt, actions, reason
        known = len(confidence) == len(actions)
        parts.confidence = np.clip(confidence, 0, 1) if known else np.ones(len(actions))
        parts.drawn = None

    def whole(self, key: Key, attempt: int, chunk: np.ndarray) -> None:
        """chunk: [N, D], before it was trimmed."""
        parts = self._of(key)
        parts.whole = attempt, chunk
        parts.drawn = None

    def path(self, key: Key, body: Body) -> ChunkPath | None:
        """Of one round; None before all of it is known, and where the body cannot tell."""
        parts = self._parts.get(key)
        if parts is None or parts.actions is None or parts.attempt not in parts.states:
            return None
        if parts.drawn is None:
            parts.drawn = self._draw(key[2], parts, body)
        return parts.drawn

    @staticmethod
    def _draw(round: int, parts: _Parts, body: Body) -> ChunkPath | None:
        assert parts.actions is not None
        assert parts.confidence is not None
        actions = parts.actions
        if parts.whole is not None and parts.whole[0] == parts.attempt:
            whole = parts.whole[1]
            if whole.shape[1] == actions.shape[1] and len(whole) > len(actions):
                actions = np.vstack([actions, whole[len(actions) :]])
        points = body.paths(parts.states[parts.attempt], actions)
        if points is None or not np.isfinite(points).all():
            return None
        return ChunkPath(round, points, len(parts.actions), parts.confidence, parts.reason)

    def _of(self, key: Key) -> _Parts:
        if key not in self._parts:
            self._parts[key] = _Parts()
            while len(self._parts) > REMEMBERED:
                self._parts.popitem(last=False)
        return self._parts[key]
