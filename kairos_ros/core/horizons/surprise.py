"""Whether an arm moves as its actions say, step by step: a rule to ask early by.

A horizon policy decides once per chunk how long it is executed. What happens meanwhile it cannot
know. A surprise rule compares, in every control period, the motion that was commanded with the one
that was achieved, and says how far they depart.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.spec import build_policy

ENTRY_POINT_GROUP = "kairos_ros.surprise"
CLIP = 10.0
"""Robust standard deviations; more count as so many."""
WINSOR = 4.0
"""So many of them an error counts at most where the rule learns from it: a push teaches little."""
BEFORE = 3
"""Positions before a step that its motion is predicted from."""
BLOCK = 64
"""Compared steps that it learns from at once."""
READY = 128
"""Steps of motion after which a joint is scored: about four seconds at 30 Hz."""
SPREAD_STEPS = 512
"""That the undisturbed spread is averaged over, with falling weights."""
FORGET = 0.998
"""Of the response, per step: a payload or a warm gearbox is learned anew."""
RIDGE = 1e-3
"""On the diagonal of the least squares, relative to it."""
FLOOR = 0.01
"""Of a joint's typical motion in one period: also an arm that follows perfectly has some spread."""
LEAST_SPREAD = 1e-100
"""Far below what a float32 can tell: its inverse is finite."""
MEAN_ABS = 1.2533
"""Standard deviation over mean magnitude, of a normal distribution."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Joint:
    """One motion that is commanded and measured."""

    name: str
    action: int
    """Entry of the action that commands it."""
    state: int
    """Entry of the state that measures it."""
    position: bool
    """The action says where it shall be; else how far, or how fast, it shall move."""


class SurpriseWatch(Protocol):
    """Follows one arm. No clock, no I/O: what it says depends on what it was told only."""

    threshold: float
    """A larger score is a surprise."""
    settle: int
    """Actions of a chunk that are executed before it may be given up."""
    wait: int
    """Control periods after which a surprise that has not ended is acted on."""
    unusable: int
    """Steps with numbers that were not finite: they are no surprise, and teach nothing."""
    joint: str
    """That departs most by the newest score; empty where nothing was compared."""

    def step(self, action: NDArray[Any] | None, state: NDArray[Any]) -> float:
        """How far the arm departs from its actions now, 0 to `CLIP`; 0 where nothing is compared.

        action: [action_dim], executed in the control period that ends; None: the arm held.
        state: [state_dim], as measured at its end.
        """

    def twin(self) -> "SurpriseWatch":
        """Another one for an equal arm, which knows as much and learns by itself from there."""

    def begin(self) -> None:
        """The body was moved otherwise, or not watched, since the last step: no motion is compared
        across that. What was learned of the arm stays."""


class SurpriseRule(Protocol):
    """What one line of text names."""

    def watch(self, joints: Sequence[Joint]) -> SurpriseWatch:
        """Raises ConfigError where it can watch none of them."""


@dataclass(frozen=True, slots=True)
class Tracking:
    """Compares commanded and achieved motion of every joint; nothing is learned beforehand.

    The motion of a joint in one control period is predicted from its command and from its motion in
    the two periods before, by least squares over the motion so far. The error is measured in
    standard deviations of the joint's own errors, from their mean magnitude without outliers,
    clipped to `CLIP`, and averaged with its sign over `mean` steps: contact rattles, a push has a
    direction. The score is that of the joint that departs most.
    """

    threshold: float = 6.0
    settle: int = 1
    wait: int = 5
    mean: int = 3
    skip: str = "gripper"
    """Joints with this in their names are not watched; `none`: all are. A gripper that closes on an
    object stops short by design."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < CLIP:
            raise ConfigError(
                f"tracking: threshold is above 0 and below {CLIP:g}, where scores end, not "
                f"{self.threshold:g}"
            )
        if self.settle < 1 or self.wait < 1 or not 1 <= self.mean <= 100:
            raise ConfigError(
                "tracking: settle and wait are at least 1, and mean from 1 to 100, not "
                f"settle={self.settle},wait={self.wait},mean={self.mean}"
            )

    def watch(self, joints: Sequence[Joint]) -> "TrackingWatch":
        """See `SurpriseRule`."""
        skip = "" if self.skip == "none" else self.skip
        watched = [joint for joint in joints if not (skip and skip in joint.name)]
        if not watched:
            raise ConfigError(
                "surprise: it is not known which entries of the state the actions move; say so in "
                "guard.measured_by (positions) or guard.workspace (displacements)"
            )
        return TrackingWatch(self, watched)


