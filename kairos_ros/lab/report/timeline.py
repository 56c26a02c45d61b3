"""Timelines as in Dai et al.'s figures: generation above, execution below, stalls in red."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from kairos_ros.lab.metrics import figure_style
from kairos_ros.lab.metrics.slo import waited_until_s
from kairos_ros.lab.report.curves import Figure
from kairos_ros.lab.report.sampling import Sample
from kairos_ros.recording.runs.run import FleetRun, RoundRecord

_ABOVE, _BELOW = -0.2, 0.2
_HEIGHT = 0.34
_LEAST_STALL_S = 1e-3
"""Shorter gaps are rounding."""
_PIXELS_PER_ROBOT = 46
_FIRST_VIEW_ROUNDS = 24
"""Of each robot."""


def rows_over_time(
    rows: Mapping[str, float], height_px: int, view_s: Sequence[float]
) -> dict[str, Any]:
    """Layout of a figure with a row per robot (name -> y), first seen between two seconds."""
    return {
        "barmode": "overlay",
        "bargap": 0,
        "height": height_px,
        "dragmode": "pan",
        "hovermode": "closest",
        "xaxis": {"title": {"text": "time since start (s)"}, "range": view_s},
        "yaxis": {
            "tickmode": "array",
            "tickvals": list(rows.values()),
            "ticktext": list(rows),
            "range": [len(rows) - 0.4, -0.6],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        },
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
    }


class _Texts:
    """Hover texts, each kept once: the bars of a round share theirs."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def add(self, text: str) -> int:
        return self._index.setdefault(text, len(self._index))

    def all(self) -> list[str]:
        return list(self._index)


class _Bars:
    """Horizontal bars of one kind, collected one by one."""

    def __init__(self, texts: _Texts, name: str, colour: str, offset: float) -> None:
        self._texts = texts
        self._trace: dict[str, Any] = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "marker": {"color": [], "line": {"width": 0}},
            "width": _HEIGHT,
            "base": [],
            "x": [],
            "y": [],
            "texts": [],
            "hoverinfo": "text",
        }
        self._colour = colour
        self._offset = offset

    def add(self, row: int, start_s: float, end_s: float, text: str, colour: str = "") -> None:
        trace = self._trace
        trace["base"].append(round(start_s, 4))
        trace["x"].append(round(end_s - start_s, 4))
        trace["y"].append(row + self._offset)
        trace["texts"].append(self._texts.add(text))
        trace["marker"]["color"].append(colour or self._colour)

    def traces(self) -> list[dict[str, Any]]:
        """None of a kind that did not occur."""
        trace = self._trace
        if not trace["x"]:
            return []
        # one colour for the legend, where all have the same
        if len(set(trace["marker"]["color"])) == 1:
            trace["marker"]["color"] = trace["marker"]["color"][0]
        return [trace]


def timeline(run: FleetRun, drawn: Sample) -> Figure:
    """What every sampled robot had computed and did, over time.

    Where rounds were not recorded, what the robots did is drawn alone.
    """
    rows = {robot: i for i, robot in enumerate(drawn.robots)}
    texts = _Texts()
    draw = _rounds if drawn.rounds else _activities
    data = draw(run, drawn, rows, texts) + _ends(run, drawn, rows, texts)
    return {
        "data": data,
        "texts": texts.all(),
        "layout": rows_over_time(rows, 130 + _PIXELS_PER_ROBOT * len(rows), _first_view(drawn)),
    }


def describe_round(record: RoundRecord) -> str:
    """What is told of a round when one points at it; lines separated by `<br>`."""
    lines = [
        f"<b>{record.robot} · round {record.round}</b>"
        + (f" · {record.attempts} requests" if record.attempts > 1 else ""),
        f"horizon {record.horizon} of {record.chunk_size}, executed {record.executed}",
    ]
    if record.horizon_reason:
        lines.append(f"  {escape(record.horizon_reason)}")
    if not isnan(record.answered_s):
        lines.append(
            f"latency {1000 * record.latency_s:.0f} ms: queued {1000 * record.queued_s:.0f}, "
            f"compute {1000 * record.compute_s:.0f}, server {1000 * record.server_s:.0f}"
        )
        lines.append(f"batch of {record.batch_size} on {escape(record.engine)} ({record.tier})")
    if record.reason:
        lines.append(escape(record.reason))
    return "<br>".join(lines)


def _first_view(drawn: Sample) -> list[float]:
    """Short enough to tell rounds apart; the rest is a drag away."""
    start_s, end_s = drawn.start_s, drawn.end_s
    if drawn.rounds:
        start_s = drawn.rounds[0].requested_s
        each = len(drawn.rounds) / len(drawn.robots)
        end_s = start_s + (end_s - start_s) * min(1.0, _FIRST_VIEW_ROUNDS / each)
    return [start_s, max(end_s, start_s + 1.0)]


