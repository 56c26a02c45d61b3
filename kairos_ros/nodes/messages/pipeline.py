"""Robot side of the models around the policy: their answers as events, what was done about them."""

import math
from collections.abc import Callable

from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.pipeline import Component, TaskState
from kairos_ros.core.wire_check import ID_BYTES, check_text, printable
from kairos_ros.msg import (
    PipelineEvent,
    Plan,
    PlanRequest,
    SafetyVerdict,
    TaskProgress,
    TaskRefusal,
)
from kairos_ros.nodes.robot.messages import Identity
from kairos_ros.robot.cameras.recent_frames import CameraFrame
from kairos_ros.robot.control_events import Planned, Refused
from kairos_ros.robot.supervision.state_events import CellVerdict, Progress
from kairos_ros.robot.supervision.state_machine import Transition
from kairos_ros.robot.supervision.supervisor import AskPlan

STATES = {
    TaskProgress.ONGOING: TaskState.ONGOING,
    TaskProgress.DONE: TaskState.DONE,
    TaskProgress.FAILED: TaskState.FAILED,
}
LONGEST_REASON = 2000
"""Characters of a refusal's reason that are kept: it becomes the outcome of the task."""
Find = Callable[[tuple[int, int]], CameraFrame | None]
"""A picture of this robot by its stamp."""


class UnusableError(WireError):
    """An answer that says nothing about this robot's cell and task; `reason` is for counters."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


def verdict_from(message: SafetyVerdict, who: Identity, find: Find, now_ns: int) -> CellVerdict:
    """Raises UnusableError for a verdict that is not about a picture of this robot."""
    frame = _frame(message, who, find)
    service = printable(message.service, ID_BYTES)
    reason = f"{service} of task {printable(message.task)}"
    if 0 <= message.probability <= 1:
        reason += f", {message.probability:.0%} sure"
    return CellVerdict(now_ns, frame.taken_ns, message.safe, service, reason)


def progress_from(message: TaskProgress, who: Identity, find: Find, now_ns: int) -> Progress:
    """Raises UnusableError for a report that is not about a picture of this task."""
    frame = _frame(message, who, find)
    if message.task != frame.task:
        text = f"'{printable(message.task)}', the picture is of task {frame.task!r}"
        raise UnusableError("other_task", text)
    if message.state not in STATES:
        text = f"state {message.state} is unknown; update one of the peers"
        raise UnusableError("malformed", text)
    state = STATES[message.state]
    service = printable(message.service, ID_BYTES)
    return Progress(now_ns, frame.taken_ns, state, f"{service} says {state}")


def planned_from(message: Plan, who: Identity, asked: AskPlan | None, now_ns: int) -> Planned:
    """asked: the newest question.

    Raises UnusableError for a plan that does not answer it, WireError for an endless one.
    """
    _own(message, who)
    if asked is None or message.task != asked.task.id:
        raise UnusableError("other_task", f"'{printable(message.task)}'")
    check_text("instruction", message.instruction)
    return Planned(message.number, message.instruction, now_ns)


def refused_from(message: TaskRefusal, who: Identity, now_ns: int) -> Refused:
    """Raises UnusableError for a refusal of another robot's task, or by no known component."""
    _own(message, who)
    if message.component not in list(Component):
        raise UnusableError("malformed", f"component {message.component!r:.80}")
    reason = " ".join(message.reason[:LONGEST_REASON].split())
    return Refused(Component(message.component), message.task, message.instruction, reason, now_ns)


def plan_request_message(
    who: Identity,
    ask: AskPlan,
    observation: Observation,
    observed_ago_ns: int,
    *,
    round: int,
    slo_ns: int,
) -> PlanRequest:
    """round: the newest one."""
    return PlanRequest(
        robot=who.robot,
        session=who.session,
        task=ask.task.id,
        number=ask.number,
        round=round,
        goal=ask.task.instruction,
        instruction=ask.instruction,
        slo_s=slo_ns / 1e9,
        observed_ago_s=observed_ago_ns / 1e9,
        image_keys=list(observation.images),
        images=[CompressedImage(format="jpeg", data=one) for one in observation.images.values()],
    )


def pipeline_event(
    who: Identity, task: str, transition: Transition, frame_ns: int | None, now_ns: int
) -> PipelineEvent:
    """frame_ns: when the judged picture was taken, where one was. now_ns: the effects are done."""
    return PipelineEvent(
        robot=who.robot,
        session=who.session,
        task=task,
        before=transition.before.value,
        after=transition.after.value,
        trigger=transition.trigger.value,
        component=transition.component.value if transition.component else "",
        reason=transition.reason,
        effects=[effect.value for effect in transition.effects],
        reacted_s=(now_ns - transition.caused_ns) / 1e9,
        frame_age_s=math.nan if frame_ns is None else (now_ns - frame_ns) / 1e9,
    )


def picture_message(stamp: Time, camera: str, jpeg: bytes) -> CompressedImage:
    message = CompressedImage(format="jpeg", data=jpeg)
    message.header.stamp = stamp
    message.header.frame_id = camera
    return message


def _own(message: SafetyVerdict | TaskProgress | Plan | TaskRefusal, who: Identity) -> None:
    if message.robot != who.robot:
        raise UnusableError("other_robot", f"'{printable(message.robot)}'")
    if message.session != who.session:
        raise UnusableError("other_session", f"'{printable(message.session)}'")


def _frame(message: SafetyVerdict | TaskProgress, who: Identity, find: Find) -> CameraFrame:
    _own(message, who)
    frame = find((message.frame.sec, message.frame.nanosec))
    if frame is None:
        raise UnusableError("unknown_frame", f"{message.frame.sec}.{message.frame.nanosec:09d}")
    return frame
