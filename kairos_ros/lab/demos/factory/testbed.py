"""The fleet of a factory demo at work: its tasks, what is heard of it, the human it may call."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from kairos_ros.bringup.fleet import NODES
from kairos_ros.core.pipeline import Component
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.lab.demos.factory.ground_truth import GroundTruth, Picture
from kairos_ros.lab.demos.factory.history import FleetHistory, HumanRelease, SeenTransition
from kairos_ros.lab.demos.factory.log import EventLog
from kairos_ros.lab.demos.factory.outcome import USED_UP
from kairos_ros.lab.demos.factory.slo import AnswerLatencies
from kairos_ros.lab.testbed.processes import FleetError, Interrupted, TookTooLongError, wait_until
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.workload import SceneTask, scene_tasks
from kairos_ros.msg import PipelineEvent, Plan, SafetyVerdict, TaskProgress
from kairos_ros.nodes import qos
from kairos_ros.nodes.messages.pipeline import STATES
from kairos_ros.robot.supervision.state_table import Effect, Mode, Trigger
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


class FactoryTestbed:
    """What a script acts on. Times are seconds since the run began."""

    def __init__(
        self,
        testbed: FleetTestbed,
        file: FleetFile,
        history: FleetHistory,
        log: EventLog,
        seed: int,
    ) -> None:
        """seed: of scenes and of what is done to robots."""
        self.testbed, self.history, self.log = testbed, history, log
        self.latencies, self.ground_truth = AnswerLatencies(), GroundTruth()
        self.length_s = 0.0
        """Of the run; 0 before it has begun to end."""
        self.rules = {name: file.tasks[group.task].rules for name, group in file.robots.items()}
        self.rates_hz = {name: group.control_rate_hz for name, group in file.robots.items()}
        self._file, self._seed = file, seed
        self._jobs: dict[str, Iterator[SceneTask]] = {
            name: scene_tasks([file.tasks[group.task].scene], seed, None, i * TASKS_OF_ONE_ROBOT)
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
        return self.testbed.client.now_s()

    def ready(self) -> None:
        """Waits until every judge, planner and service is there. Raises FleetError."""
        client = self.testbed.client
        wanted = {
            f"kairos {NODES[c]}" for r in self.rules.values() for c in r.components if c in NODES
        }
        clients = [
            client.service_client(kind, f"/{robot}/{name}")
            for robot in self.rules
            for kind, name in ((Disturb, "disturb"), (Release, "release"))
        ]

        def there() -> bool:
            return wanted <= self._services and all(c.service_is_ready() for c in clients)

        def missing() -> str:
            names = ", ".join(sorted(wanted - self._services)) or "the robots' services"
            return f"waiting for {names}"

        def step(progress: str) -> None:
            self.testbed.display.progress(progress)
            self._spin()

        wait_until(there, SERVICES_WITHIN_S, missing, step, "; see the logs")

    def begin(self) -> None:
        """The run begins, at time 0."""
        self.testbed.client.begin()
        self.testbed.live.phase = f"{len(self.rules)} robots of {len(self._file.tasks)} classes"
        self.log.begin()

    def finish(self, within_s: float) -> None:
        """No more tasks; those that are running may end. Whoever called a human gets one."""
        self._gives = False
        self.testbed.live.left_s = 0.0
        client = self.testbed.client
        self.until(lambda: not client.busy(), within_s, "the last tasks finish")

    def end(self) -> None:
        """The run is over."""
        self.length_s = self.now_s

    def step(self, what: str) -> None:
        """A moment of work. Raises Interrupted, and FleetError where no run makes sense."""
        self.log.now = what
        self._act_as_human()
        if self._gives:
            self._give_tasks()
        self._spin()
        self.testbed.display.show(self.testbed.live)

    def work_for(self, seconds: float, what: str) -> None:
        """Lets the fleet work."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.step(f"{what} ({left_s:.0f} s)")

    def until(self, true: Callable[[], object], within_s: float, what: str) -> bool:
        """Lets the fleet work until it is true; whether it came true in time."""
        try:
            wait_until(true, within_s, what, lambda _: self.step(what))
        except TookTooLongError:
            return False
        return True

    def disturb(self, robot: str, what: str) -> None:
        """Makes something happen in a cell. Raises FleetError where the robot does not do it."""
        self._disturbances += 1
        seed = self._seed * 1000 + self._disturbances
        request = Disturb.Request(robot=robot, what=what, seed=seed)
        answer = self.testbed.client.service_client(Disturb, f"/{robot}/disturb").call_async(
            request
        )
        if not self.until(answer.done, ANSWER_WITHIN_S, f"{what} at {robot}"):
            raise FleetError(f"{robot} did not answer to {what!r} within {ANSWER_WITHIN_S:.0f} s")
        if not answer.result().ok:
            raise FleetError(f"{robot} refused {what!r}: {answer.result().message}")

    # What goes on all the time

    def _spin(self) -> None:
        testbed = self.testbed
        if testbed.interrupt.requested:
            raise Interrupted("interrupted")
        if testbed.stopped:
            raise FleetError("; ".join(testbed.failures) or "the fleet is gone")
        for _ in range(10):
            testbed.client.spin(SLICE_S)
        testbed.notice_deaths()

    def _give_tasks(self) -> None:
        client = self.testbed.client
        for robot in client.free():
            if self.history.mode(robot) is not Mode.WAITING:
                prompt = self._file.tasks[self._file.robots[robot].task].components.system1.prompt
                client.give(robot, next(self._jobs[robot]), MAX_ACTIONS, prompt)

    def _act_as_human(self) -> None:
        for robot in self.rules:
            if self.history.mode(robot) is not Mode.WAITING:
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
                self.testbed.client.cancel(robot)
            self._called[robot] = self.now_s + ANSWER_WITHIN_S  # if that is not heard, once more
            request = Release.Request(robot=robot, name=HUMAN, reason=reason)
            self.testbed.client.service_client(Release, f"/{robot}/release").call_async(request)
            self.history.releases.append(
                HumanRelease(self.now_s, robot, waited_s, HUMAN, reason, gives_up)
            )
            self.log.say(f"{HUMAN} (the demo) releases {robot}: {reason}", "bold magenta")

    def _called_because(self, robot: str) -> str:
        calls = [
            m
            for m in self.history.transitions
            if m.robot == robot and Effect.CALL_HUMAN in m.effects
        ]
        return calls[-1].reason if calls else ""

    def tell(self, level: bytes, text: str) -> None:
        """What is being done to the fleet, for the bag."""
        values = [KeyValue(key="concerns", value=", ".join(self.log.about))]
        status = DiagnosticStatus(
            level=level, name=SCRIPT, hardware_id="kairos", message=text, values=values
        )
        message = DiagnosticArray(status=[status])
        sec, nanosec = divmod(time.time_ns(), 1_000_000_000)
        message.header.stamp = Time(sec=sec, nanosec=nanosec)
        self._diagnostics.publish(message)

    def _listen(self) -> None:
        listen = self.testbed.client.listen
        self._diagnostics = self.testbed.client.publisher(
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
        self.latencies.add(component, message.robot, message.latency_s)
        if isinstance(message, TaskProgress):
            self.ground_truth.say(_picture(message), STATES[message.state])

    def _on_truth(self, message: TaskProgress) -> None:
        self.ground_truth.know(_picture(message), STATES[message.state], self.now_s)

    def _on_diagnostics(self, array: DiagnosticArray) -> None:
        self._services |= {status.name.partition(":")[0] for status in array.status}

    def _on_event(self, message: PipelineEvent) -> None:
        age_s = message.frame_age_s
        transition = SeenTransition(
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
        self.history.transitions.append(transition)
        self.log.moved(transition)


def _picture(message: TaskProgress) -> Picture:
    return message.robot, message.task, message.frame.sec, message.frame.nanosec
