"""The edge serving node: a managed node around `serving.Dispatcher` and its engines.

configure loads and warms the engine of this host (or finds one elsewhere, where there is none),
activate accepts robots, deactivate refuses them again. One thread runs the executor and the
dispatcher; the threads of engine links only queue their events.
"""

import time
import uuid
from collections import deque
from collections.abc import Mapping, Set
from typing import Any

import rclpy
import zmq
from rclpy.event_handler import PublisherEventCallbacks

from kairos_ros.core.errors import ConfigError, KairosError, RefusalCode, WireError
from kairos_ros.core.exchange import Actions, Answer, Refusal, Request, WholeChunk
from kairos_ros.core.fleet_names import COMMON
from kairos_ros.core.name_patterns import matches
from kairos_ros.core.server_status import ServerState
from kairos_ros.core.wire_check import printable
from kairos_ros.engine.client.events import EngineDown
from kairos_ros.msg import ChunkRequest, ChunkUpdates, RobotStatus
from kairos_ros.nodes import qos
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.bounded import head, subscribe, take_waiting
from kairos_ros.nodes.executor_call import ExecutorCall
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.managed import ManagedNode
from kairos_ros.nodes.process import begin
from kairos_ros.nodes.robot.topics import RobotTopics
from kairos_ros.nodes.serving.announcement import ServerAnnouncement
from kairos_ros.nodes.serving.engines import ServingEngines
from kairos_ros.nodes.serving.messages import (
    from_answer,
    malformed,
    to_announcement,
    to_request,
    updates_message,
)
from kairos_ros.nodes.serving.parameters import (
    SERVING_PARAMETERS,
    policy_swaps,
    remote_engines,
    serving_options,
)
from kairos_ros.nodes.serving.plans import Plans
from kairos_ros.nodes.serving.telemetry import ServingTelemetry
from kairos_ros.nodes.throttle import Throttle
from kairos_ros.nodes.timers import every
from kairos_ros.serving.batching import Effect
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.options import ServingOptions


