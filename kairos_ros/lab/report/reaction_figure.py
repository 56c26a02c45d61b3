"""What robots did about their judges, over time: modes as bars, what led to them as marks."""

from math import isnan
from typing import Any

from kairos_ros.lab.metrics import figure_style
from kairos_ros.lab.metrics.reactions import IDLE, cause_of, mode_spans
from kairos_ros.lab.report.curves import Figure
from kairos_ros.lab.report.timeline import escape, rows_over_time
from kairos_ros.recording.runs.pipeline import TransitionRecord
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.robot.supervision.state_table import Effect, Mode, Trigger

MOST_ROBOTS = 24
MOST_MARKS = 2000
_PIXELS_PER_ROBOT = 34
_MODES = {
    Mode.RUNNING.value: ("running", figure_style.EXECUTING[0]),
    Mode.HOLDING.value: ("holding", figure_style.STALLED),
    Mode.RETURNING.value: ("returning to safe state", figure_style.RETURNING),
    Mode.RETRYING.value: ("retrying", figure_style.RETRYING),
    Mode.WAITING.value: ("waiting for a human", figure_style.NEEDS_HUMAN),
    IDLE: (IDLE, figure_style.IDLE),
}
_SYMBOLS = ("diamond", "x", "triangle-up", "square", "cross", "triangle-down", "star", "circle")


def reaction_figure(run: FleetRun) -> Figure:
    """The first `MOST_ROBOTS` robots that have transitions; repeated stops are left out."""
    spans = mode_spans(run)
    robots = list(dict.fromkeys(span.robot for span in spans))[:MOST_ROBOTS]
    rows = {robot: i for i, robot in enumerate(robots)}
    data: list[dict[str, Any]] = []
    for mode, (name, colour) in _MODES.items():
        mine = [span for span in spans if span.mode == mode and span.robot in rows]
        if mine:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "marker": {"color": colour, "line": {"width": 0}},
                    "width": 0.5,
                    "base": [round(span.start_s, 3) for span in mine],
                    "x": [round(span.end_s - span.start_s, 3) for span in mine],
                    "y": [rows[span.robot] for span in mine],
                    "hovertext": [
                        f"{span.robot}: {name} for {span.end_s - span.start_s:.2f} s"
                        for span in mine
                    ],
                    "hoverinfo": "text",
                }
            )
    data += _marks(run, rows)
    return {
        "data": data,
        "layout": rows_over_time(rows, 150 + _PIXELS_PER_ROBOT * len(rows), [0, run.length_s]),
    }


def _marks(run: FleetRun, rows: dict[str, int]) -> list[dict[str, Any]]:
    """One kind of mark per cause, the most frequent first."""
    causes: dict[str, list[TransitionRecord]] = {}
    shown = [m for m in run.pipeline.moves if _shown(m) and m.robot in rows] if run.pipeline else []
    for move in shown[:MOST_MARKS]:
        causes.setdefault(_name(move), []).append(move)
    ordered = sorted(causes.items(), key=lambda item: -len(item[1]))
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": cause,
            "x": [round(move.at_s, 3) for move in moves],
            "y": [rows[move.robot] - 0.36 for move in moves],
            "marker": {
                "symbol": _SYMBOLS[i % len(_SYMBOLS)],
                "size": 8,
                "color": figure_style.OTHERS[i % len(figure_style.OTHERS)],
            },
            "hovertext": [_text(move) for move in moves],
            "hoverinfo": "text",
        }
        for i, (cause, moves) in enumerate(ordered)
    ]


def _shown(move: TransitionRecord) -> bool:
    """What came from outside; the rest follows from it, and the bars tell it."""
    return not move.repeated and bool(move.component or move.trigger == Trigger.RELEASED)


def _name(move: TransitionRecord) -> str:
    return "called a human" if Effect.CALL_HUMAN in move.effects else cause_of(move)


def _text(move: TransitionRecord) -> str:
    lines = [
        f"<b>{move.robot} · {move.at_s:.2f} s · {escape(cause_of(move))}</b>",
        escape(move.reason),
        f"{move.before} → {move.after}: {', '.join(move.effects) or 'no effect'}",
        f"{1000 * move.reacted_s:.0f} ms after its cause",
    ]
    if not isnan(move.frame_age_s):
        lines[-1] += f", {1000 * move.frame_age_s:.0f} ms after the judged picture"
    return "<br>".join(lines)
