"""Robot side: plain data of `kairos_ros.robot` to and from messages. Seconds there, ns here."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sensor_msgs.msg import CompressedImage, JointState

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import WireError
from kairos_ros.msg import ActionChunk, ChunkRequest, ExecutionInfo, RobotStatus, TaskEvent
from kairos_ros.robot.adapter import Observation, RobotSpec, TaskGoal
from kairos_ros.robot.control_report import Report
from kairos_ros.robot.exchange import Answer, AnswerKind, Execution, Request, Task, TaskResult


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a robot node is on the wire."""

    robot: str
    session: str
    spec: RobotSpec


def request_message(
    who: Identity,
    request: Request,
    observation: Observation,
    observed_ago_ns: int,
    deadline_s: float,
) -> ChunkRequest:
    task = request.task
    return ChunkRequest(
        robot=who.robot,
        session=who.session,
        task=task.id,
        round=request.round,
        attempt=request.attempt,
        instruction=task.instruction,
        task_kind=task.kind,
        state=np.asarray(observation.state, np.float32),
        image_keys=list(observation.images),
        images=[CompressedImage(format="jpeg", data=jpeg) for jpeg in observation.images.values()],
        execution=execution_message(request.execution, who.spec.control_rate_hz),
        horizon_policy=task.horizon_policy,
        deadline_s=deadline_s,
        observed_ago_s=observed_ago_ns / 1e9,
        seed=task.seed,
    )


def execution_message(execution: Execution, control_rate_hz: float) -> ExecutionInfo:
    return ExecutionInfo(
        round=execution.round,
        started=execution.started,
        holding=execution.holding,
        started_ago_s=execution.started_ago_ns / 1e9,
        ended_ago_s=execution.ended_ago_ns / 1e9,
        actions_executed=execution.executed,
        actions_remaining=execution.remaining,
        chunk_index=execution.chunk_index,
        control_rate_hz=control_rate_hz,
        stalled_s=execution.stalled_ns / 1e9,
    )


def answer_from(message: ActionChunk) -> Answer:
    """Actions whose count contradicts the sizes in the message come out as None.

    Raises WireError for an unknown kind and for durations that are negative or not finite.
    """
    try:
        kind = AnswerKind(message.kind)
    except ValueError:
        raise WireError(f"answer kind {message.kind} is unknown; update one of the peers") from None
    actions = np.asarray(message.actions, np.float32)
    fits = len(actions) == message.horizon * message.action_dim
    return Answer(
        robot=message.robot,
        session=message.session,
        task=message.task,
        round=message.round,
        attempt=message.attempt,
        kind=kind,
        actions=actions.reshape(message.horizon, message.action_dim) if fits else None,
        reason=message.reason,
        retry_after_ns=_duration_ns("retry_after_s", message.retry_after_s),
        server_ns=_duration_ns("server_s", message.server_s),
        engine_latency_ns=_duration_ns("engine_latency_s", message.engine_latency_s),
    )


def status_message(who: Identity, report: Report) -> RobotStatus:
    task = report.task
    return RobotStatus(
        robot=who.robot,
        session=who.session,
        state=report.state,
        task=task.id if task else "",
        instruction=report.instruction,
        round=report.execution.round,
        horizon=report.horizon,
        buffered=report.execution.remaining,
        tasks_done=report.tasks_done,
        tasks_succeeded=report.tasks_succeeded,
        control_rate_hz=who.spec.control_rate_hz,
        stalled_s=report.execution.stalled_ns / 1e9,
        actions_executed=report.actions_executed,
        chunks_dropped=sum(report.dropped.values()),
        actions_guarded=report.actions_guarded,
        state_dim=who.spec.state_dim,
        action_dim=who.spec.action_dim,
        image_keys=list(who.spec.images),
    )


def feedback_message(report: Report) -> ExecuteTask.Feedback:
    return ExecuteTask.Feedback(
        round=report.execution.round,
        horizon=report.horizon,
        buffered=report.execution.remaining,
        actions=report.task_actions,
        stalled_s=report.execution.stalled_ns / 1e9,
        holding=report.execution.holding,
    )


def result_message(result: TaskResult) -> ExecuteTask.Result:
    return ExecuteTask.Result(
        success=result.success,
        outcome=result.outcome,
        duration_s=result.duration_ns / 1e9,
        rounds=len(result.round_executed),
        actions=result.actions,
        stalled_s=result.stalled_ns / 1e9,
        first_wait_s=result.first_wait_ns / 1e9,
        mean_horizon=result.mean_horizon,
        round_latency_s=[latency / 1e9 for latency in result.round_latency_ns],
        round_executed=list(result.round_executed),
        refusals=result.refusals,
        dropped=result.dropped,
        guarded=result.guarded,
    )


def started_message(who: Identity, task: Task, goal: TaskGoal) -> TaskEvent:
    return TaskEvent(
        kind=TaskEvent.STARTED,
        robot=who.robot,
        session=who.session,
        task=task.id,
        instruction=task.instruction,
        task_kind=task.kind,
        scene=goal.scene,
        seed=task.seed,
        horizon_policy=task.horizon_policy,
        control_rate_hz=who.spec.control_rate_hz,
    )


def finished_message(
    who: Identity, result: TaskResult, goal: TaskGoal, started_ago_s: float
) -> TaskEvent:
    message = started_message(who, result.task, goal)
    message.kind = TaskEvent.FINISHED
    message.success, message.outcome = result.success, result.outcome
    message.duration_s = result.duration_ns / 1e9
    message.first_request_ago_s = started_ago_s
    message.actions = result.actions
    message.stalled_s = result.stalled_ns / 1e9
    message.first_wait_s = result.first_wait_ns / 1e9
    message.refusals, message.dropped = result.refusals, result.dropped
    message.guarded = result.guarded
    message.round_latency_s = _seconds(result.round_latency_ns)
    message.round_executed = list(result.round_executed)
    message.round_started_s = _seconds(result.round_started_ns)
    message.round_ended_s = _seconds(result.round_ended_ns)
    return message


def joint_state_message(names: list[str], state: np.ndarray) -> JointState:
    return JointState(name=names, position=np.asarray(state, np.float64))


def _seconds(durations_ns: Iterable[int | None]) -> list[float]:
    return [math.nan if ns is None else ns / 1e9 for ns in durations_ns]


def _duration_ns(name: str, seconds: float) -> int:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise WireError(f"{name} is {seconds}; a duration is finite and not negative")
    return round(seconds * 1e9)
