"""What robots are answered: chunks that engines computed, and refusals."""

from collections import Counter

from kairos_ros.core.exchange import Answer, Refusal, Request
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines.batches import Running
from kairos_ros.serving.engines.engines import ServerTime
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.load_horizons import LoadHorizons
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.rates import Rates
from kairos_ros.serving.request_queue import PendingRequest, RequestQueue
from kairos_ros.serving.sessions import Session, Sessions
from kairos_ros.serving.trimming import Served, answer_outcome
from kairos_ros.transport.messages import InferFailure, InferOutcome, InferResult


class Answers:
    """Not thread safe."""

    def __init__(
        self,
        options: ServingOptions,
        tasks: TaskTable,
        sessions: Sessions,
        queue: RequestQueue,
        rates: Rates,
        load_horizons: LoadHorizons,
        counters: Counter[str],
    ) -> None:
        self._options, self._tasks, self._sessions = options, tasks, sessions
        self._queue, self._rates, self._load_horizons = queue, rates, load_horizons
        self._counters = counters
        self._server_time = ServerTime()

    def change(self, options: ServingOptions) -> None:
        """As `Dispatcher.change`."""
        self._options = options

    def of_outcome(
        self,
        now_ns: int,
        slot: EngineSlot,
        done: Running,
        entry: PendingRequest,
        outcome: InferOutcome,
        compute_s: float,
    ) -> Answer | None:
        """What an engine made of one request of a batch. None where the other copy of the request
        was answered, or may be yet, and where the robot does not want it any more."""
        session, request = entry.session, entry.request
        entry.copies -= 1
        if entry.answered or (entry.copies and isinstance(outcome, InferFailure)):
            self._counters["hedge_lost"] += 1
            return None
        entry.answered = True
        live = self._sessions.sessions.get(request.id.robot)
        if live is not session or not entry.is_current() or entry.key not in self._tasks:
            self._counters["late_result"] += 1
            return None
        if entry.hedged_on == slot.name:
            self._counters["hedge_won"] += 1
        self._tasks.generation(entry.key, request.id.round, entry.dispatched_ns, now_ns)
        self._server_time.note(entry.policy, now_ns - entry.received_ns)
        served = Served(
            queued_ns=entry.dispatched_ns - entry.asked_ns,
            compute_ns=round(compute_s * 1e9),
            server_ns=now_ns - entry.asked_ns,
            expected_ns=self._server_time.expected_ns(slot),
            batch_size=len(done.entries),
            tier=slot.tier,
            engine=slot.name,
            request_period_ns=self._rates.tell(now_ns, session),
            horizon_floor=self._load_horizons.floor(now_ns, session),
            surprised_horizon=self._options.surprised_horizon,
        )
        assert slot.description is not None
        horizon = self._options.horizon_of(request.horizon_policy, slot.policy, slot.description)
        body = answer_outcome(entry, outcome, slot.description, served, horizon)
        if isinstance(body, Refusal):
            session.refused += 1
            return self.refuse(entry.newer[0] if entry.newer else request, body)
        self._load_horizons.note(session)
        session.wait_ratio = float(self._tasks.wait_ratio(entry.key, now_ns))
        self._counters["chunks"] += 1
        if isinstance(outcome, InferResult) and outcome.begun_anew:
            self._counters["begun_anew"] += 1
        return Answer(request.id, body)

    def refuse_round(self, refusal: Refusal, request: Request, session: Session) -> Answer:
        """An answer for the whole round, whatever attempt of it is pending."""
        self._queue.entries.pop(session.task_key, None)
        session.refused += 1
        return self.refuse(request, refusal)

    def refuse(self, request: Request, refusal: Refusal) -> Answer:
        self._counters[f"refused_{refusal.code.name.lower()}"] += 1
        return Answer(request.id, refusal)
