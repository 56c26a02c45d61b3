"""Invariants of every policy, and the running sums against Algorithm 1 taken literally."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.conformance import check_horizon_policy, check_scheduling_policy
from kairos_ros.core.placement.overflow import Capacity, EngineCapacity
from kairos_ros.core.scheduling.decision import Pending
from kairos_ros.core.scheduling.policies import BUILTIN, WaitRatio, parse_scheduling
from kairos_ros.core.tasks import TaskTable

NOW = 5_000


@dataclass(frozen=True)
class Request:
    start: int
    skipped: int
    arrival: int
    rounds: tuple[tuple[tuple[int, int] | None, tuple[int, int] | None], ...]


@st.composite
def intervals(draw):
    start = draw(st.integers(0, 4_000))
    return start, start + draw(st.integers(0, 1_500))


requests = st.builds(
    Request,
    start=st.integers(0, NOW),
    skipped=st.integers(0, 30),
    arrival=st.integers(0, 5),
    rounds=st.lists(
        st.tuples(st.none() | intervals(), st.none() | intervals()).filter(any), max_size=7
    ).map(tuple),
)

policies = st.builds(
    WaitRatio,
    buckets=st.integers(1, 100),
    aging=st.none() | st.integers(1, 9),
    age=st.sampled_from(["floor", "ceil"]),
    wait=st.sampled_from(["side", "unified"]),
    dominance=st.sampled_from(["measured", "profile"]),
    clamp=st.booleans(),
    ongoing=st.booleans(),
    init=st.booleans(),
)


@st.composite
def engine_lists(draw):
    engines = []
    for i in range(draw(st.integers(0, 4))):
        tier = draw(st.sampled_from(["edge", "cloud"]))
        first, more = draw(st.integers(1, 300)), draw(st.integers(0, 100))
        latency = tuple(first + more * b for b in range(4))
        free, residual, rtt = (draw(st.integers(0, high)) for high in (4, 500, 300))
        engines.append(EngineCapacity(f"{tier}{i}", tier, free, latency, residual, rtt))
    return tuple(engines)


capacities = st.builds(Capacity, engine_lists(), st.sampled_from(["completion", "printed"]))


def literal_ratio(request: Request, policy: WaitRatio, l0: int) -> Fraction:
    """Lines 2-6 of Algorithm 1, with papers' readings 1-3, from the whole history."""
    waits, rounds = [], request.rounds
    starting = [*rounds[1:], ((NOW, NOW), (NOW, NOW))] if policy.ongoing else list(rounds[1:])
    for (g, e), (g_next, e_next) in zip(rounds, starting, strict=False):
        if g is None or e is None:
            continue
        if policy.wait == "unified":
            if e_next is not None:
                waits.append(max(0, e_next[0] - max(e[1], g[1] + l0)))
            continue
        latency = g[1] - g[0] if policy.dominance == "measured" else l0
        if latency >= e[1] - e[0]:
            wait = None if g_next is None else g_next[0] - g[1]
        else:
            wait = None if e_next is None else e_next[0] - e[1]
        if wait is not None:
            waits.append(max(0, wait) if policy.clamp else wait)
    if policy.init:
        first = next((g for g, _ in rounds if g), None)
        if first is not None:
            wait = first[0] - request.start
            clamped = policy.clamp or policy.wait == "unified"
            waits.append(max(0, wait) if clamped else wait)
        elif policy.ongoing and not rounds:
            waits.append(NOW - request.start)
    life = NOW - request.start
    return Fraction(sum(waits), life) if life else Fraction(0)


def literal_order(asked: list[Request], policy: WaitRatio, l0: int, first_exec: int):
    """Algorithm 1, phases 1 and 2."""
    bucket, length = [], []
    for r in asked:
        b = min(max(floor(literal_ratio(r, policy, l0) * policy.buckets), 0), policy.buckets - 1)
        if policy.aging is not None and r.skipped >= policy.aging:
            steps = Fraction(r.skipped, policy.aging)
            b = min(policy.buckets - 1, b + (floor if policy.age == "floor" else ceil)(steps))
        last = next((e[1] - e[0] for _, e in reversed(r.rounds) if e), first_exec)
        bucket.append(b)
        length.append(last * (1 + r.skipped))
    indices = range(len(asked))
    return sorted(indices, key=lambda i: (-bucket[i], -length[i], asked[i].arrival)), bucket


