"""One simulated arm does tasks over its ROS 2 driver: what `make demo ARM=so101` runs."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich.console import Console

from kairos_ros.bringup import Fleet, NodeSpec
from kairos_ros.core.errors import KairosError
from kairos_ros.demo.arm_figure import draw_task
from kairos_ros.demo.arm_witness import ArmWitness, SeenTask
from kairos_ros.demo.interrupt import Interrupt
from kairos_ros.robot.contract import RobotContract
from kairos_ros.robot.contract_file import contract_path, read_contract

INSTRUCTION = "touch the ball"
READY_WITHIN_S = 180.0
"""A policy is loaded and warmed up meanwhile."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One task in numbers."""

    success: bool
    outcome: str
    duration_s: float
    actions: int
    rounds: int
    stalled_s: float
    guarded: int


def demonstrate(
    arm: str, specs: Sequence[NodeSpec], tasks: int, within_s: float, folder: Path
) -> int:
    """Runs the plan, gives the tasks, prints and draws. Returns the exit code of the command."""
    console = Console(highlight=False)
    robot = next(spec for spec in specs if spec.name == "robot").namespace
    driver = next(spec for spec in specs if spec.name == "driver").namespace
    contract = _contract(specs)
    fleet = Fleet(specs, folder)
    seen: list[SeenTask] = []
    console.print(f"{arm}: starting {', '.join(spec.executable for spec in specs)}")
    began = time.monotonic()
    try:
        with (
            Interrupt(at_once=fleet.kill) as interrupt,
            fleet,
            ArmWitness(robot, driver, lambda: interrupt.requested) as witness,
        ):
            if witness.ready(fleet.dead, READY_WITHIN_S):
                console.print(f"ready after {time.monotonic() - began:.0f} s; logs in {folder}")
            for number in range(1, tasks + 1):
                task = witness.do(within_s, instruction=INSTRUCTION)
                if task is None:
                    break
                seen.append(task)
                told = _told(outcome_of(task))
                console.print(f"task {number:3}: {told}", markup=False, soft_wrap=True)
    except KairosError as error:
        console.print(f"{error}; last words:")
        for key in fleet.processes:
            console.print(f"--- {key}\n{fleet.tail(key)}", markup=False, soft_wrap=True)
        return 1
    if not seen:
        console.print("interrupted before the first task")
        return 0
    outcomes = [outcome_of(task) for task in seen]
    console.print(finding(arm, outcomes), soft_wrap=True)
    (folder / "summary.json").write_text(json.dumps(_document(outcomes), indent=2))
    longest = max(range(len(seen)), key=lambda i: len(seen[i].chunks))
    shown = f"{finding(arm, outcomes)}\ntask {longest + 1}, the one with the most chunks"
    draw_task(folder / "arm.png", shown, contract, seen[longest])
    console.print(f"wrote {folder / 'arm.png'}", soft_wrap=True)
    return 0


def outcome_of(task: SeenTask) -> Outcome:
    result = task.result
    return Outcome(
        success=result.success,
        outcome=result.outcome,
        duration_s=result.duration_s,
        actions=result.actions,
        rounds=len(result.round_executed),
        stalled_s=result.stalled_s,
        guarded=result.guarded,
    )


def finding(arm: str, outcomes: Sequence[Outcome]) -> str:
    """What the run showed, in one line."""
    busy = sum(one.duration_s for one in outcomes)
    stalled = sum(one.stalled_s for one in outcomes) / busy if busy else 0.0
    return (
        f"{arm}: {sum(one.success for one in outcomes)} of {len(outcomes)} tasks succeeded, "
        f"{mean(one.duration_s for one in outcomes):.1f} s and "
        f"{mean(one.rounds for one in outcomes):.1f} rounds each, {100 * stalled:.1f} % of the "
        "time stalled"
    )


def _contract(specs: Sequence[NodeSpec]) -> RobotContract:
    """What the robot's adapter was given."""
    robot = next(spec for spec in specs if spec.name == "robot")
    texts = dict(text.split("=", 1) for text in robot.parameters["adapter_options"])
    return read_contract(contract_path(json.loads(texts["contract"])))


def _told(one: Outcome) -> str:
    return (
        f"{one.outcome[:60]} in {one.duration_s:.1f} s, {one.actions} actions in {one.rounds} "
        f"rounds, stalled {one.stalled_s:.2f} s, guarded {one.guarded}"
    )


def _document(outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {
        "tasks": len(outcomes),
        "succeeded": sum(one.success for one in outcomes),
        "outcomes": [
            {name: getattr(one, name) for name in Outcome.__dataclass_fields__} for one in outcomes
        ],
    }
