"""Numbers and times of taken messages. How the middleware resends cannot be forced, so what it
hands out then (as seen in the bags of `python -m bench record`) is played back."""

from dataclasses import dataclass
from types import SimpleNamespace

from rclpy.qos import QoSProfile

from kairos_ros.nodes.recorder.topics import RawSubscription


@dataclass
class Handed:
    """Hands out messages as a subscription's handle does: (publisher, number, received)."""

    left: list[tuple[bytes, int, int]]

    def take_message(self, kind, raw):
        if not self.left:
            return None
        publisher, number, received = self.left.pop(0)
        info = {
            "publisher_gid": {"data": publisher},
            "publication_sequence_number": number,
            "received_timestamp": received,
            "source_timestamp": received - 5,
        }
        return b"data", info


def subscription_of(*came: tuple[bytes, int, int]) -> RawSubscription:
    return RawSubscription(SimpleNamespace(handle=Handed(list(came))), QoSProfile(depth=1), object)


def test_a_message_that_was_sent_again_keeps_its_place_before_its_successors():
    subscribe_raw = subscription_of((b"a", 1, 100), (b"a", 2, 700), (b"a", 3, 300), (b"a", 4, 800))
    assert [(t.number, t.received_ns) for t in subscribe_raw.take(10)] == [
        (1, 100),
        (2, 700),
        (3, 701),
        (4, 800),
    ]


def test_publishers_are_counted_apart_and_gaps_are_lost_messages():
    subscribe_raw = subscription_of(
        (b"a", 7, 1), (b"b", 2, 2), (b"a", 8, 3), (b"b", 5, 4), (b"b", 6, 5)
    )
    assert [t.lost for t in subscribe_raw.take(10)] == [0, 0, 0, 2, 0]


def test_a_look_takes_no_more_than_its_share():
    subscribe_raw = subscription_of(*((b"a", n, n) for n in range(1, 6)))
    assert [t.number for t in subscribe_raw.take(3)] == [1, 2, 3]
    assert [t.number for t in subscribe_raw.take(3)] == [4, 5]


class Jazzy(Handed):
    """As rclpy of Jazzy tells it: not who published."""

    def take_message(self, kind, raw):
        came = super().take_message(kind, raw)
        if came is not None:
            del came[1]["publisher_gid"]
        return came


def test_where_publishers_are_not_told_only_a_single_one_is_counted():
    came = [(b"a", 1, 1), (b"a", 3, 2), (b"a", 90, 3), (b"b", 7, 4), (b"a", 91, 5), (b"a", 94, 6)]
    publishers = iter([1, 1, 2, 2, 1, 1])
    handle = SimpleNamespace(handle=Jazzy(came), get_publisher_count=lambda: next(publishers))
    taken = RawSubscription(handle, QoSProfile(depth=1), object).take(10)
    assert [t.lost for t in taken] == [0, 1, 0, 0, 0, 2]
