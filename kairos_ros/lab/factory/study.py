"""`kairos study factory`: SLO-qualified actions per second of planned fleets and of baselines.

Finished cells are kept in `cells.jsonl`; then `cells.csv` (a row per cell and seed), `figure.png`
and `finding.md` are written from them.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.document.faults import read_document, read_model
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.load_profiles import read_profiles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.fleet.workload import WhatIf, fleet_workload
from kairos_ros.host.share import share
from kairos_ros.lab.factory.allocation import SYSTEMS, System, allocate
from kairos_ros.lab.factory.virtual_fleet import live
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.metrics.study_cells import Row
from kairos_ros.planning.workload import Cluster, Execution, PlanOptions, Workload

DECIDES = (
    "core", "planning", "serving", "transport/messages.py",
    "fleet/workload.py",
    "lab/factory/allocation.py",
    "lab/factory/servers.py",
    "lab/factory/virtual_fleet.py",
)  # fmt: skip
SHARED: tuple[System, ...] = ("equal", "weighted")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Goals(_Section):
    shared: float
    dedicated: float
    within_slo: float


class StudySize(_Section):
    """How much of it is run."""

    seeds: Annotated[int, Field(ge=1, le=100)]
    seconds: Annotated[float, Field(ge=1, le=3600)]
    executions: Annotated[list[Execution], Field(min_length=1)]
    robots: list[int] = []
    fleets: list[str] = []


class FactoryStudy(_Section):
    """The content of the study file."""

    kind: Literal["factory"]
    question: str
    fleets: Annotated[list[str], Field(min_length=1)]
    robots: Annotated[list[Annotated[int, Field(ge=1, le=10_000)]], Field(min_length=1)]
    systems: Annotated[list[System], Field(min_length=1)]
    ablations: list[System] = []
    ablated: list[str] = []
    network_ms: Annotated[float, Field(ge=0)] = 5.0
    warm_up_s: Annotated[float, Field(ge=0)] = 5.0
    goals: Goals
    sizes: dict[Literal["quick", "full"], StudySize]


def read_factory_study(path: Path) -> FactoryStudy:
    """Raises FaultyFileError with the place of everything that is wrong."""
    return read_model(path, read_document(path), FactoryStudy)


def cells(study: FactoryStudy, size: Literal["quick", "full"]) -> list[Key]:
    """All that is run."""
    options = study.sizes[size]
    fleets = options.fleets or study.fleets
    return [
        {
            "fleet": fleet, "robots": robots, "system": system, "execution": execution,
            "network_ms": study.network_ms, "warm_up_s": study.warm_up_s,
            "seconds": options.seconds, "seed": seed,
        }
        for seed in range(options.seeds)
        for execution in options.executions
        for fleet in fleets
        for robots in options.robots or study.robots
        for system in [*study.systems, *(study.ablations if fleet in study.ablated else [])]
    ]  # fmt: skip


def run_cell(key: Key) -> dict[str, Any]:
    """One fleet under one system."""
    workload, cluster = _workload(key["fleet"], key["robots"])
    options = PlanOptions(execution=key["execution"], network_s=key["network_ms"] / 1e3)
    allocation = allocate(key["system"], workload, cluster, options)
    assumed = any(profile.assumed for profile in workload.profiles.values())
    if allocation is None:
        return {"feasible": False, "split": "", "assumed": assumed, "qualified_hz": 0.0}
    result = live(
        workload, allocation, key["execution"], options.network_s, key["seconds"],
        key["warm_up_s"], key["seed"],
    )  # fmt: skip
    return {
        "feasible": True, "split": allocation.split, "assumed": assumed, **result.metrics()
    }  # fmt: skip


@cache
def _workload(fleet: str, robots: int) -> tuple[Workload, Cluster]:
    config = share() / "config"
    path = config / "fleets" / f"paper_{fleet}.yaml"
    return fleet_workload(
        [(path, read_fleet(path, Known(adapters={"sim"})))],
        read_profiles([config / "profiles"]),
        WhatIf(robots=robots),
    )


def over_seeds(rows: Sequence[Row], metric: str, **where: Any) -> float:
    """Median of a metric; NaN where nothing was run."""
    found = [
        row.metrics[metric]
        for row in rows
        if metric in row.metrics and all(row.key[name] == value for name, value in where.items())
    ]
    return median(found) if found else float("nan")


def label(system: System) -> str:
    return SYSTEMS[system]
