"""Whether robots can be added to a planned fleet: as it is placed now, by another plan, or not."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component
from kairos_ros.planning.closed_loop import longest_system1_s
from kairos_ros.planning.plan import ClassPlan, Plan, ServerPlan
from kairos_ros.planning.planner import ClusterTooSmallError, Planner
from kairos_ros.planning.workload import RobotClass, Workload


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The answer to robots that want to join."""

    how: Literal["as placed", "other plan", "no"]
    why: str
    """Of the other two: what stands in the way of the answer before it."""
    plan: Plan | None
    """With the new robots; None for `no`."""


def admit(planner: Planner, now: Plan, joining: Mapping[str, tuple[str, ...]]) -> AdmissionResult:
    """Whether more robots can join, and every SLO of everybody still holds.

    planner: of the fleet as it is. now: its plan. joining: class -> names of the new robots.

    `as placed`: all servers stay as they are, all robots keep their rates, and the new ones have
    those of their class. `other plan`: the fleet has to be planned again, by which rates change.

    Raises ConfigError for an unknown class.
    """
    grown = with_robots(planner.workload, joining)
    placed: Plan | str = now
    for task, new in joining.items():
        if isinstance(placed, Plan):
            placed = _placed(planner, placed, task, new)
    if isinstance(placed, Plan):
        return AdmissionResult("as placed", "", placed)
    try:
        other = Planner(grown, planner.cluster, planner.options).plan(now.gpus, explain=False)
    except ClusterTooSmallError as error:
        return AdmissionResult("no", str(error), None)
    return AdmissionResult("other plan", placed, other)


def forced(planner: Planner, now: Plan, task: str, robot: str) -> Plan:
    """The same servers with one robot more on the emptiest of each of its components, whatever
    becomes of the SLOs; their batches, latencies and limits stay as they were planned."""
    which = _index(planner.workload, task)
    one, told = planner.workload.classes[which], now.classes[which]
    servers = {server.gpu: server for server in now.servers}
    for component, need in one.needs.items():
        mine = [s for s in servers.values() if (s.model, s.component) == (need.model, component)]
        server = min(mine, key=lambda server: server.load)
        robots = {**server.robots, task: (*server.robots.get(task, ()), robot)}
        rate_hz = server.rate_hz + _rates(told).get(component, need.hz)
        servers[server.gpu] = replace(server, robots=robots, rate_hz=rate_hz)
    classes = list(now.classes)
    classes[which] = replace(told, robots=told.robots + 1)
    value_hz = now.value_hz + one.value * told.actions_hz
    return replace(now, classes=tuple(classes), servers=tuple(servers.values()), value_hz=value_hz)


def without(planner: Planner, now: Plan, robots: Set[str]) -> Plan:
    """The same servers, without robots that have left; all others keep their rates.

    planner: of the fleet with them. now: its plan."""
    servers = []
    for server in now.servers:
        rate_hz, left = server.rate_hz, {}
        for name, members in server.robots.items():
            which = _index(planner.workload, name)
            need = planner.workload.classes[which].needs[server.component]
            hz = _rates(now.classes[which]).get(server.component, need.hz)
            left[name] = tuple(robot for robot in members if robot not in robots)
            rate_hz -= hz * (len(members) - len(left[name]))
        servers.append(replace(server, robots=left, rate_hz=max(0.0, rate_hz)))
    classes, value_hz = [], now.value_hz
    for one, told in zip(planner.workload.classes, now.classes, strict=True):
        gone = len(set(one.robots) & robots)
        classes.append(replace(told, robots=told.robots - gone))
        value_hz -= gone * one.value * told.actions_hz
    return replace(now, classes=tuple(classes), servers=tuple(servers), value_hz=value_hz)


def unused_names(workload: Workload, task: str, robots: int) -> tuple[str, ...]:
    """Names for so many more robots of a class. Raises ConfigError for an unknown class."""
    _index(workload, task)
    taken = {robot for one in workload.classes for robot in one.robots}
    names = (f"{task}_{i}" for i in range(1, len(taken) + robots + 1))
    return tuple([name for name in names if name not in taken][:robots])


def with_robots(workload: Workload, joining: Mapping[str, tuple[str, ...]]) -> Workload:
    """The same with more robots, each with the floor of its class's others. joining: class -> their
    names. Raises ConfigError for an unknown class."""
    classes = list(workload.classes)
    for task, new in joining.items():
        which = _index(workload, task)
        one = classes[which]
        floor_hz = one.floor_per_robot_hz * (one.count + len(new))
        classes[which] = replace(one, robots=(*one.robots, *new), floor_hz=floor_hz)
    return replace(workload, classes=tuple(classes))


