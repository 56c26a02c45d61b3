"""GPUs shared out by a plan, and in the ways that Rosa §4.1 compares with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component
from kairos_ros.planning.planner import Planner
from kairos_ros.planning.workload import Cluster, PlanOptions, Use, Workload

System = Literal[
    "planned", "equal", "weighted", "gpu_per_robot", "gpu_per_model",
    "planned_uncapped", "planned_batch_1", "equal_capped", "weighted_capped",
]  # fmt: skip
SYSTEMS: Mapping[System, str] = {
    "planned": "our plan",
    "equal": "equal partition",
    "weighted": "size-weighted partition",
    "gpu_per_robot": "one GPU per robot",
    "gpu_per_model": "one GPU per model",
    "planned_uncapped": "our plan without rate control",
    "planned_batch_1": "our plan without batching",
    "equal_capped": "our rates and batches on an equal partition",
    "weighted_capped": "our rates and batches on a size-weighted partition",
}
WEIGHTS = {"GR00T-N1.6-3B": 3.0, "VL-7B": 7.0, "VL-3B": 3.0}
"""Billions of parameters, by a part of the model's name (Rosa §4.1)."""
CONTINUOUS = 1024
"""As a batch: no limit of ours besides the profile's."""
HALVINGS = 12


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """One GPU."""

    uses: tuple[Use, ...]
    """Models on it; several share its time."""
    batch: int
    robots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What runs where, and how often each robot may ask; a robot without servers is not served."""

    servers: tuple[ServerSetup, ...]
    requests_hz: Mapping[str, float]
    """Robot -> System 1 requests per second at most; empty: nobody is held back."""
    split: str
    """GPUs of System 1, System 2, safety and monitor."""


ORDER = (Component.SYSTEM1, Component.SYSTEM2, Component.SAFETY, Component.MONITOR)


def allocate(
    system: System, workload: Workload, cluster: Cluster, options: PlanOptions
) -> Allocation | None:
    """None where the system cannot serve the workload at all."""
    if system in ("planned", "planned_uncapped", "planned_batch_1"):
        return _planned(system, workload, cluster, options)
    if system in ("gpu_per_robot", "gpu_per_model"):
        return _dedicated(system, workload, cluster)
    weighted = system in ("weighted", "weighted_capped")
    gpus = _partition(workload, cluster.gpus, weighted)
    if system in ("equal_capped", "weighted_capped"):
        return _capped(workload, cluster, options, gpus)
    return _spread(workload, gpus, {})


def _planned(
    system: System, workload: Workload, cluster: Cluster, options: PlanOptions
) -> Allocation | None:
    if system == "planned_batch_1":
        workload = replace(
            workload,
            profiles={
                use: replace(profile, loads=profile.loads[:1])
                if use[1] is Component.SYSTEM1
                else profile
                for use, profile in workload.profiles.items()
            },
        )
    try:
        plan = Planner(workload, cluster, options).plan(explain=False)
    except ConfigError:
        return None
    servers = tuple(
        ServerSetup(
            ((one.model, one.component),),
            one.batch,
            tuple(robot for robots in one.robots.values() for robot in robots),
        )
        for one in plan.servers
    )
    rates = {
        robot: planned.requests_hz
        for one, planned in zip(workload.classes, plan.classes, strict=True)
        for robot in one.robots
    }
    split = ":".join(str(len(plan.servers_of(component))) for component in ORDER)
    return Allocation(servers, {} if system == "planned_uncapped" else rates, split)


def _uses(workload: Workload) -> dict[Use, list[str]]:
    """Model and component -> the robots that need it, robots of all classes mixed."""
    users: dict[Use, list[str]] = {}
    for component in ORDER:
        for one in workload.classes:
            if component in one.needs:
                users.setdefault((one.needs[component].model, component), []).extend(one.robots)
    return users


def _partition(workload: Workload, gpus: int, weighted: bool) -> dict[Use, int]:
    """GPUs per model: equal or by parameters, at least one each; what is left over goes where
    most was cut off, System 1 first among equals."""
    users = _uses(workload)
    weights = {use: _weight(use[0]) if weighted else 1.0 for use in users}
    exact = {use: gpus * weight / sum(weights.values()) for use, weight in weights.items()}
    shares = {use: max(1, int(share)) for use, share in exact.items()}
    while sum(shares.values()) < gpus:
        shares[max(shares, key=lambda use: exact[use] - shares[use])] += 1
    while sum(shares.values()) > gpus:
        able = [use for use in shares if shares[use] > 1]
        shares[max(able, key=lambda use: shares[use] - exact[use])] -= 1
    return shares


def _weight(model: str) -> float:
    return next((weight for part, weight in WEIGHTS.items() if part in model), 1.0)


def _spread(
    workload: Workload, gpus: Mapping[Use, int], rates: Mapping[str, float], batch: int = 1
) -> Allocation:
    """Robots in turn over the GPUs of every model; without batches of System 1 by default."""
    servers = []
    for use, robots in _uses(workload).items():
        size = batch if use[1] is Component.SYSTEM1 else CONTINUOUS
        servers += [
            ServerSetup((use,), size, tuple(robots[i :: gpus[use]])) for i in range(gpus[use])
        ]
    of = {component: n for (_, component), n in gpus.items()}
    return Allocation(tuple(servers), rates, ":".join(str(of.get(c, 0)) for c in ORDER))


def _capped(
    workload: Workload, cluster: Cluster, options: PlanOptions, gpus: Mapping[Use, int]
) -> Allocation | None:
    """The planner's batches and its highest rates, the same share of every class's most, on GPUs
    that are shared out already (Rosa, Figure 12)."""
    planner = Planner(workload, cluster, options)
    sizing = planner.sizing
    obligations = sizing.obligations()
    if obligations is None or any(len(s) > gpus[use] for use, s in obligations.servers.items()):
        return None

    def fits(share: float) -> bool:
        hz = [share * ceiling for ceiling in planner.search.ceilings]
        for streams in sizing.ways(hz):
            needed = {
                use: sum(-(-one.robots // max(1, one.per_server)) for one in mine)
                if all(one.per_server for one in mine)
                else 10**9
                for use, mine in streams.items()
            }
            if all(needed[use] <= gpus[use] for use in needed):
                found[share] = {
                    robot: one.rate_hz
                    for use, mine in streams.items()
                    if use[1] is Component.SYSTEM1
                    for one in mine
                    for robot in workload.classes[one.owner].robots
                }
                return True
        return False

    found: dict[float, dict[str, float]] = {}
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        return None
    profile = workload.profiles[next(use for use in gpus if use[1] is Component.SYSTEM1)]
    return _spread(workload, gpus, found[low], profile.loads[-1].batch)


def _dedicated(system: System, workload: Workload, cluster: Cluster) -> Allocation | None:
    """As many robots as get their own GPUs, of the classes in turn; nobody is held back."""
    left, servers = cluster.gpus, []
    waiting = [(one, list(one.robots)) for one in workload.classes]
    counts = dict.fromkeys(ORDER, 0)
    while any(robots for _, robots in waiting):
        given = False
        for one, robots in waiting:
            uses = tuple((one.needs[c].model, c) for c in ORDER if c in one.needs)
            takes = 1 if system == "gpu_per_robot" else len(uses)
            if not robots or takes > left:
                continue
            robot, given = robots.pop(0), True
            left -= takes
            for mine in [uses] if system == "gpu_per_robot" else [(use,) for use in uses]:
                servers.append(ServerSetup(mine, 1, (robot,)))
                for _, component in mine:
                    counts[component] += 1
        if not given:
            break
    if not servers:
        return None
    return Allocation(tuple(servers), {}, ":".join(map(str, counts.values())))


def served(allocation: Allocation) -> Sequence[str]:
    """Robots that have a System 1."""
    return [
        robot
        for server in allocation.servers
        if any(component is Component.SYSTEM1 for _, component in server.uses)
        for robot in server.robots
    ]
