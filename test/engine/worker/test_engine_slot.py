"""What the dispatcher expects of an engine behind a link that computes several batches at once."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_engine import LINK, SMALL_ENGINE

from kairos_ros.core.profile import EngineProfile
from kairos_ros.serving.engines.slot import MAX_IN_FLIGHT, EngineSlot

MS = 1_000_000
SECONDS = (0.05, 0.08)
PROFILE = EngineProfile("p-1", "m", "d", "t", (1, 4), SECONDS, SECONDS, SECONDS)


def pool(replicas: int, **link) -> EngineSlot:
    slot = EngineSlot("cloud", "cloud")
    slot.link_changed(0, replace(LINK, replicas=replicas, **link), 0.0)
    slot.ready(SMALL_ENGINE, PROFILE, 1000)
    return slot


def entries(count: int) -> list:
    """A slot only counts them."""
    return [SimpleNamespace()] * count


def test_batches_of_a_pool_compute_side_by_side_and_the_next_waits_for_the_first_that_ends():
    slot = pool(2)
    slot.begin(1, entries(4), 0)  # there after 50 + 4 ms, computes for 80
    slot.begin(2, entries(1), 4 * MS)  # there at 55, computes for 50
    slot.begin(3, entries(1), 5 * MS)
    first, second, third = slot.flight.values()
    assert (first.start_ns, first.compute_end_ns) == (54 * MS, 134 * MS)
    assert (second.start_ns, second.compute_end_ns) == (55 * MS, 105 * MS)
    assert (third.start_ns, third.compute_end_ns) == (105 * MS, 155 * MS)
    assert third.expected_end_ns == 205 * MS


def test_a_pool_is_given_batches_until_all_its_replicas_have_one():
    slot = pool(3)
    for batch in range(3):
        assert slot.is_free(batch * MS)
        assert slot.capacity(batch * MS).residual_ns == 0
        slot.begin(batch, entries(1), batch * MS)
    assert not slot.is_free(3 * MS)
    assert slot.next_free_ns(3 * MS) == (51 + 50 - 51 - 5) * MS  # the first ends at 101
    assert slot.capacity(3 * MS).residual_ns == 98 * MS
    assert slot.is_free(45 * MS)


def test_a_replica_that_is_done_early_or_late_moves_what_waits_for_it_and_nothing_else():
    def third_starts(now_ms, ended):
        slot = pool(2)
        for batch in (1, 2, 3):
            slot.begin(batch, entries(1), batch * MS)  # there at 52, 53, 54 ms
        slot.end(now_ms * MS, ended, 0.05)
        computing, waiting = slot.flight.values()
        assert computing.start_ns == (52 + (ended == 1)) * MS
        return waiting.start_ns // MS

    assert third_starts(150, ended=1) == 100  # early: free at 150 - 50
    assert third_starts(200, ended=1) == 150  # late, and so is the other one
    assert third_starts(151, ended=2) == 101


def test_a_batch_that_is_overdue_is_expected_now():
    slot = pool(2)
    slot.begin(1, entries(1), 0)
    slot.begin(2, entries(1), MS)
    assert slot.capacity(300 * MS).residual_ns == 0
    assert slot.next_free_ns(300 * MS) == (300 - 50 - 51 - 5) * MS


def test_a_pool_that_has_lost_its_replicas_gets_nothing_until_one_is_back():
    slot = pool(0)
    assert not slot.is_free(0)
    assert slot.capacity(0).free == 0
    slot.link_changed(0, replace(LINK, replicas=1), 0.0)
    assert slot.is_free(0)


def test_the_window_and_the_load_grow_with_the_replicas():
    for replicas in (1, 2):
        slot = pool(replicas, rtt_s=100.0, min_rtt_s=100.0)  # nothing waits for a server
        sent = 0
        while slot.is_free(sent * 1000 * MS):
            slot.begin(sent, entries(1), sent * 1000 * MS)
            sent += 1
        assert sent == MAX_IN_FLIGHT * replicas
    slot = pool(2)
    slot.begin(1, entries(4), 0)
    slot.begin(2, entries(4), MS)
    slot.end(54 * MS + 130 * MS, 1, 0.08)
    slot.end(54 * MS + 130 * MS, 2, 0.08)
    assert slot.load(1000 * MS) == pytest.approx(0.08 / 5)  # of two replicas' five seconds


STEPS = st.lists(
    st.tuples(
        st.integers(0, 200),  # ms since the step before
        st.sampled_from(["send", "send", "answer"]),
        st.integers(1, 4),  # size of the batch
        st.integers(0, 3),  # which of the oldest is answered
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 4))
def test_no_batch_is_expected_to_start_before_it_is_there_and_a_server_is_free(steps, replicas):
    slot, now, sent = pool(replicas), 0, 0
    for after, what, size, which in steps:
        now += after * MS
        if what == "send" and slot.is_free(now):
            slot.begin(sent, entries(size), now)
            sent += 1
        elif what == "answer" and slot.flight:
            oldest = list(slot.flight)[:replicas]
            slot.end(now, oldest[which % len(oldest)], 0.06)
        flight = list(slot.flight.values())
        for one in flight:
            there = one.submitted_ns + (50 + len(one.entries)) * MS
            assert one.start_ns >= there
            busy = [o for o in flight if o.start_ns <= one.start_ns < o.compute_end_ns]
            assert len(busy) <= replicas
        if replicas == 1:  # as a single engine: one behind the other
            assert all(a.compute_end_ns <= b.start_ns for a, b in pairwise(flight))
        if len(flight) < replicas:
            assert slot.capacity(now).residual_ns == 0


def test_an_engine_that_was_slow_and_then_idle_is_given_another_chance():
    slot = pool(1)
    for batch in range(5):
        slot.begin(batch, entries(4), batch * 1000 * MS)
        slot.end((batch * 1000 + 500) * MS, batch, 0.4)
    slow = slot.capacity(5000 * MS).latency_ns
    assert slow[-1] > 3 * 80 * MS
    slot.link_changed(30_000 * MS, LINK, 0.0)
    assert slot.capacity(30_000 * MS).latency_ns == slow
    slot.link_changed(40_000 * MS, LINK, 0.0)
    assert slot.capacity(40_000 * MS).latency_ns == slot.latency_ns


def local(prepare_ms: float, batch: int = 4) -> EngineSlot:
    """An engine of this host, of which it is known how long it decodes a request's pictures, and
    which computes a batch since 0."""
    slot = EngineSlot("edge", "edge")
    slot.ready(SMALL_ENGINE, PROFILE, 1000)
    slot.transfer_ns = round(prepare_ms * MS)
    slot.begin(1, entries(batch), 0)
    return slot


def test_a_local_engine_gets_its_next_batch_as_much_earlier_as_decoding_takes():
    slot = local(prepare_ms=6)  # decodes for 24 ms, computes for 80
    (running,) = slot.flight.values()
    assert (running.start_ns, running.expected_end_ns) == (24 * MS, 104 * MS)
    sent_ns = (104 - 30 - 5) * MS
    assert slot.next_free_ns(0) == sent_ns
    assert not slot.is_free(sent_ns - 1)
    assert slot.is_free(sent_ns)
    slot.begin(2, entries(4), sent_ns)
    second = slot.flight[2]
    assert second.start_ns == 104 * MS  # decoded 11 ms before that
    assert not slot.is_free(104 * MS)  # one ahead, no more
    slot.end(110 * MS, 1, 0.08, 0.024)
    assert second.start_ns == 110 * MS


@pytest.mark.parametrize("prepare_ms", [0, 0.2])
def test_a_local_engine_without_much_to_decode_gets_its_next_batch_when_it_is_done(prepare_ms):
    slot = local(prepare_ms)
    assert not slot.is_free(slot.running.expected_end_ns - 1)
    assert not slot.is_free(slot.running.expected_end_ns + 1000 * MS)
    slot.end(90 * MS, 1, 0.08, prepare_ms / 250)
    assert slot.is_free(90 * MS)


def test_no_batch_is_sent_ahead_where_the_next_one_may_be_of_another_policy():
    slot, other = local(prepare_ms=6), EngineSlot("other", "edge")
    slot.mates = other.mates = [slot, other]
    assert not slot.is_free(1000 * MS)
    assert not other.is_free(1000 * MS)


def test_how_long_decoding_takes_is_learnt_from_answers():
    slot = local(prepare_ms=0)
    for batch in range(1, 40):
        slot.end(batch * 200 * MS, batch, 0.08, 0.032)
        slot.begin(batch + 1, entries(4), batch * 200 * MS)
    assert slot.transfer_ns == pytest.approx(8 * MS, rel=0.05)
