"""One component of a judging node: what it asks of its model, what it tells robots and people."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from kairos_ros.core.errors import WireError
from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.core.wire_check import ID_BYTES, check_text, duration_ns
from kairos_ros.msg import Plan, PlanRequest, SafetyVerdict, TaskProgress, TaskRefusal
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import PICTURE_BYTES, subscribe
from kairos_ros.nodes.executor_call import ExecutorCall
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.robot.watch import RobotWatch, Stamp, Watched
from kairos_ros.nodes.vlm.component_record import Record
from kairos_ros.nodes.vlm.messages import (
    REFUSALS,
    plan_message,
    progress_message,
    refusal_message,
    safety_message,
)
from kairos_ros.nodes.vlm.parameters import component_values, skills
from kairos_ros.vlm.embedded.planner import PLAN
from kairos_ros.vlm.judge_threads import JudgementRequest, JudgementResult, JudgeThreads
from kairos_ros.vlm.judgement_queue import Requester
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
REFUSAL = "task_refusal"


class Outbox:
    """What the threads of judges have to say, said in the executor's thread."""

    def __init__(self, node: Node) -> None:
        self._said: deque[Callable[[], None]] = deque()
        self._call = ExecutorCall(node, self._say)
        self._open = threading.Lock()
        self._closed = False

    def post(self, say: Callable[[], None]) -> None:
        with self._open:
            if not self._closed:
                self._said.append(say)
                self._call.ask()

    def close(self) -> None:
        """Nothing is said any more."""
        with self._open:
            self._closed = True
            self._said.clear()

    def _say(self) -> None:
        while self._said:
            self._said.popleft()()


class Judging:
    """Safety or monitor: judges the newest look at each robot's cell at a rate of its own."""

    def __init__(
        self,
        node: Node,
        component: Component,
        judges: JudgeThreads,
        values: Mapping[str, Any],
        watch: RobotWatch,
        outbox: Outbox,
    ) -> None:
        self.record = Record(node, component, judges, values)
        self._node, self._component, self._judges = node, component, judges
        self._kind, self._answers, self._topic, self._message, self._tell = JUDGED[component]
        self._prompt = values["prompt"]
        self._period_ns = round(1e9 / values["freq_hz"])
        self._due_ns: dict[str, int] = {}
        self._topics: dict[str, tuple[Publisher, Publisher]] = {}  # verdicts, refusals
        self._service = node.get_fully_qualified_name()
        self._outbox = outbox
        self.watch = watch
        watch.seen.append(self._seen)
        watch.changed.append(self._changed)

    def diagnostic(self) -> DiagnosticStatus:
        name = self._node.get_fully_qualified_name()
        return self.record.diagnostic(name, len(self.watch.robots), self.watch.counters)

    def close(self) -> None:
        """Before its topics are destroyed."""
        self._outbox.close()
        for robot in self.watch.robots:
            self._judges.forget(Requester(robot, self._component))

    def _seen(self, of: Watched, stamp: Stamp, pictures: tuple[bytes, ...]) -> None:
        now_ns = time.monotonic_ns()
        due_ns = self._due_ns.get(of.robot, 0)
        if now_ns < due_ns - EARLY * self._period_ns:
            return
        self._due_ns[of.robot] = max(due_ns, now_ns - self._period_ns) + self._period_ns

        def tell(came: JudgementResult) -> None:
            verdict = self.record.note(came)
            if (topics := self._topics.get(of.robot)) is None:
                return
            verdicts, refusals = topics
            if verdict is not None:
                verdicts.publish(self._tell(self._service, of, stamp, verdict, came))
            elif came.failure in REFUSALS:
                refusals.publish(refusal_message(self._service, self._component, of, came))

        request = JudgementRequest(
            self._kind,
            self._prompt,
            of.instruction,
            self._answers,
            pictures,
            on_result=lambda came: self._outbox.post(partial(tell, came)),
            task=of.task,
            # A plan leads to judgements of the task's state; those of safety stand alone.
            workflow=of.task if self._component is Component.MONITOR else "",
            upstream=Component.SYSTEM2 if self._component is Component.MONITOR else "",
        )
        self._judges.ask(Requester(of.robot, self._component), request, self.record.slo_ns)

    def _changed(self, robot: str) -> None:
        self._judges.forget(Requester(robot, self._component))
        self._due_ns.pop(robot, None)
        here, open_ = robot in self.watch.robots, robot in self._topics
        if here and not open_:  # now: the first verdict would be lost until its reader is found
            verdicts = _publisher(self._node, self._message, robot, self._topic)
            refusals = _publisher(self._node, TaskRefusal, robot, REFUSAL)
            self._topics[robot] = verdicts, refusals
        elif open_ and not here:
            for publisher in self._topics.pop(robot):
                self._node.destroy_publisher(publisher)


