"""Longer horizons where engines are short: how much of a chunk is executed at least, per task.

A robot that executes more of every chunk asks less often. Where engines are short that is worth the
success that it costs: the floors of the horizons are chosen for the most successful tasks per hour,
success(horizon) · tasks per hour(horizon, load). Success against horizon is what
`kairos calibrate` has measured. Beyond the papers.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.scheduling.rate_control import RELEASE, TARGET_UTILISATION, Floats, fair_level

SAME = 1e-9
"""Relative difference below which two choices are equally good."""

LEAST_GAIN = 0.001
"""Of successes per hour, relative, for which a horizon is changed."""
LOSSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Of success, from which a choice starts."""
MOST_CHANGES = 50
"""Of one kind at a time, in one review."""
MOST_TRIED = 1000
"""Horizons that one step computes: sets of floors, times changes of one kind, times kinds. The more
kinds there are, the fewer sets are begun with."""
ROUNDS_TO_SETTLE = 6
"""Of a fixed point that converges fast."""


@dataclass(frozen=True, slots=True)
class HorizonCurve:
    """What a calibration measured of one kind of task."""

    horizons: tuple[int, ...]
    """Static horizons, ascending."""
    success: tuple[float, ...]
    """Share of episodes that succeeded with each, 0 to 1."""
    actions: float
    """Executed in an episode on average; above 0."""

    def success_at(self, horizon: float) -> float:
        """Linear between what was measured, and constant outside."""
        return float(np.interp(horizon, self.horizons, self.success))


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """Robots that work on tasks of one kind now."""

    robots: float
    horizon: float
    """Actions that the horizon policy allows on average; above 0."""
    period_s: float
    """Control period."""
    latency_s: tuple[float, ...]
    """Of batches of 1, 2, ... robots in the engine."""
    servers: int = 1
    """Such engines."""
    curve: HorizonCurve | None = None
    """None: the kind was not calibrated, and its horizons are left as they are."""

    @property
    def cost_s(self) -> float:
        """Share of the engines that one round per second takes."""
        return min(s / n for n, s in enumerate(self.latency_s, 1)) / self.servers


def horizon_curves(calibration: HorizonCalibration) -> dict[str, HorizonCurve]:
    """Curves by every name of a task.

    The actions of an episode are those of the calibration's reference, the tuned static horizon:
    its rounds times what each executes. (Of calibrations that do not name it, it is the shortest
    horizon.) Raises ConfigError where the file does not hold its counts.
    """
    try:
        assert calibration.static is not None
        how, found = calibration.static.how, calibration.how
        shortest = min(found["ladder"])
        of = found["found"]
        return {
            name: HorizonCurve(
                tuple(int(h) for h in how["successes"][names[0]]),
                tuple(n / how["episodes"] for n in how["successes"][names[0]].values()),
                (of[names[0]].get("reference", shortest) - found["lead"])
                * of[names[0]]["reference_rounds"],
            )
            for names in calibration.static.tasks
            for name in names
        }
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(
            "load_horizon needs success against static horizons, and this calibration does not hold"
            " its counts; run 'kairos calibrate' for the policy, or leave load_horizon off"
        ) from None


def successes_per_s(loads: Sequence[TaskLoad], horizons: Floats, target: float) -> Floats:
    """Of all calibrated kinds together, where each executes these horizons and the engines are used
    to at most `target`, in max-min fair shares. horizons: [..., kinds]. Returns [...].

    A robot asks when at most half of its chunk is left (`lead_actions`), what it executes before
    the answer comes is lost from the chunk, and it holds when that is not enough. How long answers
    take rises with the use of the engines, and the other way round: a fixed point.
    """
    robots = np.array([one.robots for one in loads])
    period = np.array([one.period_s for one in loads])
    costs = robots * np.array([one.cost_s for one in loads])
    ones = np.ones(len(loads))
    answers = _answers(loads)
    used = np.zeros(horizons.shape[:-1])
    for _ in range(ROUNDS_TO_SETTLE):
        answer = answers(used)
        ahead = np.minimum(answer / period, horizons / 2)
        executed = np.maximum(horizons - ahead, 1.0)
        rates = 1 / (executed * period + np.maximum(answer - ahead * period, 0.0))
        level = fair_level(rates, costs, ones, target)
        rates = np.minimum(rates, level[..., None])
        used = (used + rates @ costs) / 2
    worth = np.zeros_like(executed)
    for kind, one in enumerate(loads):
        if one.curve:
            success = np.interp(horizons[..., kind], one.curve.horizons, one.curve.success)
            worth[..., kind] = one.robots * success / one.curve.actions
    total: Floats = (rates * executed * worth).sum(-1)
    return total


