"""The emulated link does to TCP what it says, in either form: packets in namespaces, or a proxy."""

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
from wan import NamespaceWan, ProxyWan
from wire import until

from bench.transport.link import entered, why_not
from kairos_ros.lab.testbed.link_proxy import Conditions
from kairos_ros.transport.message_codec import MAX_ECHO, echo_message, ping_message

pytestmark = pytest.mark.slow

DEFAULT = "/proc/sys/net/ipv4/tcp_congestion_control"


class Ends:
    """A TCP connection over the link, both ends in this process."""

    def __init__(self, link, stack):
        with entered(link._link.namespaces[1] if link.truthful else ""):
            server = stack.enter_context(socket.create_server((link.there, 0)))
        at = link.here(server.getsockname()[1]).removeprefix("tcp://").split(":")
        self.here = stack.enter_context(socket.create_connection((at[0], int(at[1])), timeout=20))
        self.there = stack.enter_context(server.accept()[0])
        for end in (self.here, self.there):
            end.settimeout(20)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round_trip_s(self, size=1):
        """Bytes there, and one back when all have come."""
        began = time.monotonic()
        sender = threading.Thread(target=self.here.sendall, args=(bytes(size),))
        sender.start()
        left = size
        while left:
            left -= len(self.there.recv(min(left, 1 << 20)))
        self.there.sendall(b"!")
        assert self.here.recv(1) == b"!"
        sender.join()
        return time.monotonic() - began


@pytest.fixture(params=[NamespaceWan, ProxyWan], ids=["namespaces", "proxy"])
def link(request):
    if request.param is NamespaceWan and (reason := why_not()):
        pytest.skip(f"NO NETWORK NAMESPACES HERE: {reason}")
    with request.param(Conditions()) as link:
        yield link


@pytest.fixture
def ends(link):
    with contextlib.ExitStack() as stack:
        yield Ends(link, stack)


def test_a_round_trip_takes_twice_the_delay_from_when_it_is_set(link, ends):
    short_s = min(ends.round_trip_s() for _ in range(5))
    link.change(delay_s=0.05)
    long_s = min(ends.round_trip_s() for _ in range(5))
    assert 0.1 <= long_s < 0.15 + short_s
    assert short_s < 0.1


def test_a_rate_limit_holds_whatever_is_sent(link, ends):
    link.change(bits_per_s=20e6)
    assert ends.round_trip_s(1_000_000) > 0.8 * 0.4  # 8 Mbit; the ends buffer some of it


@pytest.mark.parametrize("cut", ["both", "out", "back"])
def test_what_is_sent_into_a_cut_link_arrives_once_when_it_is_back(link, ends, cut):
    link.change(cut=cut)
    ends.here.sendall(b"out")
    ends.there.sendall(b"back")
    for name, receiver in (("out", ends.there), ("back", ends.here)):
        if cut in ("both", name):
            receiver.settimeout(0.5)
            with pytest.raises(TimeoutError):
                receiver.recv(9)
        else:
            assert receiver.recv(9).decode() == name
    link.change(cut="")
    for name, receiver in (("out", ends.there), ("back", ends.here)):
        receiver.settimeout(20)
        if cut in ("both", name):
            assert receiver.recv(9).decode() == name
        receiver.settimeout(0.3)
        with pytest.raises(TimeoutError):
            receiver.recv(9)


def test_lost_packets_are_sent_again_and_counted_by_the_kernel(link, ends):
    if not link.truthful:
        pytest.skip("a proxy loses no packets")
    from kairos_ros.transport.tcp_segments import tcp_segments

    link.change(loss=0.05)
    for _ in range(5):
        ends.round_trip_s(200_000)
    sent, resent = tcp_segments(ends.here.fileno())
    assert sent > 100
    assert 0 < resent < sent


def test_the_link_says_what_it_carried_what_it_dropped_and_how_late_it_was(link, ends):
    if not link.truthful:
        pytest.skip("a proxy counts no packets")
    emulator = link._link
    emulator.report()
    ends.round_trip_s(100_000)
    carried = emulator.report()
    assert carried.packets > 100_000 / 1500
    assert carried.bytes > 100_000
    assert 0 <= carried.late_p50_ms <= carried.late_p99_ms <= carried.late_max_ms
    link.change(cut="both")
    emulator.report()  # it counts from here on: what confirmed the byte back may have come later
    ends.here.sendall(b"into the void")
    lost = until(lambda: (found := emulator.report()).packets + found.dropped and found)
    assert (lost.packets, lost.bytes) == (0, 0)
    assert lost.dropped > 0


@pytest.mark.parametrize("control", ["reno", "cubic"])
def test_tcp_congests_as_it_is_told_on_both_sides_of_this_link_only(control):
    if reason := why_not():
        pytest.skip(f"NO NETWORK NAMESPACES HERE: {reason}")
    with NamespaceWan(Conditions()) as link, contextlib.ExitStack() as stack:
        try:
            link._link.congestion(control)
        except OSError as error:
            pytest.skip(str(error))
        ends = Ends(link, stack)
        elsewhere = stack.enter_context(socket.socket())
        of = {name: congestion(end) for name, end in vars(ends).items()}
        assert of == {"here": control, "there": control}
        assert congestion(elsewhere) == Path(DEFAULT).read_text().strip()


def test_an_unknown_congestion_control_is_refused_by_name():
    if reason := why_not():
        pytest.skip(f"NO NETWORK NAMESPACES HERE: {reason}")
    with (
        NamespaceWan(Conditions()) as link,
        pytest.raises(OSError, match="congestion control 'magic'"),
    ):
        link._link.congestion("magic")


def congestion(end):
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.mark.parametrize(("carried", "back"), [(1_000, 1_000), (10 * MAX_ECHO, MAX_ECHO)])
def test_some_of_a_probe_is_carried_back_so_that_the_way_back_is_fast_too(carried, back):
    echo = echo_message(ping_message(1, "pick", carried))
    assert (echo.kind, [array.nbytes for array in echo.arrays]) == ("echo", [back])


def test_a_heartbeat_that_carries_nothing_is_not_echoed():
    assert echo_message(ping_message(1, "pick")) is None


def test_segments_of_what_is_no_tcp_connection_are_unknown(tmp_path):
    from kairos_ros.transport.tcp_segments import tcp_segments

    one, other = socket.socketpair()
    with one, other, (tmp_path / "file").open("w") as file:
        assert tcp_segments(one.fileno()) is None
        assert tcp_segments(file.fileno()) is None
    assert tcp_segments(-1) is None