class Planning:
    """The planner: answers each robot's newest question."""

    def __init__(
        self,
        node: Node,
        judges: JudgeThreads,
        values: Mapping[str, Any],
        watch: RobotWatch,
        outbox: Outbox,
    ) -> None:
        self.record = Record(node, Component.SYSTEM2, judges, values)
        self._node, self._judges = node, judges
        self._prompt, self._skills = values["prompt"], skills(values)
        self._topics: dict[str, tuple[Publisher, Publisher, Subscription]] = {}
        self._service = node.get_fully_qualified_name()
        self._outbox = outbox
        self.watch = watch
        watch.changed.append(self._changed)

    def diagnostic(self) -> DiagnosticStatus:
        name = self._node.get_fully_qualified_name()
        return self.record.diagnostic(name, len(self.watch.robots), self.watch.counters)

    def close(self) -> None:
        """Before its topics are destroyed."""
        self._outbox.close()
        for robot in self.watch.robots:
            self._judges.forget(Requester(robot, Component.SYSTEM2))

    def _changed(self, robot: str) -> None:
        # A question that waits may be of the task that begins: it overtakes the robot's status.
        here, open_ = robot in self.watch.robots, robot in self._topics
        if not here and open_:
            self._judges.forget(Requester(robot, Component.SYSTEM2))
            plans, refusals, subscription = self._topics.pop(robot)
            self._node.destroy_subscription(subscription)
            self._node.destroy_publisher(plans)
            self._node.destroy_publisher(refusals)
        elif here and not open_:
            subscription = subscribe(
                self._node,
                PlanRequest,
                fleet_of(self._node).robot(robot, "plan_request"),
                lambda message: self._asked(robot, message),
                qos.EXCHANGE,
                most_bytes=PICTURE_BYTES,
                refused=self._refuse,
            )
            plans = _publisher(self._node, Plan, robot, "plan")
            refusals = _publisher(self._node, TaskRefusal, robot, REFUSAL)
            self._topics[robot] = plans, refusals, subscription

    def _refuse(self, error: WireError, raw: bytes = b"") -> None:
        self.record.counters["refused_question"] += 1
        self._node.get_logger().warning(
            f"a question is ignored: {error}", throttle_duration_sec=5.0
        )

    def _asked(self, topic_robot: str, asked: PlanRequest) -> None:
        if asked.robot != topic_robot:
            self.record.counters["other_robot"] += 1
            return
        try:
            for field in ("session", "task"):
                check_text(field, getattr(asked, field), ID_BYTES)
            for field in ("goal", "instruction"):
                check_text(field, getattr(asked, field))
            slo_ns = duration_ns("slo_s", asked.slo_s) or self.record.slo_ns
        except WireError as error:
            self._refuse(error)
            return

        def tell(came: JudgementResult) -> None:
            verdict = self.record.note(came)
            if (topics := self._topics.get(topic_robot)) is None:
                return
            plans, refusals, _ = topics
            if verdict is not None:
                plans.publish(plan_message(self._service, asked, verdict, came))
            elif came.failure in REFUSALS:
                refusals.publish(refusal_message(self._service, Component.SYSTEM2, asked, came))

        pictures = tuple(bytes(image.data) for image in asked.images)
        request = JudgementRequest(
            PLAN,
            self._prompt,
            asked.goal,
            self._skills,
            pictures,
            on_result=lambda came: self._outbox.post(partial(tell, came)),
            task=asked.task,
            workflow=asked.task,
            upstream=Component.MONITOR,
        )
        self._judges.ask(Requester(asked.robot, Component.SYSTEM2), request, slo_ns)


def _publisher(node: Node, message: type, robot: str, topic: str) -> Publisher:
    return node.create_publisher(
        message,
        fleet_of(node).robot(robot, topic),
        qos.EXCHANGE,
        event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
    )


Service = Judging | Planning


def open_services(
    node: Node,
    components: Sequence[Component],
    judges_of: Callable[[str], JudgeThreads],
    values: Mapping[str, Any],
) -> list[Service]:
    """The services of `components`; judges_of: the threads in front of a model, by its name.

    values: the node's parameters. Those of a component are prefixed by its name where there are
    several. Raises ConfigError.
    """
    outbox = Outbox(node)
    watches: dict[tuple[str, ...] | None, RobotWatch] = {}
    services: list[Service] = []
    for component in components:
        own = component_values(values, component, components)
        judges = judges_of(own["model"])
        cameras = tuple(own["cameras"]) if component in PERIODIC else None
        if cameras not in watches:
            watches[cameras] = RobotWatch(node, own["robots"], cameras, values["max_robots"])
        watch = watches[cameras]
        if component is Component.SYSTEM2:
            services.append(Planning(node, judges, own, watch, outbox))
        else:
            services.append(Judging(node, component, judges, own, watch, outbox))
    return services
