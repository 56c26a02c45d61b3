"""Traces for tests of the replay: drawn, not recorded."""

import random

from kairos_ros.recording.runs.trace import Trace, TraceRound


def drawn_trace(number: int, rounds: int = 10, policy: str = "drawn") -> Trace:
    """Rounds of 4 to 16 new actions, asked for two actions ahead, without observations."""
    draw = random.Random(number)
    made: list[TraceRound] = []
    executed = 0
    for i in range(1, rounds + 1):
        new = draw.randint(4, 16)
        ahead = 2 if made else 0
        at = executed - ahead
        made.append(TraceRound(i, at, at, new + ahead, new, latency_s=0.05))
        executed += new
    return Trace(
        name=f"drawn-{number}",
        kind=f"kind-{number % 3}",
        instruction="go",
        seed=number,
        control_rate_hz=30.0,
        chunk_size=50,
        action_dim=4,
        policy=policy,
        horizon_policy="static:10",
        success=True,
        duration_s=executed / 30,
        rounds=tuple(made),
    )
