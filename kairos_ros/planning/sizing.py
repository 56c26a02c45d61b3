"""The servers that given action rates take: what every search asks, over and over."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kairos_ros.core.pipeline import Component
from kairos_ros.planning.capacity import ModelCapacity
from kairos_ros.planning.closed_loop import most_actions_hz, requests_hz
from kairos_ros.planning.packing import ROUNDING, Packed, Stream, pack
from kairos_ros.planning.workload import (
    GOAL,
    OBLIGATIONS,
    Need,
    PlanOptions,
    RobotClass,
    Use,
    Workload,
)

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""How full servers are made, of what their SLO allows. Emptier ones answer sooner: synchronous
robots then lose less time waiting for plans, overlapped ones throw less of their chunks away."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Servers by model and component."""

    servers: Mapping[Use, list[Packed]]
    streams: Mapping[Use, list[Stream]]

    @property
    def total(self) -> int:
        return sum(map(len, self.servers.values()))


class Sizing:
    """Of one workload on GPUs of one kind."""

    def __init__(self, workload: Workload, memory_mib: float, options: PlanOptions) -> None:
        self.classes = workload.classes
        self.options = options
        self.capacities: dict[Use, ModelCapacity] = {
            use: ModelCapacity(profile, memory_mib) for use, profile in workload.profiles.items()
        }
        self._known: dict[tuple[float, ...], Footprint | None] = {}

    def capacity(self, one: RobotClass, component: Component) -> ModelCapacity:
        return self.capacities[one.needs[component].model, component]

    def ceiling_hz(self, one: RobotClass) -> float:
        """Actions per second of a robot of this class whose models have nothing else to do."""
        network = self.options.network_s
        waits = {
            component: self.capacity(one, component).least_mean_s + network
            for component in GOAL
            if component in one.needs
        }
        plan_share_s = waits.get(Component.SYSTEM2, 0.0) / one.system2_ratio
        return most_actions_hz(
            one.action_s, waits[Component.SYSTEM1], plan_share_s, self.options.execution
        )

    def obligations(self) -> Footprint | None:
        """The least for safety and monitor; None where a single robot is too much for a server."""
        streams: dict[Use, list[Stream]] = {}
        for component in OBLIGATIONS:
            for i, one in enumerate(self.classes):
                if (need := one.needs.get(component)) is not None:
                    stream = Stream(i, one.count, need.hz, self.limits(need, component))
                    streams.setdefault((need.model, component), []).append(stream)
        return _packed(streams)

    def limits(
        self, need: Need, component: Component, mean_s: float = math.inf
    ) -> tuple[float, ...]:
        """Requests/s of a server, by batching. Latencies of needs have the network in them."""
        network = self.options.network_s
        capacity = self.capacities[need.model, component]
        return capacity.limits(need.slo_s - network, mean_s - network)

    def goal(self, actions_hz: Sequence[float]) -> Footprint | None:
        """The fewest servers of System 1 and 2 for these actions per second of every robot, by
        class; None where no number of servers is enough."""
        key = tuple(actions_hz)
        if key not in self._known:
            best: Footprint | None = None
            for streams in self._ways(actions_hz):
                if best is None or _least(streams) < best.total:
                    found = _packed(streams)
                    if found is not None and (best is None or found.total < best.total):
                        best = found
            self._known[key] = best
        return self._known[key]

    def shares(self, c: int, hz: float) -> dict[Use, float] | None:
        """Servers that a class takes at least at this rate, if its robots can be split over
        servers at will; whole numbers for models that no other class uses. None: no number is
        enough."""
        alone = [0.0] * len(self.classes)
        alone[c] = hz
        found: dict[Use, float] = {}
        for streams in self._ways(alone):
            taken = {use: self._share(use, one) for use, (one,) in streams.items()}
            if all(math.isfinite(share) for share in taken.values()):
                for use, share in taken.items():
                    found[use] = min(share, found.get(use, math.inf))
        return found or None

    def _share(self, use: Use, stream: Stream) -> float:
        if stream.per_server < 1:
            return math.inf
        model, component = use
        users = sum(
            component in one.needs and one.needs[component].model == model for one in self.classes
        )
        if users == 1:
            return math.ceil(stream.robots / stream.per_server)
        return stream.robots * stream.rate_hz / max(stream.limits_hz)

    def ways(self, actions_hz: Sequence[float]) -> Iterator[dict[Use, list[Stream]]]:
        """What the robots ask of System 1 and 2, for servers that are more or less full."""
        return self._ways(actions_hz)

    def _ways(self, actions_hz: Sequence[float]) -> Iterator[dict[Use, list[Stream]]]:
        synchronous = self.options.execution == "synchronous"
        plans = any(Component.SYSTEM2 in one.needs for one in self.classes)
        for share in SHARES if plans or not synchronous else (1.0,):
            streams: dict[Use, list[Stream]] = {}
            for i, (one, hz) in enumerate(zip(self.classes, actions_hz, strict=True)):
                way = self._synchronous if synchronous else self._overlapped
                if hz > 0 and not way(streams, i, one, hz, share):
                    break
            else:
                yield streams

    def _synchronous(
        self, streams: dict[Use, list[Stream]], i: int, one: RobotClass, hz: float, share: float
    ) -> bool:
        """Eq. 4: System 1 has what execution and planning leave of an action's time."""
        left_s = 1 / hz - one.action_s
        if (planner := one.needs.get(Component.SYSTEM2)) is not None:
            plan_s = self._mean_at(planner, Component.SYSTEM2, share)
            limits = self.limits(planner, Component.SYSTEM2, plan_s)
            left_s -= plan_s / one.system2_ratio
            stream = Stream(i, one.count, hz / one.system2_ratio, limits)
            streams.setdefault((planner.model, Component.SYSTEM2), []).append(stream)
        need = one.needs[Component.SYSTEM1]
        limits = self.limits(need, Component.SYSTEM1, left_s)
        stream = Stream(i, one.count, hz, limits)
        streams.setdefault((need.model, Component.SYSTEM1), []).append(stream)
        return max(limits, default=0.0) > 0

    def _overlapped(
        self, streams: dict[Use, list[Stream]], i: int, one: RobotClass, hz: float, share: float
    ) -> bool:
        need = one.needs[Component.SYSTEM1]
        mean_s = self._mean_at(need, Component.SYSTEM1, share)
        rate = requests_hz(hz, one.action_s, mean_s, "overlapped")
        if math.isinf(rate):
            return False
        limits = self.limits(need, Component.SYSTEM1, mean_s)
        stream = Stream(i, one.count, rate, limits)
        streams.setdefault((need.model, Component.SYSTEM1), []).append(stream)
        if (planner := one.needs.get(Component.SYSTEM2)) is not None:
            plans_hz = rate / one.system2_ratio
            limits = self.limits(planner, Component.SYSTEM2, 1 / plans_hz)  # one at a time
            stream = Stream(i, one.count, plans_hz, limits)
            streams.setdefault((planner.model, Component.SYSTEM2), []).append(stream)
        return True

    def _mean_at(self, need: Need, component: Component, share: float) -> float:
        """Mean latency, network included, of a server that is this full; infinite where it cannot
        keep the SLO at all."""
        limits = self.limits(need, component)
        load = share * max(limits, default=0.0)
        if not load:
            return math.inf
        chosen = self.capacities[need.model, component].at(load, limits)
        assert chosen is not None  # one batching has the largest limit
        return chosen.mean_s + self.options.network_s


def _packed(streams: Mapping[Use, list[Stream]]) -> Footprint | None:
    servers = {}
    for use, mine in streams.items():
        packed = pack(mine)
        if packed is None:
            return None
        servers[use] = packed
    return Footprint(servers, streams)


def _least(streams: Mapping[Use, list[Stream]]) -> int:
    """Fewer servers do not carry these streams, however they are mixed."""
    return sum(
        math.ceil(
            sum(one.robots * one.rate_hz / max(max(one.limits_hz), ROUNDING) for one in mine)
            - ROUNDING
        )
        for mine in streams.values()
    )
