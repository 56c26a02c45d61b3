"""What judges and planners say, as messages."""

import math

from builtin_interfaces.msg import Time

from kairos_ros.core.pipeline import Component
from kairos_ros.core.wire_check import printable
from kairos_ros.msg import Plan, PlanRequest, SafetyVerdict, TaskProgress, TaskRefusal
from kairos_ros.nodes.robot.watch import Stamp, Watched
from kairos_ros.vlm.embedded.planner import subgoals
from kairos_ros.vlm.judge import FailureCode, Verdict
from kairos_ros.vlm.judge_threads import JudgementResult
from kairos_ros.vlm.questions import DONE, FAILED, ONGOING, SAFE

TITLES = {
    Component.SAFETY: "safety judge",
    Component.MONITOR: "monitor",
    Component.SYSTEM2: "planner",
}
REFUSALS = frozenset({FailureCode.UNKNOWN_INSTRUCTION, FailureCode.BAD_QUESTION})
"""Failures that no other picture would mend."""
STATES = {ONGOING: TaskProgress.ONGOING, DONE: TaskProgress.DONE, FAILED: TaskProgress.FAILED}


def safety_message(
    service: str, of: Watched, stamp: Stamp, verdict: Verdict, result: JudgementResult
) -> SafetyVerdict:
    message = SafetyVerdict(safe=verdict.answer == SAFE)
    return _judgement(message, service, of, stamp, verdict, result)


def progress_message(
    service: str, of: Watched, stamp: Stamp, verdict: Verdict, result: JudgementResult
) -> TaskProgress:
    message = TaskProgress(state=STATES[verdict.answer])
    return _judgement(message, service, of, stamp, verdict, result)


def plan_message(
    service: str, asked: PlanRequest, verdict: Verdict, result: JudgementResult
) -> Plan:
    return Plan(
        robot=asked.robot,
        session=asked.session,
        task=asked.task,
        number=asked.number,
        service=service,
        instruction=verdict.answer,
        subgoals=subgoals(asked.goal, result.request.answers),
        reason=f"{verdict.model} chose it for '{printable(asked.goal, 200)}'",
        model=verdict.model,
        queued_s=result.queued_s,
        latency_s=result.latency_s,
    )


def refusal_message(
    service: str, component: Component, of: Watched | PlanRequest, result: JudgementResult
) -> TaskRefusal:
    """Of a question that failed for one of `REFUSALS`."""
    known = result.failure != FailureCode.UNKNOWN_INSTRUCTION
    what = f"cannot be asked about the task: {result.message}" if known else result.message
    return TaskRefusal(
        robot=of.robot,
        session=of.session,
        task=of.task,
        instruction=result.request.instruction,
        component=component.value,
        service=service,
        reason=f"the {TITLES[component]} {what}",
    )


def _judgement[Message: (SafetyVerdict, TaskProgress)](
    message: Message,
    service: str,
    of: Watched,
    stamp: Stamp,
    verdict: Verdict,
    result: JudgementResult,
) -> Message:
    message.robot, message.session, message.task = of.robot, of.session, of.task
    message.frame = Time(sec=stamp[0], nanosec=stamp[1])
    message.service, message.model = service, verdict.model
    odds = verdict.probabilities
    message.probability = math.nan if odds is None else odds[verdict.answer]
    message.queued_s, message.latency_s = result.queued_s, result.latency_s
    return message
