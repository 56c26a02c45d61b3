"""Raw subscriptions that are looked at in turn instead of being waited for.

Waiting costs an executor time for every subscription it has, on every wake-up: 4 ms of CPU per
message with 200 topics. Taking from a topic that has nothing costs a microsecond, and the
middleware has stamped every message when it came.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    Duration,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)
from rclpy.subscription import Subscription
from rclpy.topic_endpoint_info import TopicEndpointInfo

from kairos_ros.recording.metadata import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)

NAME_SHOWN = 80
"""Characters of a foreign publisher's names that are shown."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One message as it came over the wire."""

    received_ns: int
    """When it could be delivered: later than every earlier message of its publisher. (One that had
    to be sent again arrives after its successors, which wait for it.)"""
    published_ns: int
    data: bytes
    number: int
    """Counted by its publisher; 0 where the middleware does not count."""
    lost: int
    """Messages of the same publisher that never came, since its message before."""


@dataclass(slots=True)
class RawSubscription:
    """A subscription, and how far each publisher's numbers have come."""

    subscription: Subscription
    profile: QoSProfile
    message_type: type
    newest: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Publisher -> number and time of its newest message."""

    def take(self, most: int) -> Iterator[Taken]:
        """What has come, at most so many messages."""
        handle = self.subscription.handle
        for _ in range(most):
            came = handle.take_message(self.message_type, True)
            if came is None:
                return
            data: bytes = came[0]
            info = cast(dict[str, Any], came[1])  # Jazzy's has fewer keys than the type of Kilted's
            publisher = self._publisher(info)
            number: int | None = info["publication_sequence_number"]
            received_ns: int = info["received_timestamp"]
            lost = 0
            if publisher is None or number is None:
                self.newest.clear()
                yield Taken(received_ns, info["source_timestamp"], data, number or 0, lost)
                continue
            if (before := self.newest.get(publisher)) is not None:
                lost = max(0, number - before[0] - 1)
                received_ns = max(received_ns, before[1] + 1)
            self.newest[publisher] = number, received_ns
            yield Taken(received_ns, info["source_timestamp"], data, number, lost)

    def _publisher(self, info: dict[str, Any]) -> bytes | None:
        """Who sent a message; None where that is not known, as of several publishers in Jazzy."""
        if "publisher_gid" in info:
            publisher: bytes = info["publisher_gid"]["data"]
            return publisher
        return b"the only one" if self.subscription.get_publisher_count() == 1 else None


def subscribe_raw(
    node: Node, topic: str, message_type: type, profile: QoSProfile
) -> RawSubscription:
    """`node` must not be in an executor, which would take the messages away."""
    subscription = node.create_subscription(
        message_type,
        topic,
        _ignore,
        profile,
        raw=True,
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
    )
    return RawSubscription(subscription, profile, message_type)


def compatible(publishers: Sequence[TopicEndpointInfo], depth: int) -> QoSProfile:
    """The strictest profile that still matches every one of `publishers`."""
    offered = [p.qos_profile for p in publishers]
    reliable = all(q.reliability is ReliabilityPolicy.RELIABLE for q in offered)
    latched = all(q.durability is DurabilityPolicy.TRANSIENT_LOCAL for q in offered)
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def fitting(
    publishers: Iterable[TopicEndpointInfo], kind: str, rihs01: str = ""
) -> tuple[list[TopicEndpointInfo], list[str]]:
    """Publishers of one type, and what there is to say of the others of their topic.

    rihs01: the type's hash, to name publishers of a type of that name that is defined otherwise.
    The middleware matches types by their names, so that those are recorded all the same.
    """
    own, others = [], []
    for publisher in publishers:
        node = f"{publisher.node_namespace.rstrip('/')}/{publisher.node_name}"
        told = str(publisher.topic_type_hash)
        if publisher.topic_type != kind:
            others.append(f"{publisher.topic_type[:NAME_SHOWN]} of {node[:NAME_SHOWN]!r}")
            continue
        if rihs01 and told.startswith("RIHS01") and told != rihs01:
            others.append(f"another definition of {kind} of {node[:NAME_SHOWN]!r}")
        own.append(publisher)
    return own, sorted(set(others))


def offered(publishers: Sequence[TopicEndpointInfo]) -> tuple[Qos, ...]:
    """The distinct profiles that publishers offer, for the bag."""
    return tuple(dict.fromkeys(_qos(p.qos_profile) for p in publishers))


def _qos(profile: QoSProfile) -> Qos:
    return Qos(
        QosHistory(int(profile.history)),
        profile.depth,
        QosReliability(int(profile.reliability)),
        QosDurability(int(profile.durability)),
        _time(profile.deadline),
        _time(profile.lifespan),
        QosLiveliness(int(LivelinessPolicy(profile.liveliness))),
        _time(profile.liveliness_lease_duration),
        profile.avoid_ros_namespace_conventions,
    )


def _time(duration: Duration) -> QosTime:
    return QosTime(*divmod(duration.nanoseconds, 1_000_000_000))


def _ignore(message: Any) -> None:
    """Never called: messages are taken, not delivered."""
