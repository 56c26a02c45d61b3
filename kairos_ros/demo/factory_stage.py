"""The factory demo's fleet: gives its robots tasks, makes the events happen, acts as the human."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from kairos_ros.bringup import Fleet, NodeSpec
from kairos_ros.core.errors import KairosError
from kairos_ros.core.pipeline import Component
from kairos_ros.demo.factory_events import JUDGED_BY, Kind, Planned, promise
from kairos_ros.demo.factory_outcome import USED_UP, reaction
from kairos_ros.demo.factory_slo import Answers
from kairos_ros.demo.factory_story import TASK_OVER, Deed, Moment, Released, Story
from kairos_ros.demo.factory_teller import Teller
from kairos_ros.demo.session import FleetError, Session
from kairos_ros.demo.workload import Job, jobs
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.fleet_plan import NODES
from kairos_ros.msg import PipelineEvent, Plan, SafetyVerdict, TaskProgress
from kairos_ros.nodes import qos
from kairos_ros.robot.state_table import Effect, Mode, Trigger
from kairos_ros.srv import Disturb, Release

SLICE_S = 0.02
JUDGES_WITHIN_S = 120.0
AT_WORK_WITHIN_S, ALL_AT_WORK_WITHIN_S = 120.0, 20.0
BETWEEN_S = 3.0
"""The fleet works in peace, before and after every event."""
STAYS_S, DEAD_S, SLOW_S = 4.0, 5.0, 3.0
"""Somebody is in a cell; there is no safety service; the planner does nothing."""
REACTS_WITHIN_S, RECOVERS_WITHIN_S = 10.0, 45.0
"""After that it is a failure."""
SETTLED_S = 1.0
"""A robot has been running for so long when something happens to it."""
FRESH_S = (0.2, 0.8)
"""An object is knocked so early in an attempt: nothing holds it yet."""
KNOCKS = 6
"""Not every knock sends the object out of reach: it is hit again."""
KNOCK_SEEN_WITHIN_S = 7.0
ABOUT_S = 14.0
"""One event, with what follows and the peace before it; for the view."""
HUMAN_COMES_AFTER_S = 1.5
HUMAN = "Ada"
ANSWER_WITHIN_S = 5.0
SCRIPT = "kairos factory: script"
"""Name of the status in /diagnostics that says what is being done to the fleet."""
MAX_ACTIONS = 900
"""Of one task, over all its attempts."""
TASKS_OF_ONE_ROBOT = 1000


class Interrupted(KairosError):  # noqa: N818 - it is none
    """Ctrl-C."""


class FactoryStage:
    """What the script acts on. Times are seconds since the run began."""

    def __init__(
        self,
        session: Session,
        file: FleetFile,
        specs: Sequence[NodeSpec],
        story: Story,
        teller: Teller,
        seed: int,
    ) -> None:
        self.session, self.story, self.heard = session, story, Answers()
        self.length_s = 0.0
        """Of the run; 0 before it has begun to end."""
        self.rules = {name: file.tasks[group.task].rules for name, group in file.robots.items()}
        self.rates_hz = {name: group.control_rate_hz for name, group in file.robots.items()}
        self._file, self._specs, self._teller, self._seed = file, specs, teller, seed
        self._jobs: dict[str, Iterator[Job]] = {
            name: jobs([file.tasks[group.task].scene], seed, None, i * TASKS_OF_ONE_ROBOT)
            for i, (name, group) in enumerate(file.robots.items())
        }
        self._services: set[str] = set()
        self._occupied: set[str] = set()
        """Robots with somebody in their cell: no human releases them."""
        self._called: dict[str, float] = {}
        self._disturbances = 0
        self._gives = True
        self._listen()

    # Time passes

    @property
    def now_s(self) -> float:
        return self.session.driver.now_s()

    def ready(self) -> None:
        """Waits until every judge, planner and service is there. Raises FleetError."""
        driver = self.session.driver
        wanted = {
            f"kairos {NODES[c]}" for r in self.rules.values() for c in r.components if c in NODES
        }
        clients = [
            driver.client(kind, f"/{robot}/{name}")
            for robot in self.rules
            for kind, name in ((Disturb, "disturb"), (Release, "release"))
        ]

        def there() -> bool:
            return wanted <= self._services and all(c.service_is_ready() for c in clients)

        began = time.monotonic()
        while not there():
            waited_s = time.monotonic() - began
            missing = ", ".join(sorted(wanted - self._services)) or "the robots' services"
            if waited_s > JUDGES_WITHIN_S:
                raise FleetError(f"not there after {waited_s:.0f} s: {missing}; see the logs")
            self.session.display.progress(f"waiting for {missing} ({waited_s:.0f} s)")
            self._moment()

    def begin(self) -> None:
        """The run begins, at time 0."""
        self.session.driver.begin()
        self.session.live.phase = f"{len(self.rules)} robots of {len(self._file.tasks)} classes"
        self._teller.begin()

    def finish(self, within_s: float) -> None:
        """No more tasks; those that are running may end. Whoever called a human gets one."""
        self._gives = False
        self.session.live.left_s = 0.0
        driver = self.session.driver
        self.until(lambda: not driver.busy(), within_s, "the last tasks finish")

    def end(self) -> None:
        """The run is over."""
        self.length_s = self.now_s

    def step(self) -> None:
        """A moment of work. Raises Interrupted, and FleetError where no run makes sense."""
        self._act_as_human()
        if self._gives:
            self._give_tasks()
        self._moment()
        self.session.display.show(self.session.live)

    def work_for(self, seconds: float, what: str) -> None:
        """Lets the fleet work."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._teller.now = f"{what} ({left_s:.0f} s)"
            self.step()

    def until(self, true: Callable[[], object], within_s: float, what: str) -> bool:
        """Lets the fleet work until it is true; whether it came true in time."""
        until_s = time.monotonic() + within_s
        while not true():
            if time.monotonic() > until_s:
                return False
            self._teller.now = what
            self.step()
        return True

    # Events

    def play(self, planned: Planned, left: int) -> Deed:
        """Makes one event happen, and waits until its robots are running again.

        left: how many follow it.
        """
        self.session.live.left_s = (left + 1) * ABOUT_S
        run: Mapping[Kind, Callable[[Planned], Deed]] = {
            Kind.INTRUDER: self._somebody,
            Kind.LINGERER: self._somebody,
            Kind.KNOCK: self._knock,
            Kind.SAFETY: self._safety,
            Kind.PLANNER: self._planner,
        }
        self._teller.about = planned.robots
        deed = run[planned.kind](planned)
        self.story.deeds.append(deed)
        self._teller.undone = None
        self.until(
            lambda: all(self.story.mode(r) is Mode.RUNNING for r in deed.robots),
            RECOVERS_WITHIN_S,
            "until they are running again",
        )
        self._teller.about = ()
        return deed

    def _somebody(self, planned: Planned) -> Deed:
        """Somebody is in a cell for a while, or until a human is called."""
        (robot,) = planned.robots
        stays = planned.kind is Kind.LINGERER
        self._at_work(robot)
        self._occupied.add(robot)
        text = f"somebody enters the cell of {robot}" + " and stays" * stays
        deed = self._begins(planned.kind, planned.robots, text)
        self._disturb(robot, "intruder")
        if stays:
            called = lambda: self.story.mode(robot) is Mode.WAITING  # noqa: E731
            self.until(called, RECOVERS_WITHIN_S, f"{text} until a human is called")
        elif self.until(lambda: self._reacted(deed, robot), REACTS_WITHIN_S, text):
            left_s = deed.began_s + STAYS_S - self.now_s
            self.work_for(left_s, f"somebody is in the cell of {robot}")
        deed = self._over(deed, f"{robot}: they have left")
        self._disturb(robot, "clear")
        self._occupied.discard(robot)
        return deed

    def _knock(self, planned: Planned) -> Deed:
        (robot,) = planned.robots
        for attempt in range(KNOCKS):
            self._at_work(robot, fresh=True)
            text = f"the object of {robot} is knocked away" + " again" * (attempt > 0)
            deed = self._begins(Kind.KNOCK, planned.robots, text)
            self._disturb(robot, "knock")
            self.until(
                lambda deed=deed: self._reacted(deed, robot) or self._task_over(deed, robot),
                KNOCK_SEEN_WITHIN_S,
                text,
            )
            if self._reacted(deed, robot):
                break
            self._teller.say(f"{robot}: the monitor does not say failed")
        return deed

    def _safety(self, planned: Planned) -> Deed:
        spec = self._spec(Kind.SAFETY)
        key = Fleet.key(spec)
        mine = self._of(spec, planned)
        self._all_at_work(mine)
        working = tuple(r for r in mine if self.story.mode(r) is Mode.RUNNING)
        text = f"the {key} service is killed for {DEAD_S:.0f} s"
        deed = self._begins(Kind.SAFETY, working, text)
        self.session.meant.add(key)
        self.session.fleet.processes[key].kill()
        self.work_for(DEAD_S, text)
        deed = self._over(deed, f"the {key} service is started again")
        self.session.fleet.start(spec)
        self.session.meant.discard(key)
        return deed

    def _planner(self, planned: Planned) -> Deed:
        spec = self._spec(Kind.PLANNER)
        key = Fleet.key(spec)
        mine = self._of(spec, planned)
        self._all_at_work(mine)
        process = self.session.fleet.processes[key]
        text = f"the {key} is slow: it does nothing for {SLOW_S:.0f} s"
        deed = self._begins(Kind.PLANNER, mine, text)
        process.send_signal(signal.SIGSTOP)
        try:
            self.work_for(SLOW_S, text)
            self.until(
                lambda: any(self._reacted(deed, robot) for robot in mine),
                REACTS_WITHIN_S,
                f"{text}, until somebody asks it",
            )
        finally:
            process.send_signal(signal.SIGCONT)
        return self._over(deed, f"the {key} answers again")

    def _begins(self, kind: Kind, robots: tuple[str, ...], text: str) -> Deed:
        """It is about to be done, and is over at once unless `_over` says otherwise."""
        self._teller.say(text, "bold red")
        self._teller.undone = text
        self._publish(DiagnosticStatus.WARN, text)
        return Deed(kind, robots, text, self.now_s, self.now_s)

    def _over(self, deed: Deed, said: str) -> Deed:
        """What was done is about to be undone."""
        self._teller.say(said, "bold")
        self._publish(DiagnosticStatus.OK, said)
        return replace(deed, undone_s=self.now_s)

    def _reacted(self, deed: Deed, robot: str) -> bool:
        promised = promise(deed.kind, self.rules[robot], self.rates_hz[robot])
        return reaction(deed, self.story, robot, promised) is not None

    def _task_over(self, deed: Deed, robot: str) -> bool:
        return any(m.trigger in TASK_OVER for m in self.story.since(robot, deed.began_s))

    def _at_work(self, robot: str, *, fresh: bool = False) -> None:
        """Waits until the robot has been running for a while; fresh: in the beginning of a task."""

        def settled() -> bool:
            last = self.story.last(robot)
            if last is None or last.after is not Mode.RUNNING:
                return False
            if fresh:
                return FRESH_S[0] <= self.story.attempt_s(robot, self.now_s) <= FRESH_S[1]
            return self.now_s - last.at_s >= SETTLED_S

        if not self.until(settled, AT_WORK_WITHIN_S, f"waiting for {robot} to be at work"):
            raise FleetError(f"{robot} was not at work within {AT_WORK_WITHIN_S:.0f} s")

    def _all_at_work(self, robots: Sequence[str]) -> None:
        """Waits until all of them are running, or, where one ends as another begins, some."""
        for least in (len(robots), 1):
            running = lambda least=least: (  # noqa: E731
                sum(self.story.mode(robot) is Mode.RUNNING for robot in robots) >= least
            )
            if self.until(running, ALL_AT_WORK_WITHIN_S, "waiting until they are all at work"):
                return
        raise FleetError(f"none of {', '.join(robots)} is at work")

    def _spec(self, kind: Kind) -> NodeSpec:
        executable = f"{NODES[JUDGED_BY[kind]]}_node"
        return next(spec for spec in self._specs if spec.executable == executable)

    def _of(self, spec: NodeSpec, planned: Planned) -> tuple[str, ...]:
        return tuple(r for r in planned.robots if r in spec.parameters["robots"])

    def _disturb(self, robot: str, what: str) -> None:
        """Raises FleetError where the robot refuses or is silent."""
        self._disturbances += 1
        seed = self._seed * 1000 + self._disturbances
        request = Disturb.Request(robot=robot, what=what, seed=seed)
        answer = self.session.driver.client(Disturb, f"/{robot}/disturb").call_async(request)
        if not self.until(answer.done, ANSWER_WITHIN_S, f"{what} at {robot}"):
            raise FleetError(f"{robot} did not answer to {what!r} within {ANSWER_WITHIN_S:.0f} s")
        if not answer.result().ok:
            raise FleetError(f"{robot} refused {what!r}: {answer.result().message}")

    # What goes on all the time

    def _moment(self) -> None:
        session = self.session
        if session.interrupt.requested:
            raise Interrupted("interrupted")
        if session.stopped:
            raise FleetError("; ".join(session.failures) or "the fleet is gone")
        for _ in range(10):
            session.driver.spin(SLICE_S)
        session.notice_deaths()

    def _give_tasks(self) -> None:
        driver = self.session.driver
        for robot in driver.free():
            if self.story.mode(robot) is not Mode.WAITING:
                prompt = self._file.tasks[self._file.robots[robot].task].components.system1.prompt
                driver.give(robot, next(self._jobs[robot]), MAX_ACTIONS, prompt)

    def _act_as_human(self) -> None:
        for robot in self.rules:
            if self.story.mode(robot) is not Mode.WAITING:
                self._called.pop(robot, None)
                continue
            since_s = self._called.setdefault(robot, self.now_s)
            waited_s = self.now_s - since_s
            if robot in self._occupied or waited_s < HUMAN_COMES_AFTER_S:
                continue
            last = self.story.last(robot)
            why = last.reason if last else ""
            gives_up = USED_UP in why
            did = "took this one out" if gives_up else "nobody is there"
            reason = f"looked at {robot}, {did}; it had called because {why:.80}"
            if gives_up:
                self.session.driver.cancel(robot)
            self._called[robot] = self.now_s + ANSWER_WITHIN_S  # if that is not heard, once more
            request = Release.Request(robot=robot, name=HUMAN, reason=reason)
            self.session.driver.client(Release, f"/{robot}/release").call_async(request)
            self.story.releases.append(
                Released(self.now_s, robot, waited_s, HUMAN, reason, gives_up)
            )
            self._teller.say(f"{HUMAN} (the demo) releases {robot}: {reason}", "bold magenta")

    def _publish(self, level: bytes, text: str) -> None:
        """What the script does, for the bag."""
        values = [KeyValue(key="concerns", value=", ".join(self._teller.about))]
        status = DiagnosticStatus(
            level=level, name=SCRIPT, hardware_id="kairos", message=text, values=values
        )
        message = DiagnosticArray(status=[status])
        sec, nanosec = divmod(time.time_ns(), 1_000_000_000)
        message.header.stamp = Time(sec=sec, nanosec=nanosec)
        self._diagnostics.publish(message)

    def _listen(self) -> None:
        listen = self.session.driver.listen
        self._diagnostics = self.session.driver.publisher(
            "/diagnostics", DiagnosticArray, qos.DIAGNOSTICS
        )
        listen("/diagnostics", DiagnosticArray, self._on_diagnostics, qos.DIAGNOSTICS)
        kinds = {
            Component.SAFETY: ("safety_verdict", SafetyVerdict),
            Component.MONITOR: ("task_progress", TaskProgress),
            Component.SYSTEM2: ("plan", Plan),
        }
        for robot, rules in self.rules.items():
            listen(f"/{robot}/pipeline_events", PipelineEvent, self._on_event)
            for component in kinds.keys() & rules.components.keys():
                topic, kind = kinds[component]
                listen(
                    f"/{robot}/{topic}",
                    kind,
                    lambda m, c=component: self.heard.add(c, m.robot, m.latency_s),
                    qos.EXCHANGE,
                )

    def _on_diagnostics(self, array: DiagnosticArray) -> None:
        self._services |= {status.name.partition(":")[0] for status in array.status}

    def _on_event(self, message: PipelineEvent) -> None:
        age_s = message.frame_age_s
        moment = Moment(
            self.now_s,
            message.robot,
            Mode(message.before),
            Mode(message.after),
            Trigger(message.trigger),
            Component(message.component) if message.component else None,
            message.reason,
            frozenset(Effect(one) for one in message.effects),
            message.reacted_s,
            None if age_s != age_s else age_s,
        )
        self.story.moments.append(moment)
        self._teller.moved(moment)
