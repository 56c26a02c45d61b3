"""A fleet and its GPUs in virtual time: who asks what when, and which actions count.

An action counts as *qualified* (Rosa §4.2) where its System 1 answer came within the SLO, the plan
that it follows did, and the robot's last safety and monitor judgements did and none was left out.
"""

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.lab.factory.allocation import CONTINUOUS, Allocation
from kairos_ros.lab.factory.servers import Answered, BatchServer, SharedServer
from kairos_ros.planning.workload import Execution, RobotClass, Use, Workload

SPREAD = {Component.SYSTEM1: 0.03}
OTHER_SPREAD = 0.15
"""Standard deviation of the logarithm of compute times, as in the assumed profiles."""
HEARTBEAT_S = 0.5
STARTS_S = 1.0
"""Within which robots begin."""
Asks = Callable[[float, Answered], None]
"""Takes a request at a time, and tells when it is answered."""
CATCH_UP = 1.0
"""Periods that a robot which was held up may make good by asking sooner."""


@dataclass(slots=True)
class Measured:
    """Latencies of one component, after warm-up."""

    latency_s: list[float] = field(default_factory=list)
    within: int = 0
    missed: int = 0
    """Judgements that were due while the last one was still under way."""

    def share_within(self) -> float:
        asked = len(self.latency_s) + self.missed
        return self.within / asked if asked else float("nan")


@dataclass(slots=True)
class FleetResult:
    """What the fleet did from warm-up to the end."""

    seconds: float
    actions: float = 0.0
    qualified: float = 0.0
    of: dict[Component, Measured] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """By name, units in the names."""
        found = {
            "actions_hz": self.actions / self.seconds,
            "qualified_hz": self.qualified / self.seconds,
        }
        for component in Component:
            one = self.of.get(component, Measured())
            latency = np.array(one.latency_s or [float("nan")])
            found[f"{component}_within_slo"] = one.share_within()
            found[f"{component}_p50_s"] = float(np.quantile(latency, 0.5))
            found[f"{component}_p99_s"] = float(np.quantile(latency, 0.99))
        return found


def live(
    workload: Workload,
    allocation: Allocation,
    execution: Execution,
    network_s: float,
    seconds: float,
    warm_up_s: float,
    seed: int,
) -> FleetResult:
    """The fleet for warm-up and then so many seconds; equal arguments give equal results."""
    return _Fleet(workload, allocation, execution, network_s, seconds, warm_up_s, seed).run()


