"""What judges and planners say, as messages."""

import math

from builtin_interfaces.msg import Time

from kairos_ros.msg import Plan, PlanRequest, SafetyVerdict, TaskProgress
from kairos_ros.nodes.robot_watch import Stamp, Watched
from kairos_ros.vlm.desk import Settled
from kairos_ros.vlm.judge import Verdict
from kairos_ros.vlm.planner import subgoals
from kairos_ros.vlm.questions import DONE, FAILED, ONGOING, SAFE

STATES = {ONGOING: TaskProgress.ONGOING, DONE: TaskProgress.DONE, FAILED: TaskProgress.FAILED}


def safety_message(
    service: str, of: Watched, stamp: Stamp, verdict: Verdict, settled: Settled
) -> SafetyVerdict:
    message = SafetyVerdict(safe=verdict.answer == SAFE)
    return _judgement(message, service, of, stamp, verdict, settled)


def progress_message(
    service: str, of: Watched, stamp: Stamp, verdict: Verdict, settled: Settled
) -> TaskProgress:
    message = TaskProgress(state=STATES[verdict.answer])
    return _judgement(message, service, of, stamp, verdict, settled)


def plan_message(service: str, asked: PlanRequest, verdict: Verdict, settled: Settled) -> Plan:
    return Plan(
        robot=asked.robot,
        session=asked.session,
        task=asked.task,
        number=asked.number,
        service=service,
        instruction=verdict.answer,
        subgoals=subgoals(asked.goal, settled.matter.answers),
        reason=f"{verdict.model} chose it for {asked.goal!r:.200}",
        model=verdict.model,
        queued_s=settled.queued_s,
        latency_s=settled.latency_s,
    )


def _judgement[Message: (SafetyVerdict, TaskProgress)](
    message: Message,
    service: str,
    of: Watched,
    stamp: Stamp,
    verdict: Verdict,
    settled: Settled,
) -> Message:
    message.robot, message.session, message.task = of.robot, of.session, of.task
    message.frame = Time(sec=stamp[0], nanosec=stamp[1])
    message.service, message.model = service, verdict.model
    odds = verdict.probabilities
    message.probability = math.nan if odds is None else odds[verdict.answer]
    message.queued_s, message.latency_s = settled.queued_s, settled.latency_s
    return message
