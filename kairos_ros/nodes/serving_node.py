"""The edge serving node: a managed node around `serving.Dispatcher` and its engines.

configure loads and warms the engine of this host (or finds one elsewhere, where there is none),
activate accepts robots, deactivate refuses them again. One thread runs the executor and the
dispatcher; the threads of engine handles only queue their events.
"""

import json
import signal
import sys
import time
import uuid
from collections import Counter, deque
from functools import partial
from pathlib import Path

import rclpy
import zmq
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.exceptions import InvalidTopicNameException
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription
from rclpy.validate_full_topic_name import validate_full_topic_name

from kairos_ros.bringup import leave_with_launcher
from kairos_ros.core.errors import ConfigError, KairosError, RefusalCode, WireError
from kairos_ros.core.profile import EngineProfile
from kairos_ros.engine.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineDraining,
    EngineEvent,
    EngineLoading,
    EngineReady,
    LinkChanged,
)
from kairos_ros.engine.handle import EngineHandle
from kairos_ros.engine.remote import RemoteEngine
from kairos_ros.engine.worker_process import WorkerSpec
from kairos_ros.msg import ActionChunk, ChunkRequest, ChunkUpdates, FleetState, RobotStatus
from kairos_ros.nodes import qos
from kairos_ros.nodes.fleet_messages import diagnostics, fleet_state
from kairos_ros.nodes.parameters import declare
from kairos_ros.nodes.serving_messages import (
    from_answer,
    malformed,
    to_announcement,
    to_query,
    updates_message,
)
from kairos_ros.nodes.serving_parameters import (
    EDGE,
    SERVING_PARAMETERS,
    engine_options,
    remote_engines,
    serving_options,
)
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.effects import Effect
from kairos_ros.serving.exchange import Actions, Answer, Refusal, answer
from kairos_ros.serving.profiles import warmup_profile


