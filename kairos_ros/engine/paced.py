"""A real policy that takes as long as a larger model would: its chunks, another model's time.

`paced:latency_ms=150+40b:POLICY` answers what POLICY answers, 150 ms + 40 ms per robot in the batch
after it was asked (later where POLICY itself takes longer). It shows on small machines what a big
model does to a fleet, with arms that really do their tasks.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.emulated import parse_emulated
from kairos_ros.engine.interface import Engine, PreparedBatch
from kairos_ros.transport.messages import InferOutcome, InferRequest

PREFIX = "paced:"


@dataclass(frozen=True, slots=True)
class Pace:
    """A policy, and how long a batch of it takes at least."""

    policy: str
    base_ms: float
    per_row_ms: float

    def latency_s(self, batch: int) -> float:
        return (self.base_ms + self.per_row_ms * batch) / 1e3


def parse_paced(text: str) -> Pace:
    """Reads `paced:latency_ms=150+40b:POLICY`. Raises ConfigError."""
    latency, _, policy = text.removeprefix(PREFIX).partition(":")
    if not latency.startswith("latency_ms=") or "," in latency or not policy:
        raise ConfigError(
            f"policy {text!r}: write paced:latency_ms=150+40b:POLICY, milliseconds per batch and "
            "per robot (b), and a policy folder or hub id"
        )
    spec = parse_emulated(latency)
    return Pace(policy, spec.base_ms, spec.per_row_ms)


class PacedEngine:
    """Another engine, whose answers come no sooner than its pace allows."""

    def __init__(self, engine: Engine, pace: Pace) -> None:
        self._engine = engine
        self._pace = pace
        self.answering = engine.answering
        described = engine.description
        self.description = replace(
            described,
            device=f"{described.device} (paced)",
            warmup=tuple((b, max(s, pace.latency_s(b))) for b, s in described.warmup),
        )

    def prepare(self, requests: Sequence[InferRequest]) -> PreparedBatch:
        """As the interface says."""
        prepared, latency_s = self._engine.prepare(requests), self._pace.latency_s(len(requests))

        def infer() -> list[InferOutcome]:
            end = time.monotonic() + latency_s
            outcomes = prepared()
            time.sleep(max(0.0, end - time.monotonic()))
            return outcomes

        return infer

    def infer(self, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """As the interface says."""
        return self.prepare(requests)()