class ServingNode(ManagedNode):
    """Raises ConfigError at construction for a parameter that is wrong."""

    def __init__(self) -> None:
        super().__init__("serving", SERVING_PARAMETERS, namespace=COMMON)
        self._names = fleet_of(self)
        remote_engines(self.values)  # what is wrong is said at once
        self.options = serving_options(self.values)
        self.server = uuid.uuid4().hex
        self.announcement = ServerAnnouncement(
            self, self.server, self.values["robots"], self.values["standby_after_s"]
        )
        self.dispatcher = Dispatcher(self.options)
        self.dispatcher.policies.swap(policy_swaps(self.values["policy_swaps"]))
        self.values.on_change(self._on_parameters)
        self._events_call = ExecutorCall(self, self._on_engine_events)
        self._engines = ServingEngines(
            self.values, self.get_logger(), self._events_call.ask, self._carry_out
        )
        self._topics = self._robot_topics()
        self._throttle = Throttle(self.get_logger(), burst=50, every_s=1.0)
        self._ticked_ns = time.monotonic_ns()
        self._warned: deque[str] = deque(maxlen=MOST_WARNED)
        """Sessions of robots that send fewer observations than the policy reads."""
        self.plans = Plans(self.values, self._engines, self.get_logger(), self._use)
        self.telemetry = ServingTelemetry(self, self.values, self.announcement, self.plans)

    # Lifecycle

    def set_up(self) -> None:
        """Loads and warms the engine; publishes the fleet state meanwhile."""
        remotes, self.options = remote_engines(self.values), serving_options(self.values)
        self.dispatcher = Dispatcher(self.options)
        self.dispatcher.policies.swap(policy_swaps(self.values["policy_swaps"]))
        self.announcement.phase = ServerState.STARTING
        self._topics = self._robot_topics()
        self.telemetry.restart()
        self._announcements = Announcements(
            self.get_logger(), self.telemetry.counters, self.values["max_robots"]
        )
        self._updates = {
            full: self.create_publisher(
                ChunkUpdates,
                self._names.common(f"chunk_updates{'/full' if full else ''}"),
                qos.EVENTS,
                event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
            )
            for full in (False, True)
        }
        try:
            self._engines.start(self.dispatcher, remotes)
            self.plans.start(self.dispatcher)
            self._wait_for_engine()
        except (KairosError, zmq.ZMQError) as error:
            policy = self.values["policy"] or ", ".join(self.values["policies"])
            raise ConfigError(f"cannot serve {policy}: {error}") from error
        self._fleet_state_timer = every(
            self,
            1.0 / self.values["fleet_state_hz"],
            lambda: self.telemetry.tell(self.dispatcher),
        )
        self._statuses = subscribe(
            self,
            RobotStatus,
            self._names.common("robot_status"),
            self._on_status,
            qos.ROSTER,
            refused=self._announcements.refuse,
        )
        self.announcement.phase = ServerState.INACTIVE

    def _wait_for_engine(self) -> None:
        """Raises KairosError where it cannot load, or somebody interrupts."""
        while not self._engines.can_serve():
            if self.interrupted():
                raise KairosError("interrupted while the engine was loading")
            self._ticked_ns = time.monotonic_ns()  # others are heard meanwhile
            self.announcement.take()
            self._announce()
            time.sleep(0.05)
            down = self._handle_engine_events()
            if down is not None and down.retry_in_s is None:
                raise KairosError(down.reason)
            self.telemetry.tell(self.dispatcher)
            self.telemetry.diagnose_if_due(self.dispatcher)

    def begin_work(self) -> None:
        """Serves robots."""
        self.announcement.phase = ServerState.ACTIVE
        self._announce()

    def end_work(self) -> None:
        """Refuses requests."""
        self.announcement.phase = ServerState.INACTIVE
        self.get_logger().info("inactive: requests are refused")

    def take_down(self) -> None:
        """Ends the engine."""
        self.announcement.phase = ServerState.INACTIVE
        self._engines.stop()
        self._topics.close()

    def close(self) -> None:
        """Ends the engine and the node."""
        try:
            self.stop()
        finally:
            self.announcement.leave()
            self.destroy_node()

    def _robot_topics(self) -> RobotTopics:
        most_bytes = self.options.max_bytes
        return RobotTopics(self, self._names, self._on_request, self._on_unreadable, most_bytes)

    def _announce(self) -> None:
        """Tells who serves, and hears who else does."""
        policies = self.dispatcher.policies
        self.announcement.plan = self.plans.text
        self.announcement.update(policies.default, policies.told())

    def _on_parameters(self, values: Mapping[str, Any], changed: Set[str]) -> None:
        """Raises ConfigError. While the node is unconfigured, nothing is made of most of them."""
        if "robots" in changed:
            self.announcement.serve(values["robots"])
        if not self.configured:
            return
        if changed & PLANS:
            self.plans.check(values)
        now = {**values, "plan": self.plans.applied_text}
        options, swaps = serving_options(now), self.dispatcher.policies.swaps
        self.dispatcher.policies.swap(policy_swaps(values["policy_swaps"]))
        try:
            self.dispatcher.change(options)
        except ConfigError:
            self.dispatcher.policies.swaps = swaps
            raise
        self.options = options
        if changed & PLANS:
            self.plans.stage(values)
        if "policy_swaps" in changed:
            told = ", ".join(f"{o} gets {n}" for o, n in self.dispatcher.policies.swaps.items())
            self.get_logger().warning(f"new tasks: {told or 'every policy as it is asked for'}")
        if "fleet_state_hz" in changed:
            self._fleet_state_timer.timer_period_ns = round(1e9 / values["fleet_state_hz"])

    def _use(self, options: ServingOptions) -> None:
        self.options = options

    # Robots

    def _on_status(self, message: RobotStatus) -> None:
        if not matches(self.values["robots"], message.robot):
            return
        read = self._announcements.read(message, self.dispatcher.sessions)
        if read is None:
            return
        sessions = self.dispatcher.sessions
        known = sessions[read.robot].misfit if read.robot in sessions else ""
        ended, began = self.dispatcher.announce(time.monotonic_ns(), to_announcement(read))
        if ended is not None and began is None:
            self._throttle.info("left", f"robot {ended.robot} has left")
        if began is not None:
            session = printable(began.session)
            self._throttle.info("here", f"robot {began.robot} is here, session {session}")
        misfit = sessions[read.robot].misfit if read.robot in sessions else ""
        if misfit and misfit != known:
            self._throttle.error("misfit", f"robot {read.robot} cannot be served: {misfit}")

    @property
    def _served(self) -> Set[str]:
        """Robots that are this server's: none before it is configured, nor while another one has
        them."""
        clear = self.configured and self.announcement.clear
        return self.dispatcher.sessions.keys() if clear else frozenset()

    def _on_request(self, topic_robot: str, message: ChunkRequest) -> None:
        now_ns = time.monotonic_ns()
        if message.server not in ("", self.server):
            self.telemetry.counters["for_another_server"] += 1
            return
        self.telemetry.count_request()
        try:
            request = to_request(message)
        except WireError as error:
            self._refuse_on(topic_robot, malformed(message, error))
            return
        if request.id.robot != topic_robot:
            text = f"robot '{printable(request.id.robot)}' asks on the topic of {topic_robot!r}"
            unknown = Refusal(RefusalCode.UNKNOWN_ROBOT, text)
            self._refuse_on(topic_robot, Answer(request.id, unknown))
        elif not self.announcement.serving:  # or another server has its robots
            self._refuse_on(topic_robot, Answer(request.id, NOT_ACTIVE))
        else:
            self._carry_out(self.dispatcher.request(now_ns, request))
            self._warn_of_repeated(request)

    def _warn_of_repeated(self, request: Request) -> None:
        """Once per session of a robot that sends fewer observations than the policy reads."""
        session = self.dispatcher.sessions.get(request.id.robot)
        policy = self.dispatcher.policies.description(session.policy) if session else None
        if session and policy and session.repeated and session.session not in self._warned:
            self._warned.append(session.session)
            self.get_logger().warning(
                f"robot {session.robot} sends {len(request.earlier) + 1} of the "
                f"{policy.observations} observations that {policy.policy_type} reads; the oldest "
                "is repeated, so that the policy sees less motion. Update the robot node; a "
                "program of your own must send those of the control periods before, too (`earlier`)"
            )

    def _on_unreadable(self, topic_robot: str, error: WireError, raw: bytes) -> None:
        asked = head(raw, ChunkRequest)
        if asked.server in ("", self.server):
            self.telemetry.count_request()
            self._refuse_on(topic_robot, malformed(asked, error))

    def _refuse_on(self, topic_robot: str, refused: Answer) -> None:
        """Answers a request that did not get as far as the dispatcher."""
        assert isinstance(refused.body, Refusal)
        self.telemetry.counters[f"refused_{refused.body.code.name.lower()}"] += 1
        self.get_logger().warning(
            f"refused a request on /{topic_robot}/chunk_request: "
            f"{printable(refused.body.reason, 500)}",
            throttle_duration_sec=1.0,
        )
        self._topics.publish(topic_robot, from_answer(refused, self.server))

    # Engine

    def _on_engine_events(self) -> None:
        try:
            self._handle_engine_events()
        except ConfigError as error:
            self.get_logger().error(str(error))

    def _handle_engine_events(self) -> EngineDown | None:
        """Returns and raises as `ServingEngines.handle_events`."""
        any_down, edge_down = self._engines.handle_events()
        if any_down:  # the next periodic report may find it up again
            self.telemetry.diagnose(self.dispatcher)
        return edge_down

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._topics.publish(effect.id.robot, from_answer(effect, self.server))
                if isinstance(effect.body, Actions) and effect.body.whole is not None:
                    self._publish_updates(effect, effect.body, effect.body.whole)
                if isinstance(effect.body, Refusal):
                    self.get_logger().warning(
                        f"refused {effect.id.robot} round {effect.id.round}: "
                        f"{effect.body.code.name.lower()}: {printable(effect.body.reason, 500)}",
                        throttle_duration_sec=1.0,
                    )
                continue
            self._engines.submit(effect)

    def _publish_updates(self, sent: Answer, actions: Actions, whole: WholeChunk) -> None:
        for full, publisher in self._updates.items():
            if publisher.get_subscription_count():
                publisher.publish(updates_message(sent, actions, whole, full=full))

    # Time

    def wait_s(self) -> float:
        """How long the executor may wait for events before `tick` is due."""
        now_ns = time.monotonic_ns()
        due = [self.dispatcher.wakeup_ns(now_ns), self._topics.due_ns(self._served)]
        return min([0.2, *(max(0.0, (at - now_ns) / 1e9) for at in due if at is not None)])

    def tick(self) -> None:
        now_ns = time.monotonic_ns()
        stood_still_ns, self._ticked_ns = now_ns - self._ticked_ns, now_ns
        if stood_still_ns > STOOD_STILL_NS:
            self.dispatcher.stood_still(stood_still_ns)
            self.announcement.stood_still(stood_still_ns)
        self._announce()
        self.telemetry.diagnose_if_due(self.dispatcher)
        if self.configured:
            self._engines.keep_to_budget(now_ns)
            self.plans.look()
            if self.dispatcher.may_lose(now_ns):
                take_waiting(self._statuses)  # it may be this node that is late, not its robots
        now_ns = time.monotonic_ns()
        before = set(self.dispatcher.sessions)
        self._carry_out(self.dispatcher.tick(now_ns))
        for robot in before - self.dispatcher.sessions.keys():
            self._throttle.warning("silent", f"robot {robot} has fallen silent")
        self._topics.adjust(self._served)


LAST_CALLBACKS = 10
PLANS = {"plan", "staged_plan"}
STOOD_STILL_NS = 500_000_000
"""Between two ticks: the host was busy with something else, or asleep."""
MOST_WARNED = 1000
NOT_ACTIVE = Refusal(RefusalCode.NOT_ACTIVE, "the serving node is not activated", 1_000_000_000)


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    node, executor, stop = begin("serving_node", ServingNode)
    while not (stop.is_set() or node.over):
        executor.spin_once(timeout_sec=node.wait_s())
        node.tick()
    for _ in range(LAST_CALLBACKS):  # so that who asked for the end has its answer
        executor.spin_once(timeout_sec=0.01)
    executor.shutdown()
    node.close()
    rclpy.shutdown()
    return 0
