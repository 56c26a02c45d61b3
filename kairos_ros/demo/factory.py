"""One run of the factory demo: starts a fleet file's processes, plays the script, sums up."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType

from kairos_ros.bringup import NodeSpec
from kairos_ros.demo.display import LineDisplay, LiveDisplay
from kairos_ros.demo.experiment import point_latest
from kairos_ros.demo.factory_events import Planned
from kairos_ros.demo.factory_figure import finding, plot_factory
from kairos_ros.demo.factory_floor import FactoryFloor, Interrupted
from kairos_ros.demo.factory_outcome import Result, outcome
from kairos_ros.demo.factory_report import (
    component_table,
    document,
    event_table,
    monitor_table,
    task_rows,
    task_table,
)
from kairos_ros.demo.factory_script import FactoryScript
from kairos_ros.demo.factory_story import Story
from kairos_ros.demo.factory_teller import Teller
from kairos_ros.demo.factory_view import draw
from kairos_ros.demo.live import LiveFleet
from kairos_ros.demo.report import task_document, write_json
from kairos_ros.demo.session import FINISH_WITHIN_S, FleetError, Session
from kairos_ros.demo.workload import BACK_TO_BACK
from kairos_ros.evaluation.run import FleetRun
from kairos_ros.evaluation.run_files import save_run
from kairos_ros.fleet.fleet_file import FleetFile

RELEASES_SHOWN = 6
LOG_COLUMNS = 150
"""Of the tables at the end, where the output is no terminal."""


@dataclass(frozen=True, slots=True)
class Options:
    file: Path
    fleet: FleetFile
    nodes: list[NodeSpec]
    script: list[Planned]
    seed: int
    folder: Path
    """Of this run: logs, bag, summary and picture."""


def run(options: Options, *, view: bool) -> int:
    """Returns the exit code of the command."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_COLUMNS)
    live_view = view and console.is_terminal
    teller = Teller(console, view=live_view)
    story = Story()

    def drawn(fleet: LiveFleet, width: int) -> RenderableType:
        return draw(fleet, width, story, teller)

    display = LiveDisplay(console, drawn) if live_view else LineDisplay(console)
    session = Session(
        len(options.fleet.robots), "", options.folder / "logs", display, nodes=options.nodes
    )
    session.live.decisions = deque(maxlen=0)  # their lines are needed for the events
    floor: FactoryFloor | None = None
    try:
        with display, session:
            floor = FactoryFloor(session, options.fleet, story, teller, options.seed)
            if session.start({}) is not None:
                console.print(f"{len(options.nodes)} processes are up", highlight=False)
                _play(floor, options)
    except FleetError as error:
        session.failures.insert(0, str(error))
    if floor is None or not floor.length_s:
        for failure in session.failures:
            _complain(console, failure)
        console.print("ended before the fleet was at work")
        return int(bool(session.failures))
    return _sum_up(console, floor, options)


def _play(floor: FactoryFloor, options: Options) -> None:
    """The whole script, then the tasks that are still running may finish."""
    with suppress(Interrupted):
        floor.ready()
        floor.begin()
        try:
            FactoryScript(floor, options.nodes).play(options.script)
            floor.finish(FINISH_WITHIN_S)
        finally:
            floor.end()
            floor.session.end_tasks()


def _sum_up(console: Console, floor: FactoryFloor, options: Options) -> int:
    """Tells, writes and draws what came of it; the exit code."""
    session, story, folder = floor.session, floor.story, options.folder
    tasks = tuple(session.driver.records)
    robots = tuple(floor.rules)
    outcomes = [outcome(deed, story, floor.rules, floor.rates_hz) for deed in story.deeds]
    shares = floor.heard.shares(floor.rules, story, tasks)
    groups = {group.task: [] for group in options.fleet.robot_fleet}
    for name, group in options.fleet.robots.items():
        groups[group.task].append(name)
    rows = task_rows(groups, tasks, story)
    scores = floor.truth.scores(groups)
    length_s = floor.length_s
    configuration = {
        "fleet": str(options.file),
        "scheduling": session.live.scheduling,
        "horizon": session.live.horizon,
        "robots": len(robots),
        "arrivals": BACK_TO_BACK,
        "seed": options.seed,
    }
    write_json(
        folder / "summary.json",
        {
            "configuration": configuration,
            "interrupted": session.interrupt.requested,
            "failures": session.failures,
            "length_s": length_s,
            **document(outcomes, shares, rows, scores, story),
            "tasks": [task_document(task) for task in tasks],
        },
    )
    spans = session.driver.timeline.spans(length_s)
    save_run(folder, FleetRun(robots, length_s, tasks, spans, ((0.0, length_s),)), configuration)
    plot_factory(folder / "factory.png", robots, story, outcomes, length_s)
    point_latest(folder)
    console.print()
    tables = [event_table(outcomes), component_table(shares), task_table(rows)]
    for table in [*tables, *([monitor_table(scores)] if scores else [])]:
        console.print(table)
        console.print()
    for released in story.releases[:RELEASES_SHOWN]:
        console.print(
            f"{released.at_s:.0f} s: {released.robot} was released by {released.name} after "
            f"{released.waited_s:.1f} s: {released.reason}",
            highlight=False,
            soft_wrap=True,
        )
    if len(story.releases) > RELEASES_SHOWN:
        console.print(f"and {len(story.releases) - RELEASES_SHOWN} more, see summary.json")
    console.print(f"{finding(outcomes)}.", style="bold", highlight=False)
    bag = "bag/, " if (folder / "bag").exists() else ""
    console.print(f"{folder}/: summary.json, factory.png, {bag}logs/", highlight=False)
    for failure in session.failures:
        _complain(console, failure)
    failed = any(one.result is Result.FAIL for one in outcomes)
    return int(failed or bool(session.failures))


def _complain(console: Console, text: str) -> None:
    console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
