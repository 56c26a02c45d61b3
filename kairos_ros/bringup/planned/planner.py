"""Plans a fleet file for this host, with robots that have joined it from elsewhere."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kairos_ros.bringup.fleet import fleet_plan
from kairos_ros.bringup.fleet_files import fleet_path, load_profiles, runnable
from kairos_ros.bringup.planned.change import PLAN, PlannedFleet
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.served_plan import ServedPlan
from kairos_ros.host.extras import require
from kairos_ros.host.gpus import cuda_gpus

if TYPE_CHECKING:
    from kairos_ros.fleet.fleet_file import FleetFile
    from kairos_ros.planning.plan import Plan
    from kairos_ros.planning.planner import Planner
    from kairos_ros.planning.workload import Objective


@dataclass(frozen=True, slots=True)
class PlanChoices:
    """Options with which a fleet file is planned for this host."""

    gpus: int | None = None
    objective: "Objective" = "weighted"
    network_ms: float = 5.0
    profiles: tuple[Path, ...] = ()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    host: str = ""
    """Name of this host, where the file has several."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "profiles": [str(path.absolute()) for path in self.profiles]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "PlanChoices":
        """Of `to_dict`."""
        return cls(**{**data, "profiles": tuple(map(Path, data.get("profiles", ())))})


@dataclass(frozen=True, slots=True)
class FleetDecision:
    """A fleet to change to: a robot has joined, left or is refused, or engines are exchanged."""

    fleet: PlannedFleet
    plan: "Plan | None"
    """None: as it was."""
    text: str
    """For people; empty: it is not worth telling."""


