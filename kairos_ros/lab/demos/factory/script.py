"""The script of a factory demo: makes its events happen to a fleet at work, one after the other."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus

from kairos_ros.bringup.fleet import NODES
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.lab.demos.factory.events import JUDGED_BY, EventKind, PlannedEvent, promise
from kairos_ros.lab.demos.factory.history import TASK_OVER, FactoryEvent
from kairos_ros.lab.demos.factory.outcome import answered
from kairos_ros.lab.demos.factory.testbed import FactoryTestbed
from kairos_ros.lab.testbed.processes import FleetError
from kairos_ros.robot.supervision.state_table import Mode

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

    def __init__(self, factory: FactoryTestbed, specs: Sequence[ProcessSpec]) -> None:
        """specs: the nodes of the fleet, to start one again."""
        self._factory, self._specs = factory, specs

    def play(self, events: Sequence[PlannedEvent]) -> None:
        """All of them, in peace before and after. What happened is in the factory's history.

        Raises Interrupted, and FleetError where the fleet does not get to work.
        """
        for left, planned in zip(range(len(events), 0, -1), events, strict=True):
            self._factory.testbed.live.left_s = left * ABOUT_S
            self._factory.work_for(BETWEEN_S, f"the fleet works; next: {planned.kind}")
            self._play(planned)
        self._factory.work_for(BETWEEN_S, "the fleet works")

    def _play(self, planned: PlannedEvent) -> None:
        """Makes one event happen, and waits until its robots are running again."""
        run: Mapping[EventKind, Callable[[PlannedEvent], FactoryEvent]] = {
            EventKind.INTRUDER: self._somebody,
            EventKind.LINGERER: self._somebody,
            EventKind.KNOCK: self._knock,
            EventKind.SAFETY: self._safety,
            EventKind.PLANNER: self._planner,
        }
        factory = self._factory
        event = run[planned.kind](planned)
        factory.history.events.append(event)
        factory.log.undone = None
        again = "until they are running again"
        factory.until(
            lambda: self._running(event.robots) == len(event.robots),
            RECOVERS_WITHIN_S,
            again,
        )
        factory.log.about = ()

    def _somebody(self, planned: PlannedEvent) -> FactoryEvent:
        """Somebody is in a cell for a while, or until a human is called."""
        (robot,) = planned.robots
        stays = planned.kind is EventKind.LINGERER
        self._at_work(robot)
        self._factory.occupied.add(robot)
        text = f"somebody enters the cell of {robot}" + " and stays" * stays
        event = self._begins(planned.kind, planned.robots, text)
        self._factory.disturb(robot, "intruder")
        if stays:
            called = lambda: self._factory.history.mode(robot) is Mode.WAITING  # noqa: E731
            self._factory.until(called, RECOVERS_WITHIN_S, f"{text} until a human is called")
        elif self._factory.until(lambda: self._reacted(event, robot), REACTS_WITHIN_S, text):
            left_s = event.began_s + STAYS_S - self._factory.now_s
            self._factory.work_for(left_s, f"somebody is in the cell of {robot}")
        event = self._over(event, f"{robot}: they have left")
        self._factory.disturb(robot, "clear")
        self._factory.occupied.discard(robot)
        return event

    def _knock(self, planned: PlannedEvent) -> FactoryEvent:
        """Until the simulator knows that the object is lost: it may also stay within reach."""
        (robot,) = planned.robots
        truth = self._factory.ground_truth
        for attempt in range(KNOCKS):
            self._at_work(robot, fresh=True)
            text = f"the object of {robot} is knocked away" + " again" * (attempt > 0)
            event = self._begins(EventKind.KNOCK, planned.robots, text)
            self._factory.disturb(robot, "knock")
            self._factory.until(
                lambda event=event: self._reacted(event, robot) or self._task_over(event, robot),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                KNOCK_SEEN_WITHIN_S,
                text,
            )
            if truth.lost(robot, event.began_s):
                break
            self._factory.log.say(f"{robot}: the object stayed within reach")
        return event

    def _safety(self, planned: PlannedEvent) -> FactoryEvent:
        spec = self._spec(EventKind.SAFETY)
        key = Fleet.key(spec)
        mine = self._of(spec, planned)
        self._all_at_work(mine)
        working = tuple(r for r in mine if self._factory.history.mode(r) is Mode.RUNNING)
        text = f"the {key} service is killed for {DEAD_S:.0f} s"
        event = self._begins(EventKind.SAFETY, working, text)
        self._factory.testbed.killed.add(key)
        self._factory.testbed.fleet.processes[key].kill()
        self._factory.work_for(DEAD_S, text)
        event = self._over(event, f"the {key} service is started again")
        self._factory.testbed.fleet.start(spec)
        self._factory.testbed.killed.discard(key)
        return event

    def _planner(self, planned: PlannedEvent) -> FactoryEvent:
        spec = self._spec(EventKind.PLANNER)
        key = Fleet.key(spec)
        mine = self._of(spec, planned)
        self._all_at_work(mine)
        process = self._factory.testbed.fleet.processes[key]
        text = f"the {key} is slow: it does nothing for {SLOW_S:.0f} s"
        event = self._begins(EventKind.PLANNER, mine, text)
        process.send_signal(signal.SIGSTOP)
        try:
            self._factory.work_for(SLOW_S, text)
            self._factory.until(
                lambda: any(self._reacted(event, robot) for robot in mine),
                REACTS_WITHIN_S,
                f"{text}, until somebody asks it",
            )
        finally:
            process.send_signal(signal.SIGCONT)
        return self._over(event, f"the {key} answers again")

    def _begins(self, kind: EventKind, robots: tuple[str, ...], text: str) -> FactoryEvent:
        """It is about to be done, and is over at once unless `_over` says otherwise."""
        self._factory.log.about = robots
        self._factory.log.say(text, "bold red")
        self._factory.log.undone = text
        self._factory.tell(DiagnosticStatus.WARN, text)
        return FactoryEvent(kind, robots, text, self._factory.now_s, self._factory.now_s)

    def _over(self, event: FactoryEvent, said: str) -> FactoryEvent:
        """What was done is about to be undone."""
        self._factory.log.say(said, "bold")
        self._factory.tell(DiagnosticStatus.OK, said)
        return replace(event, undone_s=self._factory.now_s)

    def _reacted(self, event: FactoryEvent, robot: str) -> bool:
        promised = promise(event.kind, self._factory.rules[robot], self._factory.rates_hz[robot])
        return bool(answered(event, self._factory.history, robot, promised))

    def _task_over(self, event: FactoryEvent, robot: str) -> bool:
        return any(
            m.trigger in TASK_OVER for m in self._factory.history.since(robot, event.began_s)
        )

    def _at_work(self, robot: str, *, fresh: bool = False) -> None:
        """Waits until the robot has been running for a while; fresh: in the beginning of a task."""

        def settled() -> bool:
            last = self._factory.history.last(robot)
            if last is None or last.after is not Mode.RUNNING:
                return False
            if fresh:
                return (
                    FRESH_S[0]
                    <= self._factory.history.attempt_s(robot, self._factory.now_s)
                    <= FRESH_S[1]
                )
            return self._factory.now_s - last.at_s >= SETTLED_S

        if not self._factory.until(settled, AT_WORK_WITHIN_S, f"waiting for {robot} to be at work"):
            raise FleetError(f"{robot} was not at work within {AT_WORK_WITHIN_S:.0f} s")

    def _all_at_work(self, robots: Sequence[str]) -> None:
        """Waits until all of them are running, or, where one ends as another begins, some."""
        for least in (len(robots), 1):
            if self._factory.until(
                lambda least=least: self._running(robots) >= least,  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                ALL_AT_WORK_WITHIN_S,
                "waiting until they are all at work",
            ):
                return
        raise FleetError(f"none of {', '.join(robots)} is at work")

    def _running(self, robots: Sequence[str]) -> int:
        return sum(self._factory.history.mode(robot) is Mode.RUNNING for robot in robots)

    def _spec(self, kind: EventKind) -> ProcessSpec:
        executable = f"{NODES[JUDGED_BY[kind]]}_node"
        return next(spec for spec in self._specs if spec.executable == executable)

    def _of(self, spec: ProcessSpec, planned: PlannedEvent) -> tuple[str, ...]:
        return tuple(r for r in planned.robots if r in spec.parameters["robots"])
