"""Robot side: plain data of `kairos_ros.robot` to and from messages. Seconds there, ns here."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Header

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import (
    Execution,
    Observation,
    Request,
)
from kairos_ros.core.execution.task import Task, TaskResult
from kairos_ros.core.fit import RobotInterface
from kairos_ros.core.wire_check import (
    check_duration,
    check_text,
)
from kairos_ros.msg import (
    ChunkRequest,
    ExecutionInfo,
    PolicyState,
    RobotStatus,
    TaskEvent,
)
from kairos_ros.msg import Observation as ObservationMessage
from kairos_ros.robot.adapter import RobotSpec, TaskGoal
from kairos_ros.robot.control_report import Report
from kairos_ros.robot.supervision.state_table import Mode


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a robot node is on the wire."""

    robot: str
    session: str
    spec: RobotSpec
    camera_map: Mapping[str, str] = field(default_factory=dict)
    """Camera -> what requests call its pictures, where that differs."""
    absent: tuple[str, ...] = ()
    """Cameras of the policy that it is without."""
    sends_pictures: bool = True

    @property
    def interface(self) -> RobotInterface:
        """What its requests bring."""
        cameras = self.spec.images if self.sends_pictures else {}
        named = {self.camera_map.get(key, key): size for key, size in cameras.items()}
        return RobotInterface(self.spec.state_dim, self.spec.action_dim, named, self.absent)


@dataclass(frozen=True, slots=True)
class ControlTick:
    """What a body was like in one control period, and what it was told."""

    stamp: Time
    state: np.ndarray
    """float32 [state_dim], before the action."""
    action: np.ndarray | None
    """float32 [action_dim], after the guard; None: it held."""


def request_message(who: Identity, request: Request) -> ChunkRequest:
    asked, observation = request.id, request.observation
    return ChunkRequest(
        server=request.server,
        robot=asked.robot,
        session=asked.session,
        task=asked.task,
        round=asked.round,
        attempt=asked.attempt,
        instruction=request.instruction,
        task_kind=request.kind,
        state=np.asarray(observation.state, np.float32),
        image_keys=[who.camera_map.get(key, key) for key in observation.images],
        images=_pictures(observation),
        execution=execution_message(request.execution, who.spec.control_rate_hz),
        horizon_policy=request.horizon_policy,
        deadline_s=request.deadline_ns / 1e9,
        observed_ago_s=request.observed_ago_ns / 1e9,
        seed=request.seed,
        committed_actions=len(request.committed),
        committed=array("f", request.committed.astype(np.float32).tobytes()),
        earlier=[
            ObservationMessage(state=np.asarray(seen.state, np.float32), images=_pictures(seen))
            for seen in request.earlier
        ],
        policy=request.policy,
        task_actions=request.task_actions,
        executed_actions=len(request.executed),
        executed=array("f", request.executed.astype(np.float32).tobytes()),
    )


def _pictures(seen: Observation) -> list[CompressedImage]:
    return [CompressedImage(format="jpeg", data=jpeg) for jpeg in seen.images.values()]


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
        seam=execution.seam,
        inferred=execution.inferred,
        surprised=execution.surprised,
        surprise=execution.surprise,
        surprise_joint=execution.surprise_joint,
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
        image_height_px=[height for height, _ in who.spec.images.values()],
        image_width_px=[width for _, width in who.spec.images.values()],
        request_image_keys=list(who.interface.cameras),
        absent_cameras=list(who.absent),
        server=report.bound,
        policy=report.policy,
    )


def check_goal(goal: ExecuteTask.Goal, control_rate_hz: float) -> None:
    """Raises WireError for a goal that cannot be a task."""
    if not goal.instruction:
        raise WireError("it has no instruction")
    for name in ("instruction", "task_kind", "scene", "horizon_policy", "policy"):
        check_text(name, getattr(goal, name))
    check_duration("max_duration_s", goal.max_duration_s)
    if 0 < goal.max_duration_s < 1.0 / control_rate_hz:
        raise WireError(
            f"max_duration_s is {goal.max_duration_s:g}, less than one control period at "
            f"{control_rate_hz:g} Hz; 0 is no limit"
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
        round_seam=list(result.round_seam),
        mean_step=result.mean_step,
        refusals=result.refusals,
        dropped=result.dropped,
        guarded=result.guarded,
        ended=result.ended,
        round_surprise=list(result.round_surprise),
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
        policy=task.policy,
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
    message.guarded, message.ended = result.guarded, result.ended
    message.round_latency_s = _seconds(result.round_latency_ns)
    message.round_executed = list(result.round_executed)
    message.round_seam, message.mean_step = list(result.round_seam), result.mean_step
    message.round_surprise = list(result.round_surprise)
    message.round_started_s = _seconds(result.round_started_ns)
    message.round_ended_s = _seconds(result.round_ended_ns)
    return message


def joint_state_message(names: Sequence[str], positions: np.ndarray, stamp: Time) -> JointState:
    return JointState(header=Header(stamp=stamp), name=names, position=positions)


def policy_state_message(who: Identity, report: Report, told: ControlTick) -> PolicyState:
    """report: as of the end of that period."""
    message = PolicyState(
        stamp=told.stamp,
        names=who.spec.state_names or [f"state_{i}" for i in range(who.spec.state_dim)],
        values=told.state,
        session=who.session,
        task=report.task.id if report.task else "",
        mode=report.mode or "",
    )
    if told.action is not None:
        message.action = array("f", told.action.astype(np.float32).tobytes())
        if report.mode in (None, Mode.RUNNING):  # else it leads to the safe state
            message.round = report.execution.round
            message.chunk_index = report.execution.chunk_index - 1
    return message


def _seconds(durations_ns: Iterable[float | None]) -> list[float]:
    return [math.nan if ns is None else ns / 1e9 for ns in durations_ns]
