"""What a plan says: placement, batches, routing, rates, margins, and what limits the fleet."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kairos_ros.core.pipeline import Component
from kairos_ros.planning.workload import Execution, Objective

FORMAT = 1
GPU = "gpu"
"""With a number behind it: a GPU of a plan."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One GPU. Latencies have the network in them."""

    gpu: str
    component: Component
    model: str
    batch: int
    """Largest batch; with continuous batching the most requests in flight."""
    robots: Mapping[str, tuple[str, ...]]
    """Class -> the robots that are routed here."""
    rate_hz: float
    """Requests per second of all of them."""
    limit_hz: float
    """At which it would just keep what it has to."""
    mean_s: float
    p99_s: float
    slo_s: float
    """Of the strictest class on it."""
    memory_mib: float
    assumed: bool
    """Whether its profile is."""

    @property
    def load(self) -> float:
        return self.rate_hz / self.limit_hz

    @property
    def margin_s(self) -> float:
        return self.slo_s - self.p99_s


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """One class of robots."""

    name: str
    robots: int
    actions_hz: float
    """Of each robot."""
    requests_hz: float
    """Of System 1, of each robot: it asks no more often."""
    plans_hz: float
    """Of System 2, of each robot."""
    ceiling_hz: float
    """Actions of each robot, if its models had nothing else to do."""
    value: float
    floor_hz: float
    """Actions of the whole class."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which model runs where, and how often each robot may ask."""

    device: str
    gpus: int
    execution: Execution
    objective: Objective
    network_s: float
    classes: tuple[ClassPlan, ...]
    servers: tuple[ServerPlan, ...]
    spare: int
    """GPUs that nothing is put on."""
    value_hz: float
    """Σ v_c K_c f_c, eq. 1."""
    bound_hz: float | None
    """No plan of this kind is worth more; None where it was not computed."""
    standby: int = 0
    """GPUs besides those that have a model of System 1 loaded for when another one dies."""
    limits: str = ""
    """What limits the fleet, and what would help."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Name and GPUs of each host, in the order in which GPUs are counted; empty: there is one."""

    @property
    def actions_hz(self) -> float:
        return sum(one.robots * one.actions_hz for one in self.classes)

    @property
    def gap(self) -> float | None:
        """How far off the bound, as a share of it."""
        return None if not self.bound_hz else max(0.0, 1 - self.value_hz / self.bound_hz)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Models whose profiles are assumed, with what they are asked as."""
        found = [f"{one.model} as {one.component}" for one in self.servers if one.assumed]
        return tuple(dict.fromkeys(found))

    def host_of(self, gpu: str) -> str:
        """The host that a GPU, such as gpu3, is in; empty where the hosts have fewer."""
        return self.place_of(gpu)[0]

    def place_of(self, gpu: str) -> tuple[str, int]:
        """The host that a GPU is in, and its number there."""
        left = int(gpu.removeprefix(GPU))
        for host, gpus in self.hosts:
            if left < gpus:
                return host, left
            left -= gpus
        return "", left

    def servers_of(self, component: Component) -> tuple[ServerPlan, ...]:
        return tuple(one for one in self.servers if one.component is component)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        data = asdict(self)
        for server, one in zip(data["servers"], self.servers, strict=True):
            server |= {
                "host": self.host_of(one.gpu),
                "component": str(one.component),
                "load": one.load,
                "margin_s": one.margin_s,
            }
        return {
            "format": FORMAT,
            "kind": "fleet_plan",
            **data,
            "actions_hz": self.actions_hz,
            "gap": self.gap,
            "assumed_profiles": list(self.assumed),
        }