class FleetPlanner:
    """One fleet file, read once: what is written into it later is not planned for."""

    def __init__(self, file: str, how: PlanChoices) -> None:
        """Raises ConfigError for a file that does not run here."""
        require("scipy")
        self.path, self.how = fleet_path(file).absolute(), how
        self._fleet = runnable(self.path, how.host)
        _check_host(self.path, [one.name for one in self._fleet.server_cluster.hosts], how.host)
        self._profiles = load_profiles([self.path], how.profiles)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Of the file."""
        return tuple(self._fleet.tasks)

    def plan(self, running: PlannedFleet | None = None) -> "tuple[PlannedFleet, Plan]":
        """running: what is to stay as far as it can; robots that have joined it are planned for.
        Raises ConfigError for GPUs that are too few."""
        from kairos_ros.fleet.deployment import like_running

        fleet, mine = self._with(running.guests if running else {})
        plan = self._planner(mine).plan(self.how.gpus)
        if running is not None:
            plan = like_running(plan, fleet, running.served)
        return self._deployed(fleet, plan, running, mine), plan

    def join(self, running: PlannedFleet, plan: "Plan", robot: str, task: str) -> FleetDecision:
        """Whether a robot can join a fleet that runs by this plan of this file, and with which plan
        it runs then."""
        from kairos_ros.fleet.deployment import like_running
        from kairos_ros.planning.admission import admit

        then, guests = self._with({**running.guests, robot: task})
        answer = admit(self._planner(running.guests), plan, {task: (robot,)})
        if answer.plan is None:
            return refuse(running, robot, answer.why)
        new = answer.plan
        if answer.how == "other plan":
            new = like_running(new, then, running.served)
        fleet = _still_refused(self._deployed(then, new, running, guests), running)
        text = f"{robot} joins for {task}, {_served_by(fleet.served, robot)}"
        if answer.how == "other plan":
            text += f", by another plan, since {answer.why}"
        return FleetDecision(fleet, new, text)

    def force(self, running: PlannedFleet, plan: "Plan", robot: str, task: str) -> FleetDecision:
        """A robot joins on the emptiest servers of its task, whatever becomes of the SLOs."""
        from kairos_ros.planning.admission import forced

        then, guests = self._with({**running.guests, robot: task})
        new = forced(self._planner(running.guests), plan, task, robot)
        fleet = _still_refused(self._deployed(then, new, running, guests), running)
        served = replace(fleet.served, forced=(*fleet.served.forced, robot))
        text = f"{robot} joins for {task} by force, {_served_by(served, robot)}"
        text += "; SLOs may not be kept"
        return FleetDecision(serving(fleet, served), new, text)

    def without(self, running: PlannedFleet, plan: "Plan", robots: Set[str]) -> FleetDecision:
        """The same servers without guests that have left."""
        from kairos_ros.planning.admission import without

        plan = without(self._planner(running.guests), plan, robots)
        then, left = self._with({r: t for r, t in running.guests.items() if r not in robots})
        text = f"{', '.join(sorted(robots))} left, and others may have the place"
        return FleetDecision(self._deployed(then, plan, running, left), plan, text)

    def _with(self, guests: Mapping[str, str]) -> "tuple[FleetFile, dict[str, str]]":
        """The file with further robots, and which of them it does not have itself. Raises
        ConfigError for a name that no robot can have."""
        from kairos_ros.fleet.fleet_file import RobotGroup, check_robot_name

        mine = {
            robot: task
            for robot, task in guests.items()
            if task in self._fleet.tasks and robot not in self._fleet.robots
        }
        for robot in mine:
            check_robot_name(robot)
        groups = [
            *self._fleet.robot_fleet,
            *(RobotGroup(task=task, names=[robot]) for robot, task in mine.items()),
        ]
        return self._fleet.model_copy(update={"robot_fleet": groups}), mine

    def _planner(self, guests: Mapping[str, str]) -> "Planner":
        from kairos_ros.fleet.workload import WhatIf, fleet_workload
        from kairos_ros.planning.admission import with_robots
        from kairos_ros.planning.planner import Planner
        from kairos_ros.planning.workload import PlanOptions

        files = [(self.path, self._fleet)]
        workload, cluster = fleet_workload(files, self._profiles, WhatIf())
        joined = {task: tuple(r for r, of in guests.items() if of == task) for task in self.tasks}
        workload = with_robots(workload, {task: new for task, new in joined.items() if new})
        options = PlanOptions("overlapped", self.how.objective, self.how.network_ms / 1e3)
        return Planner(workload, cluster, options)

    def _deployed(
        self,
        fleet: "FleetFile",
        plan: "Plan",
        running: PlannedFleet | None,
        guests: Mapping[str, str],
    ) -> PlannedFleet:
        from kairos_ros.fleet.deployment import devices, served_plan

        device = self.how.device
        if running is not None and device == "auto":  # as it runs
            device = "cuda" if any(o.device != "cpu" for o in running.served.engines) else "cpu"
        there = devices(plan, cuda_gpus(), device, self.how.host)
        before = running.served if running else None
        served = served_plan(self.path, fleet, plan, there, before)
        if running is not None:
            forced = tuple(robot for robot in running.served.forced if robot in guests)
            served = replace(served, forced=forced)
        specs = tuple(
            # the same file by another path makes no other robot
            replace(spec, params_file=spec.params_file.resolve()) if spec.params_file else spec
            for spec in fleet_plan(fleet, self.path.parent, served=served, plan=plan)
            if not (spec.executable == "robot_node" and spec.namespace in guests)
        )
        return PlannedFleet(str(self.path), specs, served, self.how.to_dict(), dict(guests))


def _check_host(path: Path, hosts: Sequence[str], host: str) -> None:
    """Raises ConfigError."""
    listed = ", ".join(hosts)
    if hosts and not host:
        raise ConfigError(
            f"{path} is for the hosts {listed}: say which one this is, for example --host "
            f"{hosts[0]}"
        )
    if host and not hosts:
        raise ConfigError(
            f"--host {host}: {path} names no hosts; list them in server_cluster.hosts, or leave "
            "--host out"
        )
    if host and host not in hosts:
        raise ConfigError(f"--host {host}: {path} has no such host; it has {listed}")


def exchanged(running: PlannedFleet, plan: "Plan | None", dead: str, spare: str) -> FleetDecision:
    """The same fleet, in which an engine that stands by takes the place of one that is down for
    good, which stands by in its place if it comes up again. dead, spare: their names."""
    of = {one.name: one for one in running.served.engines}
    gone, new = of[dead], of[spare]
    serves = replace(new, batch=gone.batch, robots=gone.robots, standby=False)
    waits = replace(gone, batch=new.batch, robots=(), standby=True)
    changed = {dead: serves, spare: waits}
    engines = sorted(
        (changed.get(one.name, one) for one in running.served.engines),
        key=lambda one: (one.standby, len(one.gpu), one.gpu),  # as a plan has them
    )
    if plan is not None:
        servers = tuple(
            replace(one, gpu=new.gpu) if one.gpu == gone.gpu else one for one in plan.servers
        )
        plan = replace(plan, servers=servers)
    fleet = serving(running, replace(running.served, engines=tuple(engines)))
    return FleetDecision(
        fleet, plan, f"{spare} takes the place of {dead}, which stands by if it comes up"
    )


def _served_by(served: ServedPlan, robot: str) -> str:
    """Where a guest is served, and what its node has to ask for, for people."""
    (engine,) = (one for one in served.engines if robot in one.robots)
    default = next(iter(served.policies))
    asks = "" if engine.policy == default else f" (start it with policy:={engine.policy})"
    return f"served by {engine.name}{asks}"


def _still_refused(fleet: PlannedFleet, before: PlannedFleet) -> PlannedFleet:
    """One robot more makes no room for those that were refused."""
    routes = fleet.served.routes
    refused = {robot: why for robot, why in before.served.refused.items() if robot not in routes}
    return serving(fleet, replace(fleet.served, refused=refused))


def refuse(running: PlannedFleet, robot: str, why: str) -> FleetDecision:
    """The same fleet, whose serving node tells the robot why it cannot join."""
    served = replace(running.served, refused={**running.served.refused, robot: why})
    return FleetDecision(serving(running, served), None, f"{robot} cannot join: {why}")


def forget(running: PlannedFleet, robots: Set[str]) -> FleetDecision:
    """The same fleet; these robots, which were refused, are free to ask again."""
    refused = {r: why for r, why in running.served.refused.items() if r not in robots}
    return FleetDecision(serving(running, replace(running.served, refused=refused)), None, "")


def serving(running: PlannedFleet, served: ServedPlan) -> PlannedFleet:
    """The same nodes, of which the serving node follows another plan."""
    specs = tuple(
        replace(spec, parameters={**spec.parameters, PLAN: served.text})
        if spec.executable == "serving_node"
        else spec
        for spec in running.specs
    )
    return replace(running, specs=specs, served=served)
