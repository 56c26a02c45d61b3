"""Events of a bag sorted into tasks and rounds."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kairos_ros.telemetry.events import (
    ChunkAnswered,
    ChunkComputed,
    ChunkRequested,
    Event,
    RobotReported,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)


@dataclass(slots=True)
class BagRound:
    """What a bag holds of one round."""

    asked: dict[int, ChunkRequested] = field(default_factory=dict)
    """By attempt."""
    answers: list[ChunkAnswered] = field(default_factory=list)
    """Of anybody, in the order in which they came."""
    updates: ChunkComputed | None = None

    @property
    def answer(self) -> ChunkAnswered | None:
        """Of the server that was asked: the first with actions, else the last refusal."""
        own = [answer for answer in self.answers if self._is_from_the_asked(answer)]
        given = next((answer for answer in own if not answer.refused), None)
        return given or (own[-1] if own else None)

    def _is_from_the_asked(self, answer: ChunkAnswered) -> bool:
        asked = self.asked.get(answer.attempt)
        return asked is None or asked.server in ("", answer.server)


@dataclass(slots=True)
class BagTask:
    """What a bag holds of one task."""

    key: TaskKey
    rounds: dict[int, BagRound] = field(default_factory=dict)
    began: TaskStartReported | None = None
    ended: TaskEndReported | None = None

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

    def executed_at(self, asked: ChunkRequested) -> int:
        """Actions executed in the whole task when this request was sent."""
        told = {a.executing for round_ in self.rounds.values() for a in round_.asked.values()}
        if self.ended is not None:
            told |= set(range(1, len(self.ended.round_executed) + 1))
        before = sum(self.executed(number) for number in told if 0 < number < asked.executing)
        return before + asked.executed


@dataclass(frozen=True, slots=True)
class BagContent:
    """Everything of a bag that runs and traces are made of."""

    tasks: tuple[BagTask, ...]
    """In the order of their first message."""
    statuses: tuple[RobotReported, ...]


def sort_events(stream: Iterable[Event]) -> BagContent:
    """One pass; the order inside a task does not matter."""
    tasks: dict[TaskKey, BagTask] = {}
    statuses: list[RobotReported] = []

    def task(key: TaskKey) -> BagTask:
        return tasks.setdefault(key, BagTask(key))

    for event in stream:
        match event:
            case RobotReported():
                statuses.append(event)
            case TaskStartReported():
                task(event.key).began = event
            case TaskEndReported():
                task(event.key).ended = event
            case ChunkRequested():
                _round(task(event.key), event.round).asked[event.attempt] = event
            case ChunkAnswered():
                _round(task(event.key), event.round).answers.append(event)
            case ChunkComputed():
                known = _round(task(event.key), event.round)
                if known.updates is None or event.updates is not None:
                    known.updates = event
    return BagContent(tuple(tasks.values()), tuple(statuses))


def _round(task: BagTask, number: int) -> BagRound:
    return task.rounds.setdefault(number, BagRound())
