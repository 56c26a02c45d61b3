"""How many actions of a chunk are executed before planning again (Dai et al. §3.1).

A horizon policy sees the updates of the sampler, the chunk, and what the previous chunk would have
done at the same control periods; it answers with a length and says why.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.spec import build_policy, split_spec

DEFAULT_SURPRISED_HORIZON = 10
"""Most actions of a chunk that a surprised arm asked for: something has moved it, so that what
undisturbed episodes say of the round does not hold, and may still move it."""

DEFAULT_H_MIN = 5
"""Fewest actions executed per round: the smallest static horizon that we evaluate."""

ENTRY_POINT_GROUP = "kairos_ros.horizon"

CALIBRATED = "calibrated"
TUNED, SLACK = "static:tuned", "static:slack"
"""Horizon policies that a calibration of the served policy stands for (`calibration.py`)."""

AUTO = "auto"
"""`calibrated` where there is a calibration of the served policy, UNCALIBRATED elsewhere."""
UNCALIBRATED = "tail_agreement:t=0.8,h_min=5"

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class HorizonContext:
    """What a policy may know beside the chunk itself."""

    task: str = ""
    round: int = 0
    """Of the task, counted from 1 as on the wire; 0: not known."""
    tail: Floats | None = None
    """[M, D], units of the chunk: what the previous chunk, executed or not, would have done from
    the new observation on. tail[i] and chunk[i] are for the same control period. None or M = 0
    where there is nothing left to compare."""
    scale: Floats | None = None
    """[D], chunk units per normalised unit (for example the action standard deviation), so that
    thresholds mean the same for radians and for gripper percent. None: the chunk is normalised."""
    instruction: str = ""
    """What the task is known by if not by `task`."""
    cut: bool = False
    """The chunk lacks its first actions, and may be shorter than others of its policy."""
    task_id: str = ""
    """Which task of which robot, the same in all of its rounds; empty: not known."""
    state: Floats | None = None
    """[S], the observation's state that the chunk was made from, as the robot sent it; None: not
    known."""
    lead: int = 0
    """The most actions that the robot executed in this task from an observation until the chunk
    made from it; 0: it waited, or has not asked before."""
    surprised: bool = False
    """The robot asks early, because its arm did not move as the actions say (`surprise.py`)."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """The decision: execute the first `length` of N actions."""

    length: int
    confidence: NDArray[np.float32]
    """[N] in [0, 1], 1 = sure. Comparable within one policy only."""
    reason: str
    """One line for an operator: why the horizon ends where it does."""


@runtime_checkable
class HorizonPolicy(Protocol):
    """Maps one chunk's sampler updates to its horizon. Pure: same input, same answer.

    updates: [K, N, D'], the change that step k of K applied to action i, in model space (D' may
    differ from the chunk's D); K is 0 for a policy that answers at once. chunk: [N, D]. Both
    finite. One that cannot judge fewer than so many steps may say so in `min_steps`.
    Raises PolicyError when the input cannot be judged; never guesses.
    """

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon: ...


@dataclass(frozen=True, slots=True)
class Static:
    """Always the first `h` actions, whatever the updates say. Raises PolicyError when h > N, unless
    the chunk is `cut`: that one is executed whole."""

    h: int = 10

    def __post_init__(self) -> None:
        _check_count("static", "h", self.h, 1)

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        n = _chunk(chunk).shape[0]
        if self.h > n and not context.cut:
            raise PolicyError(f"static: h={self.h} exceeds the chunk of {n} actions; use h<={n}")
        confidence = np.zeros(n, np.float32)
        confidence[: self.h] = 1.0
        return Horizon(min(self.h, n), confidence, f"static {self.h} of {n}")


@dataclass(frozen=True, slots=True)
class Confidence:
    """Stops at the first action that the last sampler step still revises much (Dai et al. §3.1).

    With m(k, i) = ‖U[k, i]‖, walks i = 1, 2, … and stops at the first i with
    m(K, i) > (1 + t) · mean(m(1..K−1, i)); H = max(i − 1, h_min), at most N. No such i: H = N.
    An h_min beyond the chunk executes it whole.
    """

    t: float = 0.4
    h_min: int = DEFAULT_H_MIN
    min_steps: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.t) and self.t > -1):
            raise ConfigError(f"confidence: t must be a finite number above -1, not {self.t}")
        _check_count("confidence", "h_min", self.h_min, 0)

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        n = _chunk(chunk).shape[0]
        final, earlier = _magnitudes(updates, n)
        ratio = _ratio(final, earlier)
        unsure = final > (1.0 + self.t) * earlier
        stop = _first(unsure)
        length = min(max(n if stop is None else stop, self.h_min), n)
        if stop is None:
            reason = f"all {n} actions converged (t={self.t:g})"
        else:
            held = f", held at h_min={length}" if stop < length else ""
            reason = (
                f"action {stop + 1} still moves {ratio[stop]:.2f} x its mean "
                f"(limit {1 + self.t:.2f}){held}"
            )
        return Horizon(length, (1.0 / (1.0 + ratio)).astype(np.float32), reason)


@dataclass(frozen=True, slots=True)
class TailAgreement:
    """Stops where the chunk departs from the still unexecuted tail of the previous one.

    Distance of two actions: Euclidean norm of their difference in normalised units
    (`HorizonContext.scale`). Walks while it is at most t; beyond the tail nothing is confirmed, so
    H is at most the tail's length, at least h_min, at most N. Without a tail: h_min.
    """

    t: float = 0.8
    h_min: int = DEFAULT_H_MIN

    def __post_init__(self) -> None:
        if not (math.isfinite(self.t) and self.t >= 0):
            raise ConfigError(f"tail_agreement: t must be finite and not negative, not {self.t}")
        _check_count("tail_agreement", "h_min", self.h_min, 0)

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        chunk = _chunk(chunk)
        n = chunk.shape[0]
        floor = min(self.h_min, n)
        confidence = np.zeros(n, np.float32)
        if context.tail is None or len(context.tail) == 0:
            confidence[:floor] = 1.0
            return Horizon(floor, confidence, f"no previous chunk to compare with, h_min={floor}")
        distance = tail_distance(chunk, context.tail, context.scale)
        confidence[: distance.size] = 1.0 / (1.0 + distance)
        stop = _first(distance > self.t)
        if stop is None:
            length = max(distance.size, floor)
            reason = f"agrees with all {distance.size} remaining actions of the previous chunk"
        else:
            length = max(stop, floor)
            held = f", held at h_min={length}" if stop < length else ""
            reason = (
                f"action {stop + 1} is {distance[stop]:.2f} from the previous chunk "
                f"(limit {self.t:.2f}){held}"
            )
        return Horizon(length, confidence, reason)


@dataclass(frozen=True, slots=True)
class Explore:
    """In a share of the tasks a static horizon, drawn once per task; `base` in all others.

    For tasks that may fail. Which task tries what depends on nothing but its identity, so the tasks
    of every horizon are a random sample. Raises ConfigError for a share outside (0, 1].
    """

    share: float
    base: HorizonPolicy
    tried: ClassVar[tuple[int, ...]] = (5, 10, 15, 20, 30, 40, 50)
    """As far as the chunk is so long."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"explore: the share of tasks must be in (0, 1], not {self.share}")

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        digest = hashlib.sha256(context.task_id.encode()).digest()
        drawn = int.from_bytes(digest[:8], "big") / 2**64
        if not context.task_id or drawn >= self.share:
            return self.base(updates, chunk, context)
        n = len(_chunk(chunk))
        tried = [h for h in self.tried if h <= n] or [n]
        h = tried[int.from_bytes(digest[8:16], "big") % len(tried)]
        confidence = np.zeros(n, np.float32)
        confidence[:h] = 1.0
        return Horizon(h, confidence, f"explores static {h} in this task")


BUILTIN: dict[str, Callable[..., HorizonPolicy]] = {
    "static": Static,
    "confidence": Confidence,
    "tail_agreement": TailAgreement,
}


def parse_horizon(
    text: str, calibrated: Mapping[str, HorizonPolicy] | None = None
) -> HorizonPolicy:
    """Builds the policy named by, for example, `static:10`, `confidence:t=0.4,h_min=5` or `auto`.

    `calibrated`: what `calibrated`, `static:tuned` and `static:slack` stand for, where there is a
    calibration (`HorizonCalibration.policies`). Names that are not built in are looked up in entry
    point group `kairos_ros.horizon`.
    Raises ConfigError, also for h_min=0: a robot that executes nothing never gets anywhere.
    """
    calibrated = calibrated or {}

    def of_calibration() -> HorizonPolicy:
        if CALIBRATED not in calibrated:
            raise ConfigError(
                "horizon policy 'calibrated' needs a calibration of the served policy; make one "
                "with 'kairos calibrate', or use another horizon policy"
            )
        return calibrated[CALIBRATED]

    name, options = split_spec(text)
    tuned = f"{name}:{options.get('', options.get('h'))}" if len(options) == 1 else ""
    if tuned in (TUNED, SLACK):
        if tuned not in calibrated:
            raise ConfigError(
                f"horizon policy {tuned!r} needs static horizons tuned for the served policy; "
                "run 'kairos calibrate' (--static-only adds them to a calibration that has none), "
                "or use another horizon policy"
            )
        return calibrated[tuned]

    def auto() -> HorizonPolicy:
        return parse_horizon(CALIBRATED if CALIBRATED in calibrated else UNCALIBRATED, calibrated)

    def explore(share: float = 0.1) -> HorizonPolicy:
        return Explore(share, auto())

    known = {**BUILTIN, CALIBRATED: of_calibration, AUTO: auto, "explore": explore}
    policy = cast(HorizonPolicy, build_policy(text, known, ENTRY_POINT_GROUP))
    if getattr(policy, "h_min", 1) < 1:
        raise ConfigError(f"{text!r}: a robot must execute at least one action; use h_min>=1")
    return policy


def decide(
    policy: HorizonPolicy, name: str, updates: Floats, chunk: Floats, context: HorizonContext
) -> Horizon:
    """What `policy`, which `name` names and which may be a plug-in, answers to this chunk.

    Raises PolicyError, also where it raises anything else or answers what cannot be executed.
    """
    n = len(chunk)
    try:
        horizon = policy(updates, chunk, context)
        length, confidence = horizon.length, np.asarray(horizon.confidence)
        sound = type(length) is int and 1 <= length <= n and isinstance(horizon.reason, str)
        of_each = confidence.shape == (n,)
        sound = sound and of_each and bool(((confidence >= 0) & (confidence <= 1)).all())
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"horizon policy {name!r}: {type(error).__name__}: {error}") from error
    if not sound:
        raise PolicyError(
            f"horizon policy {name!r} must answer a length from 1 to {n}, not {length!r}, with a "
            f"confidence in [0, 1] for each of {n} actions and a reason"
        )
    return horizon


