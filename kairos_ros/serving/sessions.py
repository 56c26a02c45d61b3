"""Who may ask: live robots, one session each, rounds that only move forward."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Announcement, Refusal, Request
from kairos_ros.core.fit import RobotInterface

LEASE_NS = 3_000_000_000
"""A robot that was not heard for this long has lost its id to whoever announces it next."""


@dataclass(slots=True)
class Session:
    """One life of one robot node, and its current task."""

    robot: str
    session: str
    heard_ns: int
    asked_ns: int = 0
    """When its newest request came."""
    asked_round: tuple[str, int] = ("", 0)
    """Task and round that the rate control has counted last."""
    asked_round_ns: int = 0
    """When the first request of that round came, or might have come at the soonest, if later."""
    computed_round: tuple[str, int] = ("", 0)
    """Task and round that an engine was given last."""
    round_ns: float = 0.0
    """What one of its rounds executes lately, by its own reports; 0: not known."""
    allowed: int = 0
    """Actions of its newest chunk that its horizon policy allows, before any floor."""
    kind: str = ""
    """Of its task."""
    control_ns: int = 0
    """Its control period; 0: not known."""
    period_ns: int = 0
    """Least time between the requests of two rounds that it shall be told; 0: no limit."""
    told_period_ns: int = 0
    """The one that it was told last."""
    told_round: tuple[str, int] = ("", 0)
    """Task and round with whose answer it was told."""
    asked_early: int = 0
    """Rounds asked for sooner than that allows."""
    early_in_a_row: int = 0
    """Of them, those since the last one that came in time."""
    over_rate_until_ns: int = 0
    """Until when it is named as one that asks too often."""
    surprised: bool = False
    """Its newest round was asked for early, because its arm did not move as its actions say."""
    surprise: float = 0.0
    """How far it departed from them then; 0 where it did not."""
    surprise_joint: str = ""
    surprises: int = 0
    """Rounds that it asked for so."""
    surprised_by: tuple[str, int] = ("", 0)
    """Task and round that were counted so last."""
    task: str = ""
    """Task of the newest request, empty before the first."""
    policy: str | None = None
    """Name of the policy of this task, which its first request decides; None before it."""
    announced_task: str = ""
    """Task of the newest status; when it changes, that task is over."""
    ended_tasks: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    newest_round: int = 0
    lead: int = 0
    """Most actions of this task that were left to execute when a chunk was asked for."""
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
    repeated: int = 0
    """Requests with fewer observations than the policy reads."""
    interface: RobotInterface | None = None
    """As announced."""
    asks_for: str = ""
    """Policy of its next task, as announced."""
    misfit: str = ""
    """Why the policy cannot move this robot; empty if it can, or is not known yet."""

    def is_served(self, request: Request) -> bool:
        """Whether `request` brings the observation that was asked for again, and its round got
        actions without it meanwhile."""
        asked_for = (request.id.round, request.id.attempt - 1) == self.refetched
        return asked_for and self.answered[0] == request.id.round

    @property
    def has_task(self) -> bool:
        """Whether its newest request is of a task that has not ended."""
        return bool(self.task) and self.task not in self.ended_tasks

    @property
    def task_key(self) -> str:
        """Unique over robots, sessions and tasks."""
        return f"{self.robot}/{self.session}/{self.task}"


class Sessions:
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
            owner.announced_task, owner.interface = status.task, status.interface
            owner.asks_for = status.policy
            return None, None
        if status.leaving or (owner is not None and now_ns - owner.heard_ns < LEASE_NS):
            return None, None
        session = Session(status.robot, status.session, now_ns, announced_task=status.task)
        session.interface, session.asks_for = status.interface, status.policy
        self.sessions[status.robot] = session
        return owner, session

    def may_lose(self, now_ns: int) -> bool:
        """Whether `lost` would look for robots that have fallen silent."""
        return bool(self.sessions) and now_ns >= self._nobody_lost_until_ns

    def stood_still(self, for_ns: int) -> None:
        """Does not count a time in which nobody could be heard as anybody's silence."""
        for session in self.sessions.values():
            session.heard_ns += for_ns

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

    def admit(self, now_ns: int, request: Request) -> Session | Refusal:
        """The session that `request` belongs to, moved on to its task and round, or why not."""
        asked = request.id
        session = self.sessions.get(asked.robot)
        if session is None:
            return Refusal(
                RefusalCode.UNKNOWN_ROBOT,
                f"robot {asked.robot!r} has not announced itself on /kairos/robot_status",
                retry_after_ns=500_000_000,
            )
        if session.session != asked.session:
            left_ns = max(100_000_000, LEASE_NS - (now_ns - session.heard_ns))
            return Refusal(
                RefusalCode.DUPLICATE_ROBOT,
                f"robot id {asked.robot!r} belongs to session {session.session}, "
                f"which is alive; give this robot another name or stop the other one",
                retry_after_ns=left_ns,
            )
        session.heard_ns = session.asked_ns = now_ns
        if asked.task in session.ended_tasks:
            return Refusal(RefusalCode.TASK_ENDED, f"task {asked.task!r} is over")
        if asked.round < 1 or not asked.task:
            return Refusal(RefusalCode.MALFORMED, "task must be named and rounds count from 1")
        if asked.task != session.task:
            if session.task:
                session.ended_tasks.append(session.task)
            session.task, session.newest_round, session.lead = asked.task, 0, 0
            session.answered = session.refetched = (0, -1)
            session.last_chunk, session.served_by, session.policy = None, "", None
        if asked.round < session.newest_round or asked.round < session.answered[0]:
            return Refusal(
                RefusalCode.OLD_ROUND,
                f"round {asked.round} is older than round {session.newest_round}",
            )
        if (asked.round, asked.attempt) <= session.answered:
            return Refusal(
                RefusalCode.REPEATED_ROUND,
                f"round {asked.round} attempt {asked.attempt} was answered already",
            )
        session.newest_round = asked.round
        if not request.execution.surprised:  # it will not execute all that are left
            session.lead = max(session.lead, request.execution.remaining)
        return session
