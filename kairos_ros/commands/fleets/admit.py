"""`kairos fleet admit`: can robots join a fleet whose GPUs are planned?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.commands.fleets.plan import (
    ExecutionOption,
    FilesArgument,
    GpusOption,
    NetworkOption,
    ProfilesOption,
    WhatIfOption,
    read_workload,
    write_json,
)
from kairos_ros.host.extras import require

if TYPE_CHECKING:
    from kairos_ros.planning.admission import AdmissionResult
    from kairos_ros.planning.plan import Plan


def admit_command(
    files: FilesArgument,
    task: Annotated[str, typer.Option(help="Task of the robots that want to join.")],
    robots: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 1,
    gpus: GpusOption = None,
    execution: ExecutionOption = "overlapped",
    network_ms: NetworkOption = 5.0,
    what_if: WhatIfOption = None,
    profiles: ProfilesOption = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Write the answer here; - for stdout.")
    ] = None,
) -> None:
    """Say whether more robots can join a planned fleet with every SLO kept, by load profiles.

    Nothing is started or changed. Exit code 0: they can, on the servers as they are placed or after
    another plan, and the answer says which. 1: they cannot, and it says why.
    """
    require("scipy")
    from rich.console import Console

    from kairos_ros.planning.admission import admit, unused_names
    from kairos_ros.planning.planner import Planner
    from kairos_ros.planning.workload import PlanOptions

    workload, cluster = read_workload(files, profiles or [], what_if or [])
    planner = Planner(workload, cluster, PlanOptions(execution, "weighted", network_ms / 1e3))
    with Console(stderr=True).status("planning"):
        before = planner.plan(gpus, explain=False)
        answer = admit(planner, before, {task: unused_names(workload, task, robots)})
    told = Console(stderr=json_ == Path("-"), highlight=False)
    told.print(_text(answer, before, task, robots), soft_wrap=True, markup=False)
    if json_ is not None:
        plan = answer.plan.to_dict() if answer.plan else None
        write_json(json_, {"task": task, "robots": robots, "how": answer.how, "why": answer.why,
                           "plan": plan})  # fmt: skip
    raise typer.Exit(1 if answer.how == "no" else 0)


def _text(answer: "AdmissionResult", before: "Plan", task: str, robots: int) -> str:
    new = f"{robots} robot{'s' * (robots > 1)} of {task}"
    if answer.plan is None:
        return f"no: {new} cannot join. {answer.why}"
    assumed = answer.plan.assumed
    note = f"\nassumed, not measured: {', '.join(assumed)}" if assumed else ""
    if answer.how == "as placed":
        (one,) = (c for c in answer.plan.classes if c.name == task)
        return (
            f"yes: {new} can join on the servers as they are placed, with {one.actions_hz:.3g} "
            f"actions/s each; all others keep their rates{note}"
        )
    rates = "; ".join(
        f"{then.name} {now.actions_hz:.3g} -> {then.actions_hz:.3g} actions/s each"
        for now, then in zip(before.classes, answer.plan.classes, strict=True)
    )
    return (
        f"yes, by another plan: {answer.why}. With all SLOs kept, {new} can join if rates change: "
        f"{rates}. `kairos fleet plan` with these robots has the placement{note}"
    )
