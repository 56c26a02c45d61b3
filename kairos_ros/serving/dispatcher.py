"""The serving side's state machine: events in, answers and batches out. No ROS, no clock, no I/O.

Every event takes `now_ns`, integer nanoseconds of one monotonic clock, and returns effects for the
caller to carry out: an `Answer` to send to its robot, or a `Submit` to hand to an engine.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Literal

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Announcement, Refusal, Request
from kairos_ros.core.placement.overflow import Tier
from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.admission import Admission
from kairos_ros.serving.answers import Answers
from kairos_ros.serving.batching import Batching, Effect
from kairos_ros.serving.checks import chunk_problem
from kairos_ros.serving.engines.batches import SlotMemory
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.engines.memory import MemoryBudget
from kairos_ros.serving.engines.served_policies import ServedPolicies
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.load_horizons import LoadHorizons
from kairos_ros.serving.lost_batches import MAX_CRASHES, LostBatches
from kairos_ros.serving.options import SECOND_NS, HorizonPolicies, ServingOptions
from kairos_ros.serving.rates import Rates
from kairos_ros.serving.request_queue import PendingRequest, RequestQueue
from kairos_ros.serving.sessions import Session, Sessions
from kairos_ros.transport.link_estimate import LinkState
from kairos_ros.transport.messages import EngineDescription, InferOutcome

OTHER_WEIGHTS = "the engine came up with other weights than those of this task"


class Dispatcher:
    """Sessions, queue, decisions, batches, answers. Not thread safe."""

    def __init__(self, options: ServingOptions) -> None:
        self.options = options
        self._sessions = Sessions()
        self.tasks = TaskTable(options.scheduling.reading)
        self.counters: Counter[str] = Counter()
        self._engines = Engines()
        self._queue = RequestQueue()
        self._horizon_policies = HorizonPolicies(options)
        self.policies = ServedPolicies(options.policies, self._engines)
        self._batching = Batching(options, self.tasks, self._engines, self._queue, self.counters)
        self._admission = Admission(
            options, self.tasks, self._engines, self._queue, self.policies, self.counters
        )
        self.rates = Rates(options, self.tasks, self._engines, self._sessions, self.counters)
        self._load_horizons = LoadHorizons(options, self.tasks, self._engines, self._sessions)
        self.memory = MemoryBudget(
            options.memory_budget_mib, self._engines, self._queue, self._sessions
        )
        self._answers = Answers(
            options, self.tasks, self._sessions, self._queue, self.rates, self._load_horizons,
            self.counters,
        )  # fmt: skip
        self._lost = LostBatches(self.tasks, self._sessions, self._queue, self.counters)
        self._request_bytes = 0
        """Of the newest request."""

    def change(self, options: ServingOptions) -> None:
        """Serves by other options from now on: scheduling, horizon, freshness, deadline, the length
        of the queue, the comparison of tiers, rate control, load horizon, and (where a plan is
        followed) the policies by name. All others must be as they were.

        Raises ConfigError as `check`, and changes nothing then.
        """
        self.check(options)
        self.options = options
        self.policies.rename(options.policies)
        self._horizon_policies = HorizonPolicies(options)
        self._batching.change(options)
        self._admission.change(options)
        self.rates.change(options)
        self._load_horizons.change(options)
        self._answers.change(options)

    def check(self, options: ServingOptions) -> None:
        """Raises ConfigError for a scheduling policy that counts waits in another way than the one
        before it, and for a default horizon policy that a policy which is served cannot have."""
        if options.scheduling.reading != self.options.scheduling.reading:
            raise ConfigError(
                "this scheduling policy counts the waits of tasks in another way, and those that "
                "were counted cannot be converted; set it while the node is unconfigured"
            )
        for slot in self._engines.slots.values():
            if slot.description is not None and slot.policy in options.policies:
                options.check_policy(slot.description, slot.policy)

    @property
    def engines(self) -> Mapping[str, EngineSlot]:
        return self._engines.slots

    @property
    def pending(self) -> Mapping[str, PendingRequest]:
        """Task key -> its pending request, in order of arrival."""
        return self._queue.entries

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Robot -> its session."""
        return self._sessions.sessions

    def in_engines(self) -> Iterator[PendingRequest]:
        """The unanswered requests of all running batches; one that was hedged twice."""
        return self._engines.in_flight()

    def announce(self, now_ns: int, status: Announcement) -> tuple[Session | None, Session | None]:
        """A robot's status. Returns (session that ended, session that began), each maybe None."""
        owner = self._sessions.sessions.get(status.robot)
        key = owner.task_key if owner else ""
        ended, began = self._sessions.announce(now_ns, status)
        if ended is not None:
            self._close(key, finished=False)
        elif owner is not None and owner.task in owner.ended_tasks:
            self._close(key, finished=True)
        session = self._sessions.sessions.get(status.robot)
        if session and session.interface:
            session.misfit = self.policies.misfit(session.interface, session.asks_for)
        return ended, began

    def request(self, now_ns: int, request: Request) -> list[Effect]:
        """A robot asks for a chunk."""
        owner = self._sessions.sessions.get(request.id.robot)
        before = owner.task_key if owner else ""
        session = self._sessions.admit(now_ns, request)
        if isinstance(session, Refusal):
            return [self._answers.refuse(request, session)]
        if before != session.task_key:
            self._close(before, finished=True)
        mine = (e for e in self.in_engines() if e.session is session and e.is_current())
        computed = next(mine, None)
        if computed is not None or session.is_served(request):
            self.counters["late_refresh"] += 1
            if computed is not None and request.id.attempt > computed.request.id.attempt:
                newer = self._admission.check(now_ns, request, session)
                if isinstance(newer, Request):
                    computed.newer = newer, now_ns
            return []  # the chunk that is being computed, or on its way, answers this one, too
        checked = self._admission.check(now_ns, request, session)
        if isinstance(checked, Refusal):
            return [self._answers.refuse_round(checked, request, session)]
        served = self.policies.description(session.policy)
        horizon = self.options.horizon_of(request.horizon_policy, session.policy or "", served)
        policy = self._horizon_policies.of(horizon, session.policy or "", served)
        if isinstance(policy, Refusal):
            return [self._answers.refuse_round(policy, request, session)]
        session.instruction = request.instruction
        self._admission.account(now_ns, checked, session)
        due = self.rates.asked(now_ns, checked, session)
        self._request_bytes = checked.size_bytes
        allowed_ns = checked.deadline_ns or self.options.default_deadline_ns
        old = self._queue.put(now_ns, checked, session, policy, allowed_ns, *due)
        effects: list[Effect] = []
        if old is not None:
            superseded = f"round {checked.id.round} of the same task took its place"
            effects.append(
                self._answers.refuse(old.request, Refusal(RefusalCode.OLD_ROUND, superseded))
            )
        return effects + self._batching.form(now_ns)

    def add_engine(
        self,
        name: str,
        tier: Tier,
        network_ns: int = 0,
        policy: str = "",
        device: str = "",
        memory: SlotMemory | None = None,
        standby: bool = False,
    ) -> EngineSlot:
        """policy: name of the one that it serves. device, memory, standby: as in `EngineSlot`."""
        return self._engines.add(name, tier, network_ns, policy, device, memory, standby)

    def follow(
        self,
        routes: Mapping[str, str],
        periods_ns: Mapping[str, int],
        batches: Mapping[str, int],
        refused: Mapping[str, str] | None = None,
        standby: Set[str] = frozenset(),
    ) -> None:
        """From now on by a plan. routes: robot -> engine that serves it while that is up.
        periods_ns: robot -> least time between its requests. batches: engine -> its largest.
        refused: robots that asked to join, and why they cannot; robots without a route are not
        served then. None: they are. standby: engines that serve only while others are down."""
        self._engines.routes, self._engines.refused = routes, refused
        self.rates.follow(periods_ns)
        for name, batch in batches.items():
            self.engines[name].limit(batch)
            self.engines[name].standby = name in standby

    def route_of(self, robot: str) -> str:
        """The engine that the plan routes a robot to; empty: any of its policy."""
        return self._engines.routes.get(robot, "")

    def remove_engine(self, now_ns: int, name: str) -> list[Effect]:
        """Its worker has ended, and no plan has it any more."""
        effects = self._requeue_all(now_ns, self.engines[name], crashed=False)
        self._engines.remove(name)
        return effects + self._batching.form(now_ns)

    def check_standby(self) -> None:
        """As `Engines.check_standby`."""
        self._engines.check_standby()

    def engine_not_up(
        self, name: str, state: Literal["loading", "unreachable", "refused"], reason: str
    ) -> bool:
        """It cannot be used; if refused, until it is found again. Whether the reason is news."""
        slot = self.engines[name]
        is_news = slot.last_error != reason
        slot.not_up(state, reason)
        return is_news

    def engine_ready(
        self,
        now_ns: int,
        name: str,
        description: EngineDescription,
        profile: EngineProfile,
        loaded_s: float = 0.0,
    ) -> list[Effect]:
        """loaded_s: what loading it took.

        Raises ConfigError for another policy than the other engines of its name serve, one
        whose profile or horizon calibration is of another policy, one that the default horizon
        cannot judge, or one that takes more memory than there may be.
        Where edge and cloud differ it is the cloud that is wrong, whichever came first."""
        slot = self.engines[name]
        try:
            self.options.check_policy(description, slot.policy)
            self.memory.loaded(now_ns, slot, description.memory_mib, loaded_s)
            effects: list[Effect] = []
            for other in self._engines.refuse_others(slot, description):
                self.counters["refused_engine"] += 1
                effects += self._requeue_all(now_ns, other, crashed=False)
            slot.ready(description, profile, self.options.batch_cap)
            for entry in [one for one in self.pending.values() if one.policy == slot.policy]:
                if self.policies.has_changed(slot.policy, entry.request.policy):
                    changed = Refusal(RefusalCode.ENGINE_DOWN, OTHER_WEIGHTS, SECOND_NS // 10)
                    answer = self._answers.refuse_round(changed, entry.request, entry.session)
                    effects.append(answer)
        except ConfigError as error:
            if slot.tier == "cloud":
                slot.not_up("refused", str(error))
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
        self,
        now_ns: int,
        name: str,
        batch: int,
        outcomes: Sequence[InferOutcome],
        compute_s: float,
        prepare_s: float = 0.0,
    ) -> list[Effect]:
        """The engine's answer to a Submit. prepare_s: of the time before it was computed, what
        preparing it took.

        An engine behind a link that answers what is no chunk of its policy is refused until it is
        found again; what it was given is served elsewhere.
        """
        slot = self.engines[name]
        if batch not in slot.flight or slot.description is None:
            self.counters["late_batch"] += 1
            return []
        problem = chunk_problem(outcomes, slot.description) if slot.link else ""
        if problem:
            self.counters["malformed_chunk"] += 1
            slot.not_up("refused", f"it sent {problem}")
            return self._requeue_all(now_ns, slot, crashed=False) + self._batching.form(now_ns)
        away_s = (now_ns - slot.flight[batch].submitted_ns) / 1e9
        compute_s = min(max(0.0, compute_s), away_s)  # whatever an engine elsewhere claims
        done = slot.end(now_ns, batch, compute_s, min(max(0.0, prepare_s), away_s))
        answers = (
            self._answers.of_outcome(now_ns, slot, done, entry, outcome, compute_s)
            for entry, outcome in zip(done.entries, outcomes, strict=True)
        )
        effects: list[Effect] = [answer for answer in answers if answer is not None]
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
        effects = self._lose(now_ns, slot, batch, crashed)
        return effects + self._batching.form(now_ns)

    def engine_down(
        self,
        now_ns: int,
        name: str,
        reason: str,
        *,
        crashed: bool = True,
        failures: int = 0,
        retry_ns: int | None = None,
    ) -> list[Effect]:
        """The worker died or hung, or (not `crashed`) the link to it did. What it was given is
        queued again, where it stood.

        failures: workers in a row that ended without one finished batch. retry_ns: when the next
        one starts; None: none does by itself.
        """
        slot = self.engines[name]
        slot.died(reason, failures, retry_ns)
        if crashed or slot.state in ("ready", "draining"):
            slot.restarts += 1
            self.counters["engine_down" if crashed else "link_down"] += 1
        if slot.state != "refused" or crashed:
            slot.state, slot.last_error = "down", reason
        return self._requeue_all(now_ns, slot, crashed=crashed) + self._batching.form(now_ns)

    def engine_ended(self, now_ns: int, name: str) -> list[Effect]:
        """Its worker has ended because the memory is for another policy."""
        slot = self.engines[name]
        if slot.state == "ending":
            slot.state, slot.last_error = "not loaded", ""
            slot.died("", 0, None)
        return self._requeue_all(now_ns, slot, crashed=False) + self._batching.form(now_ns)

    def may_lose(self, now_ns: int) -> bool:
        """Whether `tick` would give up robots that it has not been told of for long."""
        return self._sessions.may_lose(now_ns)

    def stood_still(self, for_ns: int) -> None:
        """The caller could hear nobody for so long; what robots said meanwhile comes late."""
        self._sessions.stood_still(for_ns)

    def tick(self, now_ns: int) -> list[Effect]:
        """Deadlines, silent robots, observations that must be fetched again."""
        effects: list[Effect] = []
        for session in self._sessions.lost(now_ns):
            self.counters["robot_lost"] += 1
            self._close(session.task_key, finished=False)
        for entry in self._queue.late(now_ns):
            entry.session.refused += 1
            refusal = self._engines.too_late(now_ns, entry)
            effects.append(self._answers.refuse(entry.request, refusal))
        return effects + self._batching.form(now_ns)

    def wakeup_ns(self, now_ns: int) -> int | None:
        """When `tick` has something to do next, besides silent robots."""
        return self._batching.wakeup_ns(now_ns)

    def reason(self, session: Session) -> str:
        """Why the last decision about this robot was what it was."""
        if session.misfit:
            return session.misfit
        if why := self._engines.why_not_admitted(session.robot)[0]:
            return f"not admitted: {why}"
        waits = self._batching.why_waiting(session.task_key)
        if waits:
            return waits
        return next((e.reason for e in self.in_engines() if e.session is session), session.reason)

    def _requeue_all(self, now_ns: int, slot: EngineSlot, *, crashed: bool) -> list[Effect]:
        return [a for batch in list(slot.flight) for a in self._lose(now_ns, slot, batch, crashed)]

    def _lose(self, now_ns: int, slot: EngineSlot, batch: int, crashed: bool) -> list[Effect]:
        deadly = self._lost.requeue(slot.end(now_ns, batch, None), crashed=crashed)
        code = RefusalCode.ENGINE_FAILED
        text = f"{MAX_CRASHES} engines died on this request"
        return [self._answers.refuse(one.request, Refusal(code, text, SECOND_NS)) for one in deadly]

    def _close(self, key: str, *, finished: bool) -> None:
        self._queue.entries.pop(key, None)
        if key in self.tasks:
            self.tasks.close(key, finished=finished)
