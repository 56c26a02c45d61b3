"""The table that leads the page: every metric of every run, and its ratio to the first run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from kairos_ros.lab.metrics.slo import Slo, Throughput, throughput
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_source import NamedRun
from kairos_ros.recording.runs.summary import Spread, Summary, summarise

NOTICEABLE = 0.02
"""Ratios closer to 1 are not marked as better or worse."""


@dataclass(frozen=True, slots=True)
class TableCell:
    text: str
    ratio: str = ""
    """To the first run; empty in the first run and where there is none."""
    verdict: str = ""
    """`better` or `worse` than the first run; empty where it is neither."""


@dataclass(frozen=True, slots=True)
class TableRow:
    label: str
    unit: str
    note: str
    """`∩` where the row counts the tasks that all runs finished only."""
    cells: tuple[TableCell, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    finding: str
    basis: str
    """Which tasks the rows about tasks count."""
    rows: tuple[TableRow, ...]


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the rows read from one run."""

    whole: Summary
    tasks: Summary
    """Of the tasks that are compared; the same as `whole` where tasks are not shared."""
    rate: Throughput


_Value = Callable[[_Judged], float | None]


def headline(runs: Sequence[NamedRun], summaries: Sequence[Summary], slo: Slo) -> Headline:
    """Compares `runs`, whose `summaries` are given in the same order."""
    shared = shared_numbers([named.run for named in runs]) if len(runs) > 1 else set()
    fewest = min(summary.tasks for summary in summaries)
    use_shared = bool(shared) and 2 * len(shared) >= fewest
    judged = []
    for named, summary in zip(runs, summaries, strict=True):
        tasks = summary
        if use_shared:
            kept = tuple(t for t in named.run.tasks if t.number in shared)
            tasks = summarise(replace(named.run, tasks=kept, rounds=()))
        judged.append(_Judged(summary, tasks, throughput(named.run, [slo])))
    rows = tuple(
        TableRow(
            label, unit, note if use_shared else "", _cells(judged, value, scale, digits, wanted)
        )
        for label, unit, note, value, scale, digits, wanted in _rows(slo)
        if any(_number(value(j)) is not None for j in judged)
    )
    if use_shared:
        basis = (
            f"Rows marked ∩ count the {len(shared)} tasks that all runs finished, the same scenes "
            "and seeds; the others count everything."
        )
    elif len(runs) > 1:
        basis = (
            "The runs have too few tasks in common (same number, scene and seed, finished in all) "
            "to compare task by task: every row counts all finished tasks of its run."
        )
    else:
        basis = "Finished tasks only; canceled and lost ones are counted as unfinished."
    return Headline(_finding(runs, judged), basis, rows)


def shared_numbers(runs: Sequence[FleetRun]) -> set[int]:
    """Numbers of the tasks that are the same (scene and seed) and finished in all runs."""
    same = [{(t.number, t.scene, t.seed) for t in run.tasks if t.finished} for run in runs]
    return {number for number, _, _ in set.intersection(*same)}


