"""Runs faults one after the other, and has each robot judged."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kairos_ros.core.errors import KairosError
from kairos_ros.lab.drill.drill_testbed import DrillTestbed
from kairos_ros.lab.drill.faults import DrillFault
from kairos_ros.lab.drill.proof.evidence import Guard
from kairos_ros.lab.drill.proof.exchange import Exchange
from kairos_ros.lab.drill.proof.message_verdict import judge_messages
from kairos_ros.lab.drill.proof.verdict import BodyLogs, Check, RobotVerdict, Window, judge
from kairos_ros.lab.testbed.processes import Interrupted
from kairos_ros.robot.body_log import log_path, read_body_log

TASKS_END_WITHIN_S = 100.0
"""The longest that a task may take (`testbed_client.MAX_DURATION_S`), and some more."""
SETTLE_S = 0.5
"""Until the last messages about a task have come."""


JudgeAll = Callable[[Window, DrillFault], Sequence[RobotVerdict]]
"""Judges the robots once a fault is over."""


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What came of one fault."""

    name: str
    title: str
    checks: tuple[Check, ...]
    """Of the fleet as a whole."""
    robots: tuple[RobotVerdict, ...]
    window: Window
    seconds: float
    """The whole fault took so long, with what it needs before and after."""
    victim: str = ""
    """The robot whose own process was ended, and with it the task that ran there."""
    dead: tuple[str, ...] = field(default=())
    """Processes that ended although they should not have."""

    @property
    def passed(self) -> bool:
        """Every expectation came true, for the fleet and for every robot; there was a robot."""
        fleet = all(check.ok for check in self.checks)
        robots = bool(self.robots) and all(robot.passed for robot in self.robots)
        return fleet and not self.dead and robots


def run_fault(drill: DrillTestbed, fault: DrillFault, judge_all: JudgeAll) -> FaultResult:
    """Makes one fault, waits for the tasks that felt it, and judges. Raises Interrupted."""
    began = time.monotonic()
    drill.checks, drill.turns = [], []
    drill.begin_s = drill.repaired_s = 0.0
    try:
        fault.script(drill)
    except Interrupted:
        raise
    except KairosError as error:
        drill.expect("in time", False, str(error))
    now_s = time.monotonic()
    drill.begin_s = drill.begin_s or now_s
    drill.repaired_s = drill.repaired_s or now_s
    try:
        drill.until(
            lambda: drill.oldest_task_s() > now_s,
            TASKS_END_WITHIN_S,
            "waiting for the tasks that felt it to end",
        )
        drill.run_for(SETTLE_S, "waiting for the last messages")
    except Interrupted:
        raise
    except KairosError as error:
        drill.expect("tasks end", False, str(error))
    window = Window(drill.begin_s, drill.repaired_s, time.monotonic(), tuple(drill.turns))
    verdicts = tuple(judge_all(window, fault))
    dead = tuple(f"{name} ended with exit code {code}" for name, code in drill.dead().items())
    took_s = time.monotonic() - began
    return FaultResult(
        name=fault.name,
        title=fault.title,
        checks=tuple(drill.checks),
        robots=verdicts,
        window=window,
        seconds=took_s,
        victim=fault.victim,
        dead=dead,
    )


def judge_bodies(drill: DrillTestbed, guard: Guard, bodies: Path) -> JudgeAll:
    """Judges every robot by the log of its body."""

    def judge_all(window: Window, fault: DrillFault) -> list[RobotVerdict]:
        return [
            judge(
                read_body(bodies, robot, drill.exchange),
                drill.exchange,
                guard,
                window,
                fault.limits,
                victim=robot == fault.victim,
            )
            for robot in drill.testbed.live.robots
        ]

    return judge_all


def judge_by_messages(drill: DrillTestbed) -> JudgeAll:
    """Judges every robot that had a task by what it said."""

    def judge_all(window: Window, fault: DrillFault) -> list[RobotVerdict]:
        client = drill.testbed.client
        told = [
            replace(s, start_s=s.start_s + client.origin_s, end_s=s.end_s + client.origin_s)
            for s in client.timeline.spans(client.now_s())
        ]
        found = [
            judge_messages(robot, drill.exchange, told, window, fault.limits)
            for robot in drill.testbed.live.robots
        ]
        return [verdict for verdict in found if verdict is not None]

    return judge_all


def read_body(folder: Path, robot: str, exchange: Exchange) -> BodyLogs:
    """The logs of all sessions of a robot, in order."""
    paths = {session: log_path(folder, robot, session) for session in exchange.sessions(robot)}
    logs = {session: list(read_body_log(p)) for session, p in paths.items() if p.exists()}
    return BodyLogs(robot, logs)


def passed(results: Sequence[FaultResult]) -> bool:
    return all(result.passed for result in results)
