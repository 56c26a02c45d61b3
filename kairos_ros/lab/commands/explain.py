"""`kairos schedule explain`: why the scheduler decides as it does (docs/algorithms.md)."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.overflow import Capacity, EngineCapacity, overflow
from kairos_ros.core.scheduling.decision import Pending
from kairos_ros.core.scheduling.policies import WaitRatio
from kairos_ros.core.tasks import TaskTable
from kairos_ros.lab.sim.scenario import (
    PlacementCase,
    SchedulingCase,
    Warn,
    case_names,
    read_cases,
)

MS = 1_000_000

Explained = dict[str, dict[str, dict[str, Any]]]


def explain(path: Path, warn: Warn) -> Explained:
    """Decides every scenario of a file with the scheduler that serves the fleet.

    Returns {"scheduling": {name: {"order", "bucket", "wait_ratio", "dispatch", "skipped_after",
    "reason"}}, "placement": {name: {"edge", "cloud", "left"}}}, the wait ratio as an exact
    fraction. Raises ConfigError that names file and field.
    """
    file = read_cases(path, warn)
    scheduling, placement = case_names(file)
    explained: Explained = {
        "scheduling": dict(zip(scheduling, map(_schedule, file.scheduling), strict=True)),
        "placement": {},
    }
    for name, case in zip(placement, file.placement, strict=True):
        try:
            explained["placement"][name] = _place(case)
        except ConfigError as error:
            raise ConfigError(f"{path}: {name}: {error}") from None
    return explained


def _schedule(case: SchedulingCase) -> dict[str, Any]:
    options, ids = case.options, [r.id for r in case.requests]
    policy = WaitRatio(buckets=options.B, aging=options.A, **options.readings)
    origin_ms = min(case.times_ms)

    def ns(time_ms: int) -> int:
        return (time_ms - origin_ms) * MS

    tasks = TaskTable(policy.reading)
    for r in case.requests:
        first, l0 = options.first_e * MS, options.L0 * MS
        row = tasks.open(r.id, ns(r.t_start), first_exec_ns=first, l0_ns=l0)
        tasks.skipped[row] = r.skipped
        for j, one in enumerate(r.rounds):
            if one.G:
                tasks.generation(r.id, j, *map(ns, one.G))
            if one.E:
                tasks.execution(r.id, j, *map(ns, one.E))

    now_ns, pending = ns(case.now_ms), Pending.of(tasks, dict.fromkeys(ids, 0))
    free = min(options.capacity, len(ids))
    edge = EngineCapacity("edge", "edge", free, (0,) * max(free, 1))
    decision = policy.decide(now_ns, pending, tasks, Capacity((edge,)))
    assert decision.bucket is not None
    return {
        "order": [ids[i] for i in decision.order],
        "bucket": dict(zip(ids, decision.bucket.tolist(), strict=True)),
        "wait_ratio": {name: str(tasks.wait_ratio(name, now_ns)) for name in ids},
        "dispatch": [ids[i] for batch in decision.batches for i in batch.indices],
        "skipped_after": dict(zip(ids, decision.skipped_after.tolist(), strict=True)),
        "reason": {name: decision.reason(i) for i, name in enumerate(ids)},
    }


def _place(case: PlacementCase) -> dict[str, Any]:
    n_e = len(case.order) if case.n_e is None else case.n_e
    rest = case.order[n_e:]
    edge, cloud = case.edge_delay_ms, case.cloud_latency_ms
    try:
        taken = overflow(edge, _Listed(cloud, case.n_c), len(rest), queue="all")
    except IndexError:
        raise ConfigError(
            f"edge_delay_ms needs a value for each of {len(rest)} requests beyond "
            f"N_e, cloud_latency_ms one for each of up to {min(case.n_c, len(rest))} sent to the "
            f"cloud; they have {len(edge)} and {len(cloud)}"
        ) from None
    return {
        "edge": case.order[:n_e],
        "cloud": [rest[i] for i in taken],
        "left": [name for i, name in enumerate(rest) if i not in set(taken)],
    }


class _Listed:
    """A cloud whose latencies are written down."""

    def __init__(self, latency_ms: list[float], room: int) -> None:
        self._latency_ms, self._room, self._sent = latency_ms, room, 0

    def offer(self, position: int) -> float | None:
        return self._latency_ms[self._sent] if self._sent < self._room else None

    def take(self, position: int) -> None:
        self._sent += 1


def explain_command(
    file: Annotated[Path, typer.Argument(help="Scenarios as JSON.", metavar="FILE.json")],
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
    ] = "table",
) -> None:
    """Decide written-down scheduling scenarios and say why each request comes where it does."""
    try:
        result = explain(file, lambda text: typer.echo(f"warning: {text}", err=True))
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if format_ == "json":
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_tables(result, Console())


def _print_tables(result: Explained, console: Console) -> None:
    for name, case in result["scheduling"].items():
        table = Table("", "request", "wait ratio", "bucket", "goes", "skips after", "why")
        table.title, table.title_justify = name, "left"
        for rank, request in enumerate(case["order"], 1):
            table.add_row(
                str(rank),
                request,
                case["wait_ratio"][request],
                str(case["bucket"][request]),
                "now" if request in case["dispatch"] else "-",
                str(case["skipped_after"][request]),
                case["reason"][request],
            )
        console.print(table)
    for name, case in result["placement"].items():
        table = Table("edge", "cloud", "left", title=name, title_justify="left")
        table.add_row(*(", ".join(case[where]) for where in ("edge", "cloud", "left")))
        console.print(table)
