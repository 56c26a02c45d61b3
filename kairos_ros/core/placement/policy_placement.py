"""Placement where the engines of one server serve several policies: a batch holds one of them.

The schedule stays one: engines are given out in the order of all requests, whatever they ask for.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kairos_ros.core.placement.overflow import (
    Batch,
    Capacity,
    EngineCapacity,
    Ints,
    Placement,
    place,
)


def place_policies(
    order: Ints, policies: Sequence[str], capacity: Capacity, bound: Sequence[str] = ()
) -> Placement:
    """As `place`, where request i asks for `policies[i]` and every engine serves one policy.

    bound: the one engine that may serve request i, by name; empty: any of its policy. Requests that
    are bound to an engine travel in batches of their own.

    The most urgent request that waits decides what is served next: `place` gives it an engine, and
    the requests of its policy that it gives the same engine fill the batch. Then it is the turn of
    the most urgent one of those that are left. So no engine that several policies could use is
    given to a policy while a more urgent request of another one waits for it.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    batches: list[Batch] = []
    busy: dict[str, tuple[int, str]] = {}  # device -> until when, from now, with which policy
    why: dict[int, Callable[[], str]] = {}
    waiting, left = order, []
    wanted = list(zip(policies, bound or [""] * len(order), strict=True))
    while len(waiting):
        policy, only = wanted[waiting[0]]
        mine = np.array([i for i in waiting if wanted[i] == (policy, only)], np.int64)
        engines = [
            engine
            for engine in capacity.engines
            if engine.policy == policy and only in ("", engine.engine)
        ]
        now = tuple(_after(engine, busy) for engine in engines)
        placed = place(mine, Capacity(now, capacity.comparison))
        if placed.batches:
            batch = min(placed.batches, key=lambda sent: rank[sent.indices[0]])
            batches.append(batch)
            why |= _why_cloud(batch, placed, rank)
            engine = next(one for one in now if one.engine == batch.engine)
            until_ns = engine.residual_ns + engine.latency_ns[len(batch.indices) - 1]
            busy[_device(engine)] = until_ns, policy
            gone = batch.indices
        else:
            before = {busy[device][1] for device in map(_device, engines) if device in busy}
            for position, i in enumerate(placed.left):
                why[int(i)] = partial(_why_left, placed, position, sorted(before - {policy}))
            left += [int(i) for i in placed.left]
            gone = mine
        waiting = waiting[~np.isin(waiting, gone)]
    left.sort(key=lambda i: rank[i])
    cloud = sorted(
        (i for b in batches if b.tier == "cloud" for i in b.indices), key=lambda i: rank[i]
    )
    return Placement(
        tuple(batches),
        np.array(left, np.int64),
        lambda p: why[left[p]](),
        lambda c: why[int(cloud[c])](),
    )


def _device(engine: EngineCapacity) -> str:
    return engine.device or engine.engine


def _after(engine: EngineCapacity, busy: dict[str, tuple[int, str]]) -> EngineCapacity:
    """An engine as it is once its device was given a batch, if it was."""
    if _device(engine) not in busy:
        return engine
    until_ns, _ = busy[_device(engine)]
    return replace(engine, free=0, residual_ns=max(engine.residual_ns, until_ns))


def _why_cloud(batch: Batch, placed: Placement, rank: Ints) -> dict[int, Callable[[], str]]:
    if batch.tier != "cloud":
        return {}
    sent = np.concatenate([one.indices for one in placed.batches if one.tier == "cloud"])
    before = sorted(map(int, sent), key=lambda i: rank[i])
    return {int(i): partial(placed.explain_cloud, before.index(int(i))) for i in batch.indices}


def _why_left(placed: Placement, position: int, before: Sequence[str]) -> str:
    text = placed.explain_left(position)
    return f"{text}, a batch of policy {', '.join(before)} goes first" if before else text
