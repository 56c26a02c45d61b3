"""Whether processes that run for long grow: memory, file descriptors and threads, from /proc."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

MEMORY = "memory_mb"
MEASURES = (MEMORY, "descriptors", "threads")
ALLOWED_PER_HOUR = 0.01
"""Share of its size that a process may gain in an hour and still be flat."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one time."""

    at_s: float
    pid: int
    memory_mb: float
    """Anonymous resident memory: what it allocated, without the files that it maps."""
    descriptors: int
    threads: int


def sample(pid: int, at_s: float) -> Sample | None:
    """None where the process has ended."""
    proc = Path(f"/proc/{pid}")
    try:
        lines = (proc / "status").read_text().splitlines()
        descriptors = len(os.listdir(proc / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    values = dict(line.split(":", 1) for line in lines)
    if "RssAnon" not in values:  # it has ended, and nobody asked how
        return None
    memory_mb = int(values["RssAnon"].split()[0]) / 1e3
    return Sample(at_s, pid, memory_mb, descriptors, int(values["Threads"]))


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth per hour with its 95 % interval, in the unit of the measure."""

    per_hour: float
    low: float
    high: float
    level: float
    """Median of the samples that the slope is of."""
    allowed: float
    """What is flat all the same, per hour."""
    samples: int

    @property
    def flat(self) -> bool:
        """Whether the samples are no evidence of more growth than what is allowed."""
        return self.low <= self.allowed


def slope(
    samples: Sequence[Sample], measure: str, settled_s: float, left_out: float = 0.0
) -> Slope | None:
    """A straight line through each life of a process, all with the same slope (least squares).

    settled_s: what each life is given to load and warm up, and is left out; or, where that is
    longer, the share `left_out` of the life. Neighbouring samples
    resemble each other, so the interval is that of as many independent ones as their correlation
    leaves (first-order autoregression). None with fewer than five samples.
    """
    times, values = [], []
    for _, group in groupby(samples, key=lambda one: one.pid):
        life = list(group)
        begun_s, length_s = life[0].at_s, life[-1].at_s - life[0].at_s
        from_s = begun_s + max(settled_s, left_out * length_s)
        life = [one for one in life if one.at_s >= from_s]
        if len(life) < 5:
            continue
        t = np.array([one.at_s for one in life]) / 3600.0
        y = np.array([float(getattr(one, measure)) for one in life])
        times.append(t - t.mean())
        values.append(y)
    if not times:
        return None
    x = np.concatenate(times)
    y = np.concatenate([v - v.mean() for v in values])
    per_hour = float(x @ y / (x @ x))
    left = y - per_hour * x
    spread = float(left @ left)
    correlation = float(left[1:] @ left[:-1] / spread) if spread > 0 else 0.0
    correlation = min(max(correlation, 0.0), 0.99)
    free = max(1, len(x) - len(times) - 1)
    error = (spread / free / (x @ x) * (1 + correlation) / (1 - correlation)) ** 0.5
    level = float(np.median(np.concatenate(values)))
    allowed = ALLOWED_PER_HOUR * level
    low, high = per_hour - 1.96 * error, per_hour + 1.96 * error
    return Slope(per_hour, low, high, level, allowed, len(x))
