"""Requests on their way through the serving side, and the queue of those that wait."""

import heapq
from dataclasses import dataclass

from kairos_ros.core.exchange import Execution, Request
from kairos_ros.core.horizons.policies import HorizonPolicy
from kairos_ros.core.scheduling.wait_ratio import Interval, running_execution
from kairos_ros.serving.sessions import Session
from kairos_ros.transport.messages import InferRequest


@dataclass(slots=True)
class PendingRequest:
    """One pending or running round of one robot."""

    request: Request
    """The newest attempt; in an engine, the one that is computed."""
    session: Session
    horizon_policy: HorizonPolicy
    received_ns: int
    """When the first attempt of the round came."""
    asked_ns: int
    """When the attempt of `request` came."""
    observed_ns: int
    """When the newest observation was taken, on the server's clock."""
    deadline_ns: int
    policy: str = ""
    """Name of the policy that shall answer."""
    newer: tuple[Request, int] | None = None
    """An attempt that came while an older one was computed, and when: what is said about the round
    but its chunk is said to this one, and it is computed if the older one has to be again."""
    hold_until_ns: int = 0
    """A newer observation was asked for; until then it is worth waiting for."""
    refetched_after: int = -1
    """How many batches had left from where it may be served when that was asked for."""
    crashes: int = 0
    """Engines that died with this request in their batch."""
    copies: int = 0
    """In flight: 1, or 2 where it was hedged."""
    hedged_on: str = ""
    """Engine of the second copy."""
    answered: bool = False
    """What else comes is dropped."""
    due_ns: int = 0
    """Until then it was asked for too soon, and comes after those that keep to their rates."""
    not_before_ns: int = 0
    """It was asked for sooner than the plan allows, and is not served before."""
    dispatched_ns: int = 0
    reason: str = ""
    """Of the decision that dispatched it."""

    def renew(self, request: Request, now_ns: int) -> None:
        """Another attempt came."""
        self.request, self.asked_ns = request, now_ns
        self.observed_ns = now_ns - request.observed_ago_ns

    @property
    def key(self) -> str:
        return self.session.task_key

    def history_moves_to(self, engine: str) -> bool:
        """Whether the task has a history, and another engine than this one has it."""
        return self.session.served_by not in ("", engine)

    def may_go(self, now_ns: int) -> bool:
        """Whether there is nothing that it should wait for, besides an engine."""
        return now_ns >= self.hold_until_ns and now_ns >= self.not_before_ns

    def is_current(self) -> bool:
        """Whether the robot still works on the task and round that this request is for."""
        asked, session = self.request.id, self.session
        return (asked.task, asked.round) == (session.task, session.newest_round)


class RequestQueue:
    """At most one request per task. Not thread safe."""

    def __init__(self) -> None:
        self.entries: dict[str, PendingRequest] = {}
        """Task key -> its pending request, in order of arrival. Take out by `pop` as you like; put
        in with `put` or `add`."""
        self._alarms: list[tuple[int, int, PendingRequest]] = []
        """Heap of deadlines and ends of holds, some of them of requests that are no longer pending,
        each with a number that orders equal times."""
        self._reminders = 0

    def put(
        self,
        now_ns: int,
        request: Request,
        session: Session,
        horizon_policy: HorizonPolicy,
        allowed_ns: int,
        due_ns: int,
        not_before_ns: int,
    ) -> PendingRequest | None:
        """Queues a request, or renews that of the same round. Returns the one of an older round,
        which it takes the place of. allowed_ns: from now to its deadline."""
        entry = self.entries.get(session.task_key)
        if entry is not None and entry.request.id.round == request.id.round:
            entry.renew(request, now_ns)
            entry.horizon_policy, entry.hold_until_ns = horizon_policy, 0
            return None
        self.entries.pop(session.task_key, None)
        self.add(
            PendingRequest(
                request,
                session,
                horizon_policy,
                received_ns=now_ns,
                asked_ns=now_ns,
                observed_ns=now_ns - request.observed_ago_ns,
                deadline_ns=now_ns + allowed_ns,
                policy=session.policy or "",
                due_ns=due_ns,
                not_before_ns=not_before_ns,
            )
        )
        return entry

    def add(self, entry: PendingRequest) -> None:
        """Queues a request of a task that has none here, at the end."""
        self.entries[entry.key] = entry
        self._remind(entry.deadline_ns, entry)
        if entry.not_before_ns:
            self._remind(entry.not_before_ns, entry)

    def hold(self, entry: PendingRequest, until_ns: int) -> None:
        """A pending request waits for a newer observation, at most until then."""
        entry.hold_until_ns = until_ns
        self._remind(until_ns, entry)

    def late(self, now_ns: int) -> list[PendingRequest]:
        """Takes out the requests whose deadline has passed."""
        if not self.entries or self.next_alarm_ns(now_ns) > now_ns:
            return []
        late = [entry for entry in self.entries.values() if now_ns >= entry.deadline_ns]
        for entry in late:
            del self.entries[entry.key]
        return late

    def next_alarm_ns(self, now_ns: int) -> int:
        """The soonest deadline, or end of a wait that lies ahead. Only while requests are pending.

        Looked up in a heap: asked after every event, a walk over all pending requests would make
        the server's work grow with the square of an overload.
        """
        while True:
            at_ns, _, entry = self._alarms[0]
            holds = at_ns in (entry.hold_until_ns, entry.not_before_ns) and at_ns > now_ns
            if self._is_pending(entry) and (at_ns == entry.deadline_ns or holds):
                return at_ns
            heapq.heappop(self._alarms)

    def _is_pending(self, entry: PendingRequest) -> bool:
        return self.entries.get(entry.key) is entry

    def _remind(self, at_ns: int, entry: PendingRequest) -> None:
        self._reminders += 1
        heapq.heappush(self._alarms, (at_ns, self._reminders, entry))
        if len(self._alarms) > 100 + 4 * len(self.entries):  # mostly of entries that are gone
            self._alarms = [alarm for alarm in self._alarms if self._is_pending(alarm[2])]
            heapq.heapify(self._alarms)


def executed(now_ns: int, execution: Execution) -> Interval:
    """E_j of the round that a robot reports, on the server's clock; its end may lie ahead."""
    start, end = running_execution(
        now_ns, execution.started_ago_ns, execution.remaining, execution.period_ns
    )
    if execution.remaining == 0:
        end = now_ns - execution.ended_ago_ns
    return start, max(start, end)


def infer_request(request: Request) -> InferRequest:
    """What an engine gets of `request`. The noise is seeded by the robot's seed and the round."""
    asked = request.id
    return InferRequest(
        robot=asked.robot,
        session=asked.session,
        task=asked.task,
        round=asked.round,
        attempt=asked.attempt,
        seed=(request.seed * 1_000_003 + asked.round) % 2**63,
        instruction=request.instruction,
        state=request.observation.state,
        images=request.observation.images,
        committed=request.committed,
        earlier=request.earlier,
        task_actions=request.task_actions,
        executed=request.executed,
    )
