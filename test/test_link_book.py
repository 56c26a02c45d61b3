"""What a serving node notes about a link, by hand-made clocks."""

import pytest

from kairos_ros.core.errors import WireError
from kairos_ros.engine.link_book import (
    LONGEST_UPLOAD_S,
    PROBE_BYTES,
    PROBES,
    REMEASURE_S,
    LinkBook,
    RemoteTiming,
)
from kairos_ros.transport.link_estimate import UNKNOWN_BYTES_PER_S

RTT = 0.1
RATE = 10e6


def known(probes=PROBES):
    """A book that measured a link of 100 ms and 10 MB/s, at time 0."""
    book, number = LinkBook(RemoteTiming()), 1
    book.pinged(number, book.padding(-RTT), -RTT)
    assert book.pong(number, 0.0)
    for _ in range(probes):
        number += 1
        padding = book.padding(0.0)
        book.pinged(number, padding, 0.0)
        assert not book.pong(number, RTT + padding / RATE)
    return book


def test_a_link_is_probed_as_soon_as_its_round_trip_is_known_one_probe_at_a_time():
    book = LinkBook(RemoteTiming())
    assert book.padding(0.0) == 0
    book.pinged(1, 0, 0.0)
    book.pong(1, RTT)
    for number in range(2, 2 + PROBES):
        assert (book.padding(1.0), book.probed) == (PROBE_BYTES, False)
        book.pinged(number, PROBE_BYTES, 1.0)
        assert book.padding(1.0) == 0
        book.pong(number, 1.0 + RTT + PROBE_BYTES / RATE)
    assert (book.padding(2.0), book.probed) == (0, True)
    assert book.state().bytes_per_s == pytest.approx(RATE)


def test_a_heartbeat_behind_a_probe_tells_nothing():
    book = known(probes=0)
    book.pinged(10, book.padding(1.0), 1.0)
    book.pinged(11, book.padding(1.1), 1.1)
    assert not book.pong(11, 9.0)
    assert not book.pong(None, 9.0)
    assert not book.pong(11, 9.0)
    assert book.state().rtt_s == pytest.approx(RTT)
    assert book.state().bytes_per_s == UNKNOWN_BYTES_PER_S


def test_heartbeats_that_waited_for_a_worker_tell_nothing():
    book = LinkBook(RemoteTiming())
    for number in range(1, 40):
        book.pinged(number, book.padding(number / 5), number / 5)
    book.found()
    assert not any(book.pong(number, 8.0) for number in range(1, 40))
    book.pinged(40, book.padding(8.0), 8.0)
    assert book.pong(40, 8.0 + RTT)
    assert book.state().rtt_s == pytest.approx(RTT)


def test_answers_to_heartbeats_that_were_lost_are_not_waited_for_for_ever():
    book = known()
    for number in range(100, 300):
        book.pinged(number, 0, 1.0)
    assert not book.pong(100, 2.0)
    assert book.pong(299, 1.0 + RTT)


def test_only_an_upload_that_is_alone_tells_the_bandwidth():
    book = known()
    for batch in (1, 2):
        book.sent(batch, 2, 1_000_000, 0.0, 1.0)
    assert book.state().unconfirmed_bytes == 2_000_000
    assert book.confirmed(1, 1.0 + RTT + 1.0)
    assert book.confirmed(2, 1.0 + RTT + 0.001)
    assert not book.confirmed(2, 5.0)
    assert not book.confirmed(3, 5.0)
    rates = (RATE,) * 3 + (1e6,)
    assert book.state().bytes_per_s == pytest.approx(sorted(rates)[2])
    assert (book.state().in_flight, book.state().unconfirmed_bytes) == (2, 0)
    assert book.state().request_bytes == 500_000


def test_a_batch_is_given_up_when_its_answer_should_have_been_here_three_times_over():
    book = known()
    book.sent(1, 1, 1_000_000, 0.2, 10.0)
    link = book.state()
    assert (link.rtt_s, link.jitter_s) == pytest.approx((RTT, RTT / 2))
    # 2 s, 3 x (0.2 s of compute, 50 ms of way and 100 ms of upload), twice 100 ms and 4 x 50 ms
    due = 10.0 + 2.0 + 3 * (0.2 + 0.05 + 0.1) + 2 * (0.1 + 4 * 0.05)
    assert book.give_up(due - 0.01) == []
    book.sent(2, 1, 1_000_000, 0.2, 10.0)
    [(batch, seconds)] = book.give_up(due + 0.01)
    assert (batch, seconds) == (1, pytest.approx(due + 0.01 - 10.0))
    assert book.answered(1, 1, due + 1.0) == 0.0
    assert book.give_up(due + 1.0) == []  # the one behind it has as much again
    assert book.answered(2, 1, due + 1.0) == pytest.approx(due + 1.0 - 10.0)


