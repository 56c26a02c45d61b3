"""How often each robot may ask: reviewed now and then, told with answers, and checked."""

from collections import Counter, defaultdict

from kairos_ros.core.exchange import Request
from kairos_ros.core.scheduling.rate_control import Demand, RateControl
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.sessions import Session, Sessions

REVIEW_NS = 500_000_000
"""Between two reviews of all rates."""
WEIGHT = 0.3
"""Of the newest round in the running mean of what a robot's rounds execute."""
SHORTEST_NS = 10_000_000
"""What a round executes is taken for at least so long."""
EARLY_NS = 100_000_000
"""A request that comes so much sooner than it may is taken for one that the network delivered
faster than the one before it."""


class Rates:
    """Times are integer nanoseconds, as the dispatcher's. Not thread safe."""

    def __init__(
        self,
        options: ServingOptions,
        tasks: TaskTable,
        engines: Engines,
        sessions: Sessions,
        counters: Counter[str],
    ) -> None:
        self._options, self._tasks, self._engines = options, tasks, engines
        self._sessions, self._counters = sessions, counters
        self._controls: defaultdict[str, RateControl] = defaultdict(RateControl)
        """By what computes: a device, or the engines of one policy."""
        self._reviewed_ns = -REVIEW_NS

    def change(self, options: ServingOptions) -> None:
        """As `Dispatcher.change`."""
        self._options = options
        self._reviewed_ns = -REVIEW_NS
        if not options.rate_control:
            self._controls.clear()
            for session in self._sessions.sessions.values():
                session.period_ns = session.told_period_ns = 0

    def asked(self, now_ns: int, request: Request, session: Session) -> int:
        """A request that will be served came. When it should have come at the soonest; 0 where it
        did not come too soon."""
        asked = request.id.task, request.id.round
        if asked == session.asked_round:
            return 0
        due_ns = session.asked_round_ns + session.told_period_ns
        session.asked_round, session.asked_round_ns = asked, now_ns
        self._learn(request, session)
        if not session.told_period_ns or now_ns >= due_ns - EARLY_NS:
            return 0
        session.asked_early, session.asked_early_ns = session.asked_early + 1, now_ns
        self._counters["asked_early"] += 1
        return due_ns

    def _learn(self, request: Request, session: Session) -> None:
        """What its last round executed, and of which task."""
        execution = request.execution
        session.kind = request.kind or request.instruction
        session.control_ns = execution.period_ns or session.control_ns
        if execution.started:
            round_ns = float(self._tasks.last_exec_ns[self._tasks.row(session.task_key)])
            weight = WEIGHT if session.round_ns else 1.0
            session.round_ns += weight * (max(round_ns, SHORTEST_NS) - session.round_ns)

    def tell(self, now_ns: int, session: Session) -> int:
        """The least time between the robot's requests from now on, which it is told; 0: none."""
        if self._options.rate_control and now_ns >= self._reviewed_ns + REVIEW_NS:
            self._reviewed_ns = now_ns
            self._review()
        session.told_period_ns = session.period_ns
        return session.period_ns

    def _review(self) -> None:
        """Decides about all robots in tasks; others may ask as they like."""
        demands: defaultdict[str, dict[str, Demand]] = defaultdict(dict)
        costs: dict[str, tuple[str, float] | None] = {}
        for session in self._sessions.sessions.values():
            session.period_ns = 0
            policy = session.policy or ""
            if policy not in costs:
                costs[policy] = self._engines.round_cost_s(policy)
            served = costs[policy]
            if session.round_ns and session.task_key in self._tasks and served is not None:
                where, cost_s = served
                demands[where][session.robot] = Demand(1e9 / session.round_ns, cost_s)
        for where, asked in demands.items():
            for robot, period_s in self._controls[where].review(asked).items():
                self._sessions.sessions[robot].period_ns = round(period_s * 1e9)
