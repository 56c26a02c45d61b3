"""One simulated arm does tasks over its ROS 2 driver: what `make demo ARM=so101` runs."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean

from rich.console import Console

from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.lab.demos.arm_figure import draw_task
from kairos_ros.lab.demos.arm_recording import ArmRecorder, ArmRecording
from kairos_ros.lab.testbed.display import EventDisplay, print_line
from kairos_ros.lab.testbed.processes import FleetError, Interrupted
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.testbed_client import NOT_ACCEPTED
from kairos_ros.lab.testbed.workload import SceneTask
from kairos_ros.recording.runs.run import LOST, TaskRecord
from kairos_ros.robot.adapters.contract.contract import RobotContract
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract

INSTRUCTION = "touch the ball"
READY_WITHIN_S = 180.0
"""A policy is loaded and warmed up meanwhile."""

RecordedTask = tuple[TaskRecord, ArmRecording]


def demonstrate(
    arm: str, specs: Sequence[ProcessSpec], tasks: int, within_s: float, folder: Path
) -> int:
    """Runs the plan, gives the tasks, prints and draws. Returns the exit code of the command."""
    console = Console(highlight=False)
    robot = next(spec for spec in specs if spec.name == "robot").namespace
    driver = next(spec for spec in specs if spec.name == "driver").namespace
    contract = _contract(specs)
    display = EventDisplay(console)
    testbed = FleetTestbed(1, "", folder, display, nodes=specs)
    done: list[RecordedTask] = []
    console.print(f"{arm}: starting {', '.join(spec.executable for spec in specs)}")
    try:
        with display, testbed, suppress(Interrupted):
            recorder = ArmRecorder(testbed.client, robot, driver)
            startup = testbed.start({})
            heard = lambda: recorder.recording.positions  # noqa: E731
            testbed.wait_until(heard, "waiting for the driver's joint states", READY_WITHIN_S)
            console.print(f"ready after {startup.ready_s:.0f} s; logs in {folder}")
            try:
                for number in range(1, tasks + 1):
                    record = do_task(recorder, number, within_s, testbed.wait_until)
                    done.append((record, recorder.recording))
                    print_line(console, f"task {number:3}: {_described(record)}")
            finally:
                testbed.end_tasks()
    except FleetError as error:
        print_line(console, f"{error}; its last output:")
        for key in testbed.fleet.processes:
            print_line(console, f"--- {key}\n{testbed.fleet.tail(key)}")
        return 1
    if not done:
        console.print("interrupted before the first task")
        return 0
    records = [record for record, _ in done]
    console.print(finding(arm, records), soft_wrap=True)
    (folder / "summary.json").write_text(json.dumps(_document(records), indent=2))
    longest = max(range(len(done)), key=lambda i: len(done[i][1].chunks))
    title = f"{finding(arm, records)}\ntask {longest + 1}, the one with the most chunks"
    draw_task(folder / "arm.png", title, contract, done[longest][1])
    console.print(f"wrote {folder / 'arm.png'}", soft_wrap=True)
    return 0


def do_task(
    recorder: ArmRecorder,
    number: int,
    within_s: float,
    wait_until: Callable[[Callable[[], object], str, float], None],
    max_actions: int = 0,
) -> TaskRecord:
    """Gives the robot a task and waits for its end.

    Raises FleetError for a robot that does not take it or gives no result, and whatever
    `wait_until` raises.
    """
    client, robot = recorder.client, recorder.robot
    wait_until(lambda: robot in client.free(), "waiting for the robot to be free", 10.0)
    recorder.begin()
    client.give(robot, SceneTask(number, "", 0, 0.0), max_actions, INSTRUCTION, within_s)
    wait_until(lambda: not client.busy(), f"task {number}", within_s + 60.0)
    record = client.records[-1]
    if record.outcome in (LOST, NOT_ACCEPTED):
        raise FleetError(f"task {number} of {robot}: {record.outcome}")
    return record


def finding(arm: str, records: Sequence[TaskRecord]) -> str:
    """What the run showed, in one line."""
    busy = sum(one.duration_s for one in records)
    stalled, rate_hz = (
        sum(getattr(one, name) for one in records) / busy if busy else 0.0
        for name in ("stalled_s", "actions")
    )
    return (
        f"{arm}: {sum(one.success for one in records)} of {len(records)} tasks succeeded, "
        f"{mean(one.duration_s for one in records):.1f} s and "
        f"{mean(len(one.round_executed) for one in records):.1f} rounds each, "
        f"{rate_hz:.1f} actions/s, {100 * stalled:.1f} % of the time stalled"
    )


def _contract(specs: Sequence[ProcessSpec]) -> RobotContract:
    """What the robot's adapter was given."""
    robot = next(spec for spec in specs if spec.name == "robot")
    texts = dict(text.split("=", 1) for text in robot.parameters["adapter_options"])
    return read_contract(contract_path(json.loads(texts["contract"])))


def _described(one: TaskRecord) -> str:
    return (
        f"{one.outcome[:60]} in {one.duration_s:.1f} s, {one.actions} actions in "
        f"{len(one.round_executed)} rounds, stalled {one.stalled_s:.2f} s, guarded {one.guarded}"
    )


def _document(records: Sequence[TaskRecord]) -> dict[str, object]:
    return {
        "tasks": len(records),
        "succeeded": sum(one.success for one in records),
        "outcomes": [
            {
                "success": one.success,
                "outcome": one.outcome,
                "duration_s": one.duration_s,
                "actions": one.actions,
                "rounds": len(one.round_executed),
                "stalled_s": one.stalled_s,
                "guarded": one.guarded,
            }
            for one in records
        ],
    }
