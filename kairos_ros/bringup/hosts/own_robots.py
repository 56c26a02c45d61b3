"""Robots of a told plan are started only as the fleet file of their own host has them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kairos_ros.bringup.fleet import fleet_plan
from kairos_ros.bringup.fleet_files import runnable
from kairos_ros.bringup.hosts.host_part import ToldPlan, part_of
from kairos_ros.bringup.plan import NodeSpec
from kairos_ros.core.errors import ConfigError

ROBOT = "robot_node"
OF_PLAN = ("policy",)
"""Parameters that a plan sets."""


def check_robots(told: ToldPlan, host: str) -> None:
    """Raises ConfigError where the plan has a robot on this host that this host's copy of the fleet
    file does not have, or has with other parameters: limits and adapters of an arm are said on the
    computer that it is connected to."""
    mine = {key: spec for key, spec in part_of(told.fleet, host).items() if _is_robot(spec)}
    if not mine:
        return
    path = Path(told.fleet.file)
    own = {
        spec.namespace: _said(spec)
        for spec in fleet_plan(runnable(path), path.parent)
        if _is_robot(spec)
    }
    for key, spec in mine.items():
        if own.get(spec.namespace) != _said(spec):
            raise ConfigError(
                f"the plan of host {told.host} and {path} on host {host} do not agree about robot "
                f"{key}; give both hosts the same fleet file"
            )


def _is_robot(spec: NodeSpec) -> bool:
    return spec.executable == ROBOT


def _said(spec: NodeSpec) -> tuple[Mapping[str, object], NodeSpec]:
    """Its parameters, and everything else."""
    parameters = {name: v for name, v in spec.parameters.items() if name not in OF_PLAN}
    file = spec.params_file.resolve() if spec.params_file else None
    return parameters, replace(spec, parameters={}, params_file=file, host="")
