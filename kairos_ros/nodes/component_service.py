"""One component of a judging node: what it asks of its model, what it tells robots and people."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.msg import Plan, PlanRequest, SafetyVerdict, TaskProgress
from kairos_ros.nodes import qos
from kairos_ros.nodes.component_record import Record
from kairos_ros.nodes.robot_watch import RobotWatch, Stamp, Watched
from kairos_ros.nodes.vlm_messages import plan_message, progress_message, safety_message
from kairos_ros.nodes.vlm_parameters import NAMES, skills
from kairos_ros.vlm.desk import Desk, Matter, Settled
from kairos_ros.vlm.judgement_queue import Owed
from kairos_ros.vlm.planner import PLAN
from kairos_ros.vlm.questions import DONE, FAILED, ONGOING, SAFE, SAFETY, TASK_STATE, UNSAFE

EARLY = 0.25
"""A picture that comes this share of a period too early is judged: cameras have a rate, too."""
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
        self._desk.forget(Owed(robot, self._component))
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
        # A question that waits may be of the task that begins: it overtakes the robot's status.
        here, open_ = robot in self.watch.robots, robot in self._topics
        if not here and open_:
            self._desk.forget(Owed(robot, Component.SYSTEM2))
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