def after_surprise(horizon: Horizon, most: int, context: HorizonContext) -> Horizon:
    """`horizon`; of an arm that was surprised its first `most` actions, 0 for no such limit."""
    if not context.surprised or not 0 < most < horizon.length:
        return horizon
    return replace(horizon, length=most, reason=f"{horizon.reason}; {most} after a surprise")


def stays(length: int, reason: str) -> bool:
    """Whether a horizon of so many actions, with this reason, is that of every round of its task,
    whatever happens in it: those of `static`, of experiments, and of plans that have one horizon
    say so."""
    return re.search(rf"\bstatic {length}\b", reason) is not None


def require_steps(horizon: HorizonPolicy, text: str, steps: int, policy: str) -> None:
    """Raises ConfigError where `horizon`, which `text` names, cannot judge chunks of `policy`,
    whose sampler makes so many steps."""
    needed = getattr(horizon, "min_steps", 0)
    if steps < needed:
        raise ConfigError(
            f"horizon policy {text!r} judges by at least {needed} sampler steps, and {policy} "
            f"makes {steps}; use static:H, tail_agreement or calibrated"
        )


def update_ratio(updates: Floats) -> NDArray[np.float64]:
    """Size of the last update over the mean size of the earlier ones, per action (Dai et al. §3.1).

    updates: [K, N, D], K >= 2. Returns [N]; 0 where nothing moved at all, inf where only the last
    step moved. Raises PolicyError for other shapes and for values that are not finite.
    """
    return _ratio(*_magnitudes(updates, None))


