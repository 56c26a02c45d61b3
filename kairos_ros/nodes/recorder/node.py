"""The recorder node: everything that a fleet says, into one bag. `kairos record` is the same code.

One thread looks at all topics in turn and hands what came to the thread that writes the bag.
"""

import importlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import NodeNameNonExistentError
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.fleet_names import COMMON, ROOT, FleetNames, fleets_among
from kairos_ros.host.orphan import leave_with_launcher
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.hidden_node import hidden_node
from kairos_ros.nodes.managed import ManagedNode
from kairos_ros.nodes.process import Stop, join_ros, stop_on_signals
from kairos_ros.nodes.recorder.parameters import RECORDER_PARAMETERS
from kairos_ros.nodes.recorder.recording_status import RecordingStatus, listed
from kairos_ros.nodes.recorder.topics import (
    RawSubscription,
    compatible,
    fitting,
    offered,
    subscribe_raw,
)
from kairos_ros.nodes.timers import every, warn_without_clock
from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.metadata import Topic
from kairos_ros.recording.selection import parse_topics, selected
from kairos_ros.recording.spool import Spool
from kairos_ros.recording.writer import BagWriter

DISCOVER_EVERY_S = 0.2
"""A topic that appears is recorded at the latest so much later."""
ADAPT_EVERY_S = 2.0
SPIN_EVERY_S = 0.1
LINGER_S = 1.0
"""A node that is stopped together with its fleet hears the robots' last messages."""
MOST_PER_LOOK = 500
"""Messages of one topic before the others get their turn."""


NAME = "kairos: recorder"