BUILTIN = {"tracking": Tracking}


def parse_surprise(text: str) -> SurpriseRule:
    """Builds the rule that `text` names, such as `tracking:threshold=6`.

    Raises ConfigError for an unknown rule, an unknown option, or a value that is none.
    """
    rule: SurpriseRule = build_policy(text, BUILTIN, ENTRY_POINT_GROUP)
    return rule


class Trigger:
    """When a surprise is acted on: once it is over, or when it has lasted for a while.

    An observation in the middle of a push shows an arm that is elsewhere when its chunk begins.
    """

    def __init__(self, watch: SurpriseWatch) -> None:
        self._threshold, self._wait = watch.threshold, watch.wait
        self._lasted, self._peak = 0, 0.0

    def step(self, score: float) -> float:
        """score: of this control period. Returns the largest one of the surprise that is acted on
        now; else 0."""
        over = score <= self._threshold
        if not over:
            self._lasted += 1
            self._peak = max(self._peak, score)
        if not self._lasted or (not over and self._lasted < self._wait):
            return 0.0
        peak, self._peak, self._lasted = self._peak, 0.0, 0
        return peak


class TrackingWatch:
    """See `Tracking` and `SurpriseWatch`.

    A step costs two products of a small matrix and a vector: errors, in spreads, are linear in the
    last four positions and the command. What is learned is learned after every `BLOCK` steps.
    """

    def __init__(
        self, rule: Tracking, joints: Sequence[Joint], response: "Response | None" = None
    ) -> None:
        """response: what is known of the arm already; it learns on from there."""
        n = len(joints)
        self._rule, self._joints = rule, joints
        self.threshold, self.settle, self.wait = rule.threshold, rule.settle, rule.wait
        self.unusable = 0
        self.joint = ""
        self._names = [joint.name for joint in joints]
        self._actions = np.array([joint.action for joint in joints])
        self._states = np.array([joint.state for joint in joints])
        self._response = response or Response(np.array([joint.position for joint in joints]))
        self._known = 0  # positions in a row; after three of them, motion is compared
        self._filled = 0  # steps of this block
        places = np.zeros((BEFORE + BLOCK, n))
        commands, last = np.zeros((BLOCK, n)), np.zeros((rule.mean - 1 + BLOCK, n))
        self._places, self._commands, self._last = places, commands, last
        self._newest = [places[i] for i in range(BEFORE, BEFORE + BLOCK)]
        self._four = [places[i : i + BEFORE + 1].reshape(-1) for i in range(BLOCK)]
        self._asked = list(commands)
        self._z = [last[i + rule.mean - 1] for i in range(BLOCK)]
        self._mean_of = [last[i : i + rule.mean] for i in range(BLOCK)]
        self._share = np.full(rule.mean, 1.0 / rule.mean)
        self._most, self._least = np.full(n, CLIP), np.full(n, -CLIP)
        self._by_command, self._mean = np.zeros(n), np.zeros(n)

    def twin(self) -> "TrackingWatch":
        """See `SurpriseWatch`."""
        return TrackingWatch(self._rule, self._joints, deepcopy(self._response))

    def begin(self) -> None:
        """See `SurpriseWatch`."""
        self._learn()
        self._known, self.joint = 0, ""
        self._last[:] = 0.0

    def step(self, action: NDArray[Any] | None, state: NDArray[Any]) -> float:
        """See `SurpriseWatch`."""
        at = self._filled
        place = self._newest[at]
        place[:] = state.take(self._states)
        if action is None or self._known < BEFORE:
            return self._follow(place)
        asked, z, mean = self._asked[at], self._z[at], self._mean
        asked[:] = action.take(self._actions)
        self._response.of_places.dot(self._four[at], z)
        self._response.of_commands.dot(asked, self._by_command)
        np.subtract(z, self._by_command, z)
        if not math.isfinite(z.dot(z)):
            self.unusable += 1
            self.begin()
            return 0.0
        np.minimum(z, self._most, z)
        np.maximum(z, self._least, z)
        self._share.dot(self._mean_of[at], mean)
        np.absolute(mean, mean)
        worst = mean.argmax()
        self.joint = self._names[worst]
        self._filled += 1
        if self._filled == BLOCK:
            self._learn()
        return float(mean[worst])

    def _follow(self, place: Floats) -> float:
        """Notes where the arm is, without a comparison."""
        if not np.isfinite(place).all():
            self.unusable += 1
            self.begin()
            return 0.0
        now = place.copy()
        self._learn()
        self._last[:] = 0.0
        self._places[: BEFORE - 1] = self._places[1:BEFORE]
        self._places[BEFORE - 1] = now
        self._known = min(self._known + 1, BEFORE)
        return 0.0

    def _learn(self) -> None:
        """From the steps of this block; the next one begins where it ends."""
        steps = self._filled
        if not steps:
            return
        self._response.learn(self._places[: BEFORE + steps], self._commands[:steps])
        self._places[:BEFORE] = self._places[steps : BEFORE + steps].copy()
        kept = len(self._last) - BLOCK
        self._last[:kept] = self._last[steps : steps + kept].copy()
        self._filled = 0


