"""The recorder node: everything that a fleet says, into one bag. `kairos record` is the same code.

One thread looks at all topics in turn and hands what came to the thread that writes the bag.
"""

import importlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from kairos_ros.bringup import leave_with_launcher
from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.evaluation.bag.definition import Definitions, installed_prefixes
from kairos_ros.evaluation.bag.metadata import Topic
from kairos_ros.evaluation.bag.selection import parse_topics, selected
from kairos_ros.evaluation.bag.spool import Spool
from kairos_ros.evaluation.bag.writer import BagWriter
from kairos_ros.nodes import qos
from kairos_ros.nodes.parameters import declare
from kairos_ros.nodes.process import Stop, stop_on_signals
from kairos_ros.nodes.recorder_parameters import RECORDER_PARAMETERS
from kairos_ros.nodes.recorder_topics import Tap, compatible, offered, tap

DISCOVER_EVERY_S = 0.2
"""A topic that appears is recorded at the latest so much later."""
ADAPT_EVERY_S = 2.0
SPIN_EVERY_S = 0.1
LINGER_S = 1.0
"""A node that is stopped together with its fleet hears the robots' last words."""
MOST_PER_LOOK = 500
"""Messages of one topic before the others get their turn."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a recording goes."""

    topics: int
    messages: int
    megabytes: float
    """Of message data."""
    megabytes_per_s: float
    dropped: Mapping[str, int]
    """By topic: the queue to the disk was full."""
    lost: Mapping[str, int]
    """By topic: sent, but never came."""

    def __str__(self) -> str:
        text = (
            f"{self.megabytes:.1f} MB, {self.messages} messages of {self.topics} topics, "
            f"{self.megabytes_per_s:.2f} MB/s, {sum(self.dropped.values())} dropped, "
            f"{sum(self.lost.values())} lost"
        )
        worst = Counter(self.dropped) + Counter(self.lost)
        if worst:
            text += f" ({', '.join(f'{n} of {topic}' for topic, n in worst.most_common(3))})"
        return text


