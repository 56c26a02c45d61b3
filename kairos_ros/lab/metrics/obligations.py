"""What models around the policy had to answer to robots, from a record, and what is missing.

An obligation of a periodic component is due once per period while its robot is in a task and shows
its cell. A judgement that was never made, failed, or was replaced by that of a newer picture is an
invocation without an answer.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.lab.metrics.slo import (
    SYSTEM1,
    Attainment,
    Invocation,
    Slo,
    Throughput,
    attainment,
    system1_invocations,
    throughput,
)
from kairos_ros.recording.runs.pipeline import PipelineRecord
from kairos_ros.recording.runs.run import FleetRun, TaskRecord

DEFAULT = Slo(SYSTEM1, 0.5)


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one run did against its objectives."""

    attained: tuple[tuple[Slo, Attainment], ...]
    rate: Throughput
    """With all of these SLOs."""
    robots: tuple[str, ...]
    """Of the run."""


def judge(run: FleetRun, slos: Sequence[Slo] = ()) -> Judgement:
    """How a run did against `slos`; empty: those its robots worked under, or `DEFAULT`.

    Raises ConfigError for a component that the run knows nothing of.
    """
    record = run.pipeline
    known = {SYSTEM1} | (set(Component) if record is not None else set())
    if unknown := [slo for slo in slos if slo.component not in known]:
        raise ConfigError(
            f"the run holds the invocations of {', '.join(sorted(known))}; there are none of "
            f"{unknown[0].component!r}"
            + (", which only a bag has" if unknown[0].component in set(Component) else "")
        )
    if not slos:
        slos = (promised(record) if record is not None else []) or [DEFAULT]
    invoked = {
        slo: system1_invocations(run) if slo.component == SYSTEM1 else invocations_of(run, slo)
        for slo in slos
    }
    others = {
        component: [i for slo, mine in invoked.items() if slo.component == component for i in mine]
        for component in known - {SYSTEM1}
    }
    return Judgement(
        tuple((slo, attainment(slo, invoked[slo])) for slo in slos),
        throughput(run, slos, others),
        run.robots,
    )


def promised(record: PipelineRecord) -> list[Slo]:
    """The objectives that robots worked under, each with the robots that it is for."""
    robots: defaultdict[tuple[Component, float, float], list[str]] = defaultdict(list)
    for robot, rules in record.rules.items():
        for component, one in rules.components.items():
            robots[component, one.slo_ns / 1e9, one.period_ns / 1e9].append(robot)
    order = list(Component)
    return [
        Slo(component.value, latency_s, period_s, tuple(sorted(mine)))
        for (component, latency_s, period_s), mine in sorted(
            robots.items(), key=lambda item: (order.index(item[0][0]), item[0][1:])
        )
    ]


def invocations_of(run: FleetRun, slo: Slo) -> list[Invocation]:
    """Of safety, monitor or system2 in a run that has a pipeline, for the robots of `slo`."""
    record = run.pipeline or PipelineRecord()
    tasks: defaultdict[str, list[TaskRecord]] = defaultdict(list)
    for task in run.tasks:
        tasks[task.robot].append(task)
    if slo.component == Component.SYSTEM2:
        ended_s = {(t.robot, t.task): t.ended_s for t in run.tasks}
        return [
            Invocation(p.robot, p.asked_s, p.answered_s - p.asked_s, True)
            if not isnan(p.answered_s)
            else Invocation(
                p.robot,
                p.asked_s,
                max(0.0, ended_s.get((p.robot, p.task), run.length_s) - p.asked_s),
                False,
            )
            for p in record.plans
            if slo.covers(p.robot)
        ]
    found = [
        Invocation(j.robot, j.pictured_s, j.answered_s - j.pictured_s, True)
        for j in record.judged
        if j.component == slo.component and slo.covers(j.robot)
    ]
    if slo.period_s:
        sent: defaultdict[str, list[float]] = defaultdict(list)
        for one in found:
            sent[one.robot].append(one.sent_s)
        for robot in filter(slo.covers, run.robots):
            looks_s = record.looks_s.get(robot)
            for task in tasks[robot]:
                found += _missing(task, sorted(sent[robot]), looks_s, slo.period_s)
    return found


def describe(slo: Slo, robots: Sequence[str]) -> str:
    """In words: `safety 5/s in 200 ms`, and for whom where that is not all of `robots`."""
    often = f" {1 / slo.period_s:g}/s" if slo.period_s and slo.component in PERIODIC else ""
    latency = f"{slo.latency_s:g} s" if slo.latency_s >= 1 else f"{1000 * slo.latency_s:g} ms"
    whom = "" if all(map(slo.covers, robots)) else f", {', '.join(slo.robots)}"
    return f"{slo.component}{often} in {latency}{whom}"


def _missing(
    task: TaskRecord, sent_s: Sequence[float], looks_s: Sequence[float] | None, period_s: float
) -> Iterator[Invocation]:
    """Judgements of one task that nobody made; sent_s and looks_s ascending."""
    inside = [s for s in sent_s if task.given_s <= s <= task.ended_s]
    for start_s, end_s in pairwise([task.given_s, *inside, task.ended_s]):
        count = round((end_s - start_s) / period_s) - 1
        for i in range(1, count + 1):
            due_s = start_s + i * (end_s - start_s) / (count + 1)
            if looks_s is None or _near(looks_s, due_s, period_s / 2):
                yield Invocation(task.robot, due_s, task.ended_s - due_s, False)


def _near(times_s: Sequence[float], at_s: float, within_s: float) -> bool:
    i = bisect_left(times_s, at_s - within_s)
    return i < len(times_s) and times_s[i] <= at_s + within_s
