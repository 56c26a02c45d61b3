"""The horizon along one task, in every run that had the same task."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from kairos_ros.lab.report.curves import Figure, axes
from kairos_ros.lab.report.headline import shared_numbers
from kairos_ros.lab.report.timeline import describe_round
from kairos_ros.recording.runs.run import RoundRecord, TaskRecord
from kairos_ros.recording.runs.run_source import NamedRun

MOST_EPISODES = 12


def episodes(runs: Sequence[NamedRun], colours: Sequence[str]) -> list[tuple[str, Figure]]:
    """Label and figure of some tasks, first one of every scene.

    Tasks that all runs finished; where there are none, those of the first run.
    """
    runs = runs[: len(colours)]
    wanted = shared_numbers([named.run for named in runs])
    first = [t for t in runs[0].run.tasks if t.finished and t.round_executed]
    tasks = [t for t in first if t.number in wanted] or first
    seen: defaultdict[str, int] = defaultdict(int)
    order = []
    for task in sorted(tasks, key=lambda t: t.number):
        order.append((seen[task.scene], task.number, task))
        seen[task.scene] += 1
    rounds = [_rounds_by_task(named) for named in runs]
    return [
        (
            f"task {task.number}: {task.scene}, seed {task.seed}",
            _episode(task, runs, colours, rounds),
        )
        for _, _, task in sorted(order, key=lambda o: o[:2])[:MOST_EPISODES]
    ]


_Rounds = dict[tuple[str, str], list[RoundRecord]]


def _rounds_by_task(named: NamedRun) -> _Rounds:
    found: _Rounds = defaultdict(list)
    for record in named.run.rounds:
        found[record.robot, record.task].append(record)
    return found


def _episode(
    wanted: TaskRecord, runs: Sequence[NamedRun], colours: Sequence[str], rounds: Sequence[_Rounds]
) -> Figure:
    data = []
    same = (wanted.number, wanted.scene, wanted.seed)
    for named, colour, recorded in zip(runs, colours, rounds, strict=True):
        for task in named.run.tasks:
            if (task.number, task.scene, task.seed) != same or not task.finished:
                continue
            data.append(_line(named.name, colour, task, recorded.get((task.robot, task.task), [])))
            break
    layout = axes("actions executed in the task", "actions executed of the chunk")
    return {"data": data, "layout": layout}


def _line(
    name: str, colour: str, task: TaskRecord, rounds: Sequence[RoundRecord]
) -> dict[str, Any]:
    """A step per round: from the action it began at to the one it ended before."""
    moved = sorted((r for r in rounds if r.executed), key=lambda r: r.round)
    executed = [r.executed for r in moved] or [n for n in task.round_executed if n]
    starts = list(accumulate(executed, initial=0))
    texts = [describe_round(r) for r in moved] or [f"executed {n}" for n in executed]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": starts,
        "y": [*executed, executed[-1]] if executed else [],
        "hovertext": [*texts, texts[-1]] if texts else [],
        "hoverinfo": "text+name",
        "line": {"shape": "hv", "color": colour, "width": 2},
        "marker": {"size": 6, "color": colour},
    }
