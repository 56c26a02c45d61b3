"""Engines of a simulation: a profile, its spread, and the network in front of them."""

import math
import random
import re
from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.overflow import Tier
from kairos_ros.core.profile import EngineProfile

Z90 = 1.2815515655446004
"""90th percentile of the standard normal distribution."""
NO_CAP = 1_000_000
"""Larger than any batch."""
_NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True, slots=True)
class SimEngine:
    """One engine. Raises ConfigError for numbers that make no sense."""

    name: str
    profile: EngineProfile
    tier: Tier = "edge"
    network_s: float | None = None
    """Round trip between serving node and engine; None: the profile's."""
    bandwidth_mbps: float = 0.0
    """Of the link to the engine, megabits per second; 0: no limit."""
    pipelined: bool = True
    """In the cloud: batches are sent while others are computed, as over a measured link; else the
    engine is held while its batch is on the way, and idles."""
    stall_share: float = 0.0
    """Share of batches whose answer comes `stall_s` late, on the way."""
    stall_s: float = 1.0
    replicas: int = 1
    """In the cloud: batches that it computes at once."""
    spread: float | None = None
    """Standard deviation of the logarithm of the compute time (about 0.1 for 10 %), the median
    being the profile's; None: from the profile's p10 and p90."""

    def __post_init__(self) -> None:
        for name in ("network_s", "bandwidth_mbps", "spread", "stall_share", "stall_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"engine {self.name!r}: {name} must be >= 0, not {value}")
        if self.tier not in ("edge", "cloud"):
            raise ConfigError(f"engine {self.name!r}: tier is edge or cloud, not {self.tier!r}")
        if self.replicas < 1 or (self.replicas > 1 and not self.linked):
            raise ConfigError(
                f"engine {self.name!r}: {self.replicas} replicas; only a pipelined engine in the "
                "cloud has more than 1"
            )

    @property
    def linked(self) -> bool:
        """Whether the dispatcher knows the link to it, and sends ahead."""
        return self.tier == "cloud" and self.pipelined

    @property
    def rtt_ns(self) -> int:
        """Round trip of a small message."""
        return round((self.profile.network_s if self.network_s is None else self.network_s) * 1e9)

    def network_ns(self, request_bytes: int) -> int:
        """Round trip with one request of this size."""
        return self.rtt_ns + self.transfer_ns(request_bytes)

    def transfer_ns(self, size_bytes: int) -> int:
        return round(size_bytes * 8e3 / self.bandwidth_mbps) if self.bandwidth_mbps else 0

    def compute_ns(self, batch: int, draw: random.Random) -> int:
        """Of one batch, lognormal around the profile's median."""
        sigma = self._sigma(batch) if self.spread is None else self.spread
        factor = math.exp(sigma * draw.gauss()) if sigma else 1.0
        return round(self.profile.latency_s(batch) * factor * 1e9)

    def stall_ns(self, draw: random.Random) -> int:
        """By how much one answer is late on its way."""
        stalls = self.stall_share and draw.random() < self.stall_share
        return round(self.stall_s * 1e9) if stalls else 0

    def _sigma(self, batch: int) -> float:
        """Of the nearest measured size, not below it where there is one."""
        sizes = self.profile.batch_sizes
        i = next((i for i, size in enumerate(sizes) if size >= batch), len(sizes) - 1)
        return math.log(self.profile.p90_s[i] / self.profile.p10_s[i]) / (2 * Z90)


def linear_profile(text: str, batch_cap: int, policy_id: str = "synthetic") -> EngineProfile:
    """`80+35b`: 80 ms, and 35 ms more per request in the batch, for batches up to `batch_cap`.

    Measured "at" 1 and at the cap only, as an emulated engine is, so that batches fill up to the
    cap. Raises ConfigError for another text.
    """
    match = re.fullmatch(rf"({_NUMBER})\+({_NUMBER})b", text)
    if match is None or not any(float(number) for number in match.groups()):
        raise ConfigError(
            f"profile {text!r} is neither a file nor a line such as 80+35b: milliseconds per "
            "batch + milliseconds per request"
        )
    if batch_cap < 1:
        raise ConfigError(f"the batch cap must be at least 1, not {batch_cap}")
    base, row = (float(number) / 1e3 for number in match.groups())
    sizes = (1, batch_cap) if batch_cap > 1 else (1,)
    seconds = tuple(base + row * b for b in sizes)
    return EngineProfile(
        policy_id=policy_id,
        machine=f"assumed: {text} ms",
        device="assumed",
        dtype="assumed",
        batch_sizes=sizes,
        p50_s=seconds,
        p10_s=seconds,
        p90_s=seconds,
    )


def capacity_per_s(profile: EngineProfile, batch_cap: int = NO_CAP) -> float:
    """Requests per second of one engine that always runs its largest batch."""
    batch = min(profile.saturation_batch, batch_cap)
    return batch / profile.latency_s(batch)
