"""Events of a bag sorted into tasks and rounds."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kairos_ros.evaluation.bag.events import (
    Answered,
    Asked,
    Began,
    Ended,
    Event,
    Status,
    TaskKey,
    Updates,
)


@dataclass(slots=True)
class BagRound:
    """What a bag holds of one round."""

    asked: dict[int, Asked] = field(default_factory=dict)
    """By attempt."""
    answer: Answered | None = None
    """With actions; without, the last refusal."""
    updates: Updates | None = None


@dataclass(slots=True)
class BagTask:
    """What a bag holds of one task."""

    key: TaskKey
    rounds: dict[int, BagRound] = field(default_factory=dict)
    began: Began | None = None
    ended: Ended | None = None

    def executed(self, number: int) -> int:
        """Actions executed of a round: what the result says, else what later requests say."""
        if self.ended is not None and number <= len(self.ended.round_executed):
            return self.ended.round_executed[number - 1]
        reports = [
            asked.executed + asked.remaining
            for round_ in self.rounds.values()
            for asked in round_.asked.values()
            if asked.executing == number
        ]
        return max(reports, default=0)

    def executed_at(self, asked: Asked) -> int:
        """Actions executed in the whole task when this request was sent."""
        before = sum(self.executed(number) for number in range(1, asked.executing))
        return before + asked.executed


@dataclass(frozen=True, slots=True)
class BagContent:
    """Everything of a bag that runs and traces are made of."""

    tasks: tuple[BagTask, ...]
    """In the order of their first message."""
    statuses: tuple[Status, ...]


def sort_events(stream: Iterable[Event]) -> BagContent:
    """One pass; the order inside a task does not matter."""
    tasks: dict[TaskKey, BagTask] = {}
    statuses: list[Status] = []
    for event in stream:
        if isinstance(event, Status):
            statuses.append(event)
            continue
        task = tasks.setdefault(event.key, BagTask(event.key))
        match event:
            case Began():
                task.began = event
            case Ended():
                task.ended = event
            case Asked():
                _round(task, event.round).asked[event.attempt] = event
            case Answered():
                answered = _round(task, event.round)
                if answered.answer is None or answered.answer.refused:
                    answered.answer = event
            case Updates():
                known = _round(task, event.round)
                if known.updates is None or event.updates is not None:
                    known.updates = event
    return BagContent(tuple(tasks.values()), tuple(statuses))


def _round(task: BagTask, number: int) -> BagRound:
    return task.rounds.setdefault(number, BagRound())
