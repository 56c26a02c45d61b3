"""How long an engine needs for a batch: measured once, saved, used by scheduler and robots."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from kairos_ros.core.errors import ConfigError

FORMAT = 1
SATURATION_GAIN = 0.05
"""A larger batch is worth its latency only if it raises throughput by more than this fraction."""


def saturation(batch_sizes: Sequence[int], seconds: Sequence[float]) -> int:
    """Smallest batch whose throughput is within SATURATION_GAIN of the best one."""
    throughput = [b / s for b, s in zip(batch_sizes, seconds, strict=True)]
    enough = max(throughput) / (1 + SATURATION_GAIN)
    return next(b for b, t in zip(batch_sizes, throughput, strict=True) if t >= enough)


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Latency against batch size of one policy on one machine (Dai et al. §4, Engine Profiles).

    Raises ConfigError when the numbers contradict each other.
    """

    policy_id: str
    machine: str
    """Free text that tells machines apart, for example CPU or GPU name and count."""
    device: str
    dtype: str
    batch_sizes: tuple[int, ...]
    """Measured sizes, ascending, starting at 1."""
    p50_s: tuple[float, ...]
    """Median seconds from a batch entering the engine to its chunks leaving it, per batch size."""
    p10_s: tuple[float, ...]
    p90_s: tuple[float, ...]
    network_s: float = 0.0
    """Round trip between serving node and engine, seconds, without compute."""
    eager_p50_s: tuple[float, ...] = ()
    """As `p50_s`, of the same policy without compilation; empty where it was not compiled."""

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not sizes or sizes[0] != 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(f"profile: batch_sizes must ascend from 1, not {sizes}")
        for name in ("p10_s", "p50_s", "p90_s"):
            values = getattr(self, name)
            if len(values) != len(sizes) or not all(math.isfinite(v) and v > 0 for v in values):
                raise ConfigError(
                    f"profile: {name} must hold {len(sizes)} positive numbers, one per batch size, "
                    f"not {values}"
                )
        for low, middle, high in zip(self.p10_s, self.p50_s, self.p90_s, strict=True):
            if not low <= middle <= high:
                raise ConfigError(f"profile: p10 {low} <= p50 {middle} <= p90 {high} does not hold")
        if self.eager_p50_s and len(self.eager_p50_s) != len(sizes):
            raise ConfigError(
                f"profile: eager_p50_s must be empty or hold {len(sizes)} numbers, one per batch "
                f"size, not {self.eager_p50_s}"
            )
        if not (math.isfinite(self.network_s) and self.network_s >= 0):
            raise ConfigError(f"profile: network_s must be >= 0, not {self.network_s}")

    @property
    def saturation_batch(self) -> int:
        """Smallest measured batch whose throughput is within SATURATION_GAIN of the best one.

        Beyond it a batch costs every robot in it more latency without serving more of them.
        """
        return saturation(self.batch_sizes, self.p50_s)

    @property
    def useful_batches(self) -> tuple[int, ...]:
        """Measured sizes up to saturation."""
        return tuple(size for size in self.batch_sizes if size <= self.saturation_batch)

    def latency_s(self, batch: int) -> float:
        """Median seconds for a batch of this size, without network.

        Linear between measured sizes; beyond the largest, at the largest one's throughput.
        """
        if batch < 1:
            raise ConfigError(f"profile: a batch has at least 1 request, not {batch}")
        if batch >= self.batch_sizes[-1]:
            return self.p50_s[-1] * batch / self.batch_sizes[-1]
        points = pairwise(zip(self.batch_sizes, self.p50_s, strict=True))
        (b0, s0), (b1, s1) = next(pair for pair in points if batch < pair[1][0])
        return s0 + (s1 - s0) * (batch - b0) / (b1 - b0)

    def latencies_ns(self, max_batch: int | None = None) -> tuple[int, ...]:
        """Integer nanoseconds for batches of 1..max_batch (default: the saturation batch)."""
        largest = self.saturation_batch if max_batch is None else max_batch
        return tuple(round(self.latency_s(b) * 1e9) for b in range(1, largest + 1))

    def require_policy(self, policy_id: str) -> None:
        """Raises ConfigError when this profile was measured with another policy."""
        if self.policy_id != policy_id:
            raise ConfigError(
                f"this profile was measured with policy {self.policy_id!r} on {self.machine!r}, "
                f"but the engine runs {policy_id!r}; run 'kairos profile' for that policy"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back."""
        return {"format": FORMAT, **asdict(self), "saturation_batch": self.saturation_batch}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EngineProfile":
        """Reads what `to_dict` wrote. The saturation batch is computed anew.

        Raises ConfigError for another format, a missing field, or a field of the wrong type.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ConfigError(
                f"profile: not an engine profile of format {FORMAT}; run 'kairos profile' again"
            )
        try:
            return cls(
                policy_id=str(data["policy_id"]),
                machine=str(data["machine"]),
                device=str(data["device"]),
                dtype=str(data["dtype"]),
                batch_sizes=tuple(int(b) for b in data["batch_sizes"]),
                p50_s=tuple(float(v) for v in data["p50_s"]),
                p10_s=tuple(float(v) for v in data["p10_s"]),
                p90_s=tuple(float(v) for v in data["p90_s"]),
                network_s=float(data["network_s"]),
                eager_p50_s=tuple(float(v) for v in data.get("eager_p50_s", ())),
            )
        except KeyError as error:
            raise ConfigError(f"profile: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"profile: {error}") from None
