"""`kairos fleet plan`: which model on which GPU, and how often each robot may ask."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.bringup.fleet_files import fleet_path, load_profiles, read
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.errors import ConfigError
from kairos_ros.host.extras import require
from kairos_ros.planning.workload import Execution, Objective

if TYPE_CHECKING:
    from kairos_ros.planning.plan import Plan
    from kairos_ros.planning.planner import Planner
    from kairos_ros.planning.workload import Cluster, Workload

LARGEST_SWEEP = 512
FilesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Fleet files, or names of shipped ones; several share one cluster.",
        metavar="FILE...",
    ),
]
GpusOption = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="In the place of num_servers.")
]
ExecutionOption = Annotated[
    Execution,
    typer.Option(
        help="overlapped: robots ask while they execute, as ours do. synchronous: they wait, "
        "as in the paper."
    ),
]
NetworkOption = Annotated[
    float, typer.Option(min=0, max=10_000, help="Round trip between robots and servers.")
]
WhatIfOption = Annotated[
    list[str] | None, typer.Option("--what-if", help="robots=64 or robots.TASK=8.")
]
ProfilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="Folder of load profiles, before `profiles` beside the file and the shipped ones."
    ),
]


def plan_command(
    files: FilesArgument,
    gpus: GpusOption = None,
    objective: Annotated[
        Objective,
        typer.Option(
            help="weighted: most actions, by the value of their task. fair: every task the same "
            "share of its most. fewest: GPUs for min_actions_per_s of every task."
        ),
    ] = "weighted",
    execution: ExecutionOption = "overlapped",
    network_ms: NetworkOption = 5.0,
    what_if: WhatIfOption = None,
    profiles: ProfilesOption = None,
    json_: Annotated[
        Path | None,
        typer.Option("--json", help="Write the plan, or the sweep, here; - for stdout."),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw it into this PNG.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it into this SVG.")] = None,
    running: Annotated[
        bool,
        typer.Option(
            "--running",
            help="For the planned fleet that runs on this host: what `kairos fleet apply` would "
            "start, stop and move.",
        ),
    ] = False,
    namespace: NamespaceOption = "",
    sweep: Annotated[
        str, typer.Option(help="Numbers of GPUs instead of one plan: 1:16 or 4:64:4.")
    ] = "",
    least: Annotated[
        float,
        typer.Option("--at-least", help="Of a sweep: share of its most that every robot gets."),
    ] = 0.8,
) -> None:
    """Plan models, batches, routing and rates for a fleet's GPUs, by load profiles.

    Nothing is started. Exit code 2 if the GPUs are too few, or a profile is missing.
    """
    from kairos_ros.planning.planner import Planner
    from kairos_ros.planning.workload import PlanOptions

    require("scipy", *(["matplotlib"] if png or svg else []))
    if running:
        if len(files) > 1 or what_if or sweep or execution != "overlapped":
            raise ConfigError("--running compares one file, as it is, with the running fleet")
        from kairos_ros.bringup.planned.planner import PlanChoices
        from kairos_ros.commands.fleets.planned import running_difference

        how = PlanChoices(gpus, objective, network_ms, tuple(profiles or ()))
        plan, lines = running_difference(files[0], how, namespace)
        _show(plan, json_, png, svg)
        for text in lines:
            typer.echo(text, err=json_ == Path("-"))
        return
    workload, cluster = read_workload(files, profiles or [], what_if or [])
    options = PlanOptions(execution, objective, network_ms / 1e3)
    if objective == "fewest" and not any(one.floor_hz for one in workload.classes):
        raise ConfigError(
            "objective fewest needs min_actions_per_s of at least one task in the fleet file"
        )
    planner = Planner(workload, cluster, options)
    if sweep:
        _sweep(planner, sweep, least, json_, [p for p in (png, svg) if p])
        return
    from rich.console import Console

    with Console(stderr=True).status("planning"):
        plan = planner.plan(gpus)
    _show(plan, json_, png, svg)


def _show(plan: "Plan", json_: Path | None, png: Path | None, svg: Path | None) -> None:
    from rich.console import Console

    from kairos_ros.fleet.plan_tree import plan_tree

    told = Console(stderr=json_ == Path("-"))
    told.print(plan_tree(plan), highlight=False)
    if json_ is not None:
        write_json(json_, plan.to_dict())
    for picture in filter(None, (png, svg)):
        from kairos_ros.fleet.plan_figure import draw_plan

        draw_plan(plan, picture)
        told.print(f"wrote {picture}", highlight=False)


def read_workload(
    files: list[str], profiles: list[Path], changed: list[str]
) -> "tuple[Workload, Cluster]":
    """Of fleet files, with `--what-if` texts. profiles: folders before those beside the files and
    the shipped ones. Raises ConfigError."""
    from kairos_ros.fleet.workload import fleet_workload, what_if

    paths = list(dict.fromkeys(fleet_path(file) for file in files))
    fleets = [(path, read(path)) for path in paths]
    return fleet_workload(fleets, load_profiles(paths, profiles), what_if(changed))


def _sweep(
    planner: "Planner", text: str, least: float, json_: Path | None, pictures: list[Path]
) -> None:
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from kairos_ros.fleet.plan_figure import SweepRow, draw_sweep
    from kairos_ros.planning.sweep import most_robots

    rows = []
    workload, memory = planner.workload, planner.cluster.memory_mib
    told = Console(stderr=True)
    best = None
    for gpus in track(_numbers(text), "planning", console=told, transient=True):
        value = planner.value_hz(gpus)
        best = value if best is None else max(best, value or 0.0)
        robots = most_robots(workload, memory, planner.options, gpus, least)
        rows.append(SweepRow(gpus, best, robots))
    names = [f"{model} as {c}" for (model, c), one in workload.profiles.items() if one.assumed]
    assumed = f"assumed, not measured: {', '.join(names)}" if names else "all profiles measured"
    table = Table(
        title=f"robots that get {100 * least:.0f} % of their most, in the same mixture",
        caption=assumed,
    )
    for column in ("GPUs", "robots", "robots per GPU", "this fleet: actions/s, by value"):
        table.add_column(column, justify="right")
    for row in rows:
        actions = "too few" if row.actions_hz is None else f"{row.actions_hz:.4g}"
        table.add_row(str(row.gpus), str(row.robots), f"{row.robots_per_gpu:.2f}", actions)
    Console(stderr=json_ == Path("-")).print(table)
    if json_ is not None:
        data = [
            {"gpus": r.gpus, "robots": r.robots, "robots_per_gpu": r.robots_per_gpu,
             "value_hz": r.actions_hz, "assumed_profiles": names}
            for r in rows
        ]  # fmt: skip
        write_json(json_, data)
    for picture in pictures:
        top = max(rows, key=lambda row: row.robots_per_gpu)
        title = (
            f"{top.robots_per_gpu:.3g} robots per {planner.cluster.device} at {top.gpus} GPUs, "
            f"{planner.options.execution} execution"
        )
        draw_sweep(rows, least, title, assumed, picture)
        told.print(f"wrote {picture}", highlight=False)


def _numbers(text: str) -> list[int]:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"sweep {text!r}: write FIRST:LAST or FIRST:LAST:STEP, such as 1:16")
    first, last, step = (int(part) for part in [*parts, "1"][:3])
    numbers = list(range(first, last + 1, step)) if step else []
    if not numbers or first < 1 or len(numbers) > LARGEST_SWEEP:
        raise ConfigError(f"sweep {text!r}: 1 to {LARGEST_SWEEP} numbers of GPUs, from 1 on")
    return numbers


def write_json(path: Path, data: object) -> None:
    text = json.dumps(data, indent=2) + "\n"
    if path == Path("-"):
        typer.echo(text, nl=False)
    else:
        path.write_text(text)
