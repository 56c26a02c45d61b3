"""Integer programs of Rosa §3.4: which server configurations to run, and how good a plan could be.

Solved by HiGHS through scipy, which only whoever plans has to have.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kairos_ros.planning.packing import Packed, Stream
from kairos_ros.planning.workload import Use

TIME_LIMIT_S = 10.0
PER_SERVER = 1e-4
"""Cost of a server, against seconds of latency: fewer where that changes no latency."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One server that could be run: so many robots of one class (p of eq. 3)."""

    use: Use
    stream: Stream
    robots: int
    cost: float
    """Latency of all its robots, in seconds."""


def choose(configurations: Sequence[Configuration], servers: int) -> dict[Use, list[Packed]] | None:
    """Eq. 3: at most so many servers, every stream on one, and the least latency in all.

    None where no choice is feasible."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    covers = list(dict.fromkeys((one.use, one.stream) for one in configurations))
    rows = np.zeros((len(covers) + 1, len(configurations)))
    rows[-1] = 1
    for i, one in enumerate(configurations):
        rows[covers.index((one.use, one.stream)), i] = one.robots
    robots = [float(stream.robots) for _, stream in covers]
    found = milp(
        c=[one.cost + PER_SERVER for one in configurations],
        integrality=np.ones(len(configurations)),
        bounds=Bounds(0, max(servers, 1)),
        constraints=LinearConstraint(rows, [*robots, 0], [*robots, servers]),
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 1e-4},
    )
    if found.x is None:
        return None
    chosen: dict[Use, list[Packed]] = {}
    for one, times in zip(configurations, np.rint(found.x).astype(int).tolist(), strict=True):
        for _ in range(times):
            server = Packed()
            server.add(one.stream, one.robots)
            chosen.setdefault(one.use, []).append(server)
    return chosen


@dataclass(frozen=True, slots=True)
class Level:
    """One rate that a class might get."""

    value: float
    """What rates from this one up to the next level are worth at most."""
    shares: Mapping[Use, float]
    """Servers that it takes at least, by model; whole numbers where nobody else uses them."""


def relaxed(
    levels: Sequence[Sequence[Level]], servers: int
) -> tuple[list[list[float]], float] | None:
    """The best mixture of levels of every class if robots could be split over servers at will,
    with a whole number of servers per model; and a bound: no rates on so many servers are worth
    more. One class gets one level, several get mixtures: that is solved in no time.

    None where not even the lowest levels fit."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    flat = [(c, level) for c, mine in enumerate(levels) for level in mine]
    uses = list(dict.fromkeys(use for _, level in flat for use in level.shares))
    n = len(flat)
    values = [-level.value for _, level in flat] + [0.0] * len(uses)
    rows, low, high = [], [], []
    for c in range(len(levels)):
        rows.append([float(owner == c) for owner, _ in flat] + [0.0] * len(uses))
        low.append(1.0)
        high.append(1.0)
    for u, use in enumerate(uses):
        row = [level.shares.get(use, 0.0) for _, level in flat] + [0.0] * len(uses)
        row[n + u] = -1.0
        rows.append(row)
        low.append(-math.inf)
        high.append(1e-7)
    rows.append([0.0] * n + [1.0] * len(uses))
    low.append(0.0)
    high.append(float(servers))
    found = milp(
        c=values,
        integrality=[float(len(levels) == 1)] * n + [1.0] * len(uses),
        bounds=Bounds(0, [1.0] * n + [float(servers)] * len(uses)),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 1e-3},
    )
    if found.x is None:
        return None
    starts = np.cumsum([0, *map(len, levels)])
    mixtures = [found.x[first:end].tolist() for first, end in itertools.pairwise(starts)]
    return mixtures, -float(found.mip_dual_bound)
