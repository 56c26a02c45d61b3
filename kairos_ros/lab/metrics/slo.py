"""Service-level objectives: who met them, and the actions that count because of it (Rosa §4.1).

The latency of an invocation runs from sending the request to receiving the answer, on the robot's
side. An action is SLO-qualified when the System 1 round that it belongs to was answered in time,
and every component that must be invoked periodically had a valid answer at that moment.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.runs.observation_age import action_starts_s
from kairos_ros.recording.runs.pipeline import TransitionRecord
from kairos_ros.recording.runs.run import FleetRun, RoundRecord
from kairos_ros.robot.supervision.state_table import Effect

SYSTEM1 = "system1"
"""The action model: one invocation per round."""
PERCENTILE = 99.0
"""Of the invocations, that must be within the SLO for it to be held (Rosa §3.3)."""
_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Slo:
    """What one component must do for every robot."""

    component: str
    latency_s: float
    period_s: float = 0.0
    """Between two invocations, during tasks; 0 where the robot asks."""
    robots: tuple[str, ...] = ()
    """For whom; empty: for all."""

    def covers(self, robot: str) -> bool:
        return not self.robots or robot in self.robots


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request to one component. Times in seconds since the run began."""

    robot: str
    sent_s: float
    waited_s: float
    """Until the answer, or until nobody waited for it any more."""
    answered: bool


@dataclass(frozen=True, slots=True)
class Attainment:
    """How one component did against its SLO."""

    component: str
    slo_s: float
    invocations: int
    """Those that were answered, or waited for at least as long as the SLO allows."""
    met: int
    missing: int
    """Those of them without an answer."""
    p50_s: float
    p95_s: float
    p99_s: float
    """Percentiles of the answered ones; NaN without any."""

    @property
    def share(self) -> float:
        """Of invocations that met the SLO; NaN without any."""
        return self.met / self.invocations if self.invocations else float("nan")

    @property
    def held(self) -> bool:
        """At least `PERCENTILE` per cent met it."""
        return self.share >= PERCENTILE / 100


@dataclass(frozen=True, slots=True)
class Throughput:
    """Actions executed by all robots while tasks were given, per second of that time."""

    actions_per_s: float
    qualified_per_s: float

    @property
    def share(self) -> float:
        """Of the actions that are qualified; NaN without any."""
        return self.qualified_per_s / self.actions_per_s if self.actions_per_s else float("nan")


def parse_slo(text: str) -> Slo:
    """`system1=500ms`, or `safety=0.2s@5hz` for a component that is invoked by itself. Raises
    ConfigError."""
    match = re.fullmatch(r"([a-z][a-z0-9_]*)=([0-9.]+)(ms|s)(?:@([0-9.]+)hz)?", text.strip())
    try:
        latency_s = float(match[2]) * _UNITS[match[3]] if match else 0.0
        freq_hz = float(match[4]) if match and match[4] else float("inf")
    except ValueError:
        latency_s = freq_hz = 0.0
    if match is None or latency_s <= 0 or freq_hz <= 0:
        raise ConfigError(
            "an SLO is COMPONENT=LATENCY, such as system1=500ms, or with a rate, such as "
            f"safety=200ms@5hz, not {text!r}"
        )
    return Slo(match[1], latency_s, 1 / freq_hz)


def system1_invocations(run: FleetRun) -> list[Invocation]:
    """The rounds of a run as invocations of System 1.

    A run without recorded rounds has the answered ones of its tasks, all sent at an unknown time
    (NaN).
    """
    if not run.rounds:
        return [
            Invocation(task.robot, float("nan"), latency_s, True)
            for task in run.tasks
            for latency_s in task.round_latency_s
            if not isnan(latency_s)
        ]
    until_s = waited_until_s(run)
    return [
        Invocation(r.robot, r.requested_s, r.latency_s, True)
        if not isnan(r.answered_s)
        else Invocation(
            r.robot, r.requested_s, until_s[r.robot, r.task, r.round] - r.requested_s, False
        )
        for r in run.rounds
    ]


def waited_until_s(run: FleetRun) -> dict[tuple[str, str, int], float]:
    """Robot, task and round -> when nobody waited any more, of every round that was never answered.

    The robot gave it up when it stopped for another reason than a late answer that it asked for
    again, at the latest when it asked for the next round; else it waited until its task ended.
    """
    unanswered = [r for r in run.rounds if isnan(r.answered_s)]
    following = {(r.robot, r.task, r.round + 1) for r in unanswered}
    keys = ((r.robot, r.task, r.round) for r in run.rounds)
    asked_s = {k: r.requested_s for k, r in zip(keys, run.rounds, strict=True) if k in following}
    ended_s = {(task.robot, task.task): task.ended_s for task in run.tasks if task.task}
    stops_s: defaultdict[str, list[float]] = defaultdict(list)
    for move in run.pipeline.moves if run.pipeline else ():
        if _gives_up(move):
            stops_s[move.robot].append(move.at_s)
    return {
        (r.robot, r.task, r.round): min(
            next((at_s for at_s in stops_s[r.robot] if at_s >= r.requested_s), inf),
            asked_s.get((r.robot, r.task, r.round + 1), inf),
            ended_s.get((r.robot, r.task), run.length_s),
        )
        for r in unanswered
    }


def _gives_up(move: TransitionRecord) -> bool:
    """Whether the robot waited no longer for the round that it had asked for."""
    again = move.component == SYSTEM1 and Effect.RESEND in move.effects
    return Effect.STOP in move.effects and not again


