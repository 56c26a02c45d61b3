from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.overflow import Capacity, EngineCapacity, overflow, place

MS = 1_000_000
LATENCY = tuple((80 + 20 * b) * MS for b in range(1, 5))  # 100, 120, 140, 160 ms, at most 4


def edge(name="edge", free=4, **times) -> EngineCapacity:
    return EngineCapacity(name, "edge", free, LATENCY, **times)


def cloud(name="cloud", free=4, rtt_ms=100, **times) -> EngineCapacity:
    half = tuple(ns // 2 for ns in LATENCY)
    return EngineCapacity(name, "cloud", free, half, network_ns=rtt_ms * MS, **times)


def placed(requests: int, *engines, comparison="completion"):
    placement = place(np.arange(requests), Capacity(engines, comparison))
    return {b.engine: b.indices.tolist() for b in placement.batches}, placement.left.tolist()


def test_the_most_urgent_requests_get_the_free_edge_slots():
    assert placed(6, edge(free=4)) == ({"edge": [0, 1, 2, 3]}, [4, 5])


def test_nothing_is_dispatched_without_capacity():
    assert placed(3, edge(free=0)) == ({}, [0, 1, 2])
    assert placed(3) == ({}, [0, 1, 2])
    assert placed(0, edge(), cloud()) == ({}, [])


def test_the_overflow_goes_to_the_cloud_while_its_answer_is_sooner():
    # Edge queue after a batch of 4 (160 ms): 260, 280, 300, 320 ms. Cloud: 150, 160, 170, 180 ms.
    assert placed(10, edge(), cloud()) == ({"edge": [0, 1, 2, 3], "cloud": [4, 5, 6, 7]}, [8, 9])


def test_requests_stay_at_the_edge_while_the_cloud_is_no_sooner_and_later_ones_overflow():
    # Cloud at 220 ms round trip: 270, 280, 290, 300 ms. Edge queue: 260 (stays), 280 > 270 (goes),
    # again 280, not sooner than 280 (stays), 300 > 280 (goes) ...
    assert placed(8, edge(), cloud(rtt_ms=220)) == ({"edge": [0, 1, 2, 3], "cloud": [5, 7]}, [4, 6])


def test_the_printed_comparison_ignores_the_edges_own_compute_time():
    # Edge delay is 160 ms for the next four: the cloud's 150 is below, its 160 and more are not.
    engines = edge(), cloud()
    assert placed(8, *engines, comparison="printed") == (
        {"edge": [0, 1, 2, 3], "cloud": [4]},
        [5, 6, 7],
    )
    # ... until position 4, behind one more full batch: 320 ms.
    assert placed(10, *engines, comparison="printed") == (
        {"edge": [0, 1, 2, 3], "cloud": [4, 8, 9]},
        [5, 6, 7],
    )


def test_a_full_cloud_leaves_the_rest_waiting():
    assert placed(7, edge(), cloud(free=1)) == ({"edge": [0, 1, 2, 3], "cloud": [4]}, [5, 6])


def test_a_busy_edge_sends_everything_it_is_too_slow_for():
    assert placed(2, edge(free=0, residual_ns=300 * MS), cloud()) == ({"cloud": [0, 1]}, [])
    assert placed(2, edge(free=0, residual_ns=10 * MS), cloud()) == ({}, [0, 1])


def test_the_cloud_serves_alone_where_no_edge_engine_is_up():
    assert placed(3, cloud(free=2)) == ({"cloud": [0, 1]}, [2])


def test_a_long_history_keeps_a_task_where_its_history_is():
    # Edge queue: 260, 280, 300 ms. Cloud: 150 ms for the first whose history is there; a history
    # moves in 200 ms and makes all of its batch wait.
    moves = cloud(history_ns=(0, 0, 0, 0, 200 * MS, 0, 200 * MS))
    assert placed(7, edge(), moves) == ({"edge": [0, 1, 2, 3], "cloud": [5]}, [4, 6])


def test_the_second_history_of_a_batch_waits_for_the_first():
    some = cloud(history_ns=(70 * MS,) * 6)
    assert some.completion_ns(2, 140 * MS) == 300 * MS
    assert placed(6, edge(), some) == ({"edge": [0, 1, 2, 3], "cloud": [4]}, [5])  # 300 > 280


def test_each_task_goes_to_the_cloud_that_has_its_history():
    a = cloud("a", history_ns=(*[0] * 4, 90 * MS, 0, 90 * MS))
    b = cloud("b", history_ns=(*[0] * 4, 0, 90 * MS, 0))
    batches, left = placed(7, edge(), a, b)
    assert batches == {"edge": [0, 1, 2, 3], "a": [5], "b": [4, 6]}
    assert left == []


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300)), min_size=1, max_size=3),
    st.sampled_from([(), (0,) * 12]),
)
def test_without_histories_each_further_request_gets_the_soonest_slot_left(requests, clouds, none):
    engines = [cloud(f"c{e}", free, ms, history_ns=none) for e, (free, ms) in enumerate(clouds)]
    batches, left = placed(requests, edge(free=0, residual_ns=10**12), *engines)
    slots = sorted(
        (e.completion_ns(b + 1), i) for i, e in enumerate(engines) for b in range(e.free)
    )
    expected = [f"c{i}" for _, i in slots[:requests]]
    assert {name: len(indices) for name, indices in batches.items()} == Counter(expected)
    assert left == list(range(len(slots), requests))
    for position, name in enumerate(expected):
        assert position in batches[name]


def test_the_upload_overlaps_what_the_cloud_computes_now():
    idle, busy = cloud(), cloud(residual_ns=50 * MS)
    assert idle.completion_ns(1) == busy.completion_ns(1) == 150 * MS
    assert cloud(residual_ns=80 * MS).completion_ns(1) == 180 * MS


def test_several_edge_engines_share_so_that_all_are_answered_soonest():
    batches, left = placed(5, edge("a"), edge("b", residual_ns=30 * MS))
    assert batches == {"a": [0, 1, 3], "b": [2, 4]}
    assert left == []


def test_several_clouds_fill_by_completion():
    near, far = cloud("near", free=2), cloud("far", rtt_ms=105)
    batches, _ = placed(8, edge(), near, far)
    assert batches == {"edge": [0, 1, 2, 3], "near": [4, 6], "far": [5, 7]}


class Listed:
    def __init__(self, *latencies):
        self.latencies = list(latencies)

    def offer(self, position):
        return self.latencies[0] if self.latencies else None

    def take(self, position):
        del self.latencies[0]


def test_equal_estimates_stay_at_the_edge():
    assert overflow([150], Listed(150), 1) == []
    assert overflow([151], Listed(150), 1) == [0]


def test_the_loop_skips_a_request_and_goes_on():
    assert overflow([100, 500], Listed(150, 160), 2, queue="all") == [1]


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: edge(free=5), "5 free slots, but its largest batch is 4"),
        (lambda: edge(free=-1), "-1 free slots"),
        (lambda: EngineCapacity("e", "edge", 0, ()), "latency_ns is empty"),
        (lambda: edge(residual_ns=-1), "a time is negative"),
        (lambda: cloud(history_ns=(0, -1)), "a time is negative"),
        (lambda: edge(history_ns=(0, 1)), "history_ns is of engines in the cloud"),
    ],
)
def test_impossible_capacity_is_refused(build, what):
    with pytest.raises(ConfigError, match=what):
        build()
