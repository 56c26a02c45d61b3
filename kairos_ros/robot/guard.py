"""The action guard: the last check before an action reaches the arm. Clips to limits, refuses NaN.

For every action dimension the limits form an interval, and the action is clipped to each in turn;
where they contradict each other the later one wins, so that stopping at the workspace's wall
outranks smoothness:

1. rate: `|value - previous value| * control rate <= max_rate`. For a dimension that commands a
   position this limits its velocity, for one that commands a displacement or a velocity it limits
   how fast that changes. It holds across chunks.
2. range: `minimum <= value <= maximum`. From outside, where a task began or the limits changed, it
   is entered at the largest rate.
3. workspace: `low <= state[i] + scale * value <= high`, for dimensions that command displacements.
   From outside, motion back in is free and motion further out is 0.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.errors import ConfigError

DISPLACES = -1
"""A displacement or a velocity: 0 while the arm holds."""
LASTS = -2
"""A level that the arm keeps while it holds, such as a gripper's force."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A box, in the unit of the state, that displacements must not leave."""

    action: Sequence[int]
    """Action dimensions that displace."""
    state: Sequence[int]
    """State entry that each of them moves."""
    scale: float
    """Motion of the state per unit of action."""
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits per action dimension, in the robot's own units; an empty list is no limit."""

    minimum: Sequence[float] = ()
    maximum: Sequence[float] = ()
    max_rate: Sequence[float] = ()
    """Largest change of each value, per second."""
    measured_by: Sequence[int] = ()
    """State entry that tells where each dimension is when a task starts, or one of the constants
    below, which start from 0; an empty list is `DISPLACES` for all."""
    workspace: Workspace | None = None
    tolerance: float = 0.0
    """Changes up to this are made but not counted: a policy trained on saturated actions overshoots
    its limits by a little all the time."""


def tightened(body: GuardLimits, more: GuardLimits) -> GuardLimits:
    """What both allow. Workspace and tolerance are those of `more`, and so is a list of another
    length than the body's: `ActionGuard` refuses it with the reason."""

    def both(one: Sequence[float], other: Sequence[float], pick: Callable) -> Sequence[float]:
        if len(one) != len(other):
            return other or one
        return [float(value) for value in pick(one, other)]

    return GuardLimits(
        minimum=both(body.minimum, more.minimum, np.maximum),
        maximum=both(body.maximum, more.maximum, np.minimum),
        max_rate=both(body.max_rate, more.max_rate, np.minimum),
        measured_by=more.measured_by or body.measured_by,
        workspace=more.workspace,
        tolerance=more.tolerance,
    )


def require_tighter(before: GuardLimits, after: GuardLimits) -> None:
    """Raises ConfigError where `after` allows what `before` does not."""
    for name, looser in (("minimum", np.less), ("maximum", np.greater), ("max_rate", np.greater)):
        old, new = getattr(before, name), getattr(after, name)
        if len(old) and (len(new) != len(old) or looser(new, old).any()):
            raise ConfigError(
                f"guard {name} would go from {list(old)} to {list(new)} during a task: limits may "
                "only become tighter then"
            )
    for name in ("measured_by", "workspace", "tolerance"):
        if getattr(before, name) != getattr(after, name):
            raise ConfigError(f"guard {name} can be changed between tasks only")


