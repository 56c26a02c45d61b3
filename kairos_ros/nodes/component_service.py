"""One component of a judging node: what it asks of its model, what it tells robots and people."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.msg import Plan, PlanRequest, SafetyVerdict, TaskProgress
from kairos_ros.nodes import qos
from kairos_ros.nodes.robot_watch import RobotWatch, Stamp, Watched
from kairos_ros.nodes.vlm_messages import plan_message, progress_message, safety_message
from kairos_ros.nodes.vlm_parameters import NAMES, skills
from kairos_ros.vlm.attainment import AttainmentWindow
from kairos_ros.vlm.desk import Desk, Matter, Settled
from kairos_ros.vlm.judge import Verdict
from kairos_ros.vlm.judgement_queue import Owed
from kairos_ros.vlm.planner import PLAN
from kairos_ros.vlm.questions import DONE, FAILED, ONGOING, SAFE, SAFETY, TASK_STATE, UNSAFE

EARLY = 0.25
"""A picture that comes this share of a period too early is judged: cameras have a rate, too."""
STUCK = 5.0
"""A request that has been with the model for so many objectives is an error."""
JUDGED = {
    Component.SAFETY: (SAFETY, (SAFE, UNSAFE), "safety_verdict", SafetyVerdict, safety_message),
    Component.MONITOR: (
        TASK_STATE,
        (ONGOING, DONE, FAILED),
        "task_progress",
        TaskProgress,
        progress_message,
    ),
}
"""Kind of question, its answers, and how robots hear of them."""


class Record:
    """What became of the questions of one component, for people."""

    def __init__(self, node: Node, component: Component, desk: Desk, values: Mapping[str, Any]):
        self.counters: Counter[str] = Counter()
        self.name = NAMES[component]
        self.slo_ns = round(values["slo_ms"] * 1e6)
        self.window = AttainmentWindow(round(values["window_s"] * 1e9))
        self._component, self._desk, self._values = component, desk, values
        self._log = node.get_logger()
        self._failing: set[str] = set()
        self._failed_before = 0
        node.create_timer(values["window_s"], self._log_attainment)

    def note(self, settled: Settled) -> Verdict | None:
        """Counts what came of a question, and logs each kind of failure once until it is over."""
        if settled.verdict is None:
            self.window.add(settled.now_ns, None, in_time=False)
            self.counters[f"failed, {settled.failure}"] += 1
            if settled.failure not in self._failing:
                self._failing.add(settled.failure)
                self._log.error(f"{self.name}: {settled.failure}: {settled.message}")
            return None
        self.window.add(settled.now_ns, settled.latency_s, in_time=settled.in_time)
        self.counters["answers"] += 1
        if self._failing:
            self._log.info(f"{self.name}: the model answers again")
            self._failing.clear()
        return settled.verdict

    def diagnostic(self, node: str, robots: int, more: Mapping[str, int]) -> DiagnosticStatus:
        """more: counters of the node."""
        attained = self.window.at(time.monotonic_ns())
        objective_ms = self.slo_ns / 1e6
        failed = sum(n for what, n in self.counters.items() if what.startswith("failed, "))
        newly, self._failed_before = failed - self._failed_before, failed
        level, message = DiagnosticStatus.OK, self._said()
        if self._desk.broken or self._desk.busy_s() * 1e3 > STUCK * objective_ms:
            level = DiagnosticStatus.ERROR
            message = f"the model has been silent for {self._desk.busy_s():.1f} s"
        elif newly:
            level, message = DiagnosticStatus.ERROR, f"{newly} questions failed"
        elif attained.answers and attained.within < self._values["warn_attainment"]:
            level = DiagnosticStatus.WARN
        values = {
            "model": self._desk.model,
            "robots": robots,
            "attainment": f"{attained.within:.4f}",
            "objective (ms)": f"{objective_ms:g}",
            "latency p50 (ms)": f"{1e3 * attained.p50_s:.1f}",
            "latency p95 (ms)": f"{1e3 * attained.p95_s:.1f}",
            "in the window": attained.answers,
            "waiting": self._desk.waiting,
            "in flight": self._desk.in_flight,
            "replaced by a newer picture": self._desk.replaced(self._component),
            **self.counters,
            **more,
        }
        return DiagnosticStatus(
            level=level,
            name=f"kairos {self.name}: {node}",
            hardware_id="kairos",
            message=message,
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )

    def _said(self) -> str:
        attained = self.window.at(time.monotonic_ns())
        if not attained.answers:
            return "nothing to judge"
        return (
            f"{attained.within:.1%} of {attained.answers} within {self.slo_ns / 1e6:g} ms, "
            f"p50 {1e3 * attained.p50_s:.0f}, p95 {1e3 * attained.p95_s:.0f} ms"
        )

    def _log_attainment(self) -> None:
        if self.window.at(time.monotonic_ns()).answers:
            self._log.info(f"{self.name}: {self._said()}")


class Outbox:
    """What the threads of desks have to say, said in the executor's thread."""

    def __init__(self, node: Node) -> None:
        self._said: deque[Callable[[], None]] = deque()
        self._something = node.create_guard_condition(self._say)

    def post(self, say: Callable[[], None]) -> None:
        self._said.append(say)
        self._something.trigger()

    def _say(self) -> None:
        while self._said:
            self._said.popleft()()


