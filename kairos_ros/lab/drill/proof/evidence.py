"""Proves from a body's own log that every action it executed was meant for it, then, and once.

A body log (`robot.body_log`) says in order what was observed and what was executed. An observation
is found in the request that carried it; the chunk that answers that request was made for the
moment after so many executed actions. So the action that is executed as the k-th of a task must be,
bit for bit, action k - e of a chunk of this robot, session and task whose observation was made
after e actions, as the guard lets it pass; rounds only ever follow one another; and all of a task
are of one policy. A chunk for another robot, a late one, one executed twice, one applied at the
wrong index or one of another policy does not fit.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.lab.drill.proof.exchange import SeenChunk, SeenRequest
from kairos_ros.robot.body_log import BodyEvent
from kairos_ros.telemetry.events import TaskKey

Guard = Callable[[np.ndarray, np.ndarray], np.ndarray | None]
"""(action, state) -> the action that the robot's guard makes of it, or None."""


@dataclass(frozen=True, slots=True)
class BodyTask:
    """One task in a body's log, from its acceptance to that of the next."""

    key: TaskKey
    events: tuple[BodyEvent, ...]

    @property
    def acts(self) -> Iterator[BodyEvent]:
        return (event for event in self.events if event.kind == "act")


@dataclass(slots=True)
class Proof:
    """What became of the executed actions of one task."""

    key: TaskKey
    proven: int = 0
    wrong: list[str] = field(default_factory=list)
    """What was executed although no chunk says so, one line each."""
    rounds: dict[int, str] = field(default_factory=dict)
    """Round -> digest of the chunk that its actions are from."""
    policy: str = ""
    """Of the first proven action: that of the task."""


def body_tasks(robot: str, session: str, log: Iterable[BodyEvent]) -> list[BodyTask]:
    """The tasks in one session's log, in order; what came before the first is left out."""
    found: list[tuple[str, list[BodyEvent]]] = []
    for event in log:
        if event.kind == "task":
            found.append((event.task, []))
        elif found:
            found[-1][1].append(event)
    return [BodyTask(TaskKey(robot, session, task), tuple(events)) for task, events in found]


def prove(
    body: BodyTask,
    asked: Sequence[SeenRequest],
    answered: Sequence[SeenChunk],
    guard: Guard,
    elsewhere: Mapping[TaskKey, Sequence[SeenChunk]] | None = None,
) -> Proof:
    """Holds every executed action of a task against the chunks it was answered with.

    `elsewhere`: the chunks of all tasks, to say where a wrong action comes from.
    """
    proof = Proof(body.key)
    observed = _observed_after(body, asked)
    request = {(r.round, r.attempt): r for r in asked}
    chunks = [
        (observed[at], a)
        for a in answered
        if (at := (a.round, a.attempt)) in observed and request[at].is_for(a)
    ]
    possible: set[int] = {0}
    for k, act in enumerate(body.acts):
        assert act.action is not None
        assert act.state is not None
        fitting = {
            chunk.round: chunk
            for e, chunk in chunks
            if chunk.round >= min(possible)
            and 0 <= k - e < len(chunk.actions)
            and _same(guard(chunk.actions[k - e], act.state), act.action)
        }
        own = {n: chunk for n, chunk in fitting.items() if proof.policy in ("", chunk.policy)}
        if not own:
            servers = {r.server for r in asked}
            proof.wrong.append(
                _of_another_policy(k, next(iter(fitting.values())), proof.policy)
                if fitting
                else _told(k, act, body.key, elsewhere or {}, servers)
            )
            continue
        possible = set(own)
        proof.proven += 1
        proof.rounds[min(possible)] = own[min(possible)].digest
        proof.policy = own[min(possible)].policy
    return proof


def _observed_after(body: BodyTask, asked: Sequence[SeenRequest]) -> dict[tuple[int, int], int]:
    """(round, attempt) -> actions that the task had executed when it was observed for it.

    A request whose observation is not in the log is left out: nothing that answers it fits.
    """
    executed, looks = 0, []
    for event in body.events:
        if event.kind == "observe":
            looks.append((event.state, executed))
        executed += event.kind == "act"
    found, look = {}, 0
    for request in asked:
        same = (i for i in range(look, len(looks)) if _same(looks[i][0], request.state))
        at = next(same, None)
        if at is not None:
            found[request.round, request.attempt] = looks[at][1]
            look = at + 1
    return found


def _same(one: np.ndarray | None, other: np.ndarray) -> bool:
    return one is not None and np.array_equal(one, other)


def _of_another_policy(k: int, chunk: SeenChunk, policy: str) -> str:
    return f"action {k} is of round {chunk.round}, of policy {chunk.policy} instead of {policy}"


def _told(
    k: int,
    act: BodyEvent,
    key: TaskKey,
    elsewhere: Mapping[TaskKey, Sequence[SeenChunk]],
    servers: Collection[str],
) -> str:
    for other, chunks in elsewhere.items():
        for chunk in chunks:
            found = np.flatnonzero((chunk.actions == act.action).all(axis=1))
            if len(found):
                whose = "this task" if other == key else f"task {other.task} of {other.robot}"
                if "" not in servers and chunk.server not in servers:
                    whose += ", from a server that was not asked"
                return f"action {k} is action {found[0]} of round {chunk.round} of {whose}"
    return f"action {k} is in no chunk at all"