class ActionGuard:
    """Checks the actions of one robot, in order. Not shared between threads.

    Raises ConfigError for limits that do not fit the robot or contradict themselves.
    """

    def __init__(
        self, limits: GuardLimits, action_dim: int, state_dim: int, control_rate_hz: float
    ) -> None:
        self._action_dim, self._state_dim = action_dim, state_dim
        self._control_rate_hz = control_rate_hz
        self._previous: np.ndarray = np.zeros(action_dim)
        self.limit(limits)
        self.counts: Counter[str] = Counter()
        """Actions changed, by the limit that changed them, and `not_finite` ones refused."""
        self.guarded = 0
        """Actions changed or refused, each counted once."""

    def limit(self, limits: GuardLimits) -> None:
        """Other limits from now on. Raises ConfigError as at construction, and changes nothing."""
        self.check_limits(limits)
        action_dim = self._action_dim
        self._low = _vector(limits.minimum, action_dim, -np.inf)
        self._high = _vector(limits.maximum, action_dim, np.inf)
        self._step = _vector(limits.max_rate, action_dim, np.inf) / self._control_rate_hz
        self._measured_by = _vector(limits.measured_by, action_dim, DISPLACES).astype(int)
        self._workspace = limits.workspace
        self._tolerance = limits.tolerance

    def check_limits(self, limits: GuardLimits) -> None:
        """Raises ConfigError for limits that do not fit the robot or contradict themselves."""
        _check(limits, self._action_dim, self._state_dim)

    def reset(self, state: np.ndarray) -> None:
        """A task begins with the arm at `state`, float32 [state_dim]."""
        self._previous = np.where(
            self._measured_by >= 0, state[np.maximum(self._measured_by, 0)], 0.0
        )

    def held(self) -> None:
        """The arm holds: displacements and velocities are 0, all else stays as commanded."""
        self._previous[self._measured_by == DISPLACES] = 0.0

    def check(self, action: np.ndarray, state: Callable[[], np.ndarray]) -> np.ndarray | None:
        """The action to execute, float32 [action_dim], or None for NaN or infinity.

        `state` is read only where a workspace is configured. A state that is not finite there lets
        nothing through.
        """
        if not np.isfinite(action).all():
            self._refuse()
            return None
        wanted = action.astype(np.float64)
        least, most = self._previous - self._step, self._previous + self._step
        value = self._clip("rate", wanted, least, most)
        low, high = np.minimum(self._low, most), np.maximum(self._high, least)
        value = self._clip("range", value, low, high)
        if self._workspace is not None:
            low, high = _room(self._workspace, state())
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                self._refuse()
                return None
            index = list(self._workspace.action)
            value[index] = self._clip("workspace", value[index], low, high)
        self._previous = value
        self.guarded += self._differ(value, wanted)
        return value.astype(np.float32)

    def _clip(self, limit: str, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        clipped = np.clip(value, low, high)
        self.counts[limit] += self._differ(clipped, value)
        return clipped

    def _differ(self, one: np.ndarray, other: np.ndarray) -> bool:
        return bool((np.abs(one - other) > self._tolerance).any())

    def _refuse(self) -> None:
        self.counts["not_finite"] += 1
        self.guarded += 1


def _room(workspace: Workspace, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest allowed displacement, in action units."""
    at = state[list(workspace.state)].astype(np.float64)
    to_low = (np.asarray(workspace.low) - at) / workspace.scale
    to_high = (np.asarray(workspace.high) - at) / workspace.scale
    return np.minimum(to_low, 0.0), np.maximum(to_high, 0.0)


def _vector(values: Sequence[float], size: int, default: float) -> np.ndarray:
    return np.asarray(values, np.float64) if len(values) else np.full(size, float(default))


def _check(limits: GuardLimits, action_dim: int, state_dim: int) -> None:
    """Raises ConfigError with the first thing that is wrong."""
    for name in ("minimum", "maximum", "max_rate", "measured_by"):
        values = getattr(limits, name)
        if len(values) not in (0, action_dim):
            raise ConfigError(
                f"guard {name} has {len(values)} values {list(values)}; the robot has {action_dim} "
                "action dimensions (give one each, or none for no limit)"
            )
        if np.isnan(values).any():
            raise ConfigError(f"guard {name} is {list(values)}; NaN is no limit, use .inf")
    if any(low > high for low, high in zip(limits.minimum, limits.maximum, strict=False)):
        raise ConfigError(
            f"guard minimum {list(limits.minimum)} is above maximum {list(limits.maximum)}"
        )
    if any(rate <= 0 for rate in limits.max_rate):
        raise ConfigError(f"guard max_rate is {list(limits.max_rate)}; it must be above 0")
    if any(not LASTS <= index < state_dim for index in limits.measured_by):
        raise ConfigError(
            f"guard measured_by is {list(limits.measured_by)}; give state entries 0 to "
            f"{state_dim - 1}, {DISPLACES} (displacement) or {LASTS} (lasts while holding)"
        )
    if not limits.tolerance >= 0:
        raise ConfigError(f"guard tolerance is {limits.tolerance}; it must be 0 or more")
    if limits.workspace is not None:
        _check_workspace(limits.workspace, action_dim, state_dim)


def _check_workspace(box: Workspace, action_dim: int, state_dim: int) -> None:
    lengths = {len(box.action), len(box.state), len(box.low), len(box.high)}
    if len(lengths) != 1:
        raise ConfigError(
            f"guard workspace: action {list(box.action)}, state {list(box.state)}, low "
            f"{list(box.low)} and high {list(box.high)} must be of one length"
        )
    if any(not 0 <= i < action_dim for i in box.action) or len(set(box.action)) < len(box.action):
        raise ConfigError(
            f"guard workspace action is {list(box.action)}; give different dimensions from 0 to "
            f"{action_dim - 1}"
        )
    if any(not 0 <= i < state_dim for i in box.state):
        raise ConfigError(
            f"guard workspace state is {list(box.state)}; give entries from 0 to {state_dim - 1}"
        )
    if not (np.isfinite(box.scale) and box.scale > 0):
        raise ConfigError(f"guard workspace scale is {box.scale}; it must be above 0")
    if not np.less_equal(box.low, box.high).all():
        raise ConfigError(
            f"guard workspace low {list(box.low)} must not be above high {list(box.high)}"
        )
