"""Floors of horizons by kind of task and load: reviewed now and then, used when chunks are cut."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import fmean

from kairos_ros.core.horizons.load_horizon import HorizonCurve, LoadHorizon, TaskLoad
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.options import SECOND_NS, ServingOptions
from kairos_ros.serving.sessions import Session, Sessions

REVIEW_NS = 2 * SECOND_NS
"""Between two reviews of all floors."""
ALLOWED_WEIGHT = 0.3
"""Of the newest chunk in the running mean of what a horizon policy allows."""
ROBOTS_WEIGHT = 0.2
"""Of the newest review in the running mean of robots per kind of task."""
FORGOTTEN = 0.02
"""A kind that fewer robots work on than this, on average, is left out."""
Class = tuple[str, HorizonCurve | None]
"""Policy, and what was measured of the kind of task, whatever it is called; None: it was not."""


@dataclass(slots=True)
class _Known:
    """What is known of one class of tasks."""

    allowed: float
    """Actions that the horizon policy allows, on average of late."""
    robots: float = 0.0
    """That work on it, on average of late: a kind that nobody works on just now comes again."""


class LoadHorizons:
    """Times are integer nanoseconds, as the dispatcher's. Not thread safe."""

    def __init__(
        self, options: ServingOptions, tasks: TaskTable, engines: Engines, sessions: Sessions
    ) -> None:
        self._tasks, self._engines, self._sessions = tasks, engines, sessions
        self._reviews: defaultdict[str, LoadHorizon[Class]] = defaultdict(LoadHorizon)
        """By what computes: a device, or the engines of one policy."""
        self.change(options)

    def change(self, options: ServingOptions) -> None:
        """As `Dispatcher.change`."""
        self._curves: dict[str, dict[str, HorizonCurve]] = {}
        if options.load_horizon:
            self._curves = {policy: options.curves(policy) for policy in options.policies}
        self._known: dict[Class, _Known] = {}
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

    def note(self, session: Session) -> None:
        """A robot's chunk was cut."""
        if self._curves:
            known = self._known.setdefault(self._class(session), _Known(session.allowed))
            known.allowed += ALLOWED_WEIGHT * (session.allowed - known.allowed)

    def _class(self, session: Session) -> Class:
        policy = session.policy or ""
        curves = self._curves.get(policy, {})
        return policy, curves.get(session.kind) or curves.get(session.instruction)

    def _review(self) -> None:
        """Decides about all robots in tasks. How many there are counts at once; on which kinds of
        task they work, on average of late."""
        now: Counter[Class] = Counter()
        periods_s: defaultdict[str, list[float]] = defaultdict(list)
        for one in self._sessions.sessions.values():
            if one.control_ns and one.task_key in self._tasks:
                now[self._class(one)] += 1
                periods_s[one.policy or ""].append(one.control_ns / 1e9)
        for of, known in [*self._known.items()]:
            weight = ROBOTS_WEIGHT if known.robots else 1.0
            known.robots += weight * (now[of] - known.robots)
            if known.robots < FORGOTTEN:
                del self._known[of]
        loads: defaultdict[str, dict[Class, TaskLoad]] = defaultdict(dict)
        for policy, periods in periods_s.items():
            slots = [slot for slot in self._engines.in_service if slot.policy == policy]
            kinds = {of: known for of, known in self._known.items() if of[0] == policy}
            if not slots or not kinds:
                continue
            scale = len(periods) / sum(known.robots for known in kinds.values())
            latency_s = tuple(ns / 1e9 for ns in slots[0].drifted_ns)
            servers = max(1, sum(slot.servers for slot in slots))
            where = slots[0].device or f"policy {policy}"
            for of, known in kinds.items():
                robots, period_s = scale * known.robots, fmean(periods)
                loads[where][of] = TaskLoad(
                    robots, known.allowed, period_s, latency_s, servers, of[1]
                )
        self._floors = {}
        for where, asked in loads.items():
            self._floors |= self._reviews[where].review(asked)