def table_of(asked: list[Request], policy, l0=0, first_exec=0, shuffle=None):
    tasks = TaskTable(policy.reading)
    for i, r in enumerate(asked):
        tasks.open(i, r.start, first_exec_ns=first_exec, l0_ns=l0, kind=str(i % 3))
        for j, (g, e) in enumerate(r.rounds):
            if g:
                tasks.generation(i, j, *g)
            if e:
                tasks.execution(i, j, e[0], e[1] + 777)  # the robot's first estimate ...
                tasks.execution(i, j, *e)  # ... and its correction
        tasks.skipped[tasks.row(i)] = r.skipped
    return tasks, Pending.of(tasks, {i: r.arrival for i, r in enumerate(asked)})


@settings(max_examples=300)
@given(st.lists(requests, max_size=8), policies, st.integers(0, 400), st.integers(0, 400))
@pytest.mark.slow
def test_running_sums_decide_as_algorithm_1_on_the_whole_history(asked, policy, l0, first_exec):
    tasks, pending = table_of(asked, policy, l0, first_exec)
    everything = Capacity((EngineCapacity("e", "edge", len(asked), (1,) * (len(asked) or 1)),))
    decision = policy.decide(NOW, pending, tasks, everything)
    order, bucket = literal_order(asked, policy, l0, first_exec)
    assert [tasks.wait_ratio(i, NOW) for i in range(len(asked))] == [
        literal_ratio(r, policy, l0) for r in asked
    ]
    assert decision.bucket.tolist() == bucket
    assert decision.order.tolist() == order


@given(st.lists(requests, max_size=12), st.sampled_from(sorted(BUILTIN)), capacities)
def test_every_request_is_dispatched_once_or_left(asked, spec, capacity):
    policy = parse_scheduling(spec)
    tasks, pending = table_of(asked, policy)
    decision = policy.decide(NOW, pending, tasks, capacity)
    sent = [i for batch in decision.batches for i in batch.indices.tolist()]
    assert sorted(decision.order.tolist()) == list(range(len(asked)))
    assert sorted([*sent, *decision.left.tolist()]) == list(range(len(asked)))
    free = {engine.engine: engine.free for engine in capacity.engines}
    assert all(0 < len(batch.indices) <= free[batch.engine] for batch in decision.batches)
    rank = np.argsort(decision.order)
    for indices in [*(batch.indices for batch in decision.batches), decision.left]:
        assert (np.diff(rank[indices]) > 0).all()
    assert all(decision.reason(i) for i in range(len(asked)))


@given(st.lists(requests, min_size=1, max_size=12), st.sampled_from(sorted(BUILTIN)), capacities)
def test_the_edge_serves_the_most_urgent_and_is_never_idle_while_requests_wait(
    asked, spec, capacity
):
    policy = parse_scheduling(spec)
    tasks, pending = table_of(asked, policy)
    decision = policy.decide(NOW, pending, tasks, capacity)
    at_edge = [i for b in decision.batches if b.tier == "edge" for i in b.indices.tolist()]
    slots = sum(engine.free for engine in capacity.tier("edge"))
    assert sorted(at_edge) == sorted(decision.order[:slots].tolist())


@pytest.mark.parametrize("spec", sorted(BUILTIN))
def test_every_policy_conforms(spec):
    check_scheduling_policy(parse_scheduling(spec))


def test_the_policies_that_the_documentation_shows_conform():
    text = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    shown: dict = {}
    exec(text.split("```python")[1].split("```")[0], shown)
    check_scheduling_policy(shown["RunOutFirst"]())
    check_horizon_policy(shown["Half"]())


def test_conformance_finds_a_policy_that_loses_a_request():
    class Loses(WaitRatio):
        def decide(self, now_ns, pending, tasks, capacity):
            fewer = Pending(pending.rows[1:], pending.arrival_ns[1:])
            return WaitRatio.decide(self, now_ns, fewer, tasks, capacity)

    with pytest.raises(AssertionError, match="a permutation"):
        check_scheduling_policy(Loses())
