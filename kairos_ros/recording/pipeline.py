"""What a bag holds of the models around the policy."""

import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kairos_ros.core.errors import KairosError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.pipeline import Component, TaskRules, TaskState
from kairos_ros.recording.reader import Bag, BagMessage, BagTopic
from kairos_ros.recording.runs.pipeline import (
    JudgementRecord,
    PipelineRecord,
    PlanRecord,
    TransitionRecord,
)
from kairos_ros.robot.supervision.rules_text import parse_rules
from kairos_ros.telemetry.decode import decode
from kairos_ros.telemetry.events import (
    CellJudged,
    Judgement,
    ModeChanged,
    ProgressJudged,
    RobotReported,
)

TRUTH = "/task_truth"
"""A simulated robot's own knowledge, in the monitor's words, of every look."""
RULES = "/rules"

_Stamp = tuple[str, int, int]
"""Robot, and the stamp that names a look of it."""


@dataclass(slots=True)
class _Found:
    names: FleetNames
    sessions: set[tuple[str, str]] = field(default_factory=set)
    rules: dict[str, TaskRules] = field(default_factory=dict)
    looks: dict[_Stamp, float] = field(default_factory=dict)
    truths: dict[_Stamp, TaskState] = field(default_factory=dict)
    judged: list[Judgement] = field(default_factory=list)
    asked: dict[tuple[str, str, int], BagMessage] = field(default_factory=dict)
    plans: dict[tuple[str, str, int], BagMessage] = field(default_factory=dict)
    moves: list[ModeChanged] = field(default_factory=list)


def read_pipeline(bag: Bag) -> PipelineRecord:
    """One pass. What is said of another robot than its topic's, or of a session that robot never
    had, is left out, as robots do; what makes no sense, too, and counted by `bag`. Raises
    ConfigError for a bag that is damaged."""
    found = _Found(bag.names)
    if not any(_tells(topic) for topic in bag.topics):
        return PipelineRecord()  # without looking at any picture
    for message in bag.messages(tuple(_READ)):
        try:
            _READ[message.type](found, message)
        except (AttributeError, TypeError, ValueError, KairosError) as error:
            bag.leave_out(message, str(error))  # of another definition than ours, or nonsense
    looks_s: dict[str, list[float]] = {}
    for (robot, _, _), at_s in found.looks.items():
        insort(looks_s.setdefault(robot, []), at_s)
    return PipelineRecord(
        rules=found.rules,
        judged=tuple(_judged(found)),
        plans=tuple(_planned(found)),
        moves=tuple(map(_moved, found.moves)),
        looks_s={robot: tuple(times) for robot, times in looks_s.items()},
    )


def _tells(topic: BagTopic) -> bool:
    return topic.name.endswith(RULES) or (topic.type in _TELLING and not topic.name.endswith(TRUTH))


def _judged(found: _Found) -> Iterator[JudgementRecord]:
    for event in found.judged:
        key = event.key
        if (key.robot, key.session) not in found.sessions:
            continue
        look = key.robot, *event.frame
        match event:
            case CellJudged():
                component, said = Component.SAFETY, "safe" if event.safe else "unsafe"
            case ProgressJudged():
                component, said = Component.MONITOR, event.state.value
        yield JudgementRecord(
            robot=key.robot,
            task=_task(key),
            component=component,
            # the recorder may miss a picture, or get it after the judge did
            pictured_s=min(found.looks.get(look, math.inf), event.at_s - max(0, event.latency_s)),
            answered_s=event.at_s,
            said=said,
            service=event.service,
            truth=found.truths.get(look) if component is Component.MONITOR else None,
        )


def _planned(found: _Found) -> Iterator[PlanRecord]:
    for key, message in found.asked.items():
        answer = found.plans.get(key)
        yield PlanRecord(
            robot=message.body.robot,
            task=_task(message.body),
            asked_s=message.at_s,
            answered_s=answer.at_s if answer else math.nan,
            goal=message.body.goal,
            instruction=answer.body.instruction if answer else "",
        )


def _event(found: _Found, message: BagMessage) -> None:
    event = decode(message.type, message.topic, message.body, message.at_s, found.names)
    match event:
        case RobotReported():
            found.sessions.add((event.robot, event.session))
        case ModeChanged():
            found.moves.append(event)
        case ProgressJudged() if _own(found, message) and message.topic.endswith(TRUTH):
            found.truths[event.key.robot, *event.frame] = event.state
        case CellJudged() | ProgressJudged() if _own(found, message):
            found.judged.append(event)


def _plan_request(found: _Found, message: BagMessage) -> None:
    if _own(found, message):
        found.asked.setdefault(_question(message.body), message)


def _plan(found: _Found, message: BagMessage) -> None:
    if _own(found, message):
        found.plans.setdefault(_question(message.body), message)


def _look(found: _Found, message: BagMessage) -> None:
    """All pictures of one look carry one stamp."""
    robot, stamp = found.names.robot_of(message.topic), message.body.header.stamp
    found.looks.setdefault((robot, stamp.sec, stamp.nanosec), message.at_s)


def _rules(found: _Found, message: BagMessage) -> None:
    if message.topic.endswith(RULES):
        found.rules[found.names.robot_of(message.topic)] = parse_rules(message.body.data)


def _moved(event: ModeChanged) -> TransitionRecord:
    return TransitionRecord(
        robot=event.key.robot,
        task=_task(event.key) if event.key.task else "",
        at_s=event.at_s,
        before=event.before,
        after=event.after,
        trigger=event.trigger,
        component=event.component,
        reason=event.reason,
        effects=event.effects,
        reacted_s=event.reacted_s,
        frame_age_s=event.frame_age_s,
    )


def _own(found: _Found, message: BagMessage) -> bool:
    return bool(message.body.robot == found.names.robot_of(message.topic))


def _task(body: Any) -> str:
    return f"{body.session}/{body.task}"


def _question(body: Any) -> tuple[str, str, int]:
    return body.robot, _task(body), body.number


_TELLING = frozenset(
    f"kairos_ros/msg/{name}"
    for name in ("SafetyVerdict", "TaskProgress", "PlanRequest", "Plan", "PipelineEvent")
)
_READ: dict[str, Callable[[_Found, BagMessage], None]] = {
    "kairos_ros/msg/RobotStatus": _event,
    "kairos_ros/msg/SafetyVerdict": _event,
    "kairos_ros/msg/TaskProgress": _event,
    "kairos_ros/msg/PlanRequest": _plan_request,
    "kairos_ros/msg/Plan": _plan,
    "kairos_ros/msg/PipelineEvent": _event,
    "sensor_msgs/msg/CompressedImage": _look,
    "std_msgs/msg/String": _rules,
}
