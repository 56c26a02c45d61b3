"""One task of a bag as an episode: a frame for every action that the arm executed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kairos_ros.core.execution.task import LIMITS
from kairos_ros.core.pipeline import TaskState
from kairos_ros.recording.tasks import BagRound, BagTask
from kairos_ros.robot.supervision.state_table import Mode, Trigger
from kairos_ros.telemetry.events import (
    CellJudged,
    ChunkRequested,
    ControlReported,
    Judgement,
    ModeChanged,
    ProgressJudged,
    TaskEndReported,
    TaskKey,
)

UNKNOWN = -1
PROGRESS = {TaskState.ONGOING: 0, TaskState.DONE: 1, TaskState.FAILED: 2}
"""Values of column `monitor`; UNKNOWN before the first report."""


class Kind(StrEnum):
    """What may be asked for of tasks."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERVENED = "intervened"
    """Its robot did something else than executing chunks: it returned to its safe state, tried
    again or was released by a human."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What one camera showed at a frame."""

    encoded: bytes
    """JPEG or PNG."""
    age_s: float
    """Of the picture when the frame's state was read."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One control period in which the arm executed an action."""

    state: np.ndarray
    """float32 [state_dim], just before the action."""
    action: np.ndarray
    """float32 [action_dim], as the guard let it through."""
    instruction: str
    """That the action's chunk was asked for with."""
    time_s: float
    """Since the first frame, on the robot's clock."""
    round: int
    chunk_index: int
    attempt: int
    """Counts the resets of body and scene in the task, from 0."""
    held_periods: int
    """Control periods just before this one in which the arm held."""
    intervention: bool
    """The action is of no chunk: it leads to the safe state."""
    released: bool
    """The first frame after a human released the robot."""
    monitor: int
    """The newest report: a value of PROGRESS, or UNKNOWN."""
    safe: int
    """The newest verdict: 1 safe, 0 unsafe, or UNKNOWN."""
    pictures: Mapping[str, Picture]
    """By camera, as requests call it."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A task that ended, with everything that its arm executed."""

    key: TaskKey
    ended: TaskEndReported
    state_names: tuple[str, ...]
    frames: tuple[Frame, ...]
    kinds: frozenset[Kind]

    @property
    def success(self) -> bool:
        return Kind.SUCCEEDED in self.kinds

    @property
    def action_dim(self) -> int:
        return len(self.frames[0].action)


