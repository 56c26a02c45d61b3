"""How long a model takes to answer under load: measured or assumed once, saved, planned with.

A server that runs model m with batching b and is asked λ times per second answers with latencies
L(b, λ) (Rosa §3.4.2). Of those a profile keeps mean and quantiles at several rates for every b.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component

FORMAT = 1
KIND = "load_profile"
QUANTILES = (0.5, 0.9, 0.95, 0.99)
"""That every profile holds."""
RATES = 10
"""Rates per batching, from 10 % to 100 % of the most that it answers (Rosa §3.4.2)."""
SOURCES = ("measured", "assumed")
BATCHINGS = ("discrete", "continuous")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """Latencies with one batching at several rates. Raises ConfigError for contradictions."""

    batch: int
    """Largest batch; with continuous batching the most requests in flight."""
    memory_mib: float
    """That a server with this batching takes, weights included."""
    rates_hz: tuple[float, ...]
    """Ascending; the last one is the most that this batching answers."""
    mean_s: tuple[float, ...]
    quantiles_s: tuple[tuple[float, ...], ...]
    """[quantile][rate], in the order of `QUANTILES`."""

    def __post_init__(self) -> None:
        n = len(self.rates_hz)
        if self.batch < 1 or not (math.isfinite(self.memory_mib) and self.memory_mib >= 0):
            raise ConfigError(
                f"load profile: batch {self.batch} and memory_mib {self.memory_mib} must be at "
                "least 1 and 0"
            )
        if n < 2 or any(a >= b for a, b in pairwise((0.0, *self.rates_hz))):
            raise ConfigError(
                f"load profile, batch {self.batch}: rates_hz must be two or more, ascending and "
                f"positive, not {list(self.rates_hz)}"
            )
        if len(self.quantiles_s) != len(QUANTILES):
            raise ConfigError(
                f"load profile, batch {self.batch}: latencies of {len(self.quantiles_s)} quantiles "
                f"instead of {len(QUANTILES)}"
            )
        for line in (self.mean_s, *self.quantiles_s):
            if len(line) != n or not all(math.isfinite(s) and s > 0 for s in line):
                raise ConfigError(
                    f"load profile, batch {self.batch}: every latency line must hold {n} positive "
                    f"numbers, one per rate, not {list(line)}"
                )
        for low, high in pairwise(self.quantiles_s):
            if any(a > b for a, b in zip(low, high, strict=True)):
                raise ConfigError(
                    f"load profile, batch {self.batch}: a higher quantile is below a lower one"
                )

    @property
    def max_rate_hz(self) -> float:
        return self.rates_hz[-1]


def load_of(
    batch: int, memory_mib: float, rates_hz: Sequence[float], latencies_s: Sequence[Floats]
) -> Load:
    """From the latencies at each rate. Where more load was faster, that was noise: they rise."""
    lines = [[float(one.mean()), *np.quantile(one, QUANTILES).tolist()] for one in latencies_s]
    rising = np.maximum.accumulate(np.array(lines), axis=0)
    mean, *quantiles = (tuple(float(f"{s:.6g}") for s in line) for line in rising.T)
    rates = tuple(float(f"{rate:.6g}") for rate in rates_hz)
    return Load(batch, memory_mib, rates, mean, tuple(quantiles))


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """One model on one device. Raises ConfigError when the numbers contradict each other."""

    model: str
    """As fleet files name it."""
    version: str
    """What tells its weights from others: the id of a policy, what an endpoint says of itself."""
    components: tuple[Component, ...]
    """What it was asked as: a planner writes longer answers than a judge of the same weights."""
    device: str
    """As `gpu_type` of a fleet file names it."""
    machine: str
    source: Literal["measured", "assumed"]
    basis: str
    """How it was measured, or what it was assumed from."""
    batching: Literal["discrete", "continuous"]
    """discrete: batches that do not grow once they run. continuous: requests join and leave."""
    sizes: tuple[int, ...]
    """Requests at once, ascending from 1."""
    service_s: tuple[float, ...]
    """Median seconds that so many requests at once take, without any queue, per size."""
    loads: tuple[Load, ...]
    """One per batching, ascending."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES or self.batching not in BATCHINGS:
            raise ConfigError(
                f"load profile of {self.model!r}: source {self.source!r} and batching "
                f"{self.batching!r} must be of {SOURCES} and {BATCHINGS}"
            )
        if not (self.model and self.device and self.components and self.loads):
            raise ConfigError("load profile: model, device, components and loads must not be empty")
        sizes, seconds = self.sizes, self.service_s
        if not sizes or sizes[0] != 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(f"load profile: sizes must ascend from 1, not {list(sizes)}")
        if len(seconds) != len(sizes) or not all(math.isfinite(s) and s > 0 for s in seconds):
            raise ConfigError(
                f"load profile: service_s must hold {len(sizes)} positive numbers, not "
                f"{list(seconds)}"
            )
        batches = [load.batch for load in self.loads]
        if any(a >= b for a, b in pairwise(batches)):
            raise ConfigError(f"load profile: the batches of loads must ascend, not {batches}")

    @property
    def assumed(self) -> bool:
        return self.source == "assumed"

    def batch_s(self, size: int) -> float:
        """Seconds for so many requests at once: linear between sizes, beyond the largest at its
        throughput."""
        if size >= self.sizes[-1]:
            return self.service_s[-1] * size / self.sizes[-1]
        return float(np.interp(size, self.sizes, self.service_s))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back."""
        data = asdict(self)
        data["components"] = [str(component) for component in self.components]
        for load in data["loads"]:
            lines = load.pop("quantiles_s")
            load["quantiles_s"] = {f"{q:g}": line for q, line in zip(QUANTILES, lines, strict=True)}
        return {"format": FORMAT, "kind": KIND, **data}

    @classmethod
    def from_dict(cls, data: Any) -> "LoadProfile":
        """Reads what `to_dict` wrote.

        Raises ConfigError for another format, a missing field, or a field of the wrong type.
        """
        if not isinstance(data, Mapping) or (data.get("kind"), data.get("format")) != (
            KIND,
            FORMAT,
        ):
            raise ConfigError(
                f"not a load profile of format {FORMAT}; 'kairos profile --load' writes one"
            )
        try:
            return cls(
                model=str(data["model"]),
                version=str(data["version"]),
                components=tuple(Component(name) for name in data["components"]),
                device=str(data["device"]),
                machine=str(data["machine"]),
                source=data["source"],
                basis=str(data["basis"]),
                batching=data["batching"],
                sizes=tuple(int(b) for b in data["sizes"]),
                service_s=_floats(data["service_s"]),
                loads=tuple(_load(load) for load in data["loads"]),
            )
        except KeyError as error:
            raise ConfigError(f"load profile: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"load profile: {error}") from None


def _load(data: Any) -> Load:
    return Load(
        batch=int(data["batch"]),
        memory_mib=float(data["memory_mib"]),
        rates_hz=_floats(data["rates_hz"]),
        mean_s=_floats(data["mean_s"]),
        quantiles_s=tuple(_floats(data["quantiles_s"][f"{q:g}"]) for q in QUANTILES),
    )


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
