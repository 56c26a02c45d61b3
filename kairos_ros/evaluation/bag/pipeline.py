"""What a bag holds of the models around the policy."""

import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component, TaskRules, TaskState
from kairos_ros.evaluation.bag.reader import Bag, BagMessage, BagTopic
from kairos_ros.evaluation.pipeline import Judged, Moved, PipelineRecord, Planned
from kairos_ros.robot.rules_text import parse_rules

TRUTH = "/task_truth"
"""A simulated robot's own knowledge, in the monitor's words, of every look."""
RULES = "/rules"
_STATES = (TaskState.ONGOING, TaskState.DONE, TaskState.FAILED)
"""By TaskProgress.state."""

_Stamp = tuple[str, int, int]
"""Robot, and the stamp that names a look of it."""


@dataclass(slots=True)
class _Found:
    sessions: set[tuple[str, str]] = field(default_factory=set)
    rules: dict[str, TaskRules] = field(default_factory=dict)
    looks: dict[_Stamp, float] = field(default_factory=dict)
    truths: dict[_Stamp, TaskState] = field(default_factory=dict)
    said: list[tuple[Component, str, BagMessage]] = field(default_factory=list)
    asked: dict[tuple[str, str, int], BagMessage] = field(default_factory=dict)
    plans: dict[tuple[str, str, int], BagMessage] = field(default_factory=dict)
    moves: list[Moved] = field(default_factory=list)


def read_pipeline(bag: Bag) -> PipelineRecord:
    """One pass. What is said of another robot than its topic's, or of a session that robot never
    had, is left out, as robots do. Raises ConfigError for a bag that is damaged."""
    found = _Found()
    if not any(_tells(topic) for topic in bag.topics):
        return PipelineRecord()  # without looking at any picture
    for message in bag.messages(tuple(_READ)):
        _READ[message.type](found, message)
    looks_s: dict[str, list[float]] = {}
    for (robot, _, _), at_s in found.looks.items():
        insort(looks_s.setdefault(robot, []), at_s)
    return PipelineRecord(
        rules=found.rules,
        judged=tuple(_judged(found)),
        plans=tuple(_planned(found)),
        moves=tuple(found.moves),
        looks_s={robot: tuple(times) for robot, times in looks_s.items()},
    )


def _tells(topic: BagTopic) -> bool:
    return topic.name.endswith(RULES) or (topic.type in _TELLING and not topic.name.endswith(TRUTH))


def _judged(found: _Found) -> Iterator[Judged]:
    for component, said, message in found.said:
        body = message.body
        if (body.robot, body.session) not in found.sessions:
            continue
        look = body.robot, body.frame.sec, body.frame.nanosec
        yield Judged(
            robot=body.robot,
            task=_task(body),
            component=component,
            # the recorder may miss a picture, or get it after the judge did
            pictured_s=min(found.looks.get(look, math.inf), message.at_s - max(0, body.latency_s)),
            answered_s=message.at_s,
            said=said,
            service=body.service,
            truth=found.truths.get(look) if component is Component.MONITOR else None,
        )


def _planned(found: _Found) -> Iterator[Planned]:
    for key, message in found.asked.items():
        answer = found.plans.get(key)
        yield Planned(
            robot=message.body.robot,
            task=_task(message.body),
            asked_s=message.at_s,
            answered_s=answer.at_s if answer else math.nan,
            goal=message.body.goal,
            instruction=answer.body.instruction if answer else "",
        )


def _status(found: _Found, message: BagMessage) -> None:
    found.sessions.add((message.body.robot, message.body.session))


def _verdict(found: _Found, message: BagMessage) -> None:
    if _own(message):
        found.said.append((Component.SAFETY, "safe" if message.body.safe else "unsafe", message))


def _progress(found: _Found, message: BagMessage) -> None:
    body = message.body
    if not _own(message) or body.state >= len(_STATES):
        return
    state = _STATES[body.state]
    if message.topic.endswith(TRUTH):
        found.truths[body.robot, body.frame.sec, body.frame.nanosec] = state
    else:
        found.said.append((Component.MONITOR, state.value, message))


def _plan_request(found: _Found, message: BagMessage) -> None:
    if _own(message):
        found.asked.setdefault(_question(message.body), message)


def _plan(found: _Found, message: BagMessage) -> None:
    if _own(message):
        found.plans.setdefault(_question(message.body), message)


def _look(found: _Found, message: BagMessage) -> None:
    """All pictures of one look carry one stamp."""
    robot, stamp = _robot(message), message.body.header.stamp
    found.looks.setdefault((robot, stamp.sec, stamp.nanosec), message.at_s)


def _rules(found: _Found, message: BagMessage) -> None:
    if message.topic.endswith(RULES):
        try:
            found.rules[_robot(message)] = parse_rules(message.body.data)
        except ConfigError as error:
            raise ConfigError(f"{message.topic} of the bag: {error}") from error


def _moved(found: _Found, message: BagMessage) -> None:
    body = message.body
    found.moves.append(
        Moved(
            robot=body.robot,
            task=_task(body) if body.task else "",
            at_s=message.at_s,
            before=body.before,
            after=body.after,
            trigger=body.trigger,
            component=body.component,
            reason=body.reason,
            effects=tuple(body.effects),
            reacted_s=body.reacted_s,
            frame_age_s=body.frame_age_s,
        )
    )


def _own(message: BagMessage) -> bool:
    return message.body.robot == _robot(message)


def _robot(message: BagMessage) -> str:
    """By the topic, `/ROBOT/…`."""
    return message.topic.split("/")[1]


def _task(body: Any) -> str:
    return f"{body.session}/{body.task}"


def _question(body: Any) -> tuple[str, str, int]:
    return body.robot, _task(body), body.number


_TELLING = frozenset(
    f"kairos_ros/msg/{name}"
    for name in ("SafetyVerdict", "TaskProgress", "PlanRequest", "Plan", "PipelineEvent")
)
_READ: dict[str, Callable[[_Found, BagMessage], None]] = {
    "kairos_ros/msg/RobotStatus": _status,
    "kairos_ros/msg/SafetyVerdict": _verdict,
    "kairos_ros/msg/TaskProgress": _progress,
    "kairos_ros/msg/PlanRequest": _plan_request,
    "kairos_ros/msg/Plan": _plan,
    "kairos_ros/msg/PipelineEvent": _moved,
    "sensor_msgs/msg/CompressedImage": _look,
    "std_msgs/msg/String": _rules,
}
