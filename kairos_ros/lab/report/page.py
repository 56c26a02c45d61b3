"""The page: everything that was computed, put into one HTML file that needs nothing else."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import TaskState
from kairos_ros.lab.metrics import figure_style
from kairos_ros.lab.metrics.monitor_score import Confusion, confusions
from kairos_ros.lab.metrics.obligations import describe, judge
from kairos_ros.lab.metrics.reactions import RobotReactions, StopTimes, reactions, stop_times
from kairos_ros.lab.metrics.slo import (
    PERCENTILE,
    Attainment,
    Slo,
    Throughput,
    attainment,
    system1_invocations,
    throughput,
)
from kairos_ros.lab.report.curves import (
    Figure,
    horizon_distribution,
    latency_figures,
    qualified_figure,
)
from kairos_ros.lab.report.episodes import episodes
from kairos_ros.lab.report.headline import headline
from kairos_ros.lab.report.reaction_figure import reaction_figure
from kairos_ros.lab.report.sampling import Sample, sample
from kairos_ros.lab.report.stall_figure import stall_figure, waits_by_cause
from kairos_ros.lab.report.timeline import timeline
from kairos_ros.recording.runs.run_source import NamedRun
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.robot.supervision.state_table import Mode

MOST_DECISIONS = 4000
"""Rows of the table of decisions, of all runs together."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class _SloRow:
    name: str
    attained: Attainment
    rate: Throughput


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What one run tells of the models around the policy."""

    name: str
    figure: str
    components: tuple[tuple[str, Attainment], ...]
    rate: Throughput
    stops: list[StopTimes]
    robots: list[RobotReactions]
    monitors: list[Confusion]


def render(runs: Sequence[NamedRun], slo: Slo, progress: Callable[[str], None]) -> str:
    """The HTML of the page that compares `runs`, the first being the baseline.

    progress: is told what is done next. Raises ConfigError without runs.
    """
    if not runs:
        raise ConfigError("there is no run to report")
    progress("metrics")
    summaries = [summarise(named.run) for named in runs]
    drawn = runs[: figure_style.MOST_DRAWN]
    colours = figure_style.run_colours(len(drawn))
    progress("figures")
    waits = [waits_by_cause(named.run) for named in runs]
    samples = [sample(named.run) for named in drawn]
    figures = _Figures()
    latencies = [figures.add(f) for f in latency_figures(drawn, colours)]
    lines = [
        (named.name, figures.add(timeline(named.run, part)), part.note)
        for named, part in zip(drawn, samples, strict=True)
    ]
    tasks = [(label, figures.add(figure)) for label, figure in episodes(drawn, colours)]
    judged = [
        _SloRow(n.name, attainment(slo, system1_invocations(n.run)), throughput(n.run, [slo]))
        for n in runs
    ]
    pipelines = [_pipeline(named, figures) for named in drawn if named.run.pipeline is not None]
    rows, left_out = _decisions(drawn, samples)
    progress("page")
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    return environment.get_template("page.html.jinja").render(
        title=_title(runs),
        headline=headline(runs, summaries, slo),
        runs=[
            (named, colours[i] if i < len(colours) else "", summary)
            for i, (named, summary) in enumerate(zip(runs, summaries, strict=True))
        ],
        configuration=_configurations(runs),
        not_drawn=len(runs) - len(drawn),
        latencies=latencies,
        lines=lines,
        with_rounds=any(named.run.rounds for named in runs),
        horizons=figures.add(horizon_distribution(drawn, colours)),
        tasks=tasks,
        stalls=figures.add(stall_figure(runs, waits))
        if any(any(w.values()) for w in waits)
        else "",
        slo=slo,
        slo_percentile=PERCENTILE,
        slo_rows=judged,
        qualified=figures.add(qualified_figure(drawn, colours, slo)),
        pipelines=pipelines,
        modes=[mode.value for mode in Mode],
        states=list(TaskState),
        decisions_left_out=left_out,
        decisions=len(rows),
        figures_json=_embedded(figures.by_id),
        decisions_json=_embedded(rows),
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
        style=Markup((_HERE / "page.css").read_text()),
        script=Markup((_HERE / "page.js").read_text()),
        version=_version(),
    )


def _pipeline(named: NamedRun, figures: "_Figures") -> _Pipeline:
    judged = judge(named.run)
    return _Pipeline(
        named.name,
        figures.add(reaction_figure(named.run)),
        tuple((describe(slo, judged.robots), attained) for slo, attained in judged.attained),
        judged.rate,
        stop_times(named.run),
        reactions(named.run),
        confusions(named.run),
    )


class _Figures:
    """Figures by the id of the element that they are drawn in."""

    def __init__(self) -> None:
        self.by_id: dict[str, Figure] = {}

    def add(self, figure: Figure) -> str:
        name = f"figure-{len(self.by_id)}"
        self.by_id[name] = figure
        return name


def _title(runs: Sequence[NamedRun]) -> str:
    names = [named.name for named in runs]
    shown = " · ".join(names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _configurations(runs: Sequence[NamedRun]) -> list[tuple[str, list[str], bool]]:
    """Key, value in every run, and whether they differ; the differing ones first."""
    flat = [dict(_flat(named.configuration)) for named in runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = []
    for key in keys:
        values = [one.get(key, "–") for one in flat]
        rows.append((key, values, len(set(values)) > 1))
    return sorted(rows, key=lambda row: not row[2])


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            rows += _flat(item, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, item)) if isinstance(item, list) else str(item)
            rows.append((prefix + key, text if len(text) <= 200 else text[:199] + "…"))
    return rows


def _decisions(
    runs: Sequence[NamedRun], samples: Sequence[Sample]
) -> tuple[list[list[str | int | float]], int]:
    """Rows of the table, of the rounds that the timelines show; and how many were left out.

    Columns: run, time s, robot, task, round, queued ms, batch, engine, horizon, executed, decision,
    horizon reason.
    """
    each = MOST_DECISIONS // max(1, len(runs))
    rows: list[list[str | int | float]] = []
    numbers: dict[tuple[str, str], int]
    for named, part in zip(runs, samples, strict=True):
        numbers = {(t.robot, t.task): t.number for t in named.run.tasks if t.task}
        rows += (
            [
                named.name,
                round(r.requested_s, 2),
                r.robot,
                numbers.get((r.robot, r.task), r.task),
                r.round,
                round(1000 * r.queued_s, 1) if isfinite(r.queued_s) else "",
                r.batch_size,
                f"{r.engine} ({r.tier})" if r.tier and r.tier != r.engine else r.engine,
                r.horizon,
                r.executed,
                r.reason,
                r.horizon_reason,
            ]
            for r in part.rounds[:each]
        )
    return rows, sum(len(named.run.rounds) for named in runs) - len(rows)


def _embedded(value: Any) -> Markup:
    """JSON inside a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if isfinite(value) else "–"


def _version() -> str:
    try:
        return version("kairos_ros")
    except PackageNotFoundError:  # from a checkout, or built by colcon
        return ""
