"""Floors of horizons by kind of task and load: reviewed now and then, used when chunks are cut."""

from collections import defaultdict
from statistics import fmean

from kairos_ros.core.load_horizon import HorizonCurve, LoadHorizon, TaskLoad
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines import Engines
from kairos_ros.serving.options import SECOND_NS, ServingOptions
from kairos_ros.serving.sessions import Session, Sessions

REVIEW_NS = SECOND_NS
"""Between two reviews of all floors."""
Class = tuple[str, HorizonCurve | None]
"""Policy, and what was measured of the kind of task, whatever it is called; None: it was not."""


class LoadHorizons:
    """Times are integer nanoseconds, as the dispatcher's. Not thread safe."""

    def __init__(
        self, options: ServingOptions, tasks: TaskTable, engines: Engines, sessions: Sessions
    ) -> None:
        self._tasks, self._engines, self._sessions = tasks, engines, sessions
        self._reviews: defaultdict[str, LoadHorizon[Class]]
        self._reviews = defaultdict(LoadHorizon)
        """By what computes: a device, or the engines of one policy."""
        self.change(options)

    def change(self, options: ServingOptions) -> None:
        """As `Dispatcher.change`."""
        self._curves: dict[str, dict[str, HorizonCurve]] = {}
        if options.load_horizon:
            self._curves = {policy: options.curves(policy) for policy in options.policies}
        self._floors: dict[Class, int] = {}
        self._reviews.clear()
        self._reviewed_ns = -REVIEW_NS

    def floor(self, now_ns: int, session: Session) -> int:
        """Actions of its chunk that a robot shall execute at least; 0: as many as its horizon
        policy says."""
        if not self._curves:
            return 0
        if now_ns >= self._reviewed_ns + REVIEW_NS:
            self._reviewed_ns = now_ns
            self._review()
        return self._floors.get(self._class(session), 0)

    def _class(self, session: Session) -> Class:
        policy = session.policy or ""
        curves = self._curves.get(policy, {})
        return policy, curves.get(session.kind) or curves.get(session.instruction)

    def _review(self) -> None:
        """Decides about all robots in tasks whose rounds are known."""
        found: defaultdict[Class, list[Session]] = defaultdict(list)
        for one in self._sessions.sessions.values():
            if one.allowed and one.control_ns and one.task_key in self._tasks:
                found[self._class(one)].append(one)
        loads: defaultdict[str, dict[Class, TaskLoad]] = defaultdict(dict)
        for (policy, curve), sessions in found.items():
            served = self._engines.round_cost_s(policy)
            if served is None:
                continue
            where, cost_s = served
            loads[where][policy, curve] = TaskLoad(
                robots=len(sessions),
                horizon=fmean(one.allowed for one in sessions),
                skipped=fmean(one.lost_actions for one in sessions),
                period_s=fmean(one.control_ns for one in sessions) / 1e9,
                cost_s=cost_s,
                curve=curve,
            )
        self._floors = {}
        for where, of in loads.items():
            self._floors |= self._reviews[where].review(of)