class Response:
    """How every joint moves upon its command, and how exactly. Arrays end with [joints].

    motion = weights · (motion one period before, motion two before, command), where the command of
    a joint that is told positions is how far it has to go.
    """

    def __init__(self, position: Floats) -> None:
        """position: bool [joints], as `Joint.position`."""
        n = len(position)
        self._position = position.astype(float)
        self._weights: Floats = np.zeros((3, n))
        self._moments = np.zeros((n, 3, 4))
        self._spread, self._typical = np.zeros(n), np.zeros(n)
        self._moved, self._taken = np.zeros(n, int), np.zeros(n, int)
        joints = np.arange(n)
        self._diagonals = joints, np.arange(BEFORE + 1)[:, None] * n + joints
        self.of_places = np.zeros((n, (BEFORE + 1) * n))
        """[joints, 4 · joints]: errors in spreads by the last four places, oldest first. All zero
        of a joint that was not seen moving long enough."""
        self.of_commands = np.zeros((n, n))
        """[joints, joints]: what the command explains of that, diagonal."""

    def learn(self, places: Floats, commands: Floats) -> None:
        """places: float64 [3 + steps, joints], commands: [steps, joints], consecutive, finite."""
        steps = len(commands)
        motion = np.diff(places, axis=0)
        command = commands - self._position * places[BEFORE - 1 : -1]
        seen = np.stack([motion[1:-1], motion[:-2], command])
        expected = np.einsum("in,ikn->kn", self._weights, seen)
        error = motion[2:] - expected
        bound = np.where(self._taken >= SPREAD_STEPS // 2, WINSOR * self._floored(), np.inf)
        np.minimum(error, bound, error)
        np.maximum(error, -bound, error)
        self._take_scale(error, motion[2:], steps)
        target = np.concatenate([seen, (expected + error)[None]])
        self._moments *= FORGET**steps
        self._moments += np.einsum("ikn,jkn->nij", seen, target)
        self._moved += steps * (self._typical > 0)
        self._fit()

    def _take_scale(self, error: Floats, motion: Floats, steps: int) -> None:
        """Averages magnitudes, the newer the more; once the response is known a little."""
        self._taken += steps * (self._moved >= BLOCK)
        share = steps / np.clip(self._taken, steps, SPREAD_STEPS)
        self._spread += share * (MEAN_ABS * np.abs(error).mean(0) - self._spread)
        self._typical += share * (np.abs(motion).mean(0) - self._typical)

    def _floored(self) -> Floats:
        floored: Floats = np.maximum(self._spread, FLOOR * self._typical)
        return floored

    def _fit(self) -> None:
        squares = self._moments[:, :, :3].copy()
        diagonal = np.diagonal(squares, axis1=1, axis2=2)
        squares += (RIDGE * diagonal + (diagonal == 0))[:, :, None] * np.eye(3)
        fitted = np.linalg.solve(squares, self._moments[:, :, 3:])
        self._weights = fitted[:, :, 0].T.astype(np.float64, order="C")
        one, two, command = self._weights
        spread = self._floored()
        ready = (self._moved >= READY) & (spread > LEAST_SPREAD)
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=ready)
        # what is left to go grows as the place before falls back
        far = self._position * command
        joints, columns = self._diagonals
        weights = np.array([two, one - two, far - one - 1.0, np.ones_like(one)])
        self.of_places[joints, columns] = scale * weights
        self.of_commands[joints, joints] = scale * command
