"""`kairos study gateway`: orders and dispatches of the gateway against each other, in virtual time.

Every call goes through the same `CallQueue` that `kairos gateway` has. Finished cells are kept in
`cells.jsonl`; then `cells.csv`, `figure.png` and `finding.md` are written from them.
"""

from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.lab.gateway.virtual_server import ServerModel
from kairos_ros.lab.gateway.virtual_site import Asker, Site, System, percentile
from kairos_ros.lab.metrics.cells import Key

DECIDES = ("core/calls", "lab/gateway/virtual_server.py", "lab/gateway/virtual_site.py",
           "lab/gateway/study.py")  # fmt: skip


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StudySize(_Section):
    """How much of it is run."""

    seeds: Annotated[int, Field(ge=1, le=100)]
    seconds: Annotated[float, Field(ge=1, le=3600)]
    robots: list[Annotated[int, Field(ge=1)]] = []


class GatewayStudy(_Section):
    """The content of the study file."""

    kind: Literal["gateway"]
    question: str
    servers: Annotated[int, Field(ge=1, le=64)]
    server: ServerModel
    components: Annotated[dict[str, Asker], Field(min_length=1)]
    robots: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    systems: Annotated[list[System], Field(min_length=2)]
    """The first one is the baseline."""
    default: str
    """Name of the system that `kairos gateway` is without options."""
    warm_up_s: Annotated[float, Field(ge=0)] = 10.0
    sizes: dict[Literal["quick", "full"], StudySize]


def read_gateway_study(path: Path) -> GatewayStudy:
    """Raises FaultyFileError with the place of everything that is wrong, and ConfigError where
    `default` is no system."""
    study = read_model(path, read_document(path), GatewayStudy)
    if study.default not in (names := [one.name for one in study.systems]):
        raise ConfigError(f"{path}: default {study.default!r} is none of {', '.join(names)}")
    return study


def cells(study: GatewayStudy, size: Literal["quick", "full"]) -> list[Key]:
    """All that is run."""
    options = study.sizes[size]
    return [
        {
            "robots": robots, "system": system.model_dump(),
            "askers": {name: one.model_dump() for name, one in study.components.items()},
            "servers": study.servers, "server": study.server.model_dump(),
            "warm_up_s": study.warm_up_s, "seconds": options.seconds, "seed": seed,
        }
        for seed in range(options.seeds)
        for robots in options.robots or study.robots
        for system in study.systems
    ]  # fmt: skip


def run_cell(key: Key) -> dict[str, Any]:
    """One site, served in one way."""
    askers = {name: Asker.model_validate(one) for name, one in key["askers"].items()}
    site = Site(
        askers,
        System.model_validate(key["system"]),
        key["servers"],
        ServerModel.model_validate(key["server"]),
        key["seed"],
    )
    result = site.run(key["robots"], key["warm_up_s"], key["seconds"])
    asked = {name: one for name, one in result.components.items() if one.due}
    attained = {name: one.in_time / one.due for name, one in asked.items()}
    return {
        "attained": sum(one.in_time for one in asked.values())
        / sum(one.due for one in asked.values()),
        "worst_attained": min(attained.values()),
        "workflows_per_min": 60 * len(result.workflows_s) / key["seconds"],
        "workflow_mean_s": fmean(result.workflows_s) if result.workflows_s else None,
        "preemptions": result.preemptions,
        **{f"{name}_attained": value for name, value in attained.items()},
        **{
            f"{name}_p{q}_s": percentile(one.latency_s, q)  # of those that were answered
            for name, one in asked.items()
            for q in (50, 99)
        },
    }