class RecorderNode(ManagedNode):
    """Finds topics, takes their messages, tells how it goes.

    Raises ConfigError for a parameter that is wrong and for a folder that cannot be made.
    """

    def __init__(self, names: FleetNames = ROOT, **parameters: Any) -> None:
        """names: of the fleet, unless ROS arguments say another namespace."""
        overrides = [Parameter(name, value=value) for name, value in parameters.items()]
        within = f"{names.namespace}/{COMMON}"
        super().__init__(
            "recorder", RECORDER_PARAMETERS, namespace=within, parameter_overrides=overrides
        )
        self._names = fleet_of(self)
        self._diagnostics = DiagnosticsPublisher(self, self._names)
        every(self, 1.0, self._publish_diagnostics)
        self.folder = Path(self.values["out"])
        self._has_bag = False
        self.ended: RecordingStatus | None = None
        """What the last bag holds, that was ended."""

    def set_up(self) -> None:
        """Makes the bag. Raises ConfigError for a folder that cannot be made."""
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
        self._sources = hidden_node(self)
        self._recorded: dict[str, tuple[Topic, RawSubscription]] = {}
        self._topics: dict[str, Topic] = {}
        """All that were ever recorded into this bag."""
        self._refused: dict[str, str] = {}
        self._others: dict[str, str] = {}
        """Publishers of other types that are there now, by topic; `_met`: that ever were."""
        self._met: dict[str, str] = {}
        self._lost: Counter[str] = Counter()
        self._diagnosed = 0
        self._before = (time.monotonic(), 0)
        self._has_bag = True

    def end_work(self) -> None:
        """Takes what is still there, and records nothing more until it is activated again."""
        self.look()
        for _, have in self._recorded.values():
            self._sources.destroy_subscription(have.subscription)
        self._recorded.clear()

    def take_down(self) -> None:
        """Ends the bag."""
        if not self._has_bag:
            return
        self._has_bag = False
        self._spool.close()
        self.ended = self.status()
        self._sources.destroy_node()

    @property
    def failure(self) -> str:
        """Why nothing is written any more; empty while all is well."""
        error = self._spool.failure if self.configured or self.ended else None
        return f"cannot write {self.folder}: {error.strerror}" if error else ""

    def discover(self) -> None:
        """Subscribes to what has appeared."""
        topics = dict(self._sources.get_topic_names_and_types())
        full = self.values["full_updates"]
        chosen = selected(
            topics,
            self._wanted,
            full_updates=full,
            names=self._names,
            heard=self._heard_by_robots(topics),
        )
        for name in self._others.keys() - chosen.keys():
            del self._others[name]
        for name in chosen.keys() - self._recorded.keys():
            self._subscribe(name, chosen[name])

    def adapt(self) -> None:
        """Subscribes anew where a publisher came that the subscription does not match."""
        for name, (topic, have) in self._recorded.items():
            found = self._sources.get_publishers_info_by_topic(name)
            publishers, others = fitting(found, topic.type, topic.rihs01)
            self._tell_others(name, topic.type, others)
            profile = compatible(publishers, self.values["depth"])
            weaker = (
                profile.reliability is ReliabilityPolicy.BEST_EFFORT
                and have.profile.reliability is ReliabilityPolicy.RELIABLE
            ) or (
                profile.durability is DurabilityPolicy.VOLATILE
                and have.profile.durability is DurabilityPolicy.TRANSIENT_LOCAL
            )
            if weaker:
                self.get_logger().warning(
                    f"a publisher of {name} offers weaker QoS: subscribed again"
                )
                self._take(topic, have)
                self._sources.destroy_subscription(have.subscription)
                self._recorded[name] = (
                    topic,
                    subscribe_raw(self._sources, name, have.message_type, profile),
                )

    def look(self) -> None:
        """Takes what has come on any topic."""
        for topic, source in self._recorded.values():
            self._take(topic, source)

    def status(self) -> RecordingStatus:
        """Rates are over the time since this was last asked."""
        now, written = time.monotonic(), self._spool.bytes
        then, before = self._before
        self._before = now, written
        return RecordingStatus(
            topics=len(self._topics),
            messages=self._spool.messages,
            megabytes=written / 1e6,
            megabytes_per_s=(written - before) / 1e6 / max(now - then, 1e-9),
            dropped=dict(self._spool.dropped),
            lost=dict(+self._lost),
            others=dict(self._met),
            refused=dict(self._refused),
        )

    def _heard_by_robots(self, topics: Collection[str]) -> set[str]:
        """Topics that nodes in robots' namespaces subscribe to."""
        heard: set[str] = set()
        fleets = fleets_among(topics)
        for name, namespace in self._sources.get_node_names_and_namespaces():
            request = f"{namespace}/chunk_request"
            if request not in topics or not self._names.has(request, fleets):
                continue
            try:
                found = self._sources.get_subscriber_names_and_types_by_node(name, namespace)
            except NodeNameNonExistentError:  # it has just gone
                continue
            heard |= {topic for topic, _ in found}
        return heard

    def _subscribe(self, name: str, kinds: Sequence[str]) -> None:
        """Where somebody publishes one of `kinds`, and nobody another of them."""
        found = self._sources.get_publishers_info_by_topic(name)
        published = sorted({p.topic_type for p in found}.intersection(kinds))
        if len(published) != 1:
            if published:
                self._refuse(name, f"its publishers disagree: {', '.join(published)}")
            else:
                self._tell_others(name, kinds[0], fitting(found, kinds[0])[1])
            return
        (kind,) = published
        try:
            definition = self._definitions.of(kind)
            message_type = _message_class(kind)
        except (ConfigError, ImportError, AttributeError) as error:
            self._refuse(name, str(error))
            return
        publishers, others = fitting(found, kind, definition.rihs01)
        profile = compatible(publishers, self.values["depth"])
        topic = self._topics.get(name) or Topic(name, kind, definition.rihs01, offered(publishers))
        if name not in self._topics:
            self._spool.add_topic(topic, definition)
            self._topics[name] = topic
        self._recorded[name] = topic, subscribe_raw(self._sources, name, message_type, profile)
        self._refused.pop(name, None)
        self.get_logger().debug(f"recording {name} ({kind})")
        self._tell_others(name, kind, others)

    def _refuse(self, name: str, reason: str) -> None:
        if self._refused.get(name) != reason:
            self._refused[name] = reason
            self.get_logger().warning(f"{name} is not recorded: {reason}")

    def _tell_others(self, name: str, kind: str, others: Sequence[str]) -> None:
        """Who publishes on a topic what is no message of it."""
        text = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        if text and text != self._met.get(name):
            self._met[name] = text
            self.get_logger().warning(
                f"{name} is recorded as {kind} only; it is published as something else, too: {text}"
            )
        if text:
            self._others[name] = text
        else:
            self._others.pop(name, None)

    def _take(self, topic: Topic, source: RawSubscription) -> None:
        for taken in source.take(MOST_PER_LOOK):
            self._spool.put(topic, taken.received_ns, taken.published_ns, taken.data, taken.number)
            if taken.lost:
                self._lost[topic.name] += taken.lost

    def _publish_diagnostics(self) -> None:
        if not self.configured:
            self._diagnostics.publish([DiagnosticStatus(name=NAME, message="there is no bag")])
            return
        dropped, lost = self._spool.dropped.total(), self._lost.total()
        status = DiagnosticStatus(name=NAME, hardware_id=str(self.folder))
        said = "recording" if self.active else "not active: nothing is recorded"
        status.level, status.message = DiagnosticStatus.OK, said
        warnings = []
        if dropped + lost > self._diagnosed:
            warnings.append(f"{dropped + lost - self._diagnosed} messages missed in a second")
        if self._others:
            warnings.append(f"publishers of other types: {listed(self._others)}")
        if self._refused:
            warnings.append(f"topics that are not recorded: {listed(self._refused)}")
        if warnings:
            status.level, status.message = DiagnosticStatus.WARN, "; ".join(warnings)
        if self.failure:
            status.level, status.message = DiagnosticStatus.ERROR, self.failure
        self._diagnosed = dropped + lost
        values = {
            "messages": self._spool.messages,
            "megabytes": round(self._spool.bytes / 1e6, 3),
            "queued_megabytes": round(self._spool.queued_bytes / 1e6, 3),
            "topics": len(self._recorded),
            "dropped": dropped,
            "lost": lost,
            "topics_with_other_types": len(self._met),
            "topics_not_recorded": len(self._refused),
        }
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        self._diagnostics.publish([status])


