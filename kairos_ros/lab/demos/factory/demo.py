"""One run of the factory demo: starts a fleet file's processes, plays the script, sums up."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType

from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.lab.demos.experiment import point_latest
from kairos_ros.lab.demos.factory.events import PlannedEvent
from kairos_ros.lab.demos.factory.figure import finding, plot_factory
from kairos_ros.lab.demos.factory.history import FleetHistory
from kairos_ros.lab.demos.factory.log import EventLog
from kairos_ros.lab.demos.factory.outcome import Result, outcome
from kairos_ros.lab.demos.factory.report import (
    component_table,
    document,
    event_table,
    monitor_table,
    task_rows,
    task_table,
)
from kairos_ros.lab.demos.factory.script import FactoryScript
from kairos_ros.lab.demos.factory.testbed import FactoryTestbed
from kairos_ros.lab.demos.factory.view import draw
from kairos_ros.lab.testbed.display import LineDisplay, LiveDisplay, print_line
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.processes import FleetError, Interrupted
from kairos_ros.lab.testbed.report import task_document, write_json
from kairos_ros.lab.testbed.testbed import FINISH_WITHIN_S, FleetTestbed
from kairos_ros.lab.testbed.workload import BACK_TO_BACK
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import save_run

RELEASES_SHOWN = 6
LOG_COLUMNS = 150
"""Of the tables at the end, where the output is no terminal."""


@dataclass(frozen=True, slots=True)
class FactoryOptions:
    file: Path
    fleet: FleetFile
    nodes: list[ProcessSpec]
    script: list[PlannedEvent]
    seed: int
    folder: Path
    """Of this run: logs, bag, summary and picture."""


def run_factory(options: FactoryOptions, *, view: bool) -> int:
    """Returns the exit code of the command."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_COLUMNS)
    live_view = view and console.is_terminal
    log = EventLog(console, view=live_view)
    history = FleetHistory()

    def drawn(fleet: LiveFleet, width: int) -> RenderableType:
        return draw(fleet, width, history, log)

    display = LiveDisplay(console, drawn) if live_view else LineDisplay(console)
    testbed = FleetTestbed(
        len(options.fleet.robots), "", options.folder / "logs", display, nodes=options.nodes
    )
    testbed.live.decisions = deque(maxlen=0)  # their lines are needed for the events
    factory: FactoryTestbed | None = None
    try:
        with display, testbed, suppress(Interrupted):
            factory = FactoryTestbed(testbed, options.fleet, history, log, options.seed)
            testbed.start({})
            console.print(f"{len(options.nodes)} processes are up", highlight=False)
            _play(factory, options)
    except FleetError as error:
        testbed.failures.insert(0, str(error))
    if factory is None or not factory.length_s:
        for failure in testbed.failures:
            print_line(console, failure, "red")
        console.print("ended before the fleet was at work")
        return int(bool(testbed.failures))
    return _sum_up(console, factory, options)


def _play(factory: FactoryTestbed, options: FactoryOptions) -> None:
    """The whole script, then the tasks that are still running may finish. Raises Interrupted."""
    factory.ready()
    factory.begin()
    try:
        FactoryScript(factory, options.nodes).play(options.script)
        factory.finish(FINISH_WITHIN_S)
    finally:
        factory.end()
        factory.testbed.end_tasks()


def _sum_up(console: Console, factory: FactoryTestbed, options: FactoryOptions) -> int:
    """Tells, writes and draws what came of it; the exit code."""
    testbed, history, folder = factory.testbed, factory.history, options.folder
    tasks = tuple(testbed.client.records)
    robots = tuple(factory.rules)
    outcomes = [
        outcome(event, history, factory.rules, factory.rates_hz) for event in history.events
    ]
    shares = factory.latencies.shares(factory.rules, history, tasks)
    groups: dict[str, list[str]] = {group.task: [] for group in options.fleet.robot_fleet}
    for name, group in options.fleet.robots.items():
        groups[group.task].append(name)
    rows = task_rows(groups, tasks, history)
    scores = factory.ground_truth.scores(groups)
    length_s = factory.length_s
    configuration = {
        "fleet": str(options.file),
        "scheduling": testbed.live.scheduling,
        "horizon": testbed.live.horizon,
        "robots": len(robots),
        "arrivals": BACK_TO_BACK,
        "seed": options.seed,
    }
    write_json(
        folder / "summary.json",
        {
            "configuration": configuration,
            "interrupted": testbed.interrupt.requested,
            "failures": testbed.failures,
            "length_s": length_s,
            **document(outcomes, shares, rows, scores, history),
            "tasks": [task_document(task) for task in tasks],
        },
    )
    spans = testbed.client.timeline.spans(length_s)
    save_run(folder, FleetRun(robots, length_s, tasks, spans, ((0.0, length_s),)), configuration)
    plot_factory(folder / "factory.png", robots, history, outcomes, length_s)
    point_latest(folder)
    console.print()
    tables = [event_table(outcomes), component_table(shares), task_table(rows)]
    for table in [*tables, *([monitor_table(scores)] if scores else [])]:
        console.print(table)
        console.print()
    for released in history.releases[:RELEASES_SHOWN]:
        console.print(
            f"{released.at_s:.0f} s: {released.robot} was released by {released.name} after "
            f"{released.waited_s:.1f} s: {released.reason}",
            highlight=False,
            soft_wrap=True,
        )
    if len(history.releases) > RELEASES_SHOWN:
        console.print(f"and {len(history.releases) - RELEASES_SHOWN} more, see summary.json")
    console.print(f"{finding(outcomes)}.", style="bold", highlight=False)
    bag = "bag/, " if (folder / "bag").exists() else ""
    console.print(f"{folder}/: summary.json, factory.png, {bag}logs/", highlight=False)
    for failure in testbed.failures:
        print_line(console, failure, "red")
    failed = any(one.result is Result.FAIL for one in outcomes)
    return int(failed or bool(testbed.failures))
