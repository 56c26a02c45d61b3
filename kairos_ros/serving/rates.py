"""How often each robot may ask, by a plan or by review: told with answers, and checked."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

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
SPREAD = 0.7
"""Robots that share an engine ask so far from each other, as a share of the even distance."""
MOST_SHIFT = 0.125
"""By which a period is made longer at most, as a share of it, to come away from another robot."""
SHIFTS = 8
"""Longer periods that are tried."""
EARLY_TOLD_NS = 5_000_000_000
"""A robot that asks too soon is named for so long."""
STREAK = 2
"""Rounds in a row that a robot asks for too soon before it is named: after a request that came late
on the way, the next one only seems to come early."""


def over_rate(now_ns: int, session: Session) -> bool:
    """Whether a robot asked sooner than it was told again and again lately."""
    return now_ns < session.over_rate_until_ns


class Due(NamedTuple):
    """When a request should have come at the soonest; fields as in `PendingRequest`."""

    due_ns: int = 0
    not_before_ns: int = 0


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
        self._planned_ns: Mapping[str, int] = {}
        self._mates: defaultdict[str, list[str]] = defaultdict(list)
        """Engine -> the robots that are routed to it."""

    def follow(self, periods_ns: Mapping[str, int]) -> None:
        """From now on these robots ask no more often than once per so long, as a plan says, which
        the engines follow already."""
        self._planned_ns = periods_ns
        self._mates.clear()
        for robot, engine in self._engines.routes.items():
            self._mates[engine].append(robot)

    def planned_ns(self, robot: str) -> int:
        """Least time between its requests by the plan; 0: the plan does not limit it."""
        return self._planned_ns.get(robot, 0)

    @property
    def limiting(self) -> bool:
        """Whether robots are told rates at all."""
        return self._options.rate_control or bool(self._planned_ns)

    def change(self, options: ServingOptions) -> None:
        """As `Dispatcher.change`."""
        self._options = options
        self._reviewed_ns = -REVIEW_NS
        if not options.rate_control:
            self._controls.clear()
            for session in self._sessions.sessions.values():
                session.period_ns = 0
                session.told_period_ns = self.planned_ns(session.robot)

    def asked(self, now_ns: int, request: Request, session: Session) -> Due:
        """A request that will be served came. When it should have come at the soonest; zeros where
        it did not come too soon.

        One that comes too soon takes the place of the next one that might have come, so that a
        robot which never keeps to its rate is served at that rate and no faster. A round that no
        engine was given has cost nothing.
        """
        asked = request.id.task, request.id.round
        if asked == session.asked_round:
            return Due()
        # one that does not wait for answers is never told
        period_ns = session.told_period_ns or self.planned_ns(session.robot)
        due_ns = session.asked_round_ns if period_ns else now_ns
        computed = session.computed_round == session.asked_round
        if computed:
            due_ns += period_ns
        session.asked_round, session.asked_round_ns = asked, max(now_ns, due_ns)
        self._learn(request, session)
        if now_ns >= due_ns - EARLY_NS:
            if computed:  # else it had waited for its turn, and gave it up
                session.early_in_a_row = 0
            return Due()
        session.asked_early += 1
        session.early_in_a_row += 1
        if session.early_in_a_row >= STREAK:
            session.over_rate_until_ns = now_ns + EARLY_TOLD_NS
        self._counters["asked_early"] += 1
        return Due(due_ns, due_ns if self.planned_ns(session.robot) else 0)

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
        planned_ns = self.planned_ns(session.robot)
        session.told_period_ns = max(session.period_ns, self._spread_ns(session, planned_ns))
        session.told_round = session.asked_round
        return session.told_period_ns

    def _spread_ns(self, session: Session, planned_ns: int) -> int:
        """The planned period, or a little more, so that robots which share an engine do not ask all
        at once: those that began together would do so for ever, and wait for each other."""
        engine = self._engines.routes.get(session.robot)
        if not planned_ns or engine is None:
            return planned_ns
        here = map(self._sessions.sessions.get, self._mates[engine])
        mates = [one for one in here if one is not None and one.has_task]
        gap_ns = SPREAD * planned_ns / max(1, len(mates))
        soonest_ns = session.asked_round_ns + planned_ns
        others = [
            one.asked_round_ns + one.told_period_ns
            for one in mates
            if one is not session and one.told_round == one.asked_round
        ]
        best_ns, widest_ns = soonest_ns, -1.0
        for step in range(SHIFTS + 1):
            due_ns = soonest_ns + round(step / SHIFTS * MOST_SHIFT * planned_ns)
            away_ns = min((abs(other - due_ns) for other in others), default=gap_ns)
            if away_ns > widest_ns:
                best_ns, widest_ns = due_ns, away_ns
            if away_ns >= gap_ns:
                break
        return best_ns - session.asked_round_ns

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