def _ratio(final: NDArray[np.float64], earlier: NDArray[np.float64]) -> NDArray[np.float64]:
    still = np.where(final > 0, np.inf, 0.0)
    np.divide(final, earlier, out=still, where=earlier > 0)
    return still


def _magnitudes(updates: Floats, n: int | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(m(K, ·), mean of m(1..K−1, ·)), each [N]."""
    updates = np.asarray(updates, np.float64)
    if updates.ndim != 3 or updates.shape[1] == 0 or updates.shape[2] == 0:
        raise PolicyError(f"updates must be [steps, actions, dims], not of shape {updates.shape}")
    if n is not None and updates.shape[1] != n:
        raise PolicyError(f"updates are for {updates.shape[1]} actions, the chunk has {n}")
    if updates.shape[0] < 2:
        raise PolicyError(
            f"confidence needs the updates of at least 2 sampler steps, got {updates.shape[0]}; "
            "use static:H, tail_agreement or calibrated, or sample with more steps"
        )
    size = np.linalg.norm(updates, axis=2)
    if not np.isfinite(size).all():
        raise PolicyError(f"updates of action {_worst(size) + 1} are not finite")
    return size[-1], size[:-1].mean(axis=0)


def _worst(size: NDArray[np.float64]) -> int:
    return int(np.flatnonzero(~np.isfinite(size).all(axis=0))[0])


def tail_distance(chunk: Floats, tail: Floats, scale: Floats | None) -> NDArray[np.float64]:
    """Distance of each action to the previous chunk's, Euclidean in normalised units, [overlap].

    Shapes as in `HorizonContext`. Raises PolicyError for others, and for what is not finite.
    """
    tail = np.asarray(tail)
    if tail.ndim != 2 or tail.shape[1] != chunk.shape[1]:
        raise PolicyError(
            f"tail must be [actions, {chunk.shape[1]}] as the chunk, not of shape {tail.shape}"
        )
    overlap = min(len(tail), len(chunk))
    difference = np.subtract(chunk[:overlap], tail[:overlap], dtype=np.float64)
    if scale is not None:
        scale = np.asarray(scale)
        if scale.shape != (chunk.shape[1],) or not (np.isfinite(scale) & (scale > 0)).all():
            raise PolicyError(f"scale must be {chunk.shape[1]} positive numbers, not {scale}")
        difference = difference / scale
    distance: NDArray[np.float64] = np.linalg.norm(difference, axis=1)
    if not np.isfinite(distance).all():
        raise PolicyError("the chunk or the previous chunk's tail is not finite")
    return distance


def _chunk(chunk: Floats) -> Floats:
    chunk = np.asarray(chunk)
    if chunk.ndim != 2 or 0 in chunk.shape:
        raise PolicyError(f"chunk must be [actions, dims], not of shape {chunk.shape}")
    return chunk


def _first(flags: NDArray[np.bool_]) -> int | None:
    return int(flags.argmax()) if flags.any() else None


def _check_count(policy: str, option: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{policy}: {option} must be a whole number >= {least}, not {value!r}")