def _rounds(
    run: FleetRun, drawn: Sample, rows: dict[str, int], texts: _Texts
) -> list[dict[str, Any]]:
    waiting = _Bars(texts, "generation: network, queue", figure_style.WAITING, _ABOVE)
    compute = _Bars(texts, "generation: compute", figure_style.COMPUTE, _ABOVE)
    execution = _Bars(texts, "execution", figure_style.EXECUTING[0], _BELOW)
    first_wait = _Bars(texts, "wait for the first action", figure_style.FIRST_WAIT, _BELOW)
    stall = _Bars(texts, "stall", figure_style.STALLED, _BELOW)
    until_s = waited_until_s(run)
    tasks: defaultdict[tuple[str, str], list[RoundRecord]] = defaultdict(list)
    for record in drawn.rounds:
        tasks[record.robot, record.task].append(record)
    for (robot, task), rounds in tasks.items():
        row = rows[robot]
        still_since_s: float | None = None
        for record in sorted(rounds, key=lambda r: r.round):
            text = describe_round(record)
            answered_s = record.answered_s
            if isnan(answered_s):
                answered_s = until_s[robot, task, record.round]
            waiting.add(row, record.requested_s, answered_s, text)
            if not isnan(record.answered_s) and record.compute_s:
                # where in the round trip the server was busy is not known to the robot: half the
                # network's time is drawn before it, half after
                network_s = max(0.0, record.latency_s - record.server_s)
                end_s = answered_s - network_s / 2
                compute.add(row, max(record.requested_s, end_s - record.compute_s), end_s, text)
            if not record.executed or isnan(record.exec_start_s + record.exec_end_s):
                continue
            shade = figure_style.EXECUTING[record.round % 2]
            execution.add(row, record.exec_start_s, record.exec_end_s, text, shade)
            if still_since_s is not None:
                _stall(stall, row, still_since_s, record)
            elif record.round == 1:
                _stall(first_wait, row, record.requested_s, record)
            still_since_s = record.exec_end_s
    bars = (waiting, compute, execution, first_wait, stall)
    return [trace for kind in bars for trace in kind.traces()]


def _stall(bars: _Bars, row: int, since_s: float, record: RoundRecord) -> None:
    length_s = record.exec_start_s - since_s
    if length_s > _LEAST_STALL_S:
        text = f"<b>waited {1000 * length_s:.0f} ms</b> for<br>{describe_round(record)}"
        bars.add(row, since_s, record.exec_start_s, text)


def _activities(
    run: FleetRun, drawn: Sample, rows: dict[str, int], texts: _Texts
) -> list[dict[str, Any]]:
    kinds = {
        "executing": _Bars(texts, "executing", figure_style.EXECUTING[0], 0),
        "holding": _Bars(texts, "in a task, waiting for actions", figure_style.STALLED, 0),
        "idle": _Bars(texts, "no task", figure_style.IDLE, 0),
        "down": _Bars(texts, "process gone", figure_style.DOWN, 0),
    }
    for span in run.spans:
        if span.robot in rows:
            text = f"{span.robot}: {span.activity} for {span.end_s - span.start_s:.2f} s"
            kinds[span.activity].add(rows[span.robot], span.start_s, span.end_s, text)
    return [trace for kind in kinds.values() for trace in kind.traces()]


def _ends(
    run: FleetRun, drawn: Sample, rows: dict[str, int], texts: _Texts
) -> list[dict[str, Any]]:
    """Ends of tasks, as marks."""
    traces = []
    for name, symbol, success in (
        ("task succeeded", "circle", True),
        ("task failed", "x", False),
    ):
        tasks = [
            t
            for t in run.tasks
            if t.robot in rows
            and t.success == success
            and drawn.start_s <= t.ended_s <= drawn.end_s
        ]
        if tasks:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [round(t.ended_s, 3) for t in tasks],
                    "y": [rows[t.robot] for t in tasks],
                    "marker": {"symbol": symbol, "size": 7, "color": figure_style.TASK_END},
                    "texts": [
                        texts.add(
                            f"task {t.number} ({escape(t.scene)}) ended: {escape(t.outcome)}, "
                            f"{t.duration_s:.2f} s{escape(f', {t.policy}') if t.policy else ''}"
                        )
                        for t in tasks
                    ],
                    "hoverinfo": "text",
                }
            )
    return traces


def escape(text: str) -> str:
    """plotly.js reads hover texts as a small subset of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