@dataclass(slots=True)
class TaskFrames:
    """What a bag has told of one task so far."""

    key: TaskKey
    task: BagTask
    said: list[ControlReported | ModeChanged | Judgement] = field(default_factory=list)
    """In the order in which it came."""
    looks: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Camera -> stamp in ns and picture."""
    sent: list[tuple[ChunkRequested, dict[str, bytes]]] = field(default_factory=list)
    """Requests, with their pictures."""

    @property
    def ticks(self) -> list[ControlReported]:
        return [one for one in self.said if isinstance(one, ControlReported)]

    def reports(self) -> dict[str, list[TaskState]]:
        """What each monitor said, in order."""
        reports: dict[str, list[TaskState]] = {}
        for one in self.said:
            if isinstance(one, ProgressJudged):
                reports.setdefault(one.service, []).append(one.state)
        return reports

    def asked(self, event: ChunkRequested, pictures: dict[str, bytes]) -> None:
        """Notes a request of the task."""
        self.task.rounds.setdefault(event.round, BagRound()).asked[event.attempt] = event
        self.sent.append((event, pictures))


def unfit(told: TaskFrames) -> str:
    """Why a task is no episode; empty if it is one."""
    ended = told.task.ended
    if ended is None:
        return "its end is not in the bag"
    if not ended.actions:
        return "nothing was executed"
    ticks = told.ticks
    if not ticks:
        return "no policy_state of it is in the bag, or a bag of before it told actions"
    of_chunks = Counter(t.round for t in ticks if t.action is not None and t.round)
    executed = {number: n for number, n in enumerate(ended.round_executed, start=1) if n}
    if of_chunks != executed:
        return "actions that it executed are not in the bag: policy_state of all control periods"
    if len({len(t.action) for t in ticks if t.action is not None}) > 1:
        return "its actions are of different lengths"
    if len({t.names for t in ticks}) > 1:
        return "the names of its state change"
    instructed = {event.round for event, _ in told.sent}
    if not of_chunks.keys() <= instructed:
        return "a request is not in the bag"
    return ""


def episode(told: TaskFrames, judge: str = "") -> Episode:
    """Of a task that is not `unfit`.

    judge: the service that says whether it succeeded, instead of its robot; empty: the robot.
    """
    ended = told.task.ended
    assert ended is not None  # as `unfit` has found
    return Episode(
        key=told.key,
        ended=ended,
        state_names=told.ticks[0].names,
        frames=tuple(_frames(told)),
        kinds=frozenset(_kinds(told, ended, judge)),
    )


def _kinds(told: TaskFrames, ended: TaskEndReported, judge: str) -> Iterable[Kind]:
    if judge:
        said = told.reports()[judge]
        if said[-1] is TaskState.DONE:
            yield Kind.SUCCEEDED
        if TaskState.FAILED in said:
            yield Kind.FAILED
    elif ended.success:
        yield Kind.SUCCEEDED
    elif not ended.ended and (ended.outcome in LIMITS or ended.outcome.startswith("failed")):
        yield Kind.FAILED
    modes = {one.after for one in told.said if isinstance(one, ModeChanged)}
    if modes & {Mode.RETURNING, Mode.RETRYING, Mode.WAITING}:
        yield Kind.INTERVENED


def _frames(told: TaskFrames) -> Iterable[Frame]:
    acts = [tick for tick in told.ticks if tick.action is not None]
    pictures = _pictures(told, acts)
    instructions = {event.round: event.instruction for event, _ in told.sent}
    instruction = instructions[min(instructions)]
    held, attempt, monitor, safe, released = 0, 0, UNKNOWN, UNKNOWN, False
    number = 0
    for tick in told.said:
        match tick:
            case ModeChanged(trigger=trigger):
                attempt += trigger == Trigger.RESET_DONE
                released |= trigger == Trigger.RELEASED
                continue
            case ProgressJudged(state=state):
                monitor = PROGRESS[state]
                continue
            case CellJudged(safe=verdict):
                safe = int(verdict)
                continue
        if tick.action is None:
            held += 1
            continue
        instruction = instructions.get(tick.round, instruction)
        yield Frame(
            state=tick.state,
            action=tick.action,
            instruction=instruction,
            time_s=(_ns(tick) - _ns(acts[0])) / 1e9,
            round=tick.round,
            chunk_index=tick.chunk_index,
            attempt=attempt,
            held_periods=held,
            intervention=not tick.round,
            released=released,
            monitor=monitor,
            safe=safe,
            pictures=pictures[number],
        )
        held, released, number = 0, False, number + 1


def _pictures(told: TaskFrames, acts: Sequence[ControlReported]) -> list[dict[str, Picture]]:
    """Per act, the newest picture of each camera that is not newer than its state."""
    stamps = [_ns(tick) for tick in acts]
    asked_ns = _after_actions(told.ticks)
    looks = {camera: list(shown) for camera, shown in told.looks.items()}
    for event, pictures in told.sent:
        at = told.task.executed_at(event)  # counted in actions, not by clocks
        if at < len(asked_ns):
            for camera, encoded in pictures.items():
                looks.setdefault(camera, []).append((asked_ns[at], encoded))
    found: list[dict[str, Picture]] = [{} for _ in acts]
    for camera, shown in looks.items():
        shown.sort(key=lambda look: look[0])
        times = np.array([ns for ns, _ in shown])
        newest = np.searchsorted(times, stamps, side="right") - 1
        for number, at in enumerate(newest.tolist()):
            if at >= 0:
                age_s = (stamps[number] - shown[at][0]) / 1e9
                found[number][camera] = Picture(shown[at][1], age_s)
    return found


def _after_actions(ticks: Sequence[ControlReported]) -> list[int]:
    """When the first control period began before which 0, 1, ... actions of chunks were executed,
    in ns: a request that tells such a number was sent no earlier."""
    found: list[int] = []
    executed = 0
    for tick in ticks:
        if executed == len(found):
            found.append(_ns(tick))
        executed += tick.round > 0
    return found


def _ns(tick: ControlReported) -> int:
    return tick.stamp[0] * 1_000_000_000 + tick.stamp[1]
