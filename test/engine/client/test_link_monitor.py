"""What a serving node notes about a link, by hand-made clocks."""

import pytest

from kairos_ros.core.errors import WireError
from kairos_ros.engine.client.link_monitor import (
    LONGEST_UPLOAD_S,
    PROBE_BYTES,
    PROBES,
    REMEASURE_S,
    LinkMonitor,
    LinkTiming,
)
from kairos_ros.transport.link_estimate import UNKNOWN_BYTES_PER_S

RTT = 0.1
RATE = 10e6


def known(probes=PROBES):
    """A monitor that measured a link of 100 ms and 10 MB/s, at time 0."""
    monitor, number = LinkMonitor(LinkTiming()), 1
    monitor.pinged(number, monitor.padding(-RTT), -RTT)
    assert monitor.pong(number, 0.0)
    for _ in range(probes):
        number += 1
        padding = monitor.padding(0.0)
        monitor.pinged(number, padding, 0.0)
        assert not monitor.pong(number, RTT + padding / RATE)
    return monitor


def test_a_link_is_probed_as_soon_as_its_round_trip_is_known_one_probe_at_a_time():
    monitor = LinkMonitor(LinkTiming())
    assert monitor.padding(0.0) == 0
    monitor.pinged(1, 0, 0.0)
    monitor.pong(1, RTT)
    for number in range(2, 2 + PROBES):
        assert (monitor.padding(1.0), monitor.probed) == (PROBE_BYTES, False)
        monitor.pinged(number, PROBE_BYTES, 1.0)
        assert monitor.padding(1.0) == 0
        monitor.pong(number, 1.0 + RTT + PROBE_BYTES / RATE)
    assert (monitor.padding(2.0), monitor.probed) == (0, True)
    assert monitor.state().bytes_per_s == pytest.approx(RATE)


def test_a_heartbeat_behind_a_probe_tells_nothing():
    monitor = known(probes=0)
    monitor.pinged(10, monitor.padding(1.0), 1.0)
    monitor.pinged(11, monitor.padding(1.1), 1.1)
    assert not monitor.pong(11, 9.0)
    assert not monitor.pong(None, 9.0)
    assert not monitor.pong(11, 9.0)
    assert monitor.state().rtt_s == pytest.approx(RTT)
    assert monitor.state().bytes_per_s == UNKNOWN_BYTES_PER_S


def test_heartbeats_that_waited_for_a_worker_tell_nothing():
    monitor = LinkMonitor(LinkTiming())
    for number in range(1, 40):
        monitor.pinged(number, monitor.padding(number / 5), number / 5)
    monitor.found()
    assert not any(monitor.pong(number, 8.0) for number in range(1, 40))
    monitor.pinged(40, monitor.padding(8.0), 8.0)
    assert monitor.pong(40, 8.0 + RTT)
    assert monitor.state().rtt_s == pytest.approx(RTT)


def test_answers_to_heartbeats_that_were_lost_are_not_waited_for_for_ever():
    monitor = known()
    for number in range(100, 300):
        monitor.pinged(number, 0, 1.0)
    assert not monitor.pong(100, 2.0)
    assert monitor.pong(299, 1.0 + RTT)


def test_only_an_upload_that_is_alone_tells_the_bandwidth():
    monitor = known()
    for batch in (1, 2):
        monitor.sent(batch, 2, 1_000_000, 0.0, 1.0)
    assert monitor.state().unconfirmed_bytes == 2_000_000
    assert monitor.confirmed(1, 1.0 + RTT + 1.0)
    assert monitor.confirmed(2, 1.0 + RTT + 0.001)
    assert not monitor.confirmed(2, 5.0)
    assert not monitor.confirmed(3, 5.0)
    rates = (RATE,) * 3 + (1e6,)
    assert monitor.state().bytes_per_s == pytest.approx(sorted(rates)[2])
    assert (monitor.state().in_flight, monitor.state().unconfirmed_bytes) == (2, 0)
    assert monitor.state().request_bytes == 500_000


def test_a_batch_is_given_up_when_its_answer_should_have_been_here_three_times_over():
    monitor = known()
    monitor.sent(1, 1, 1_000_000, 0.2, 10.0)
    link = monitor.state()
    assert (link.rtt_s, link.jitter_s) == pytest.approx((RTT, RTT / 2))
    # 2 s, 3 x (0.2 s of compute, 50 ms of way and 100 ms of upload), twice 100 ms and 4 x 50 ms
    due = 10.0 + 2.0 + 3 * (0.2 + 0.05 + 0.1) + 2 * (0.1 + 4 * 0.05)
    assert monitor.give_up(due - 0.01) == []
    monitor.sent(2, 1, 1_000_000, 0.2, 10.0)
    [(batch, seconds)] = monitor.give_up(due + 0.01)
    assert (batch, seconds) == (1, pytest.approx(due + 0.01 - 10.0))
    assert monitor.answered(1, 1, due + 1.0) == 0.0
    assert monitor.give_up(due + 1.0) == []  # the one behind it has as much again
    assert monitor.answered(2, 1, due + 1.0) == pytest.approx(due + 1.0 - 10.0)