class ServingNode(LifecycleNode):
    """Raises ConfigError at construction for a parameter that is wrong."""

    def __init__(self) -> None:
        super().__init__("serving", namespace="kairos")
        self.values = declare(self, SERVING_PARAMETERS)
        self.remotes = remote_engines(self.values)
        self.options = serving_options(self.values)
        self.server = uuid.uuid4().hex
        self.active = False
        self.stopping = False
        """Set by a signal handler: leave as soon as possible."""
        self.dispatcher = Dispatcher(self.options)
        self.engines: dict[str, EngineHandle | RemoteEngine] = {}
        self._profiles = {EDGE: self.values["profile"]}
        self._profiles |= {remote.name: remote.profile for remote in self.remotes}
        self._events: deque[tuple[str, EngineEvent]] = deque()
        self._guard = self.create_guard_condition(self._on_engine_events)
        self._topics: dict[str, tuple[Publisher, Subscription]] = {}
        self._entities: list[object] = []
        self._rates = _Rates()
        self._diagnosed: Counter[str] = Counter()

    # Lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Loads and warms the engine; publishes the fleet state meanwhile."""
        self.dispatcher = Dispatcher(self.options)
        self._fleet_state = self.create_publisher(FleetState, "/kairos/fleet_state", qos.TELEMETRY)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._updates = {
            full: self.create_publisher(
                ChunkUpdates,
                "/kairos/chunk_updates/full" if full else "/kairos/chunk_updates",
                qos.EVENTS,
                event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
            )
            for full in (False, True)
        }
        try:
            self._start_engines()
        except (ConfigError, zmq.ZMQError) as error:
            return self._give_up(str(error))
        while not self._can_serve():
            if self.stopping:
                return self._give_up("interrupted while the engine was loading")
            time.sleep(0.05)
            try:
                down = self._handle_events()
            except ConfigError as error:
                return self._give_up(str(error))
            if down is not None and down.retry_in_s is None:
                return self._give_up(down.reason)
            self._publish_fleet_state()
        self._entities = [
            self.create_subscription(
                RobotStatus, "/kairos/robot_status", self._on_status, qos.ROSTER
            ),
            self.create_timer(1.0 / self.values["fleet_state_hz"], self._publish_fleet_state),
            self.create_timer(1.0, self._publish_diagnostics),
        ]
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.active = True
        self.get_logger().info("active: robots are served")
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.active = False
        self.get_logger().info("inactive: requests are refused")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._tear_down()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._tear_down()
        return super().on_shutdown(state)

    def shut_down(self) -> None:
        """Ends the engine and the node."""
        self._tear_down()
        self.destroy_node()

    def _start_engines(self) -> None:
        """Raises ConfigError or zmq.ZMQError for a link that is impossible."""
        if self.values["policy"]:
            self.dispatcher.add_engine(EDGE, "edge")
            worker = WorkerSpec(engine_options(self.values))
            self.engines[EDGE] = EngineHandle(worker, partial(self._queue_event, EDGE))
        for remote in self.remotes:
            self.dispatcher.add_engine(remote.name, "cloud")
            engine = RemoteEngine(remote.spec, partial(self._queue_event, remote.name))
            engine.start()
            self.engines[remote.name] = engine
        if isinstance(edge := self.engines.get(EDGE), EngineHandle):
            edge.start()

    def _can_serve(self) -> bool:
        """The engine of this host is up; where there is none, any."""
        slots = self.dispatcher.engines
        if EDGE in slots:
            return slots[EDGE].state == "ready"
        return any(slot.state == "ready" for slot in slots.values())

    def _give_up(self, reason: str) -> TransitionCallbackReturn:
        self.get_logger().error(f"cannot serve {self.values['policy']}: {reason}")
        self._tear_down()
        return TransitionCallbackReturn.FAILURE

    def _tear_down(self) -> None:
        """Ends the engine and everything that was configured; may be called at any time."""
        self.active = False
        for engine in self.engines.values():
            engine.stop()
        self.engines.clear()
        self._events.clear()
        for entity in self._entities:
            if isinstance(entity, Subscription):
                self.destroy_subscription(entity)
            else:
                self.destroy_timer(entity)
        self._entities.clear()
        for robot in list(self._topics):
            self._close_topics(robot)

    # Robots

    def _on_status(self, message: RobotStatus) -> None:
        announcement = to_announcement(message)
        ended, began = self.dispatcher.announce(time.monotonic_ns(), announcement)
        if ended is not None and began is None:
            self.get_logger().info(f"robot {ended.robot} has left")
            self._close_topics(ended.robot)
        if began is not None:
            self.get_logger().info(f"robot {began.robot} is here, session {began.session}")
            self._open_topics(began.robot)

    def _open_topics(self, robot: str) -> None:
        if robot in self._topics:
            return
        try:
            validate_full_topic_name(f"/{robot}/chunk_request")
        except InvalidTopicNameException:
            self.dispatcher.counters["unusable_robot_id"] += 1
            self.get_logger().warning(f"robot id {robot!r:.80} is no ROS name and is ignored")
            return
        # Each event handler is one more entity that the executor waits for: with rclpy's default
        # ones (warnings of foreign QoS) waiting for 32 robots costs twice as much CPU.
        publisher = self.create_publisher(
            ActionChunk,
            f"/{robot}/action_chunk",
            qos.EXCHANGE,
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
        )
        subscription = self.create_subscription(
            ChunkRequest,
            f"/{robot}/chunk_request",
            partial(self._on_request, robot),
            qos.EXCHANGE,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        )
        self._topics[robot] = (publisher, subscription)

    def _close_topics(self, robot: str) -> None:
        if robot in self._topics:
            publisher, subscription = self._topics.pop(robot)
            self.destroy_subscription(subscription)
            self.destroy_publisher(publisher)

    def _on_request(self, topic_robot: str, message: ChunkRequest) -> None:
        now_ns = time.monotonic_ns()
        self._rates.requests += 1
        try:
            query = to_query(message)
        except WireError as error:
            self._refuse_on(topic_robot, malformed(message, str(error)))
            return
        if query.robot != topic_robot:
            text = f"robot {query.robot!r} asks on the topic of {topic_robot!r}"
            self._refuse_on(topic_robot, answer(query, Refusal(RefusalCode.UNKNOWN_ROBOT, text)))
        elif not self.active:
            self._refuse_on(topic_robot, answer(query, NOT_ACTIVE))
        else:
            self._carry_out(self.dispatcher.request(now_ns, query))

    def _refuse_on(self, topic_robot: str, refused: Answer) -> None:
        """Answers a request that did not get as far as the dispatcher."""
        assert isinstance(refused.body, Refusal)
        self.dispatcher.counters[f"refused_{refused.body.code.name.lower()}"] += 1
        self.get_logger().warning(
            f"refused a request on /{topic_robot}/chunk_request: {refused.body.reason}",
            throttle_duration_sec=1.0,
        )
        self._topics[topic_robot][0].publish(from_answer(refused))

    # Engine

    def _queue_event(self, engine: str, event: EngineEvent) -> None:
        self._events.append((engine, event))
        self._guard.trigger()

    def _on_engine_events(self) -> None:
        try:
            self._handle_events()
        except ConfigError as error:
            self.get_logger().error(str(error))

    def _handle_events(self) -> EngineDown | None:
        """Returns the newest EngineDown of this host's engine, if any. Raises ConfigError for a
        profile of it that is wrong."""
        down = None
        while self._events:
            name, event = self._events.popleft()
            now_ns = time.monotonic_ns()
            slot = self.dispatcher.engines[name]
            match event:
                case EngineLoading():
                    if slot.last_error != event.stage:
                        self.get_logger().info(f"{name}: {event.stage} ({event.seconds:.0f} s)")
                    slot.state, slot.last_error = "loading", event.stage
                case EngineReady():
                    try:
                        self._engine_ready(now_ns, name, event)
                    except ConfigError as error:
                        if name == EDGE:
                            raise
                        slot.state, slot.last_error = "refused", str(error)
                        self.get_logger().error(f"{name} is not used: {error}")
                case BatchDone():
                    self._rates.chunks += len(event.outcomes)
                    before = slot.state
                    self._carry_out(
                        self.dispatcher.batch_done(
                            now_ns, name, event.batch, event.outcomes, event.compute_s
                        )
                    )
                    if slot.state != before:  # what it answered is no chunk of the policy
                        self.get_logger().error(f"{name} is not used: {slot.last_error}")
                case BatchFailed():
                    self.get_logger().warning(f"{name}: batch {event.batch} failed: {event.reason}")
                    crashed = event.code is not RefusalCode.ENGINE_DOWN
                    self._carry_out(
                        self.dispatcher.batch_failed(
                            now_ns, name, event.batch, event.reason, crashed=crashed
                        )
                    )
                case EngineDown():
                    down = event if name == EDGE else down
                    self.get_logger().error(
                        f"{name} down: {event.reason}; {len(event.lost)} batches queued again"
                    )
                    self._carry_out(
                        self.dispatcher.engine_down(
                            now_ns, name, event.reason, crashed=event.crashed
                        )
                    )
                    self._publish_diagnostics()  # the next periodic report may find it up again
                case EngineDraining():
                    self.get_logger().warning(f"{name} takes no more: {event.reason}")
                    self.dispatcher.engine_draining(now_ns, name, event.reason)
                case LinkChanged():
                    self._carry_out(self.dispatcher.link_changed(now_ns, name, event.state))
        return down

    def _engine_ready(self, now_ns: int, name: str, event: EngineReady) -> None:
        slot = self.dispatcher.engines[name]
        slot.last_error = ""
        profile = self._profile(name, event)
        effects = self.dispatcher.engine_ready(now_ns, name, event.description, profile)
        self.get_logger().info(
            f"{name} ready after {event.seconds:.1f} s: {event.description.policy_id} "
            f"on {event.description.device}, batches up to {len(slot.latency_ns)}, "
            f"{slot.latency_of(1) / 1e6:.1f} ms for one robot"
        )
        self._carry_out(effects)

    def _profile(self, name: str, ready: EngineReady) -> EngineProfile:
        path = self._profiles[name]
        if not path:
            return warmup_profile(ready.description)
        try:
            return EngineProfile.from_dict(json.loads(Path(path).read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"profile {path!r} cannot be read: {error}") from error

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                if effect.robot in self._topics:
                    self._topics[effect.robot][0].publish(from_answer(effect))
                if isinstance(effect.body, Actions):
                    self._publish_updates(effect, effect.body)
                if isinstance(effect.body, Refusal):
                    self.get_logger().warning(
                        f"refused {effect.robot} round {effect.round}: "
                        f"{effect.body.code.name.lower()}: {effect.body.reason}",
                        throttle_duration_sec=1.0,
                    )
                continue
            try:
                self.engines[effect.engine].submit(effect.batch, effect.requests, effect.expected_s)
            except WireError as error:
                self._carry_out(
                    self.dispatcher.batch_failed(
                        time.monotonic_ns(), effect.engine, effect.batch, str(error)
                    )
                )

    def _publish_updates(self, sent: Answer, actions: Actions) -> None:
        for full, publisher in self._updates.items():
            if publisher.get_subscription_count():
                publisher.publish(updates_message(sent, actions, full=full))

    # Time

    def wait_s(self) -> float:
        """How long the executor may wait for events before `tick` is due."""
        now_ns = time.monotonic_ns()
        wakeup = self.dispatcher.wakeup_ns(now_ns)
        return 0.2 if wakeup is None else min(0.2, max(0.0, (wakeup - now_ns) / 1e9))

    def tick(self) -> None:
        now_ns = time.monotonic_ns()
        self._carry_out(self.dispatcher.tick(now_ns))
        for robot in set(self._topics) - set(self.dispatcher.book.sessions):
            self.get_logger().warning(f"robot {robot} has fallen silent")
            self._close_topics(robot)

    def _publish_fleet_state(self) -> None:
        now_ns = time.monotonic_ns()
        state = fleet_state(now_ns, self.dispatcher)
        state.stamp = self.get_clock().now().to_msg()
        state.server, state.active = self.server, self.active
        state.scheduling, state.horizon = self.values["scheduling"], self.values["horizon"]
        state.requests_per_s, state.chunks_per_s = self._rates.per_s(now_ns)
        self._fleet_state.publish(state)

    def _publish_diagnostics(self) -> None:
        message = diagnostics(
            time.monotonic_ns(),
            self.dispatcher,
            self._diagnosed,
            self.values["warn_queued_s"],
            self.values["warn_engine_load"],
        )
        self._diagnosed = self.dispatcher.counters.copy()
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


class _Rates:
    """Requests and chunks per second over about the last two seconds."""

    def __init__(self) -> None:
        self.requests = 0
        self.chunks = 0
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=11)

    def per_s(self, now_ns: int) -> tuple[float, float]:
        self._samples.append((now_ns, self.requests, self.chunks))
        then_ns, requests, chunks = self._samples[0]
        seconds = max(now_ns - then_ns, 1) / 1e9
        return (self.requests - requests) / seconds, (self.chunks - chunks) / seconds


NOT_ACTIVE = Refusal(RefusalCode.NOT_ACTIVE, "the serving node is not activated", 1.0)


def main() -> int:
    """Runs the node until SIGINT or SIGTERM."""
    leave_with_launcher()
    rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
    node = None
    try:
        node = ServingNode()
        return _run(node)
    except KairosError as error:
        print(f"serving_node: {error}", file=sys.stderr)
        return 2
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if node is not None:
            node.shut_down()
        rclpy.try_shutdown()


def _run(node: ServingNode) -> int:
    def leave(*_: object) -> None:
        node.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    if node.values["autostart"]:
        started = node.trigger_configure() is TransitionCallbackReturn.SUCCESS
        started = started and node.trigger_activate() is TransitionCallbackReturn.SUCCESS
        if not started:
            return 0 if node.stopping else 1
    while not node.stopping:
        executor.spin_once(timeout_sec=node.wait_s())
        node.tick()
    return 0
