"""What a supervised robot hears from its judges and planner, and what it tells about that."""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from std_msgs.msg import String

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.core.wire_check import TEXT_BYTES, check_text, printable
from kairos_ros.msg import (
    PipelineEvent,
    Plan,
    PlanRequest,
    SafetyVerdict,
    TaskProgress,
    TaskRefusal,
)
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import subscribe
from kairos_ros.nodes.messages.pipeline import (
    UnusableError,
    pipeline_event,
    plan_request_message,
    planned_from,
    progress_from,
    refused_from,
    verdict_from,
)
from kairos_ros.nodes.robot.cameras import RobotCameras
from kairos_ros.nodes.robot.messages import Identity
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import Judgement
from kairos_ros.robot.supervision.rules_text import rules_text
from kairos_ros.robot.supervision.state_events import CellVerdict, Progress, Release
from kairos_ros.robot.supervision.state_machine import Transition
from kairos_ros.robot.supervision.state_table import Effect, Mode
from kairos_ros.robot.supervision.supervisor import AskPlan, Supervisor
from kairos_ros.srv import Release as ReleaseService

REMEMBERED = 64
"""Judgements whose pictures are remembered until it is known what they led to."""


class RobotPipeline:
    """Topics and service of one supervised robot; the `SupervisionListener` of its controller.

    `controller` is set once it exists.
    """

    controller: Controller

    def __init__(
        self, node: Node, who: Identity, supervisor: Supervisor, cameras: RobotCameras
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """Answers not used, by reason, that did not get as far as the controller."""
        self.last: Transition | None = None
        self._node = node
        self._who = who
        self._supervisor = supervisor
        self._cameras = cameras
        self._told: deque[tuple[Transition, str]] = deque()
        self._judged: OrderedDict[int, int] = OrderedDict()  # heard -> when its picture was taken
        self._lock = threading.Lock()
        self._asked: AskPlan | None = None  # the newest question to the planner
        components = supervisor.rules.components
        self._rules = node.create_publisher(String, "rules", qos.ANNOUNCEMENT)
        self._rules.publish(String(data=rules_text(supervisor.rules)))
        self._events = node.create_publisher(PipelineEvent, "pipeline_events", qos.EVENTS)
        if Component.SYSTEM2 in components:
            self._plans = node.create_publisher(PlanRequest, "plan_request", qos.EXCHANGE)
            self._listen(Plan, "plan", self._on_plan)
        if Component.SAFETY in components:
            self._listen(SafetyVerdict, "safety_verdict", self._on_verdict)
        if Component.MONITOR in components:
            self._listen(TaskProgress, "task_progress", self._on_progress)
        self._listen(TaskRefusal, "task_refusal", self._on_refusal)
        node.create_service(ReleaseService, "release", self._on_release)

    def _listen(self, kind: type, topic: str, callback: Callable[[Any], None]) -> None:
        subscribe(self._node, kind, topic, callback, qos.EXCHANGE, refused=self._on_unreadable)

    # The controller's judges, called in the control thread.

    def ask_plan(self, ask: AskPlan, observation: Observation, observed_ago_ns: int) -> None:
        self._asked = ask
        rules = self._supervisor.rules.components[Component.SYSTEM2]
        self._plans.publish(
            plan_request_message(
                self._who,
                ask,
                observation,
                observed_ago_ns,
                round=self.controller.report.execution.round,
                slo_ns=rules.slo_ns,
            )
        )

    def moved(self, transition: Transition, task: str) -> None:
        if Effect.RESEND in transition.effects and transition.component in PERIODIC:
            self._cameras.hurry()  # what a judge is asked again is a picture
        repeated = self.last is not None and (
            transition.before is transition.after and transition.trigger is self.last.trigger
        )
        self.last = transition
        self._told.append((transition, task))
        log = self._node.get_logger()
        text = (
            f"{transition.before} -> {transition.after}: {transition.reason} "
            f"({', '.join(transition.effects) or 'no effect'})"
        )
        if Effect.CALL_HUMAN in transition.effects:
            log.error(f"{text}; call /{self._who.robot}/release with a name and a reason")
        elif repeated:
            log.debug(text)
        else:
            log.info(text)

    def period(self) -> None:
        """The motion of this control period has been carried out."""
        self.publish()

    # Any thread.

    def publish(self) -> None:
        """Tells what the robot did since the last call."""
        while True:
            with self._lock:
                if not self._told:
                    return
                transition, task = self._told.popleft()
                frame_ns = self._judged.get(transition.caused_ns)
            now_ns = time.monotonic_ns()
            self._events.publish(pipeline_event(self._who, task, transition, frame_ns, now_ns))

    # Callbacks of the executor thread.

    def _on_verdict(self, message: SafetyVerdict) -> None:
        self._hear(lambda ns: verdict_from(message, self._who, self._cameras.frames.find, ns))

    def _on_progress(self, message: TaskProgress) -> None:
        self._hear(lambda ns: progress_from(message, self._who, self._cameras.frames.find, ns))

    def _on_plan(self, message: Plan) -> None:
        self._hear(lambda ns: planned_from(message, self._who, self._asked, ns))

    def _on_refusal(self, message: TaskRefusal) -> None:
        self._hear(lambda ns: refused_from(message, self._who, ns))

    def _hear(self, read: Callable[[int], Judgement]) -> None:
        now_ns = time.monotonic_ns()
        try:
            event = read(now_ns)
        except UnusableError as error:
            self._drop(error.reason, error)
            return
        except WireError as error:
            self._drop("malformed", error)
            return
        if isinstance(event, CellVerdict | Progress):
            with self._lock:
                self._judged[now_ns] = event.frame_ns
                if len(self._judged) > REMEMBERED:
                    self._judged.popitem(last=False)
        self.controller.post(event)

    def _on_unreadable(self, error: WireError, raw: bytes) -> None:
        self._drop("malformed", error)

    def _drop(self, reason: str, error: WireError) -> None:
        self.dropped[reason] += 1
        self._node.get_logger().warning(f"dropped an answer: {error}", throttle_duration_sec=5.0)

    def _on_release(
        self, request: ReleaseService.Request, response: ReleaseService.Response
    ) -> ReleaseService.Response:
        mode = self.controller.report.mode
        try:
            if request.robot != self._who.robot:
                said = printable(request.robot)
                raise ConfigError(f"this is {self._who.robot}, not '{said}'")
            name, reason = (check_text("a text", text) for text in (request.name, request.reason))
            release = Release(time.monotonic_ns(), printable(name), printable(reason, TEXT_BYTES))
            if mode is not Mode.WAITING:
                raise ConfigError(f"the robot does not wait for a human, it is {mode}")
        except (ConfigError, WireError) as error:
            response.message = str(error)
            return response
        self.controller.post(release)
        response.ok = True
        response.message = "released; it goes on as soon as its cell is judged safe"
        return response
