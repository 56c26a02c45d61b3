"""The script of a factory demo: makes its events happen to a fleet at work, one after the other."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus

from kairos_ros.bringup import Fleet, NodeSpec
from kairos_ros.demo.factory_events import JUDGED_BY, Kind, Planned, promise
from kairos_ros.demo.factory_floor import FactoryFloor
from kairos_ros.demo.factory_outcome import answered
from kairos_ros.demo.factory_story import TASK_OVER, Deed
from kairos_ros.demo.session import FleetError
from kairos_ros.fleet_plan import NODES
from kairos_ros.robot.state_table import Mode

BETWEEN_S = 3.0
"""The fleet works in peace, before every event and after the last."""
STAYS_S, DEAD_S, SLOW_S = 4.0, 5.0, 3.0
"""Somebody is in a cell; there is no safety service; the planner does nothing."""
REACTS_WITHIN_S, RECOVERS_WITHIN_S = 10.0, 45.0
"""Nothing is waited for any longer: it is a failure."""
AT_WORK_WITHIN_S, ALL_AT_WORK_WITHIN_S = 120.0, 20.0
SETTLED_S = 1.0
"""A robot has been running for so long when something happens to it."""
FRESH_S = (0.2, 0.8)
"""An object is knocked so early in an attempt: nothing holds it yet."""
KNOCKS = 6
"""Not every knock sends the object out of reach: it is hit again."""
KNOCK_SEEN_WITHIN_S = 7.0
ABOUT_S = 14.0
"""One event, with what follows and the peace before it; for the view."""


class FactoryScript:
    """Events, by what is done to whom."""

    def __init__(self, floor: FactoryFloor, specs: Sequence[NodeSpec]) -> None:
        """specs: the nodes of the fleet, to start one again."""
        self._floor, self._specs = floor, specs

    def play(self, events: Sequence[Planned]) -> None:
        """All of them, in peace before and after. What happened is in the floor's story.

        Raises Interrupted, and FleetError where the fleet does not get to work.
        """
        for left, planned in zip(range(len(events), 0, -1), events, strict=True):
            self._floor.session.live.left_s = left * ABOUT_S
            self._floor.work_for(BETWEEN_S, f"the fleet works; next: {planned.kind}")
            self._play(planned)
        self._floor.work_for(BETWEEN_S, "the fleet works")

    def _play(self, planned: Planned) -> None:
        """Makes one event happen, and waits until its robots are running again."""
        run: Mapping[Kind, Callable[[Planned], Deed]] = {
            Kind.INTRUDER: self._somebody,
            Kind.LINGERER: self._somebody,
            Kind.KNOCK: self._knock,
            Kind.SAFETY: self._safety,
            Kind.PLANNER: self._planner,
        }
        floor = self._floor
        deed = run[planned.kind](planned)
        floor.story.deeds.append(deed)
        floor.teller.undone = None
        again = "until they are running again"
        floor.until(
            lambda: self._running(deed.robots) == len(deed.robots), RECOVERS_WITHIN_S, again
        )
        floor.teller.about = ()

    def _somebody(self, planned: Planned) -> Deed:
        """Somebody is in a cell for a while, or until a human is called."""
        (robot,) = planned.robots
        stays = planned.kind is Kind.LINGERER
        self._at_work(robot)
        self._floor.occupied.add(robot)
        text = f"somebody enters the cell of {robot}" + " and stays" * stays
        deed = self._begins(planned.kind, planned.robots, text)
        self._floor.disturb(robot, "intruder")
        if stays:
            called = lambda: self._floor.story.mode(robot) is Mode.WAITING  # noqa: E731
            self._floor.until(called, RECOVERS_WITHIN_S, f"{text} until a human is called")
        elif self._floor.until(lambda: self._reacted(deed, robot), REACTS_WITHIN_S, text):
            left_s = deed.began_s + STAYS_S - self._floor.now_s
            self._floor.work_for(left_s, f"somebody is in the cell of {robot}")
        deed = self._over(deed, f"{robot}: they have left")
        self._floor.disturb(robot, "clear")
        self._floor.occupied.discard(robot)
        return deed

    def _knock(self, planned: Planned) -> Deed:
        """Until the simulator knows that the object is lost: it may also stay within reach."""
        (robot,) = planned.robots
        truth = self._floor.truth
        for attempt in range(KNOCKS):
            self._at_work(robot, fresh=True)
            text = f"the object of {robot} is knocked away" + " again" * (attempt > 0)
            deed = self._begins(Kind.KNOCK, planned.robots, text)
            self._floor.disturb(robot, "knock")
            self._floor.until(
                lambda deed=deed: self._reacted(deed, robot) or self._task_over(deed, robot),
                KNOCK_SEEN_WITHIN_S,
                text,
            )
            if truth.lost(robot, deed.began_s):
                break
            self._floor.teller.say(f"{robot}: the object stayed within reach")
        return deed

    def _safety(self, planned: Planned) -> Deed:
        spec = self._spec(Kind.SAFETY)
        key = Fleet.key(spec)
        mine = self._of(spec, planned)
        self._all_at_work(mine)
        working = tuple(r for r in mine if self._floor.story.mode(r) is Mode.RUNNING)
        text = f"the {key} service is killed for {DEAD_S:.0f} s"
        deed = self._begins(Kind.SAFETY, working, text)
        self._floor.session.meant.add(key)
        self._floor.session.fleet.processes[key].kill()
        self._floor.work_for(DEAD_S, text)
        deed = self._over(deed, f"the {key} service is started again")
        self._floor.session.fleet.start(spec)
        self._floor.session.meant.discard(key)
        return deed

    def _planner(self, planned: Planned) -> Deed:
        spec = self._spec(Kind.PLANNER)
        key = Fleet.key(spec)
        mine = self._of(spec, planned)
        self._all_at_work(mine)
        process = self._floor.session.fleet.processes[key]
        text = f"the {key} is slow: it does nothing for {SLOW_S:.0f} s"
        deed = self._begins(Kind.PLANNER, mine, text)
        process.send_signal(signal.SIGSTOP)
        try:
            self._floor.work_for(SLOW_S, text)
            self._floor.until(
                lambda: any(self._reacted(deed, robot) for robot in mine),
                REACTS_WITHIN_S,
                f"{text}, until somebody asks it",
            )
        finally:
            process.send_signal(signal.SIGCONT)
        return self._over(deed, f"the {key} answers again")

    def _begins(self, kind: Kind, robots: tuple[str, ...], text: str) -> Deed:
        """It is about to be done, and is over at once unless `_over` says otherwise."""
        self._floor.teller.about = robots
        self._floor.teller.say(text, "bold red")
        self._floor.teller.undone = text
        self._floor.tell(DiagnosticStatus.WARN, text)
        return Deed(kind, robots, text, self._floor.now_s, self._floor.now_s)

    def _over(self, deed: Deed, said: str) -> Deed:
        """What was done is about to be undone."""
        self._floor.teller.say(said, "bold")
        self._floor.tell(DiagnosticStatus.OK, said)
        return replace(deed, undone_s=self._floor.now_s)

    def _reacted(self, deed: Deed, robot: str) -> bool:
        promised = promise(deed.kind, self._floor.rules[robot], self._floor.rates_hz[robot])
        return bool(answered(deed, self._floor.story, robot, promised))

    def _task_over(self, deed: Deed, robot: str) -> bool:
        return any(m.trigger in TASK_OVER for m in self._floor.story.since(robot, deed.began_s))

    def _at_work(self, robot: str, *, fresh: bool = False) -> None:
        """Waits until the robot has been running for a while; fresh: in the beginning of a task."""

        def settled() -> bool:
            last = self._floor.story.last(robot)
            if last is None or last.after is not Mode.RUNNING:
                return False
            if fresh:
                return (
                    FRESH_S[0]
                    <= self._floor.story.attempt_s(robot, self._floor.now_s)
                    <= FRESH_S[1]
                )
            return self._floor.now_s - last.at_s >= SETTLED_S

        if not self._floor.until(settled, AT_WORK_WITHIN_S, f"waiting for {robot} to be at work"):
            raise FleetError(f"{robot} was not at work within {AT_WORK_WITHIN_S:.0f} s")

    def _all_at_work(self, robots: Sequence[str]) -> None:
        """Waits until all of them are running, or, where one ends as another begins, some."""
        for least in (len(robots), 1):
            if self._floor.until(
                lambda least=least: self._running(robots) >= least,
                ALL_AT_WORK_WITHIN_S,
                "waiting until they are all at work",
            ):
                return
        raise FleetError(f"none of {', '.join(robots)} is at work")

    def _running(self, robots: Sequence[str]) -> int:
        return sum(self._floor.story.mode(robot) is Mode.RUNNING for robot in robots)

    def _spec(self, kind: Kind) -> NodeSpec:
        executable = f"{NODES[JUDGED_BY[kind]]}_node"
        return next(spec for spec in self._specs if spec.executable == executable)

    def _of(self, spec: NodeSpec, planned: Planned) -> tuple[str, ...]:
        return tuple(r for r in planned.robots if r in spec.parameters["robots"])
