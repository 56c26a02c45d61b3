"""Virtual robots tell of their tasks as real ones do, so that a replay can be recorded."""

import math
import time

from rclpy.node import Node

from kairos_ros.core.execution.task import Task, TaskResult
from kairos_ros.lab.sim.virtual_robot import Ended
from kairos_ros.msg import TaskEvent
from kairos_ros.nodes import qos
from kairos_ros.nodes.robot.messages import Identity, finished_message, started_message
from kairos_ros.robot.adapter import TaskGoal


class TaskEvents:
    """Of all robots of one process."""

    def __init__(self, node: Node, robots: tuple[str, ...], epoch_ns: int) -> None:
        """`epoch_ns`: when the run began, monotonic."""
        self._epoch_ns = epoch_ns
        self._publishers = {
            robot: node.create_publisher(TaskEvent, f"/{robot}/task_events", qos.EVENTS)
            for robot in robots
        }

    def began(self, who: Identity, task: Task) -> None:
        self._publishers[who.robot].publish(started_message(who, task, _goal(task)))

    def ended(self, who: Identity, task: Task, ended: Ended) -> None:
        result = task_result(task, ended, self._epoch_ns)
        ago_s = (time.monotonic_ns() - result.started_ns) / 1e9
        self._publishers[who.robot].publish(finished_message(who, result, _goal(task), ago_s))


def task_result(task: Task, ended: Ended, epoch_ns: int) -> TaskResult:
    """What a robot node would have reported of the same task."""
    record = ended.task
    served = [r for r in ended.rounds if r.horizon]
    return TaskResult(
        task=task,
        success=record.success,
        outcome=record.outcome,
        started_ns=epoch_ns + _ns(record.given_s),
        duration_ns=_ns(record.duration_s),
        stalled_ns=_ns(record.stalled_s),
        first_wait_ns=_ns(record.first_wait_s),
        actions=record.actions,
        round_latency_ns=tuple(map(_ns, record.round_latency_s)),
        round_executed=record.round_executed,
        round_started_ns=tuple(_since(r.exec_start_s, record.given_s) for r in served),
        round_ended_ns=tuple(_since(r.exec_end_s, record.given_s) for r in served),
        refusals=record.refusals,
        dropped=record.dropped,
        guarded=0,
    )


def _goal(task: Task) -> TaskGoal:
    return TaskGoal(task.instruction, seed=task.seed)


def _since(at_s: float, start_s: float) -> int | None:
    return None if math.isnan(at_s) else _ns(at_s - start_s)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