class RecorderNode(Node):
    """Finds topics, takes their messages, tells how it goes.

    Raises ConfigError for a parameter that is wrong and for a folder that cannot be made.
    """

    def __init__(self, **parameters: Any) -> None:
        overrides = [Parameter(name, value=value) for name, value in parameters.items()]
        super().__init__("recorder", namespace="kairos", parameter_overrides=overrides)
        self.values = declare(self, RECORDER_PARAMETERS)
        self._wanted = parse_topics(self.values["topics"])
        self._definitions = Definitions(installed_prefixes())
        default = Path("runs") / datetime.now().strftime("bag_%Y-%m-%d_%H-%M-%S")
        self.folder = Path(self.values["out"] or default)
        bag = BagWriter(
            self.folder,
            version=self.values["metadata_version"],
            compression=self.values["compression"],
        )
        self._spool = Spool(bag, round(self.values["queue_mb"] * 1e6))
        self._sources = rclpy.create_node(
            "recorder_topics", namespace="kairos", use_global_arguments=False
        )
        self._taps: dict[str, tuple[Topic, Tap]] = {}
        self._refused: set[str] = set()
        self._lost: Counter[str] = Counter()
        self._diagnosed = 0
        self._before = (time.monotonic(), 0)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self.create_timer(1.0, self._publish_diagnostics)

    @property
    def failure(self) -> str:
        """Why nothing is written any more; empty while all is well."""
        error = self._spool.failure
        return f"cannot write {self.folder}: {error.strerror}" if error else ""

    def discover(self) -> None:
        """Subscribes to what has appeared."""
        types = {}
        for name, kinds in self._sources.get_topic_names_and_types():
            if len(kinds) == 1:
                types[name] = kinds[0]
            else:
                self._refuse(name, f"it has {len(kinds)} types: {', '.join(kinds)}")
        full = self.values["full_updates"]
        for name in selected(types, self._wanted, full_updates=full):
            if name not in self._taps and name not in self._refused:
                self._subscribe(name, types[name])

    def adapt(self) -> None:
        """Subscribes anew where a publisher came that the subscription does not match."""
        for name, (topic, have) in self._taps.items():
            publishers = self._sources.get_publishers_info_by_topic(name)
            profile = compatible(publishers, self.values["depth"])
            weaker = (
                profile.reliability is ReliabilityPolicy.BEST_EFFORT
                and have.profile.reliability is ReliabilityPolicy.RELIABLE
            ) or (
                profile.durability is DurabilityPolicy.VOLATILE
                and have.profile.durability is DurabilityPolicy.TRANSIENT_LOCAL
            )
            if weaker:
                self.get_logger().warning(f"{name} has a publisher of weaker QoS: subscribed anew")
                self._take(topic, have)
                self._sources.destroy_subscription(have.subscription)
                self._taps[name] = topic, tap(self._sources, name, have.message_type, profile)

    def look(self) -> None:
        """Takes what has come on any topic."""
        for topic, source in self._taps.values():
            self._take(topic, source)

    def status(self) -> Status:
        """Rates are over the time since this was last asked."""
        now, written = time.monotonic(), self._spool.bytes
        then, before = self._before
        self._before = now, written
        return Status(
            topics=len(self._taps),
            messages=self._spool.messages,
            megabytes=written / 1e6,
            megabytes_per_s=(written - before) / 1e6 / max(now - then, 1e-9),
            dropped=dict(self._spool.dropped),
            lost=dict(+self._lost),
        )

    def close(self) -> Status:
        """Takes what is still there, ends the bag and the node."""
        self.look()
        self._spool.close()
        status = self.status()
        self._sources.destroy_node()
        self.destroy_node()
        return status

    def _subscribe(self, name: str, kind: str) -> None:
        publishers = self._sources.get_publishers_info_by_topic(name)
        if not publishers:
            return
        try:
            definition = self._definitions.of(kind)
            message_type = _message_class(kind)
        except (ConfigError, ImportError, AttributeError) as error:
            self._refuse(name, str(error))
            return
        profile = compatible(publishers, self.values["depth"])
        topic = Topic(name, kind, definition.rihs01, offered(publishers))
        self._spool.add_topic(topic, definition)
        self._taps[name] = topic, tap(self._sources, name, message_type, profile)
        self.get_logger().debug(f"recording {name} ({kind})")

    def _refuse(self, name: str, reason: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            if self._wanted is None or self._wanted.fullmatch(name):
                self.get_logger().warning(f"{name} is not recorded: {reason}")

    def _take(self, topic: Topic, source: Tap) -> None:
        for taken in source.take(MOST_PER_LOOK):
            self._spool.put(topic, taken.received_ns, taken.published_ns, taken.data, taken.number)
            if taken.lost:
                self._lost[topic.name] += taken.lost

    def _publish_diagnostics(self) -> None:
        dropped, lost = self._spool.dropped.total(), self._lost.total()
        status = DiagnosticStatus(name="kairos: recorder", hardware_id=str(self.folder))
        status.level, status.message = DiagnosticStatus.OK, "recording"
        if dropped + lost > self._diagnosed:
            status.level = DiagnosticStatus.WARN
            status.message = f"{dropped + lost - self._diagnosed} messages missed in a second"
        if self.failure:
            status.level, status.message = DiagnosticStatus.ERROR, self.failure
        self._diagnosed = dropped + lost
        values = {
            "messages": self._spool.messages,
            "megabytes": round(self._spool.bytes / 1e6, 3),
            "queued_megabytes": round(self._spool.queued_bytes / 1e6, 3),
            "topics": len(self._taps),
            "dropped": dropped,
            "lost": lost,
        }
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _message_class(kind: str) -> type:
    package, _, short = kind.split("/")
    found: type = getattr(importlib.import_module(f"{package}.msg"), short)
    return found


def record(
    stop: Stop, tell: Callable[[str], None], linger_s: float = 0.0, **parameters: Any
) -> Path:
    """Records until `stop` is set and `linger_s` more, or the duration is over; closes the bag.

    Returns its folder. Raises KairosError where it cannot begin, or ended for want of space.
    """
    node = RecorderNode(**parameters)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    tell(f"recording into {node.folder}; Ctrl-C ends it")
    limit_s = node.values["duration_s"]
    every_s = node.values["status_every_s"]
    began = time.monotonic()
    due = {"discover": began, "adapt": began + ADAPT_EVERY_S, "tell": began + every_s}
    due["spin"] = began
    stopping, end = False, began + limit_s if limit_s else math.inf
    try:
        while (now := time.monotonic()) < end and not node.failure:
            if stop.is_set() and not stopping:
                stopping, end = True, min(end, now + linger_s)
            if now >= due["discover"]:
                node.discover()
                due["discover"] = now + DISCOVER_EVERY_S
            if now >= due["adapt"]:
                node.adapt()
                due["adapt"] = now + ADAPT_EVERY_S
            if now >= due["spin"]:
                executor.spin_once(timeout_sec=0)
                due["spin"] = now + SPIN_EVERY_S
            node.look()
            if now >= due["tell"]:
                tell(str(node.status()))
                due["tell"] = now + every_s
            if stopping:
                time.sleep(node.values["poll_s"])
            else:
                stop.wait(node.values["poll_s"])
    finally:
        failure = node.failure
        executor.shutdown()
        status = node.close()
        tell(f"{node.folder}: {status}")
    if failure := failure or node.failure:
        raise KairosError(f"{failure}; what was recorded before can still be read")
    return node.folder


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    stop = stop_on_signals()
    leave_with_launcher()
    rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
    logger = rclpy.logging.get_logger("kairos.recorder")
    try:
        record(stop, logger.info, LINGER_S)
    except KairosError as error:
        print(f"recorder_node: {error}", file=sys.stderr)
        return 1
    finally:
        rclpy.try_shutdown()
    return 0