def _message_class(kind: str) -> type:
    package, _, short = kind.split("/")
    found: type = getattr(importlib.import_module(f"{package}.msg"), short)
    return found


def record(
    stop: Stop,
    tell: Callable[[str], object],
    linger_s: float = 0.0,
    names: FleetNames = ROOT,
    **parameters: Any,
) -> Path:
    """Records until `stop` is set and `linger_s` more, or the duration is over; closes the bag.

    Returns its folder. Raises KairosError where it cannot begin, or ended for want of space.
    """
    node = RecorderNode(names, **parameters)
    node.start()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    warn_without_clock(node)
    every_s = node.values["status_every_s"]
    began = time.monotonic()
    due = {"discover": began, "adapt": began + ADAPT_EVERY_S, "tell": began + every_s}
    due["spin"] = began
    stopping, end, told = False, math.inf, ""
    try:
        while (now := time.monotonic()) < end and not (node.failure or node.over):
            if node.active and told != str(node.folder):
                told = str(node.folder)
                tell(f"recording into {told}; Ctrl-C ends it")
                end = now + (node.values["duration_s"] or math.inf)
            if stop.is_set() and not stopping:
                stopping, end = True, min(end, now + linger_s)
            if now >= due["spin"]:
                executor.spin_once(timeout_sec=0)
                due["spin"] = now + SPIN_EVERY_S
            if node.active:
                _record(node, now, due)
            if node.active and now >= due["tell"]:
                tell(str(node.status()))
                due["tell"] = now + every_s
            if stopping:
                time.sleep(node.values["poll_s"])
            else:
                stop.wait(node.values["poll_s"])
    finally:
        failure = node.failure
        executor.shutdown()
        node.close()
        if node.ended is not None:
            tell(f"{node.folder}: {node.ended}")
    if failure := failure or node.failure:
        raise KairosError(f"{failure}; what was recorded before can still be read")
    return node.folder


def _record(node: RecorderNode, now_s: float, due_s: dict[str, float]) -> None:
    if now_s >= due_s["discover"]:
        node.discover()
        due_s["discover"] = now_s + DISCOVER_EVERY_S
    if now_s >= due_s["adapt"]:
        node.adapt()
        due_s["adapt"] = now_s + ADAPT_EVERY_S
    node.look()


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    stop = stop_on_signals()
    leave_with_launcher()
    logger = rclpy.logging.get_logger("kairos.recorder")
    try:
        join_ros()
        record(stop, logger.info, LINGER_S)
    except KairosError as error:
        print(f"recorder_node: {error}", file=sys.stderr)
        return 1
    finally:
        rclpy.try_shutdown()
    return 0