def answer_s(latency_s: Sequence[float], servers: int, cost_s: float, used: float) -> float:
    """Mean time to an answer where the engines are used to this share of their best throughput.

    While a batch is computed the next one gathers: b = requests per second · latency(b) / servers.
    A request waits for the rest of the running batch, half of it on average, if there is one.
    """
    per_s = used / cost_s / servers
    batch = 1.0
    sizes = range(1, len(latency_s) + 1)
    for _ in range(ROUNDS_TO_SETTLE):
        latency = float(np.interp(batch, sizes, latency_s))
        batch = min(max(1.0, per_s * latency), len(latency_s))
    return latency * (1 + min(1.0, per_s * latency_s[0]) / 2)


def _answers(loads: Sequence[TaskLoad]) -> Callable[[Floats], Floats]:
    """Use of the engines [...] -> time to an answer of each kind [..., kinds]."""
    grid = np.linspace(0.0, 1.0, 21)
    tables: dict[tuple[tuple[float, ...], int], Floats] = {}
    for one in loads:
        engine = one.latency_s, one.servers
        if engine not in tables:
            tables[engine] = np.array([answer_s(*engine, one.cost_s, u) for u in grid])

    def answers(used: Floats) -> Floats:
        found = {engine: np.interp(used, grid, table) for engine, table in tables.items()}
        return np.stack([found[one.latency_s, one.servers] for one in loads], axis=-1)

    return answers


def choose_floors(loads: Sequence[TaskLoad], target: float) -> list[int]:
    """The floor of the horizon per kind, 0 where there shall be none, for the most successes per
    hour with the engines used to at most `target`.

    From the common floors and from the longest horizons that each lose a kind at most the same
    success (`LOSSES`), one kind after the other is changed, each time the one that gains most,
    until none does. With many kinds that is done for the best of these sets only (`MOST_TRIED`).
    Horizons change only for a gain of `LEAST_GAIN`. Of sets that are equally good, the one that
    began with shorter horizons is taken.
    """
    own = np.array([one.horizon for one in loads])
    ladder = sorted({h for one in loads if one.curve for h in one.curve.horizons})
    calibrated = np.array([one.curve is not None for one in loads])

    def worth(floors: Floats) -> Floats:
        return successes_per_s(loads, np.maximum(floors, own), target)

    starts = np.concatenate(
        [
            np.outer([0.0, *ladder], calibrated),
            [[_longest(one, loss) for one in loads] for loss in LOSSES],
        ]
    )
    starts = starts[np.sort(np.unique(starts, axis=0, return_index=True)[1])]
    values = worth(starts)
    without = values[0]
    changes = [
        (kind, h) for kind, one in enumerate(loads) if one.curve for h in (0, *one.curve.horizons)
    ]
    begin = max(1, MOST_TRIED // max(1, len(changes) * len(loads)))
    begun = np.sort(np.argsort(-values, kind="stable")[:begin])  # in their order: short ones first
    floors, values = starts[begun], values[begun]
    for _ in range(MOST_CHANGES if changes else 0):
        others = np.repeat(floors[:, None], len(changes), axis=1)
        for row, (kind, h) in enumerate(changes):
            others[:, row, kind] = h
        found = worth(others)
        chosen = np.argmax(found > found.max(-1, keepdims=True) * (1 - SAME), axis=-1)[:, None]
        gained = np.take_along_axis(found, chosen, -1)[:, 0]
        better = gained > values * (1 + LEAST_GAIN)
        if not better.any():
            break
        changed = np.take_along_axis(others, chosen[..., None], 1)[:, 0]
        floors = np.where(better[:, None], changed, floors)
        values = np.where(better, gained, values)
    if values.max() <= without * (1 + LEAST_GAIN):
        return [0] * len(loads)
    best = floors[np.argmax(values > values.max() * (1 - SAME))]
    return [int(h) if h > one.horizon else 0 for h, one in zip(best, loads, strict=True)]


def _longest(one: TaskLoad, loss: float) -> float:
    """The longest measured horizon whose success is at most `loss` below that of the kind's own."""
    if one.curve is None:
        return 0.0
    least = one.curve.success_at(one.horizon) - loss - SAME
    pairs = zip(one.curve.horizons, one.curve.success, strict=True)
    return max((h for h, success in pairs if success >= least), default=0)


class LoadHorizon[K: Hashable]:
    """Floors by kind of task, reviewed again and again. Not thread safe.

    A floor stays while it lies between the best ones for the target and for `RELEASE` of it, so
    that it does not follow every robot.
    """

    def __init__(self, target: float = TARGET_UTILISATION) -> None:
        self.target = target
        self.floors: dict[K, int] = {}

    def review(self, loads: Mapping[K, TaskLoad]) -> dict[K, int]:
        """Kind -> floor of its horizons in actions, 0 for none."""
        kinds = list(loads.values())
        least = choose_floors(kinds, self.target)
        most = choose_floors(kinds, self.target * RELEASE)
        self.floors = {
            kind: min(max(self.floors.get(kind, 0), min(a, b)), max(a, b))
            for kind, a, b in zip(loads, least, most, strict=True)
        }
        return self.floors