def _index(workload: Workload, task: str) -> int:
    names = [one.name for one in workload.classes]
    if task not in names:
        raise ConfigError(f"there is no task {task!r}; tasks are {', '.join(names)}")
    return names.index(task)


def _placed(planner: Planner, now: Plan, task: str, new: tuple[str, ...]) -> Plan | str:
    """The same servers with each new robot on the emptiest of each of its components, or why one
    finds no room."""
    which = _index(planner.workload, task)
    one, told = planner.workload.classes[which], now.classes[which]
    servers = {server.gpu: server for server in now.servers}
    for component, need in one.needs.items():
        rate_hz = _rates(told).get(component, need.hz)
        for robot in new:
            mine = sorted(
                (s for s in servers.values() if (s.model, s.component) == (need.model, component)),
                key=lambda server: server.load,
            )
            tried = (_with(planner, now, server, one.name, robot, rate_hz) for server in mine)
            fuller = next(filter(None, tried), None)
            if fuller is None:
                return _why_full(component, mine[0], rate_hz)
            servers[fuller.gpu] = fuller
    classes = list(now.classes)
    classes[which] = replace(told, robots=told.robots + len(new))
    value_hz = now.value_hz + len(new) * one.value * told.actions_hz
    placed = tuple(servers.values())
    return replace(now, classes=tuple(classes), servers=placed, value_hz=value_hz)


def _rates(told: ClassPlan) -> dict[Component, float]:
    """Of each robot; safety and monitor have rates of their own."""
    return {Component.SYSTEM1: told.requests_hz, Component.SYSTEM2: told.plans_hz}


def _with(
    planner: Planner, now: Plan, server: ServerPlan, name: str, robot: str, rate_hz: float
) -> ServerPlan | None:
    """A server with one robot more; None where a class on it would not keep its SLO and its action
    rate."""
    component, sizing = server.component, planner.sizing
    robots = {**server.robots, name: (*server.robots.get(name, ()), robot)}
    limits = [
        sizing.limits(one.needs[component], component, _mean_s(now, one, told, component))
        for one, told in zip(planner.workload.classes, now.classes, strict=True)
        if one.name in robots
    ]
    asked_hz = server.rate_hz + rate_hz
    most = [min(of_batch) for of_batch in zip(*limits, strict=True)]
    chosen = sizing.capacities[server.model, component].at(asked_hz, most)
    if chosen is None:
        return None
    network_s = planner.options.network_s
    return replace(
        server,
        robots=robots,
        rate_hz=asked_hz,
        batch=chosen.batch,
        limit_hz=chosen.limit_hz,
        mean_s=chosen.mean_s + network_s,
        p99_s=chosen.slo_quantile_s + network_s,
        slo_s=min(
            one.needs[component].slo_s for one in planner.workload.classes if one.name in robots
        ),
        memory_mib=chosen.memory_mib,
    )


def _mean_s(now: Plan, one: RobotClass, told: ClassPlan, component: Component) -> float:
    """The mean latency, network included, with which a class still does its actions at its rate of
    requests (`closed_loop`)."""
    if component not in _rates(told):
        return inf
    t, f = one.action_s, told.actions_hz
    if now.execution == "overlapped":
        if component is Component.SYSTEM2:
            return 1 / told.plans_hz
        return longest_system1_s(f, told.requests_hz, t)
    slowest = {
        of: max((s.mean_s for s in now.servers_of(of) if one.name in s.robots), default=0.0)
        for of in _rates(told)
    }
    plan_s = slowest[Component.SYSTEM2] / one.system2_ratio
    spare_s = max(0.0, 1 / f - t - slowest[Component.SYSTEM1] - plan_s)
    if component is Component.SYSTEM2:
        return slowest[component] + one.system2_ratio * spare_s / 2
    return slowest[component] + spare_s / 2


def _why_full(component: Component, emptiest: ServerPlan, rate_hz: float) -> str:
    others = " and ".join(f"{len(names)} of {name}" for name, names in emptiest.robots.items())
    return (
        f"no server of {component} ({emptiest.model}) has room for {rate_hz:.3g} requests/s more: "
        f"the emptiest, {emptiest.gpu}, is at {100 * emptiest.load:.0f} % with {others}"
    )
