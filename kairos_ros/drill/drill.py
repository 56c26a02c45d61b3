"""One drill: a fleet with a cloud, its faults in turn, and what is left behind of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from kairos_ros import bringup
from kairos_ros.demo.cloud import Cloud, Paces, paced
from kairos_ros.demo.experiment import scenes
from kairos_ros.demo.session import FleetError, Session
from kairos_ros.demo.workload import Arrivals, jobs
from kairos_ros.drill.door import WorkerDoor
from kairos_ros.drill.exchange import Exchange
from kairos_ros.drill.faults import Fault
from kairos_ros.drill.figure import draw
from kairos_ros.drill.guard import guard_of
from kairos_ros.drill.narrator import Narrator
from kairos_ros.drill.overhear import overhear
from kairos_ros.drill.report import LEGEND, failures, robot_table, write
from kairos_ros.drill.run import (
    FaultResult,
    JudgeAll,
    judge_bodies,
    judge_words,
    passed,
    run_fault,
)
from kairos_ros.drill.running import RunningFleet, RunningStage
from kairos_ros.drill.stage import BACK_WITHIN_S, Interrupted, Stage, TookTooLongError

LONG_SCENES = ("peg-insert-side-v3", "lever-pull-v3")
"""Left out: they often take all of their 500 actions, and the drill waits for tasks to end."""
TASK_WITHIN_S = 30.0
OVERHEAR_S = 5.0
"""Before the first fault in a running fleet: whose task is it?"""
FLEET_STATE_HZ = 20.0
"""How soon the drill sees what the serving node has noticed."""


@dataclass(frozen=True, slots=True)
class Options:
    """Of one drill."""

    robots: int
    seed: int
    silence_s: float
    folder: Path
    """Gets logs, body logs, `drill.json`, `drill.md` and a picture for every fault."""
    running: bool = False
    """Drill the fleet that runs in this ROS domain, instead of one of its own."""
    door: WorkerDoor | None = None
    """Of a worker of that fleet."""


def run_drill(options: Options, faults: Sequence[Fault], console: Console) -> int:
    """The exit code of the command."""
    narrator = Narrator(console)
    results: list[FaultResult] = []
    run = _run_running if options.running else _run_own
    try:
        with narrator:
            interrupted = not run(options, faults, narrator, results)
    except (FleetError, TookTooLongError) as error:
        console.print(f"kairos drill: {error}", style="red", highlight=False, soft_wrap=True)
        return 1
    configuration = {
        "robots": options.robots,
        "seed": options.seed,
        "paces": None if options.running else str(Paces()),
        "silence_s": options.silence_s,
        "interrupted": interrupted,
    }
    write(options.folder, results, configuration)
    console.print()
    for i, result in enumerate(results):
        style = "bold" if result.passed else "bold red"
        console.print(f"{result.title}: {'pass' if result.passed else 'FAIL'}", style=style)
        console.print(robot_table(result, heads=i == 0))
    console.print(LEGEND, style="bright_black", highlight=False)
    for line in failures(results):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    good = sum(result.passed for result in results)
    console.print(f"{good} of {len(results)} faults passed; {options.folder}/", highlight=False)
    if interrupted:
        console.print(f"interrupted before {len(faults) - len(results)} of {len(faults)} faults")
        return 130
    return 0 if results and passed(results) else 1


def possible(faults: Sequence[Fault], *, door: bool) -> tuple[list[Fault], dict[str, str]]:
    """Those that can be made in a fleet that somebody else runs; of the others why not."""
    why = {
        fault.name: fault.needs or "needs --worker and --keys"
        for fault in faults
        if fault.needs or (fault.door and not door)
    }
    return [fault for fault in faults if fault.name not in why], why


def _run_own(
    options: Options, faults: Sequence[Fault], narrator: Narrator, results: list[FaultResult]
) -> bool:
    """Adds to `results`; False when interrupted."""
    policy, paces = str(bringup.shipped_policy()), Paces()
    logs, bodies = options.folder / "logs", options.folder / "bodies"
    serving: dict[str, Any] = {"fleet_state_hz": FLEET_STATE_HZ}
    exchange = Exchange()
    short = [scene for scene in scenes("") if scene not in LONG_SCENES]
    arrivals = Arrivals(jobs(short, options.seed, None), poisson=False)
    narrator.say(f"{len(faults)} faults, {options.robots} robots; engines are paced: {paces}")
    with TemporaryDirectory(prefix="kairos-keys-") as keys:
        cloud = Cloud(logs, Path(keys), paced(policy, paces.cloud))
        session = Session(
            options.robots,
            paced(policy, paces.edge),
            logs,
            narrator,
            cloud=cloud,
            robot_parameters={"body_log": str(bodies.absolute())},
        )
        with session:
            overhear(session.driver, exchange)
            if session.start(serving) is None:
                return False
            narrator.say(f"the fleet is ready, {cloud.link}")
            session.driver.begin()
            stage = Stage(session, cloud, exchange, arrivals, narrator, serving)
            guard = guard_of(bringup.robot("arm").params_file or Path())
            try:
                _warm_up(stage, options.robots)
                _make(stage, faults, judge_bodies(stage, guard, bodies), options, results)
                session.end_tasks()
            except Interrupted:
                return False
    return True


def _run_running(
    options: Options, faults: Sequence[Fault], narrator: Narrator, results: list[FaultResult]
) -> bool:
    """As `_run_own`, in a fleet that runs already."""
    chosen, why = possible(faults, door=options.door is not None)
    for name, reason in why.items():
        narrator.say(f"not in a running fleet: {name} ({reason})")
    exchange = Exchange()
    with RunningFleet(narrator) as fleet:
        overhear(fleet.driver, exchange, pulses=True)
        narrator.say(f"{len(chosen)} faults, robots {', '.join(fleet.live.robots)}")
        fleet.driver.begin()
        stage = RunningStage(fleet, exchange, narrator, options.door)
        try:
            asked = "waiting for a robot that asks for a chunk; give one a task"
            stage.until(lambda: exchange.asked, TASK_WITHIN_S, asked)
            stage.run_for(OVERHEAR_S, "overhearing what goes on")
            _make(stage, chosen, judge_words(stage), options, results)
        except Interrupted:
            return False
    return True


def _make(
    stage: Stage,
    faults: Sequence[Fault],
    judge_all: JudgeAll,
    options: Options,
    results: list[FaultResult],
) -> None:
    """One fault after the other. Raises Interrupted."""
    narrator = stage.narrator
    for number, fault in enumerate(faults, 1):
        narrator.say(f"{number}/{len(faults)}  {fault.title}", "bold dark_cyan")
        limits = replace(fault.limits, silence_s=options.silence_s)
        result = run_fault(stage, replace(fault, limits=limits), judge_all)
        results.append(result)
        narrator.say(_said(result), "" if result.passed else "bold red")
        if result.robots:
            path = options.folder / f"{number:02d}_{fault.name}.png"
            stage.meanwhile(partial(draw, path, result), "drawing")
        if number < len(faults):
            stage.restore()


def _warm_up(stage: Stage, robots: int) -> None:
    """Every robot has built a scene and moves; both tiers serve."""
    stage.until(
        lambda: (
            sum(r.activity == "executing" for r in stage.session.live.robots.values())
            >= (robots + 1) // 2
        ),
        BACK_WITHIN_S,
        "waiting for the arms to move",
    )
    stage.until_served_by("cloud", BACK_WITHIN_S)


def _said(result: FaultResult) -> str:
    robots = result.robots
    if not robots:
        return "FAIL: no robot had a task, so nothing was seen; give them some"
    hold_s = max(robot.hold_s for robot in robots)
    wrong = sum(len(robot.wrong) for robot in robots)
    proven = sum(robot.proven or 0 for robot in robots)
    return (
        f"{'pass' if result.passed else 'FAIL'}: {sum(r.finished for r in robots)} of "
        f"{sum(r.tasks for r in robots)} tasks finished, {proven} actions proven, {wrong} wrong, "
        f"longest hold {hold_s:.2f} s"
    )
