"""Which policy tasks got, and which one they should have got: pure, from evidence."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kairos_ros.lab.drill.proof.evidence import BodyTask, Proof
from kairos_ros.lab.drill.proof.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Turn:
    """From some moment between two on, new tasks get a policy. Seconds of this host's monotonic
    clock."""

    policy: str
    """Type and fingerprint of its weights."""
    asked_s: float = 0.0
    done_s: float = 0.0


def given(turns: Sequence[Turn], from_s: float, until_s: float) -> set[str]:
    """The policies that a task may have got whose first request was handled between these times."""
    ends_s = [later.done_s for _, later in pairwise(turns)] + [math.inf]
    return {
        turn.policy
        for turn, end_s in zip(turns, ends_s, strict=True)
        if turn.asked_s <= until_s and end_s >= from_s
    }


def wrong_policy(task: BodyTask, proof: Proof, turns: Sequence[Turn]) -> str:
    """What is wrong about the policy of a task's executed actions; empty where nothing is.

    A task gets its policy between its acceptance and its first action.
    """
    first = next(task.acts, None)
    if first is None or not turns or not proof.policy:
        return ""
    right = given(turns, task.events[0].at_ns / 1e9, first.at_ns / 1e9)
    if proof.policy in right:
        return ""
    should = " or ".join(sorted(right))
    return f"task {task.key.task}: {proof.proven} actions of policy {proof.policy}, not {should}"


def mislabelled(exchange: Exchange, policy: str, offset: float, since_s: float) -> Iterable[str]:
    """Chunks that are not of the policy that they name, told by their values.

    policy, offset: of the emulated engine, the first value of whose actions is that of the state
    and the offset, bit for bit. No other policy answers that.
    """
    for key, chunks in exchange.answered.items():
        states = {(r.round, r.attempt): r.state for r in exchange.asked.get(key, ())}
        for chunk in chunks:
            state = states.get((chunk.round, chunk.attempt))
            if chunk.at_s < since_s or state is None:
                continue
            marked = bool((chunk.actions[:, 0] == state[0] + np.float32(offset)).all())
            if marked != (chunk.policy == policy):
                yield f"round {chunk.round} of task {key.task} of {key.robot} names {chunk.policy}"
