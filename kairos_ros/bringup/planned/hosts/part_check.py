"""Of a told plan a host starts only what the fleet file of its own has: robots, judges, models."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_ros.bringup.fleet import REPLICA, fleet_plan
from kairos_ros.bringup.fleet_files import runnable
from kairos_ros.bringup.planned.hosts.host_part import JUDGES, ToldPlan, part_of
from kairos_ros.bringup.planned.hosts.link_keys import check_keys
from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.core.errors import ConfigError
from kairos_ros.fleet.deployment import policies_of
from kairos_ros.fleet.places import model_of

if TYPE_CHECKING:
    from kairos_ros.fleet.fleet_file import FleetFile

ROBOTS = "robots"
"""Parameter of a judge that a plan sets."""
STANDBY = "standby_after_s"
"""Parameter of the second serving node, which reaches the engines of all hosts."""


def check_part(told: ToldPlan, host: str, file: Path) -> None:
    """file: that the program of this host was started with. Raises ConfigError for a plan of a file
    in another folder, and where the plan has on this host what the host's own copy of the file has
    otherwise, or not at all: limits and adapters of an arm, and the models that a computer runs,
    are said on that computer. Also where this host lacks a key that its part needs."""
    part = part_of(told.fleet, host)
    if not part:
        return
    path, own = (Path(os.path.abspath(one)) for one in (told.fleet.file, file))
    if path.parent != own.parent:
        raise ConfigError(
            f"host {told.host} runs the plan of {path}, and this host was started with {own}; have "
            "the file in the same folder on both hosts"
        )
    fleet = runnable(path, host)
    served = told.fleet.served
    known = [_said(spec) for spec in _own_specs(fleet, told, host, path.parent)]
    policies = policies_of(fleet, path.parent)
    for key, spec in part.items():
        if spec.kind is ProcessKind.NODE and _said(spec) not in known:
            raise _differ(told, host, path, key)
    needed = {one.policy for one in served.engines if one.host == host and one.endpoint}
    if any(STANDBY in spec.parameters for spec in part.values()):
        needed |= served.policies.keys()
    for name in sorted(needed):
        if served.policies[name] != policies.get(name):
            raise _differ(told, host, path, f"policy {name}")
    gpus = sum(one.gpus for one in fleet.server_cluster.hosts if one.name == host)
    models = sum(
        spec.kind is ProcessKind.WORKER or spec.executable in JUDGES for spec in part.values()
    )
    if models > gpus:
        raise ConfigError(
            f"the plan of host {told.host} has {models} models on host {host}, which has {gpus} "
            f"GPUs by its {path}; give both hosts the same fleet file"
        )
    check_keys(part.values())


def _own_specs(
    fleet: "FleetFile", told: ToldPlan, host: str, folder: Path
) -> Iterator[ProcessSpec]:
    """What a host may run by the file; a judge at several places once for each of them."""
    places: dict[str, list[str]] = {}
    for task in fleet.tasks.values():
        for one in task.components.used.values():
            found = [model_of(place, folder) for place in fleet.places(one.model)]
            places[found[0]] = found
    for spec in fleet_plan(fleet, folder, served=told.fleet.served):
        if spec.executable in JUDGES:
            for place in places[spec.parameters["model"]]:
                yield replace(spec, parameters={**spec.parameters, "model": place})
        elif spec.namespace in fleet.robots:
            if fleet.robots[spec.namespace].host == host:
                yield spec
        elif STANDBY in spec.parameters and fleet.server_cluster.standby_server == host:
            yield spec


def _said(spec: ProcessSpec) -> ProcessSpec:
    """What the file says of a node; the plan says the rest."""
    name, parameters = spec.name, spec.parameters
    if spec.executable in JUDGES:
        name, replica, number = name.partition(REPLICA)
        name += "" if number.isdecimal() or not replica else replica
        parameters = {key: value for key, value in parameters.items() if key != ROBOTS}
    file = spec.params_file.resolve() if spec.params_file else None
    return replace(spec, name=name, parameters=parameters, params_file=file, host="")


def _differ(told: ToldPlan, host: str, path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"the plan of host {told.host} and {path} on host {host} do not agree about {what}; give "
        "both hosts the same fleet file"
    )
