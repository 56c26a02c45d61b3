"""The fleet of a factory demo at work: its tasks, what is heard of it, the human it may call."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from kairos_ros.core.errors import KairosError
from kairos_ros.core.pipeline import Component
from kairos_ros.demo.factory_outcome import USED_UP
from kairos_ros.demo.factory_slo import Answers
from kairos_ros.demo.factory_story import Moment, Released, Story
from kairos_ros.demo.factory_teller import Teller
from kairos_ros.demo.factory_truth import Picture, Truth
from kairos_ros.demo.session import FleetError, Session
from kairos_ros.demo.workload import Job, jobs
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.fleet_plan import NODES
from kairos_ros.msg import PipelineEvent, Plan, SafetyVerdict, TaskProgress
from kairos_ros.nodes import qos
from kairos_ros.nodes.pipeline_messages import STATES
from kairos_ros.robot.state_table import Effect, Mode, Trigger
from kairos_ros.srv import Disturb, Release

SLICE_S = 0.02
SERVICES_WITHIN_S = 120.0
HUMAN_COMES_AFTER_S = 1.5
HUMAN = "Ada"
ANSWER_WITHIN_S = 5.0
SCRIPT = "kairos factory: script"
"""Name of the status in /diagnostics that says what is being done to the fleet."""
MAX_ACTIONS = 900
"""Of one task, over all its attempts."""
TASKS_OF_ONE_ROBOT = 1000
SAYS = {
    Component.SAFETY: ("safety_verdict", SafetyVerdict),
    Component.MONITOR: ("task_progress", TaskProgress),
    Component.SYSTEM2: ("plan", Plan),
}
"""Topic, below a robot's name, and message of what a component answers."""


class Interrupted(KairosError):  # noqa: N818 - it is none
    """Ctrl-C."""


class FactoryFloor:
    """What a script acts on. Times are seconds since the run began."""

    def __init__(
        self, session: Session, file: FleetFile, story: Story, teller: Teller, seed: int
    ) -> None:
        """seed: of scenes and of what is done to robots."""
        self.session, self.story, self.teller = session, story, teller
        self.heard, self.truth = Answers(), Truth()
        self.length_s = 0.0
        """Of the run; 0 before it has begun to end."""
        self.rules = {name: file.tasks[group.task].rules for name, group in file.robots.items()}
        self.rates_hz = {name: group.control_rate_hz for name, group in file.robots.items()}
        self._file, self._seed = file, seed
        self._jobs: dict[str, Iterator[Job]] = {
            name: jobs([file.tasks[group.task].scene], seed, None, i * TASKS_OF_ONE_ROBOT)
            for i, (name, group) in enumerate(file.robots.items())
        }
        self._services: set[str] = set()
        self.occupied: set[str] = set()
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
            if waited_s > SERVICES_WITHIN_S:
                raise FleetError(f"not there after {waited_s:.0f} s: {missing}; see the logs")
            self.session.display.progress(f"waiting for {missing} ({waited_s:.0f} s)")
            self._moment()

    def begin(self) -> None:
        """The run begins, at time 0."""
        self.session.driver.begin()
        self.session.live.phase = f"{len(self.rules)} robots of {len(self._file.tasks)} classes"
        self.teller.begin()

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
            self.teller.now = f"{what} ({left_s:.0f} s)"
            self.step()

    def until(self, true: Callable[[], object], within_s: float, what: str) -> bool:
        """Lets the fleet work until it is true; whether it came true in time."""
        until_s = time.monotonic() + within_s
        while not true():
            if time.monotonic() > until_s:
                return False
            self.teller.now = what
            self.step()
        return True

    def disturb(self, robot: str, what: str) -> None:
        """Makes something happen in a cell. Raises FleetError where the robot does not do it."""
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
            if robot in self.occupied or waited_s < HUMAN_COMES_AFTER_S:
                continue
            why = self._called_because(robot)
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
            self.teller.say(f"{HUMAN} (the demo) releases {robot}: {reason}", "bold magenta")

    def _called_because(self, robot: str) -> str:
        calls = [
            m for m in self.story.moments if m.robot == robot and Effect.CALL_HUMAN in m.effects
        ]
        return calls[-1].reason if calls else ""

    def tell(self, level: bytes, text: str) -> None:
        """What is being done to the fleet, for the bag."""
        values = [KeyValue(key="concerns", value=", ".join(self.teller.about))]
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
        for robot, rules in self.rules.items():
            listen(f"/{robot}/pipeline_events", PipelineEvent, self._on_event)
            for component in SAYS.keys() & rules.components.keys():
                topic, kind = SAYS[component]
                heard = partial(self._on_answer, component)
                listen(f"/{robot}/{topic}", kind, heard, qos.EXCHANGE)
            if Component.MONITOR in rules.components:
                listen(f"/{robot}/task_truth", TaskProgress, self._on_truth)

    def _on_answer(
        self, component: Component, message: SafetyVerdict | TaskProgress | Plan
    ) -> None:
        self.heard.add(component, message.robot, message.latency_s)
        if isinstance(message, TaskProgress):
            self.truth.say(_picture(message), STATES[message.state])

    def _on_truth(self, message: TaskProgress) -> None:
        self.truth.know(_picture(message), STATES[message.state], self.now_s)

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
        self.teller.moved(moment)


def _picture(message: TaskProgress) -> Picture:
    return message.robot, message.task, message.frame.sec, message.frame.nanosec