def _rows(slo: Slo) -> list[tuple[str, str, str, _Value, float, int, int]]:
    """Label, unit, note, value, scale, digits, and whether more (1) or less (-1) is better."""
    both = "∩"
    return [
        ("tasks finished", "", "", lambda j: j.whole.tasks, 1, 0, 0),
        ("success", "%", both, lambda j: j.tasks.success, 100, 1, 1),
        ("task latency, average", "s", both, _of("latency_s", "mean"), 1, 2, -1),
        ("task latency, P25", "s", both, _of("latency_s", "p25"), 1, 2, -1),
        ("task latency, P95", "s", both, _of("latency_s", "p95"), 1, 2, -1),
        ("queueing for a robot, average", "s", both, _of("queueing_s", "mean"), 1, 2, -1),
        ("stalled, of task time", "%", both, lambda j: j.tasks.stall_fraction, 100, 1, -1),
        (
            "stalled after the first action",
            "%",
            both,
            lambda j: j.tasks.mid_task_stall_fraction,
            100,
            1,
            -1,
        ),
        ("mean executed horizon", "actions", both, lambda j: j.tasks.mean_horizon, 1, 1, 0),
        ("rounds per task", "", both, lambda j: j.tasks.rounds_per_task, 1, 1, -1),
        ("chunk latency, median", "ms", both, _of("chunk_latency_s", "p50"), 1000, 0, -1),
        ("chunk latency, P95", "ms", both, _of("chunk_latency_s", "p95"), 1000, 0, -1),
        ("jump where chunks meet", "steps", both, lambda j: j.tasks.seam, 1, 2, -1),
        ("rounds asked for early by surprise", "", "", lambda j: j.whole.surprises, 1, 0, 0),
        (
            "age of the observation at execution, average",
            "ms",
            "",
            lambda j: None if (age := j.whole.observation_age_s) is None else age.mean,
            1000,
            0,
            0,
        ),
        ("throughput", "tasks/min", "", lambda j: j.whole.tasks_per_minute, 1, 1, 1),
        ("actions", "1/s", "", lambda j: j.rate.actions_per_s, 1, 1, 1),
        (
            f"qualified actions (chunk within {1000 * slo.latency_s:g} ms)",
            "1/s",
            "",
            lambda j: j.rate.qualified_per_s,
            1,
            1,
            1,
        ),
        ("unfinished tasks", "", "", lambda j: j.whole.unfinished, 1, 0, 0),
        ("refusals", "", both, lambda j: j.tasks.refusals, 1, 0, 0),
    ]


def _of(name: str, part: str) -> _Value:
    def value(judged: _Judged) -> float | None:
        spread: Spread | None = getattr(judged.tasks, name)
        return None if spread is None else float(getattr(spread, part))

    return value


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _cells(
    judged: Sequence[_Judged], value: _Value, scale: float, digits: int, wanted: int
) -> tuple[TableCell, ...]:
    values = [_number(value(j)) for j in judged]
    first = values[0]
    cells = []
    for i, number in enumerate(values):
        text = "–" if number is None else f"{number * scale:,.{digits}f}"
        if i == 0 or number is None or not first:
            cells.append(TableCell(text))
            continue
        ratio = number / first
        changed = abs(ratio - 1) >= NOTICEABLE and wanted
        verdict = ("better" if (ratio - 1) * wanted > 0 else "worse") if changed else ""
        cells.append(TableCell(text, f"{ratio:.2f}×", verdict))
    return tuple(cells)


def _finding(runs: Sequence[NamedRun], judged: Sequence[_Judged]) -> str:
    """What the comparison shows, in one sentence, whichever way it went."""
    if len(runs) == 1:
        return _one(runs[0], judged[0].whole)
    timed = [
        (j.tasks.latency_s, named.name)
        for named, j in zip(runs, judged, strict=True)
        if j.tasks.latency_s is not None
    ]
    first = judged[0].tasks.latency_s
    if first is None or len(timed) < 2 or not first.mean:
        return "Too few tasks finished to compare the runs"
    best, name = min(timed[1:], key=lambda pair: pair[0].mean)
    if len(runs) > 2 and best.mean >= first.mean:
        return (
            f"No run has shorter tasks than {runs[0].name}; in {name} they take "
            f"{best.mean / first.mean:.2f} times as long on average"
        )
    return (
        f"{name}: tasks take {best.mean / first.mean:.2f} times as long as in {runs[0].name} on "
        f"average, {best.p95 / first.p95:.2f} times at P95"
    )


def _one(named: NamedRun, summary: Summary) -> str:
    if summary.latency_s is None or summary.stall_fraction is None:
        return f"{len(named.run.robots)} robots, no task finished"
    return (
        f"{len(named.run.robots)} robots, {summary.tasks} tasks: {summary.succeeded} succeeded, "
        f"{summary.latency_s.mean:.1f} s each, {100 * summary.stall_fraction:.1f} % of it waiting"
    )