class _Fleet:
    def __init__(
        self,
        workload: Workload,
        allocation: Allocation,
        execution: Execution,
        network_s: float,
        seconds: float,
        warm_up_s: float,
        seed: int,
    ) -> None:
        self.network_s, self.warm_up_s, self.end_s = network_s, warm_up_s, warm_up_s + seconds
        self.result = FleetResult(seconds)
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._pushed = 0
        self._asks: dict[tuple[str, Component], Asks] = {}
        self._build(workload, allocation, seed)
        draw = random.Random(f"{seed}/starts")
        for one in workload.classes:
            for robot in one.robots:
                if (robot, Component.SYSTEM1) in self._asks:
                    rate = allocation.requests_hz.get(robot, 0.0)
                    kind = _Synchronous if execution == "synchronous" else _Overlapped
                    kind(self, robot, one, rate).begin(STARTS_S * draw.random(), draw)

    def run(self) -> FleetResult:
        while self._heap and self._heap[0][0] < self.end_s:
            now_s, _, call = heapq.heappop(self._heap)
            call(now_s)
        return self.result

    def at(self, when_s: float, call: Callable[[float], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (when_s, self._pushed, call))

    def ask(
        self, now_s: float, robot: str, component: Component, answered: Callable[[float], None]
    ) -> None:
        """Half of the network there, and half of it back."""
        half_s = self.network_s / 2
        send = self._asks[robot, component]

        def back(at_s: float) -> None:
            self.at(at_s + half_s, answered)

        self.at(now_s + half_s, lambda at_s: send(at_s, back))

    def note(self, now_s: float, component: Component, latency_s: float, slo_s: float) -> bool:
        """A latency, or with infinity a judgement that was left out. Whether it was in time."""
        in_time = latency_s <= slo_s
        if now_s >= self.warm_up_s:
            measured = self.result.of.setdefault(component, Measured())
            if latency_s == float("inf"):
                measured.missed += 1
            else:
                measured.latency_s.append(latency_s)
                measured.within += in_time
        return in_time

    def count(self, now_s: float, actions: float, qualified: bool) -> None:
        if now_s >= self.warm_up_s:
            self.result.actions += actions
            self.result.qualified += actions if qualified else 0.0

    def _build(self, workload: Workload, allocation: Allocation, seed: int) -> None:
        for i, server in enumerate(allocation.servers):
            name = f"{seed}/gpu{i}"
            if len(server.uses) > 1:
                self._time_shared(workload.profiles, server.uses, server.robots, name)
                continue
            (use,) = server.uses
            profile = workload.profiles[use]
            if use[1] is Component.SYSTEM1:
                spread = SPREAD[Component.SYSTEM1]
                gpu = BatchServer(profile, server.batch, spread, self.at, name)
                self._beat(gpu, server.robots)
                for robot in server.robots:
                    self._asks[robot, use[1]] = partial(gpu.ask, robot)
                continue
            most = min(server.batch, CONTINUOUS, profile.loads[-1].batch)
            shared = SharedServer(profile.batch_s, most, OTHER_SPREAD, self.at, name)
            for robot in server.robots:
                self._asks[robot, use[1]] = shared.ask

    def _beat(self, gpu: BatchServer, robots: tuple[str, ...]) -> None:
        def beat(now_s: float) -> None:
            gpu.heartbeat(now_s, robots)
            self.at(now_s + HEARTBEAT_S, beat)

        beat(0.0)

    def _time_shared(
        self,
        profiles: Mapping[Use, LoadProfile],
        uses: tuple[Use, ...],
        robots: tuple[str, ...],
        name: str,
    ) -> None:
        """Models on one GPU take turns, as processes without further arrangement do: n busy ones
        run at 1/n of their speed. Assumed; Rosa says only that it serves no P4."""
        gpu = SharedServer(lambda n: float(n), CONTINUOUS, OTHER_SPREAD, self.at, name)
        for use in uses:
            for robot in robots:
                self._asks[robot, use[1]] = partial(gpu.ask, work=profiles[use].batch_s(1))


class _Robot(ABC):
    """What both kinds share: judgements at their own rates, plans, pacing."""

    def __init__(self, fleet: _Fleet, name: str, one: RobotClass, requests_hz: float) -> None:
        self.fleet, self.name, self.one = fleet, name, one
        self.period_s = 1 / requests_hz if requests_hz else 0.0
        self.due_s = 0.0
        self.rounds = 0
        self.in_time = dict.fromkeys(one.needs, True)

    def begin(self, at_s: float, draw: random.Random) -> None:
        self.due_s = at_s
        self.fleet.at(at_s, self.next_round)
        for component in PERIODIC & self.one.needs.keys():
            period_s = 1 / self.one.needs[component].hz
            self._judge(at_s + period_s * draw.random(), component, period_s)

    @abstractmethod
    def next_round(self, now_s: float) -> None:
        """Asks for what the robot needs next."""

    def ask(
        self, now_s: float, component: Component, answered: Callable[[float, float], None]
    ) -> None:
        """answered: told when, and after how long."""
        slo_s = self.one.needs[component].slo_s

        def noted(at_s: float) -> None:
            self.in_time[component] = self.fleet.note(at_s, component, at_s - now_s, slo_s)
            answered(at_s, at_s - now_s)

        self.fleet.ask(now_s, self.name, component, noted)

    def paced(self, ready_s: float) -> float:
        """When the next request may leave, and that it does."""
        self.due_s = max(self.due_s, ready_s - CATCH_UP * self.period_s)
        begins_s = max(ready_s, self.due_s)
        self.due_s += self.period_s
        return begins_s

    def qualified(self) -> bool:
        return all(self.in_time.values())

    def _judge(self, first_s: float, component: Component, period_s: float) -> None:
        busy = False

        def due(now_s: float) -> None:
            nonlocal busy
            self.fleet.at(now_s + period_s, due)
            if busy:
                slo_s = self.one.needs[component].slo_s
                self.in_time[component] = self.fleet.note(now_s, component, float("inf"), slo_s)
                return
            busy = True
            self.ask(now_s, component, done)

        def done(now_s: float, latency_s: float) -> None:
            nonlocal busy
            busy = False

        self.fleet.at(first_s, due)


class _Synchronous(_Robot):
    """Plan, if it is time for one; action chunk; execution; and again (Rosa, Figure 4)."""

    def next_round(self, now_s: float) -> None:
        begins_s = self.paced(now_s)
        planned = Component.SYSTEM2 in self.one.needs
        plan = planned and self.rounds % self.one.system2_ratio == 0
        self.rounds += 1
        self.fleet.at(begins_s, self._plan if plan else self._act)

    def _plan(self, now_s: float) -> None:
        self.ask(now_s, Component.SYSTEM2, lambda at_s, _: self._act(at_s))

    def _act(self, now_s: float) -> None:
        self.ask(now_s, Component.SYSTEM1, self._execute)

    def _execute(self, now_s: float, latency_s: float) -> None:
        self.fleet.count(now_s, 1.0, self.qualified())
        self.fleet.at(now_s + self.one.action_s, self.next_round)


class _Overlapped(_Robot):
    """Asks as late as still overlaps fully, but no more often than it may; plans come beside."""

    def __init__(self, fleet: _Fleet, name: str, one: RobotClass, requests_hz: float) -> None:
        super().__init__(fleet, name, one, requests_hz)
        self._moves_until_s = 0.0
        self._latency = LatencyEstimate(50_000_000, 0)
        self._planning = False

    def next_round(self, now_s: float) -> None:
        self.fleet.at(self.paced(now_s), self._observe)

    def _observe(self, now_s: float) -> None:
        if Component.SYSTEM2 in self.one.needs and self.rounds % self.one.system2_ratio == 0:
            self._plan(now_s)
        self.rounds += 1
        left_s = max(0.0, self._moves_until_s - now_s)

        def answered(at_s: float, latency_s: float) -> None:
            self._latency.measured(round(latency_s * 1e9), 0, 0)
            new_s = max(0.0, self.one.action_s - left_s)
            self._moves_until_s = max(at_s, self._moves_until_s) + new_s
            self.fleet.count(at_s, new_s / self.one.action_s, self.qualified())
            lead_s = min(self._latency.expected_ns / 1e9, self.one.action_s / 2)
            self.next_round(max(at_s, self._moves_until_s - lead_s))

        self.ask(now_s, Component.SYSTEM1, answered)

    def _plan(self, now_s: float) -> None:
        if self._planning:
            return
        self._planning = True

        def planned(at_s: float, latency_s: float) -> None:
            self._planning = False

        self.ask(now_s, Component.SYSTEM2, planned)