def test_a_batch_is_given_up_no_later_for_a_link_that_was_busy_all_day():
    monitor = known()
    now = 10.0
    for batch in range(10_000):  # always sent before the answer to the one before
        monitor.sent(batch, 1, 1_000_000, 0.2, now)
        if batch:
            monitor.answered(batch - 1, 1, now + 0.1)
        now += 0.35
    assert [batch for batch, _ in monitor.give_up(now + 2.0 + 3 * 2 * 0.35 + 2 * 0.3)] == [9_999]


def test_a_batch_is_answered_once_and_in_full():
    monitor = known()
    monitor.sent(1, 2, 1000, 0.0, 1.0)
    with pytest.raises(WireError, match="1 outcomes for 2 requests"):
        monitor.answered(1, 1, 2.0)
    assert monitor.refused(1)
    assert not monitor.refused(1)


def test_what_is_known_of_a_link_outlives_its_worker():
    monitor = known()
    monitor.sent(1, 1, 1000, 0.0, 1.0)
    monitor.sent(2, 1, 1000, 0.0, 1.0)
    before = monitor.state()
    assert monitor.forget() == (1, 2)
    after = monitor.state()
    assert (after.in_flight, after.bytes_per_s, after.rtt_s) == (
        0,
        before.bytes_per_s,
        before.rtt_s,
    )
    assert (monitor.probed, monitor.padding(1.0)) == (False, PROBE_BYTES)


def test_patience_grows_with_the_round_trip():
    assert LinkMonitor(LinkTiming()).patience_s == 1.5
    assert known().patience_s == pytest.approx(1.5 + 4 * RTT)


def test_patience_grows_with_what_heartbeats_wait_behind():
    monitor = known()
    usual_s = monitor.patience_s
    monitor.sent(1, 1, 1_000_000, 0.0, 1.0)
    assert monitor.patience_s == pytest.approx(usual_s + 2 * 1_000_000 / RATE)
    monitor.sent(2, 1, 10**9, 0.0, 1.0)
    assert monitor.patience_s == pytest.approx(usual_s + LONGEST_UPLOAD_S)
    monitor.confirmed(1, 2.0)
    monitor.confirmed(2, 2.0)
    monitor.pinged(100, PROBE_BYTES, 3.0)
    assert monitor.patience_s > usual_s


def test_a_link_that_was_slow_and_is_not_used_any_more_is_found_to_be_well_again():
    monitor, now, number = known(), 1.0, 1000
    for batch in range(9):
        monitor.sent(batch, 1, 1_000_000, 0.1, now)
        now += 10.0  # a jam
        monitor.confirmed(batch, now)
        monitor.answered(batch, 1, now)
    assert monitor.state().bytes_per_s < 0.02 * RATE
    assert monitor.padding(now + REMEASURE_S - 1) == 0
    probes = 0
    for _ in range(1000):  # nothing but heartbeats for 200 s
        now, number = now + 0.2, number + 1
        padding = monitor.padding(now)
        probes += padding > 0
        monitor.pinged(number, padding, now)
        monitor.pong(number, now + RTT + padding / RATE)
    assert monitor.state().bytes_per_s == pytest.approx(RATE)
    assert 5 <= probes <= 200 / REMEASURE_S


def test_a_link_in_use_is_not_probed():
    monitor, now = known(), 40.0
    for batch in range(200):  # of a policy that reads no images: too small to tell the bandwidth
        assert monitor.padding(now) == 0 or batch == 0
        monitor.sent(batch, 1, 2_000, 0.05, now)
        monitor.confirmed(batch, now + RTT)
        monitor.answered(batch, 1, now + RTT + 0.05)
        now += 0.5
    assert monitor.padding(now) == 0
    assert monitor.padding(now + REMEASURE_S) == PROBE_BYTES


def test_a_batch_behind_a_probe_tells_no_bandwidth_and_is_given_more_time():
    monitor, later = known(), 100.0
    monitor.pinged(100, monitor.padding(later), later)
    monitor.sent(1, 1, 1_000_000, 0.1, later)
    usual = known()
    usual.sent(1, 1, 1_000_000, 0.1, later)
    late = later
    while not usual.give_up(late):
        late += 0.01
    assert monitor.give_up(late) == []
    monitor.confirmed(1, later + 5.0)
    assert monitor.state().bytes_per_s == pytest.approx(RATE)