class Judging:
    """Safety or monitor: judges the newest look at each robot's cell at a rate of its own."""

    def __init__(
        self,
        node: Node,
        component: Component,
        desk: Desk,
        values: Mapping[str, Any],
        watch: RobotWatch,
        outbox: Outbox,
    ) -> None:
        self.record = Record(node, component, desk, values)
        self._node, self._component, self._desk = node, component, desk
        self._kind, self._answers, self._topic, self._message, self._tell = JUDGED[component]
        self._prompt = values["prompt"]
        self._period_ns = round(1e9 / values["freq_hz"])
        self._due_ns: dict[str, int] = {}
        self._topics: dict[str, Publisher] = {}
        self._service = node.get_fully_qualified_name()
        self._outbox = outbox
        self.watch = watch
        watch.seen.append(self._seen)
        watch.changed.append(self._changed)

    def diagnostic(self) -> DiagnosticStatus:
        name = self._node.get_fully_qualified_name()
        return self.record.diagnostic(name, len(self.watch.robots), self.watch.counters)

    def _seen(self, of: Watched, stamp: Stamp, pictures: tuple[bytes, ...]) -> None:
        now_ns = time.monotonic_ns()
        due_ns = self._due_ns.get(of.robot, 0)
        if now_ns < due_ns - EARLY * self._period_ns:
            return
        self._due_ns[of.robot] = max(due_ns, now_ns - self._period_ns) + self._period_ns

        def tell(came: Settled) -> None:
            verdict = self.record.note(came)
            publisher = self._topics.get(of.robot)
            if verdict is not None and publisher is not None:
                publisher.publish(self._tell(self._service, of, stamp, verdict, came))

        matter = Matter(
            self._kind,
            self._prompt,
            of.instruction,
            self._answers,
            pictures,
            settled=lambda came: self._outbox.post(partial(tell, came)),
        )
        self._desk.ask(Owed(of.robot, self._component), matter, self.record.slo_ns)

    def _changed(self, robot: str) -> None:
        self._desk.forget(robot)
        self._due_ns.pop(robot, None)
        here, open_ = robot in self.watch.robots, robot in self._topics
        if here and not open_:  # now: the first verdict would be lost until its reader is found
            topic = f"/{robot}/{self._topic}"
            self._topics[robot] = _publisher(self._node, self._message, topic)
        elif open_ and not here:
            self._node.destroy_publisher(self._topics.pop(robot))


class Planning:
    """The planner: answers each robot's newest question."""

    def __init__(
        self,
        node: Node,
        desk: Desk,
        values: Mapping[str, Any],
        watch: RobotWatch,
        outbox: Outbox,
    ) -> None:
        self.record = Record(node, Component.SYSTEM2, desk, values)
        self._node, self._desk = node, desk
        self._prompt, self._skills = values["prompt"], skills(values)
        self._topics: dict[str, tuple[Publisher, Subscription]] = {}
        self._service = node.get_fully_qualified_name()
        self._outbox = outbox
        self.watch = watch
        watch.changed.append(self._changed)

    def diagnostic(self) -> DiagnosticStatus:
        name = self._node.get_fully_qualified_name()
        return self.record.diagnostic(name, len(self.watch.robots), self.watch.counters)

    def _changed(self, robot: str) -> None:
        self._desk.forget(robot)
        here, open_ = robot in self.watch.robots, robot in self._topics
        if not here and open_:
            publisher, subscription = self._topics.pop(robot)
            self._node.destroy_subscription(subscription)
            self._node.destroy_publisher(publisher)
        elif here and not open_:
            subscription = self._node.create_subscription(
                PlanRequest,
                f"/{robot}/plan_request",
                lambda message: self._asked(robot, message),
                qos.EXCHANGE,
                event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
            )
            self._topics[robot] = _publisher(self._node, Plan, f"/{robot}/plan"), subscription

    def _asked(self, topic_robot: str, asked: PlanRequest) -> None:
        if asked.robot != topic_robot:
            self.record.counters["other_robot"] += 1
            return

        def tell(came: Settled) -> None:
            verdict = self.record.note(came)
            topics = self._topics.get(topic_robot)
            if verdict is not None and topics is not None:
                topics[0].publish(plan_message(self._service, asked, verdict, came))

        pictures = tuple(bytes(image.data) for image in asked.images)
        matter = Matter(
            PLAN,
            self._prompt,
            asked.goal,
            self._skills,
            pictures,
            settled=lambda came: self._outbox.post(partial(tell, came)),
        )
        slo_ns = round(asked.slo_s * 1e9) if 0 < asked.slo_s < 1e6 else self.record.slo_ns
        self._desk.ask(Owed(asked.robot, Component.SYSTEM2), matter, slo_ns)


def _publisher(node: Node, message: type, topic: str) -> Publisher:
    return node.create_publisher(
        message,
        topic,
        qos.EXCHANGE,
        event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
    )


Service = Judging | Planning


def open_services(
    node: Node,
    components: Sequence[Component],
    desk_of: Callable[[str], Desk],
    values: Mapping[str, Any],
) -> list[Service]:
    """The services of `components`; desk_of: the desk in front of a model, by its name.

    values: the node's parameters. Those of a component are prefixed by its name where there are
    several. Raises ConfigError.
    """
    outbox = Outbox(node)
    watches: dict[tuple[str, ...] | None, RobotWatch] = {}
    services: list[Service] = []
    for component in components:
        prefix = f"{NAMES[component]}." if len(components) > 1 else ""
        own = {name.removeprefix(prefix): value for name, value in values.items()}
        desk = desk_of(own["model"])
        cameras = tuple(own["cameras"]) if component in PERIODIC else None
        if cameras not in watches:
            watches[cameras] = RobotWatch(node, own["robots"], cameras)
        watch = watches[cameras]
        if component is Component.SYSTEM2:
            services.append(Planning(node, desk, own, watch, outbox))
        else:
            services.append(Judging(node, component, desk, own, watch, outbox))
    return services
