"""One drill: a fleet with a cloud, its faults in turn, and what is left behind of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from kairos_ros.bringup import plan as bringup
from kairos_ros.lab.demos.experiment import scenes
from kairos_ros.lab.drill.drill_testbed import BACK_WITHIN_S, DrillTestbed, OwnFleet
from kairos_ros.lab.drill.faults import DrillFault
from kairos_ros.lab.drill.figure import draw
from kairos_ros.lab.drill.guard import guard_of
from kairos_ros.lab.drill.hostile_clients import WorkerAccess
from kairos_ros.lab.drill.policy_swap import OTHER, OTHER_POLICY
from kairos_ros.lab.drill.proof.exchange import Exchange
from kairos_ros.lab.drill.proof.exchange_listener import listen_to_exchange
from kairos_ros.lab.drill.report import LEGEND, failures, robot_table, write
from kairos_ros.lab.drill.run import (
    FaultResult,
    JudgeAll,
    judge_bodies,
    judge_by_messages,
    passed,
    run_fault,
)
from kairos_ros.lab.drill.running_fleet import RunningDrillTestbed, RunningFleet
from kairos_ros.lab.testbed.cloud import POLICY, Cloud, Paces, paced
from kairos_ros.lab.testbed.display import EventDisplay
from kairos_ros.lab.testbed.live import activity_of
from kairos_ros.lab.testbed.processes import FleetError, Interrupted
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.workload import Arrivals, scene_tasks

LONG_SCENES = ("peg-insert-side-v3", "lever-pull-v3")
"""Left out: they often take all of their 500 actions, and the drill waits for tasks to end."""
TASK_WITHIN_S = 30.0
LISTEN_S = 5.0
"""Before the first fault in a running fleet: whose task is it?"""
FLEET_STATE_HZ = 20.0
"""How soon the drill sees what the serving node has noticed."""


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """Of one drill."""

    robots: int
    seed: int
    silence_s: float
    folder: Path
    """Gets logs, body logs, `drill.json`, `drill.md` and a picture for every fault."""
    running: bool = False
    """Drill the fleet that runs in this ROS domain, instead of one of its own."""
    access: WorkerAccess | None = None
    """Of a worker of that fleet."""


def run_drill(options: DrillOptions, faults: Sequence[DrillFault], console: Console) -> int:
    """The exit code of the command."""
    display = EventDisplay(console)
    results: list[FaultResult] = []
    interrupted = False
    run = _run_running if options.running else _run_own
    try:
        with display:
            run(options, faults, display, results)
    except Interrupted:
        interrupted = True
    except FleetError as error:
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


def possible(
    faults: Sequence[DrillFault], *, access: bool
) -> tuple[list[DrillFault], dict[str, str]]:
    """Those that can be made in a fleet that somebody else runs; of the others why not."""
    why = {
        fault.name: fault.needs or "needs --worker and --keys"
        for fault in faults
        if fault.needs or (fault.access and not access)
    }
    return [fault for fault in faults if fault.name not in why], why


def _run_own(
    options: DrillOptions,
    faults: Sequence[DrillFault],
    display: EventDisplay,
    results: list[FaultResult],
) -> None:
    """Adds to `results`. Raises Interrupted."""
    policy, paces = str(bringup.shipped_policy()), Paces()
    logs, bodies = options.folder / "logs", options.folder / "bodies"
    policies = [f"{POLICY}={paced(policy, paces.edge)}", f"{OTHER}={OTHER_POLICY}"]
    serving: dict[str, Any] = {"fleet_state_hz": FLEET_STATE_HZ, "policies": policies}
    exchange = Exchange()
    short = [scene for scene in scenes("") if scene not in LONG_SCENES]
    arrivals = Arrivals(scene_tasks(short, options.seed, None), poisson=False)
    display.say(f"{len(faults)} faults, {options.robots} robots; engines are paced: {paces}")
    with TemporaryDirectory(prefix="kairos-keys-") as keys:
        cloud = Cloud(logs, Path(keys), paced(policy, paces.cloud))
        testbed = FleetTestbed(
            options.robots,
            "",
            logs,
            display,
            cloud=cloud,
            robot_parameters={"body_log": str(bodies.absolute())},
        )
        with testbed:
            listen_to_exchange(testbed.client, exchange)
            testbed.start(serving)
            display.say(f"the fleet is ready, {cloud.link}")
            testbed.client.begin()
            own = OwnFleet(cloud, arrivals, serving)
            drill = DrillTestbed(testbed, exchange, display, own)
            guard = guard_of(bringup.robot("arm").params_file or Path())
            _warm_up(drill, options.robots)
            _make(drill, faults, judge_bodies(drill, guard, bodies), options, results)
            testbed.end_tasks()


def _run_running(
    options: DrillOptions,
    faults: Sequence[DrillFault],
    display: EventDisplay,
    results: list[FaultResult],
) -> None:
    """As `_run_own`, in a fleet that runs already."""
    chosen, why = possible(faults, access=options.access is not None)
    for name, reason in why.items():
        display.say(f"not in a running fleet: {name} ({reason})")
    exchange = Exchange()
    with RunningFleet(display) as fleet:
        listen_to_exchange(fleet.client, exchange, words=True)
        display.say(f"{len(chosen)} faults, robots {', '.join(fleet.live.robots)}")
        fleet.client.begin()
        drill = RunningDrillTestbed(fleet, exchange, display, options.access)
        asked = "waiting for a robot that asks for a chunk; give one a task"
        drill.until(lambda: exchange.asked, TASK_WITHIN_S, asked)
        drill.run_for(LISTEN_S, "listening to what goes on")
        _make(drill, chosen, judge_by_messages(drill), options, results)


def _make(
    drill: DrillTestbed,
    faults: Sequence[DrillFault],
    judge_all: JudgeAll,
    options: DrillOptions,
    results: list[FaultResult],
) -> None:
    """One fault after the other. Raises Interrupted."""
    display = drill.display
    for number, fault in enumerate(faults, 1):
        display.say(f"{number}/{len(faults)}  {fault.title}", "bold dark_cyan")
        limits = replace(fault.limits, silence_s=options.silence_s)
        result = run_fault(drill, replace(fault, limits=limits), judge_all)
        results.append(result)
        display.say(_said(result), "" if result.passed else "bold red")
        if result.robots:
            path = options.folder / f"{number:02d}_{fault.name}.png"
            drill.meanwhile(partial(draw, path, result), "drawing")
        if number < len(faults):
            drill.restore()


def _warm_up(drill: DrillTestbed, robots: int) -> None:
    """Every robot has built a scene and moves; both tiers serve."""
    drill.until(
        lambda: (
            sum(activity_of(r) == "executing" for r in drill.testbed.live.robots.values())
            >= (robots + 1) // 2
        ),
        BACK_WITHIN_S,
        "waiting for the arms to move",
    )
    drill.until_served_by("cloud", BACK_WITHIN_S)


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