def attainment(slo: Slo, invocations: Iterable[Invocation]) -> Attainment:
    """How `invocations` of the component did, for the robots of `slo`."""
    mine = [i for i in invocations if slo.covers(i.robot)]
    judged = [i for i in mine if i.answered or i.waited_s >= slo.latency_s]
    answered = np.array([i.waited_s for i in judged if i.answered])
    met = int((answered <= slo.latency_s).sum())
    p50, p95, p99 = (
        np.percentile(answered, (50, 95, 99)).tolist() if len(answered) else [float("nan")] * 3
    )
    missing = len(judged) - len(answered)
    return Attainment(slo.component, slo.latency_s, len(judged), met, missing, p50, p95, p99)


def throughput(
    run: FleetRun,
    slos: Sequence[Slo],
    others: Mapping[str, Sequence[Invocation]] | None = None,
) -> Throughput:
    """Raw and SLO-qualified actions per second.

    Only what was executed while tasks were given counts, over that time: at the end of a run
    robots run out of tasks one by one. Where rounds were not recorded, the actions of a task count
    when it ends.

    `others` holds the invocations of components beside System 1. An action needs a valid answer of
    each that has an SLO: one that came within the SLO, is the newest in time, and, for a component
    with a period, was sent no longer ago than the period plus the SLO, which is when the answer to
    the next invocation must be there.
    """
    counted = CountedActions.of(run)
    if all(slo.component == SYSTEM1 and not slo.robots for slo in slos):
        return counted.throughput(_allowed_s(slos))
    if not run.rounds and any(task.actions for task in run.tasks):
        raise ConfigError("without recorded rounds, only one SLO for every system1 can be judged")
    valid = {s: _validity(s, (others or {}).get(s.component, ())) for s in slos}
    qualified = 0
    for record in run.rounds:
        mine = [slo for slo in slos if slo.covers(record.robot)]
        if record.executed and record.latency_s <= _allowed_s(mine):
            at_s = action_starts_s(record)
            obligations = [valid[slo] for slo in mine if slo.component != SYSTEM1]
            qualified += _covered(record, at_s[_within(at_s, run.open_s)], obligations)
    raw = counted.throughput(float("inf")).actions_per_s
    return Throughput(raw, qualified / counted.time_s if counted.time_s else 0.0)


def _allowed_s(slos: Iterable[Slo]) -> float:
    return min((s.latency_s for s in slos if s.component == SYSTEM1), default=float("inf"))


@dataclass(frozen=True, slots=True)
class CountedActions:
    """The actions of a run that were executed while tasks were given, by round."""

    time_s: float
    """How long tasks were given."""
    latency_s: np.ndarray
    """float64 [R], of the round; NaN where it was not recorded."""
    actions: np.ndarray
    """int64 [R]."""

    @staticmethod
    def of(run: FleetRun) -> "CountedActions":
        time_s = sum(end - start for start, end in run.open_s)
        if run.rounds:
            pairs = [(r.latency_s, _counted(r, run.open_s)) for r in run.rounds if r.executed]
        else:
            pairs = [
                pair
                for task in run.tasks
                if any(start <= task.ended_s <= end for start, end in run.open_s)
                for pair in zip(task.round_latency_s, task.round_executed, strict=True)
            ]
        latency_s, actions = np.array(pairs, float).reshape(-1, 2).T
        return CountedActions(time_s, latency_s, actions.astype(int))

    def throughput(self, allowed_s: float) -> Throughput:
        """With an SLO of `allowed_s` for System 1 alone."""
        if not self.time_s:
            return Throughput(0.0, 0.0)
        qualified = self.actions[self.latency_s <= allowed_s].sum()
        return Throughput(float(self.actions.sum() / self.time_s), float(qualified / self.time_s))


def _counted(record: RoundRecord, open_s: Sequence[tuple[float, float]]) -> int:
    """Actions of a round that began while tasks were given."""
    for start, end in open_s:
        if start <= record.exec_start_s and record.exec_end_s <= end:
            return record.executed
    return int(_within(action_starts_s(record), open_s).sum())


def _within(at_s: np.ndarray, spans: Iterable[tuple[float, float]]) -> np.ndarray:
    inside = np.zeros(len(at_s), bool)
    for start, end in spans:
        inside |= (at_s >= start) & (at_s <= end)
    return inside


_Validity = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Robot -> when answers came, ascending, and until when each is valid."""


def _validity(slo: Slo, invocations: Sequence[Invocation]) -> _Validity:
    by_robot: dict[str, list[tuple[float, float]]] = {}
    for i in sorted((i for i in invocations if i.answered), key=lambda i: i.sent_s + i.waited_s):
        until_s = i.sent_s + slo.period_s + slo.latency_s if slo.period_s else float("inf")
        met = i.waited_s <= slo.latency_s
        by_robot.setdefault(i.robot, []).append(
            (i.sent_s + i.waited_s, until_s if met else float("-inf"))
        )
    return {
        robot: (np.array([a for a, _ in spans]), np.array([u for _, u in spans]))
        for robot, spans in by_robot.items()
    }


def _covered(record: RoundRecord, at_s: np.ndarray, valid: Iterable[_Validity]) -> int:
    """How many of the actions at `at_s` had a valid answer of every component."""
    covered = np.ones(len(at_s), bool)
    for by_robot in valid:
        answered_s, until_s = by_robot.get(record.robot, (np.empty(0), np.empty(0)))
        newest = np.searchsorted(answered_s, at_s, side="right") - 1
        covered &= newest >= 0
        if len(answered_s):
            covered &= at_s <= until_s[np.maximum(newest, 0)]
    return int(covered.sum())
