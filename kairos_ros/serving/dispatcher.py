"""The serving side's state machine: events in, answers and batches out. No ROS, no clock, no I/O.

Every event takes `now_ns`, integer nanoseconds of one monotonic clock, and returns effects for the
caller to carry out: an `Answer` to send to its robot, or a `Submit` to hand to an engine.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kairos_ros.core.errors import ConfigError, KairosError, RefusalCode
from kairos_ros.core.horizon import HorizonPolicy
from kairos_ros.core.placement import Tier
from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.tasks import TaskTable
from kairos_ros.core.wait_ratio import first_execution_ns
from kairos_ros.serving.batching import Batching
from kairos_ros.serving.checks import check_query
from kairos_ros.serving.chunk_check import chunk_problem
from kairos_ros.serving.effects import Effect
from kairos_ros.serving.engines import EngineSlot, Running
from kairos_ros.serving.exchange import Announcement, Answer, Query, Refusal, answer
from kairos_ros.serving.horizons import Horizons
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.request_queue import RequestQueue
from kairos_ros.serving.requests import Entry, executed
from kairos_ros.serving.roster import Roster
from kairos_ros.serving.server_time import ServerTime
from kairos_ros.serving.sessions import Session, SessionBook
from kairos_ros.serving.trimming import Served, answer_outcome
from kairos_ros.transport.link_estimate import LinkState
from kairos_ros.transport.messages import (
    EngineDescription,
    InferFailure,
    InferOutcome,
)

MAX_CRASHES = 2
"""A request that was in the batch of this many dying engines is refused."""


class Dispatcher:
    """Sessions, queue, decisions, batches, answers. Not thread safe."""

    def __init__(self, options: ServingOptions) -> None:
        self.options = options
        self.book = SessionBook()
        self.tasks = TaskTable(options.scheduling.reading)
        self.counters: Counter[str] = Counter()
        self._roster = Roster()
        self._queue = RequestQueue()
        self._server_time = ServerTime()
        self._horizons = Horizons(options)
        self._batching = Batching(options, self.tasks, self._roster, self._queue, self.counters)
        self._request_bytes = 0
        """Of the newest request."""

    @property
    def engines(self) -> Mapping[str, EngineSlot]:
        return self._roster.slots

    @property
    def pending(self) -> Mapping[str, Entry]:
        """Task key -> its pending request, in order of arrival."""
        return self._queue.entries

    def in_engines(self) -> Iterator[Entry]:
        """The unanswered requests of all running batches; one that was hedged twice."""
        return self._roster.in_flight()

    # Robots

    def announce(self, now_ns: int, status: Announcement) -> tuple[Session | None, Session | None]:
        """A robot's status. Returns (session that ended, session that began), each maybe None."""
        owner = self.book.sessions.get(status.robot)
        key = owner.task_key if owner else ""
        ended, began = self.book.announce(now_ns, status)
        if ended is not None:
            self._close(key, finished=False)
        elif owner is not None and owner.task in owner.ended_tasks:
            self._close(key, finished=True)
        return ended, began

    def request(self, now_ns: int, query: Query) -> list[Effect]:
        """A robot asks for a chunk."""
        owner = self.book.sessions.get(query.robot)
        before = owner.task_key if owner else ""
        session = self.book.admit(now_ns, query)
        if isinstance(session, Refusal):
            return [self._refuse(query, session)]
        if before != session.task_key:
            self._close(before, finished=True)
        mine = (e for e in self.in_engines() if e.session is session and e.is_current())
        computed = next(mine, None)
        if computed is not None or session.is_served(query):
            self.counters["late_refresh"] += 1
            if (
                computed is not None
                and query.attempt > computed.query.attempt
                and not self._check(query, session.task_key)
            ):
                computed.newer = query, now_ns
            return []  # the chunk that is being computed, or on its way, answers this one, too
        checked = self._check(query, session.task_key) or self._horizons.of(
            query.horizon or self.options.horizon
        )
        if isinstance(checked, Refusal):
            self._queue.entries.pop(session.task_key, None)  # this answer is for the whole round
            session.refused += 1
            return [self._refuse(query, checked)]
        self._account(now_ns, query, session)
        return self._enqueue(now_ns, query, session, checked) + self._batching.form(now_ns)

    # Engines

    def add_engine(self, name: str, tier: Tier, network_ns: int = 0) -> EngineSlot:
        return self._roster.add(name, tier, network_ns)

    def engine_ready(
        self, now_ns: int, name: str, description: EngineDescription, profile: EngineProfile
    ) -> list[Effect]:
        """Raises ConfigError for another policy than the other engines serve, or whose profile or
        horizon calibration is of another policy. Where edge and cloud differ it is the cloud that
        is wrong, whichever came first."""
        slot = self.engines[name]
        try:
            if self.options.calibration:
                self.options.calibration.require_policy(description.policy_id)
            effects: list[Effect] = []
            for other in self._roster.turn_out(slot, description):
                self.counters["refused_engine"] += 1
                effects += self._requeue_all(now_ns, other, crashed=False)
            slot.ready(description, profile, self.options.batch_cap)
        except ConfigError as error:
            if slot.tier == "cloud":
                slot.refuse(str(error))
                self.counters["refused_engine"] += 1
            raise
        return effects + self._batching.form(now_ns)

    def engine_draining(self, now_ns: int, name: str, reason: str) -> None:
        """It answers what it was given, and takes no more."""
        slot = self.engines[name]
        if slot.state == "ready":
            slot.state, slot.last_error = "draining", reason

    def link_changed(self, now_ns: int, name: str, link: LinkState) -> list[Effect]:
        """How the link to a remote engine is."""
        self.engines[name].link_changed(now_ns, link, self._request_bytes)
        return self._batching.form(now_ns)

    def batch_done(
        self, now_ns: int, name: str, batch: int, outcomes: Sequence[InferOutcome], compute_s: float
    ) -> list[Effect]:
        """The engine's answer to a Submit.

        An engine behind a link that answers what is no chunk of its policy is refused until it is
        found again; what it was given is served elsewhere.
        """
        slot = self.engines[name]
        if batch not in slot.flight or slot.description is None:
            self.counters["late_batch"] += 1
            return []
        effects: list[Effect] = []
        problem = chunk_problem(outcomes, slot.description) if slot.link else ""
        if problem:
            self.counters["malformed_chunk"] += 1
            slot.refuse(f"it sent {problem}")
            effects += self._requeue_all(now_ns, slot, crashed=False)
            return effects + self._batching.form(now_ns)
        away_s = (now_ns - slot.flight[batch].submitted_ns) / 1e9
        compute_s = min(max(0.0, compute_s), away_s)  # whatever an engine elsewhere claims
        done = slot.end(now_ns, batch, compute_s)
        for entry, outcome in zip(done.entries, outcomes, strict=True):
            effects += self._answer(now_ns, slot, done, entry, outcome, compute_s)
        return effects + self._batching.form(now_ns)

    def batch_failed(
        self, now_ns: int, name: str, batch: int, reason: str, *, crashed: bool = True
    ) -> list[Effect]:
        """The engine lives but did not infer this batch: its requests are queued again.

        `crashed` says that the batch itself may be the reason.
        """
        slot = self.engines[name]
        if batch not in slot.flight:
            return []
        slot.last_error = reason
        effects = self._requeue(slot.end(now_ns, batch, None), crashed=crashed)
        return effects + self._batching.form(now_ns)

    def engine_down(
        self, now_ns: int, name: str, reason: str, *, crashed: bool = True
    ) -> list[Effect]:
        """The worker died or hung, or (not `crashed`) the link to it did. What it was given is
        queued again, where it stood."""
        slot = self.engines[name]
        if crashed or slot.state in ("ready", "draining"):
            slot.restarts += 1
            self.counters["engine_down" if crashed else "link_down"] += 1
        if slot.state != "refused" or crashed:
            slot.state, slot.last_error = "down", reason
        return self._requeue_all(now_ns, slot, crashed=crashed) + self._batching.form(now_ns)

    # Time

    def tick(self, now_ns: int) -> list[Effect]:
        """Deadlines, silent robots, observations that must be fetched again."""
        effects: list[Effect] = []
        for session in self.book.lost(now_ns):
            self.counters["robot_lost"] += 1
            self._close(session.task_key, finished=False)
        for entry in self._queue.late(now_ns):
            entry.session.refused += 1
            effects.append(self._refuse(entry.query, self._too_late(now_ns, entry)))
        return effects + self._batching.form(now_ns)

    def wakeup_ns(self, now_ns: int) -> int | None:
        """When `tick` has something to do next, besides silent robots."""
        return self._batching.wakeup_ns(now_ns)

    def reason(self, session: Session) -> str:
        """Why the last decision about this robot was what it was."""
        waits = self._batching.why_waiting(session.task_key)
        if waits:
            return waits
        return next((e.reason for e in self.in_engines() if e.session is session), session.reason)

    # Inside

    def _check(self, query: Query, key: str) -> Refusal | None:
        engine = self._roster.described
        if engine is None or engine.description is None:
            return Refusal(RefusalCode.ENGINE_DOWN, "the engine is still loading", 1.0)
        if query.execution.round >= query.round:
            return Refusal(
                RefusalCode.MALFORMED,
                f"asks for round {query.round} while executing round {query.execution.round}",
            )
        if len(self.pending) >= self.options.max_queue and key not in self.pending:
            return Refusal(RefusalCode.OVERLOADED, f"{len(self.pending)} requests are pending", 0.5)
        return check_query(query, engine.description, self.options.max_bytes)

    def _account(self, now_ns: int, query: Query, session: Session) -> None:
        key, execution = session.task_key, query.execution
        if key not in self.tasks:
            engine = self._roster.described
            chunk_size = engine.description.chunk_size if engine and engine.description else 0
            first = first_execution_ns(chunk_size, execution.control_rate_hz or 30.0)
            l0 = engine.latency_ns[0] if engine and engine.latency_ns else 0
            self.tasks.open(key, now_ns, kind=query.kind, first_exec_ns=first, l0_ns=l0)
        if execution.started:
            # KairosError: a round too old to matter any more
            with contextlib.suppress(KairosError):
                self.tasks.execution(key, execution.round, *executed(now_ns, execution))

    def _enqueue(
        self, now_ns: int, query: Query, session: Session, horizon: HorizonPolicy
    ) -> list[Effect]:
        self._request_bytes = query.size_bytes
        observed = now_ns - round(query.observed_ago_s * 1e9)
        entry = self.pending.get(session.task_key)
        if entry is not None and entry.query.round == query.round:
            entry.renew(query, now_ns)
            entry.horizon, entry.hold_until_ns = horizon, 0
            return []
        allowed = round(query.deadline_s * 1e9) or self.options.default_deadline_ns
        self._queue.entries.pop(session.task_key, None)
        self._queue.add(Entry(query, session, horizon, now_ns, now_ns, observed, now_ns + allowed))
        if entry is None:
            return []
        superseded = f"round {query.round} of the same task took its place"
        return [self._refuse(entry.query, Refusal(RefusalCode.OLD_ROUND, superseded))]

    def _answer(
        self,
        now_ns: int,
        slot: EngineSlot,
        done: Running,
        entry: Entry,
        outcome: InferOutcome,
        compute_s: float,
    ) -> list[Effect]:
        session, query = entry.session, entry.query
        entry.copies -= 1
        if entry.answered or (entry.copies and isinstance(outcome, InferFailure)):
            self.counters["hedge_lost"] += 1
            return []
        entry.answered = True
        live = self.book.sessions.get(query.robot)
        if live is not session or not entry.is_current() or entry.key not in self.tasks:
            self.counters["late_result"] += 1
            return []
        if entry.hedged_on == slot.name:
            self.counters["hedge_won"] += 1
        self.tasks.generation(entry.key, query.round, entry.dispatched_ns, now_ns)
        self._server_time.note((now_ns - entry.received_ns) / 1e9)
        served = Served(
            queued_s=(entry.dispatched_ns - entry.asked_ns) / 1e9,
            compute_s=compute_s,
            server_s=(now_ns - entry.asked_ns) / 1e9,
            expected_s=self._server_time.expected_s(slot),
            batch_size=len(done.entries),
            tier=slot.tier,
            engine=slot.name,
        )
        assert slot.description is not None
        body = answer_outcome(entry, outcome, slot.description, served, self.options.horizon)
        if isinstance(body, Refusal):
            session.refused += 1
            return [self._refuse(entry.newer[0] if entry.newer else query, body)]
        session.wait_ratio = float(self.tasks.wait_ratio(entry.key, now_ns))
        self.counters["chunks"] += 1
        return [answer(query, body)]

    def _requeue_all(self, now_ns: int, slot: EngineSlot, *, crashed: bool) -> list[Effect]:
        effects: list[Effect] = []
        for batch in list(slot.flight):
            effects += self._requeue(slot.end(now_ns, batch, None), crashed=crashed)
        return effects

    def _requeue(self, lost: Running, *, crashed: bool) -> list[Effect]:
        effects: list[Effect] = []
        for entry in lost.entries:
            entry.crashes += crashed
            entry.copies -= 1
            if entry.answered or entry.copies:
                continue
            live = self.book.sessions.get(entry.query.robot)
            if live is not entry.session or not entry.is_current() or entry.key in self.pending:
                continue
            if entry.key not in self.tasks:  # it ended while this was under way
                continue
            if entry.newer:
                entry.renew(*entry.newer)
                entry.newer = None
            if entry.crashes >= MAX_CRASHES:
                entry.session.refused += 1
                code = RefusalCode.ENGINE_FAILED
                text = f"{entry.crashes} engines died on this request"
                effects.append(self._refuse(entry.query, Refusal(code, text, 1.0)))
            else:
                self.counters["requeued"] += 1
                entry.hold_until_ns, entry.hedged_on = 0, ""
                self._queue.add(entry)
        return effects

    def _too_late(self, now_ns: int, entry: Entry) -> Refusal:
        waited = f"{(now_ns - entry.received_ns) / 1e9:.1f} s"
        if not self._roster.ready:
            errors = self._roster.why_none()
            return Refusal(
                RefusalCode.ENGINE_DOWN, f"no engine is up after {waited}: {errors}", 1.0
            )
        return Refusal(RefusalCode.DEADLINE, f"still queued after {waited}", 0.1)

    def _close(self, key: str, *, finished: bool) -> None:
        self._queue.entries.pop(key, None)
        if key in self.tasks:
            self.tasks.close(key, finished=finished)

    def _refuse(self, query: Query, refusal: Refusal) -> Answer:
        self.counters[f"refused_{refusal.code.name.lower()}"] += 1
        return answer(query, refusal)
