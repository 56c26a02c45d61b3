"""What every policy plugged in must do. Plugin authors call these in their tests.

Each check raises AssertionError with what was expected of which input.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from kairos_ros.core.errors import PolicyError
from kairos_ros.core.horizons.policies import HorizonContext, HorizonPolicy
from kairos_ros.core.placement.overflow import Capacity, EngineCapacity
from kairos_ros.core.scheduling.decision import Pending, SchedulingPolicy
from kairos_ros.core.tasks import TaskTable

SECOND = 1_000_000_000


def check_horizon_policy(policy: HorizonPolicy, *, actions: int = 50, dims: int = 7) -> None:
    """Runs a horizon policy over chunks of flow- and diffusion-like samplers.

    It must answer a length in 1..N, a finite confidence [N] in [0, 1] and a one-line reason, the
    same for the same input, without touching the input; also in the first round (no tail), for a
    tail shorter or longer than the chunk, and for a sampler that did not move at all. A refusal
    must be a PolicyError.
    """
    rng = np.random.default_rng(0)
    shrinking = rng.normal(size=(10, actions, dims)) / np.arange(1, 11)[:, None, None]
    chunk = rng.normal(size=(actions, dims)).astype(np.float32)
    near = chunk + rng.normal(scale=0.1, size=chunk.shape).astype(np.float32)
    for updates in (shrinking, np.ones((2, actions, dims)), np.zeros((10, actions, dims))):
        for tail in (None, chunk[:0], near[: actions // 2], np.tile(near, (2, 1))):
            case = f"updates {updates.shape}, tail {None if tail is None else tail.shape}"
            given = updates.astype(np.float32)
            context = HorizonContext("pick up the cup", 0 if tail is None else 4, tail)
            inputs = [x.copy() for x in (given, chunk)]
            horizon = policy(given, chunk, context)
            again = policy(given, chunk, context)
            _expect(all(map(np.array_equal, inputs, (given, chunk))), "inputs unchanged", case)
            _expect(isinstance(horizon.length, int), "an int length", case)
            _expect(1 <= horizon.length <= actions, f"a length in 1..{actions}", case)
            confidence = horizon.confidence
            _expect(confidence.shape == (actions,), f"a confidence of shape [{actions}]", case)
            _expect(confidence.dtype == np.float32, "a float32 confidence", case)
            _expect(bool(((confidence >= 0) & (confidence <= 1)).all()), "0 <= c <= 1", case)
            _expect(bool(horizon.reason) and "\n" not in horizon.reason, "a one-line reason", case)
            same = horizon.length == again.length and horizon.reason == again.reason
            _expect(same and np.array_equal(confidence, again.confidence), "repeatability", case)
    with suppress(PolicyError):  # of a policy that answers at once
        horizon = policy(np.zeros((0, actions, dims), np.float32), chunk, HorizonContext())
        _expect(1 <= horizon.length <= actions, f"a length in 1..{actions}", "no updates")
    with suppress(PolicyError):
        policy(np.full((10, actions, dims), np.nan, np.float32), chunk, HorizonContext())


def check_scheduling_policy(policy: SchedulingPolicy) -> None:
    """Runs a scheduling policy over a fleet with new, running, waiting and skipped tasks.

    Its order must be a permutation, every request in one batch or left, no engine over its free
    slots, no batch of two policies, skip counters as in Algorithm 1, a reason for every request,
    the same decision for the same input, and the table left alone.
    """
    tasks = _fleet(policy)
    arrival = {key: 100 - i // 3 for i, key in enumerate(tasks)}
    latency = tuple(SECOND // 10 + b * SECOND // 50 for b in range(1, 9))
    busy = EngineCapacity("busy", "edge", 0, latency, residual_ns=SECOND)
    idle = EngineCapacity("idle", "edge", 8, latency)
    cloud = EngineCapacity("cloud", "cloud", 5, latency, network_ns=SECOND // 10)
    for size in (0, 1, len(tasks)):
        pending = Pending.of(tasks, dict(list(arrival.items())[:size]))
        for engines in ((), (busy,), (idle,), (cloud,), (busy, idle, cloud)):
            case = f"{size} pending, engines {[engine.engine for engine in engines]}"
            skipped = tasks.skipped.copy()
            decision = policy.decide(20 * SECOND, pending, tasks, Capacity(engines))
            again = policy.decide(20 * SECOND, pending, tasks, Capacity(engines))
            _expect(np.array_equal(skipped, tasks.skipped), "the table unchanged", case)
            _expect(np.array_equal(decision.order, again.order), "repeatability", case)
            everyone = np.arange(size)
            sent = [batch.indices for batch in decision.batches]
            placed = np.concatenate([*sent, decision.left])
            _expect(np.array_equal(np.sort(decision.order), everyone), "a permutation", case)
            _expect(np.array_equal(np.sort(placed), everyone), "each sent once or left", case)
            free = {engine.engine: engine.free for engine in engines}
            fits = all(len(b.indices) <= free[b.engine] for b in decision.batches)
            _expect(fits, "no batch beyond the free slots", case)
            expected = tasks.skipped[pending.rows] + (1 if sent else 0)
            for indices in sent:
                expected[indices] = 0
            _expect(np.array_equal(decision.skipped_after, expected), "skip counters", case)
            _expect(all(decision.reason(i) for i in range(size)), "a reason for each", case)
    one, other = replace(idle, policy="one"), replace(idle, engine="other", policy="other")
    pending = Pending.of(tasks, arrival, tuple("one" if i % 3 else "other" for i in range(30)))
    decision = policy.decide(20 * SECOND, pending, tasks, Capacity((one, other)))
    for batch in decision.batches:
        served = one if batch.engine == one.engine else other
        asked = {pending.policies[i] for i in batch.indices}
        _expect(asked == {served.policy}, "one policy per batch", "two policies")


def _fleet(policy: SchedulingPolicy) -> TaskTable:
    tasks = TaskTable(policy.reading)
    for robot in range(30):
        start = robot * SECOND // 4
        tasks.open(robot, start, kind=f"kind {robot % 3}", first_exec_ns=SECOND)
        for j in range(robot % 7):
            begin = start + j * (SECOND + robot * SECOND // 10)
            tasks.generation(robot, j, begin, begin + SECOND // 5)
            tasks.execution(robot, j, begin + SECOND // 5, begin + SECOND)
        tasks.skipped[tasks.row(robot)] = robot % 13
    return tasks


def _expect(condition: bool, what: str, case: str) -> None:
    if not condition:
        raise AssertionError(f"expected {what} for {case}")