def test_a_batch_is_given_up_no_later_for_a_link_that_was_busy_all_day():
    book = known()
    now = 10.0
    for batch in range(10_000):  # always sent before the answer to the one before
        book.sent(batch, 1, 1_000_000, 0.2, now)
        if batch:
            book.answered(batch - 1, 1, now + 0.1)
        now += 0.35
    assert [batch for batch, _ in book.give_up(now + 2.0 + 3 * 2 * 0.35 + 2 * 0.3)] == [9_999]


def test_a_batch_is_answered_once_and_in_full():
    book = known()
    book.sent(1, 2, 1000, 0.0, 1.0)
    with pytest.raises(WireError, match="1 outcomes for 2 requests"):
        book.answered(1, 1, 2.0)
    assert book.refused(1)
    assert not book.refused(1)


def test_what_is_known_of_a_link_outlives_its_worker():
    book = known()
    book.sent(1, 1, 1000, 0.0, 1.0)
    book.sent(2, 1, 1000, 0.0, 1.0)
    before = book.state()
    assert book.forget() == (1, 2)
    after = book.state()
    assert (after.in_flight, after.bytes_per_s, after.rtt_s) == (
        0,
        before.bytes_per_s,
        before.rtt_s,
    )
    assert (book.probed, book.padding(1.0)) == (False, PROBE_BYTES)


def test_patience_grows_with_the_round_trip():
    assert LinkBook(RemoteTiming()).patience_s == 1.5
    assert known().patience_s == pytest.approx(1.5 + 4 * RTT)


def test_patience_grows_with_what_heartbeats_wait_behind():
    book = known()
    usual_s = book.patience_s
    book.sent(1, 1, 1_000_000, 0.0, 1.0)
    assert book.patience_s == pytest.approx(usual_s + 2 * 1_000_000 / RATE)
    book.sent(2, 1, 10**9, 0.0, 1.0)
    assert book.patience_s == pytest.approx(usual_s + LONGEST_UPLOAD_S)
    book.confirmed(1, 2.0)
    book.confirmed(2, 2.0)
    book.pinged(100, PROBE_BYTES, 3.0)
    assert book.patience_s > usual_s


def test_a_link_that_was_slow_and_is_not_used_any_more_is_found_to_be_well_again():
    book, now, number = known(), 1.0, 1000
    for batch in range(9):
        book.sent(batch, 1, 1_000_000, 0.1, now)
        now += 10.0  # a jam
        book.confirmed(batch, now)
        book.answered(batch, 1, now)
    assert book.state().bytes_per_s < 0.02 * RATE
    assert book.padding(now + REMEASURE_S - 1) == 0
    probes = 0
    for _ in range(1000):  # nothing but heartbeats for 200 s
        now, number = now + 0.2, number + 1
        padding = book.padding(now)
        probes += padding > 0
        book.pinged(number, padding, now)
        book.pong(number, now + RTT + padding / RATE)
    assert book.state().bytes_per_s == pytest.approx(RATE)
    assert 5 <= probes <= 200 / REMEASURE_S


def test_a_link_in_use_is_not_probed():
    book, now = known(), 40.0
    for batch in range(200):  # of a policy that reads no images: too small to tell the bandwidth
        assert book.padding(now) == 0 or batch == 0
        book.sent(batch, 1, 2_000, 0.05, now)
        book.confirmed(batch, now + RTT)
        book.answered(batch, 1, now + RTT + 0.05)
        now += 0.5
    assert book.padding(now) == 0
    assert book.padding(now + REMEASURE_S) == PROBE_BYTES


def test_a_batch_behind_a_probe_tells_no_bandwidth_and_is_given_more_time():
    book, later = known(), 100.0
    book.pinged(100, book.padding(later), later)
    book.sent(1, 1, 1_000_000, 0.1, later)
    usual = known()
    usual.sent(1, 1, 1_000_000, 0.1, later)
    late = later
    while not usual.give_up(late):
        late += 0.01
    assert book.give_up(late) == []
    book.confirmed(1, later + 5.0)
    assert book.state().bytes_per_s == pytest.approx(RATE)
