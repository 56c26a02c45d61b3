"""Who may ask: live robots, one session each, rounds that only move forward."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode
from kairos_ros.serving.exchange import Announcement, Query, Refusal

LEASE_NS = 3_000_000_000
"""A robot that was not heard for this long has lost its id to whoever announces it next."""


@dataclass(slots=True)
class Session:
    """One life of one robot node, and its current task."""

    robot: str
    session: str
    heard_ns: int
    task: str = ""
    """Task of the newest request, empty before the first."""
    announced_task: str = ""
    """Task of the newest status; when it changes, that task is over."""
    ended_tasks: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    newest_round: int = 0
    answered: tuple[int, int] = (0, -1)
    """Round and attempt that last got actions."""
    refetched: tuple[int, int] = (0, -1)
    """Round and attempt whose observation was last asked for again."""
    last_chunk: NDArray[np.float32] | None = None
    """float32 [N, D], whole and in the policy's own space, of round `answered[0]`."""
    served_by: str = ""
    """Engine that answered the newest round of this task: a stateful policy's history is there."""
    instruction: str = ""
    horizon: int = 0
    horizon_reason: str = ""
    queued_s: float = 0.0
    reason: str = ""
    wait_ratio: float = 0.0
    skipped: int = 0
    rounds_served: int = 0
    refused: int = 0

    def is_served(self, query: Query) -> bool:
        """Whether `query` brings the observation that was asked for again, and its round got
        actions without it meanwhile."""
        asked_for = (query.round, query.attempt - 1) == self.refetched
        return asked_for and self.answered[0] == query.round

    @property
    def task_key(self) -> str:
        """Unique over robots, sessions and tasks."""
        return f"{self.robot}/{self.session}/{self.task}"


class SessionBook:
    """The sessions of all live robots. Not thread safe."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self._nobody_lost_until_ns = 0
        """Sessions are only ever heard later than when they were last looked at."""

    def announce(self, now_ns: int, status: Announcement) -> tuple[Session | None, Session | None]:
        """Takes a status in. Returns (session that ended, session that began), each maybe None.

        A status of another session is ignored while the owner of the robot id is alive.
        """
        owner = self.sessions.get(status.robot)
        if owner is not None and owner.session == status.session:
            owner.heard_ns = now_ns
            if status.leaving:
                return self.sessions.pop(status.robot), None
            if owner.announced_task and status.task != owner.announced_task:
                owner.ended_tasks.append(owner.announced_task)
            owner.announced_task = status.task
            return None, None
        if status.leaving or (owner is not None and now_ns - owner.heard_ns < LEASE_NS):
            return None, None
        session = Session(status.robot, status.session, now_ns, announced_task=status.task)
        self.sessions[status.robot] = session
        return owner, session

    def lost(self, now_ns: int) -> list[Session]:
        """Removes and returns the sessions whose robots have fallen silent."""
        if now_ns < self._nobody_lost_until_ns:
            return []
        silent = [s for s in self.sessions.values() if now_ns - s.heard_ns >= LEASE_NS]
        for session in silent:
            del self.sessions[session.robot]
        heard_ns = min((s.heard_ns for s in self.sessions.values()), default=now_ns)
        self._nobody_lost_until_ns = heard_ns + LEASE_NS
        return silent

    def admit(self, now_ns: int, query: Query) -> Session | Refusal:
        """The session that `query` belongs to, moved on to its task and round, or why not."""
        session = self.sessions.get(query.robot)
        if session is None:
            return Refusal(
                RefusalCode.UNKNOWN_ROBOT,
                f"robot {query.robot!r} has not announced itself on /kairos/robot_status",
                retry_after_s=0.5,
            )
        if session.session != query.session:
            left_s = max(0.1, (LEASE_NS - (now_ns - session.heard_ns)) / 1e9)
            return Refusal(
                RefusalCode.DUPLICATE_ROBOT,
                f"robot id {query.robot!r} belongs to session {session.session}, "
                f"which is alive; give this robot another name or stop the other one",
                retry_after_s=left_s,
            )
        session.heard_ns = now_ns
        if query.task in session.ended_tasks:
            return Refusal(RefusalCode.TASK_ENDED, f"task {query.task!r} is over")
        if query.round < 1 or not query.task:
            return Refusal(RefusalCode.MALFORMED, "task must be named and rounds count from 1")
        if query.task != session.task:
            if session.task:
                session.ended_tasks.append(session.task)
            session.task, session.newest_round = query.task, 0
            session.answered = session.refetched = (0, -1)
            session.last_chunk, session.served_by = None, ""
        if query.round < session.newest_round or query.round < session.answered[0]:
            return Refusal(
                RefusalCode.OLD_ROUND,
                f"round {query.round} is older than round {session.newest_round}",
            )
        if (query.round, query.attempt) <= session.answered:
            return Refusal(
                RefusalCode.REPEATED_ROUND,
                f"round {query.round} attempt {query.attempt} was answered already",
            )
        session.newest_round = query.round
        session.instruction = query.instruction
        return session
