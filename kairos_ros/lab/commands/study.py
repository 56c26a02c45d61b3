"""`kairos study`: ask a question of the simulator, and keep the answer."""

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.extras import require
from kairos_ros.host.share import share

if TYPE_CHECKING:
    from kairos_ros.lab.metrics.study_cells import StudyKind
    from kairos_ros.lab.study.definition import Combination, Study

EPISODES = (
    "horizon",
    "surprise",
    "best_horizon",
    "borne_horizon",
    "consecutive_rounds",
    "live_delays",
)
"""Of studies that look at a policy's episodes instead of simulated fleets: `kind` of the file."""
FACTORY = "factory"
"""Of the study of planned fleets with all their models."""
GATEWAY = "gateway"
"""Of the study of calls of vision-language models."""
RATE = "rate"
"""Of the study of rate control and of horizons that grow with the load."""
POLICY = "models/metaworld_flow"
FILE = "cells.jsonl"


def study_command(
    study: Annotated[
        str,
        typer.Argument(
            help="Name of a shipped study, see --list, or a study file.", metavar="NAME|FILE"
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; runs/studies/NAME without it.")
    ] = None,
    size: Annotated[
        Literal["quick", "full"],
        typer.Option(help="quick: a first look in half a minute; full: every seed."),
    ] = "full",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Of simulated fleets: only so many of the size's seeds."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Policy folder, here or of the installed package, whose episodes and recorded "
            f"traces are studied [default: the study's, else {POLICY}]."
        ),
    ] = "",
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Cells that are simulated at the same time.")
    ] = 1,
    list_: Annotated[
        bool, typer.Option("--list", help="Say what each shipped study answers.")
    ] = False,
    plot_only: Annotated[
        bool,
        typer.Option(
            "--plot-only", help="Run nothing; table, figure and finding of what has run already."
        ),
    ] = False,
) -> None:
    """Run a study: every combination and seed that its file asks for.

    Run the same command again to continue a stopped study: cells that have finished are kept, as
    long as the code that decides them is the same. Writes cells.csv, figure.png and finding.md.
    """
    require("matplotlib", "pandas")
    if list_:
        _list_studies()
        return
    if not study:
        raise ConfigError("name a study, or a file; 'kairos study --list' shows the shipped ones")
    path = study_file(study)
    folder = out or Path("runs/studies") / _name(path.stem, policy)
    if (kind := _kind(path)) in (FACTORY, GATEWAY, RATE):
        _run_fleets(kind, path, folder, size, processes, plot_only)
        return
    if kind:
        _run_episodes(kind, path, folder, policy, size, processes, plot_only)
        return
    from kairos_ros.lab.horizons.cells import policy_folder
    from kairos_ros.lab.study.definition import combinations, of_policy, read_study

    content = read_study(path)
    cells = of_policy(combinations(content, size, str(path)), policy_folder(policy or POLICY))
    cells = [c for c in cells if seeds is None or c.cell.seed < seeds]
    stopped = False if plot_only else _run(folder, cells, processes, path.stem)
    asked = [f"kairos study {path.stem} --size {size}", f"--seeds {seeds}" if seeds else ""]
    asked.append(f"--policy {policy}" if policy else "")
    _write(folder, content, cells, " ".join(filter(None, asked)))
    if stopped:
        typer.echo("stopped; the same command continues", err=True)
        raise typer.Exit(130)


def study_file(name: str) -> Path:
    """The file of a shipped study, or the file itself. Raises ConfigError for neither."""
    shipped = shipped_studies()
    if name in shipped:
        return shipped[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"no study {name!r}; there are {', '.join(shipped)}, or give a .yaml file"
        )
    return path


def shipped_studies() -> dict[str, Path]:
    """Name -> file."""
    return {path.stem: path for path in sorted((share() / "config" / "studies").glob("*.yaml"))}


def _run(folder: Path, cells: "list[Combination]", processes: int, name: str) -> bool:
    """Runs what is missing, with progress on stderr. Returns whether it was stopped by Ctrl-C."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from kairos_ros.lab.metrics.cells import Key, missing_cells, run_cells
    from kairos_ros.lab.study.cell import code_version
    from kairos_ros.lab.study.simulated import run_settings

    every = {c.cell.key: c.cell.model_dump() for c in cells}
    todo = len(missing_cells(folder / FILE, list(every.values()), code_version()))
    kept = len(every) - todo
    console = Console(stderr=True)
    console.print(f"{name}: {todo} cells to run, {kept} kept, in {folder}", highlight=False)
    started = time.monotonic()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(name, total=len(every), completed=kept)

        def finished(left: int, _: Key, __: object) -> None:
            progress.update(bar, completed=len(every) - left)
            if not sys.stderr.isatty() and left % max(1, math.ceil(todo / 20)) == 0:
                minutes = (time.monotonic() - started) / 60
                typer.echo(f"{name}: {len(every) - left}/{len(every)}, {minutes:.1f} min", err=True)

        try:
            run_cells(
                folder / FILE, list(every.values()), run_settings,
                code=code_version(), processes=processes, finished=finished,
            )  # fmt: skip
        except KeyboardInterrupt:
            return True
    if todo:
        typer.echo(f"{name}: {todo} cells in {time.monotonic() - started:.0f} s", err=True)
    return False


def _write(folder: Path, study: "Study", cells: "list[Combination]", command: str) -> None:
    from kairos_ros.lab.metrics.cells import read_cells
    from kairos_ros.lab.study.cell import code_version
    from kairos_ros.lab.study.figure import draw_study
    from kairos_ros.lab.study.finding import finding, headline
    from kairos_ros.lab.study.table import tidy

    results = read_cells(folder / FILE)
    frame = tidy(cells, results)
    if frame.empty:
        typer.echo(f"{folder} holds no result of {command}", err=True)
        return
    frame.to_csv(folder / "cells.csv", index=False)
    seeds = frame["seed"].nunique()
    drawn = f"medians and whole range of {seeds} seeds" if seeds > 1 else "one seed"
    subtitle = f"{command}; {drawn}, {len(frame)} of {len(cells)} cells"
    draw_study(folder / "figure.png", study, frame, headline(study, frame), subtitle)
    text = finding(study, frame)
    notes = []
    if len(frame) < len(cells):
        notes.append(f"{len(cells) - len(frame)} of {len(cells)} cells have not run yet.")
    outdated = sum(
        results[c.cell.key].code != code_version() for c in cells if c.cell.key in results
    )
    if outdated:
        notes.append(f"{outdated} cells were run by other code than this.")
    took_min = sum(results[c.cell.key].took_s for c in cells if c.cell.key in results) / 60
    notes.append(f"`{command}`: {len(frame)} cells, {took_min:.1f} min.")
    (folder / "finding.md").write_text(f"{text}\n{' '.join(notes)}\n")
    typer.echo(text.split("\n\n")[0])
    typer.echo(f"\n{folder}/: cells.csv, figure.png, finding.md")


def _list_studies() -> None:
    import yaml

    for name, path in shipped_studies().items():
        content = yaml.safe_load(path.read_text())
        typer.echo(f"{name:16} {' '.join(str(content.get('question', '')).split())}")


def _name(study: str, policy: str) -> str:
    """Of the folder of results: those of another policy do not overwrite the shipped one's."""
    return study if policy in ("", POLICY) else f"{study}_{Path(policy).name}"


def _kind(path: Path) -> str:
    """One of `EPISODES`, `FACTORY`, `GATEWAY`, `RATE`, or nothing: of simulated fleets. What is
    wrong with the file, its reader says. Raises ConfigError for another kind."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    kind = content.get("kind", "") if isinstance(content, dict) else ""
    known = (FACTORY, GATEWAY, RATE, *EPISODES)
    if kind not in ("", *known):
        raise ConfigError(
            f"{path}: kind: there is no kind {kind!r}, only {', '.join(known)}, or none for a "
            "study of simulated fleets"
        )
    return str(kind)


def _run_episodes(
    kind: str, path: Path, out: Path, policy: str, size: str, processes: int, plot_only: bool
) -> None:
    require("metaworld")
    from kairos_ros.lab.horizons import study, surprise_study
    from kairos_ros.lab.paper import best_horizon, borne_horizon, consecutive_rounds, live_delays

    runs = {
        "horizon": study.run_horizon_study,
        "surprise": surprise_study.run_surprise_study,
        "best_horizon": best_horizon.run,
        "borne_horizon": borne_horizon.run,
        "consecutive_rounds": consecutive_rounds.run,
        "live_delays": live_delays.run,
    }
    try:
        runs[kind](
            path,
            out,
            typer.echo,
            policy=policy,
            size=size,
            processes=processes,
            plot_only=plot_only,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"\n{out}/")


def _run_fleets(
    kind: str,
    path: Path,
    out: Path,
    size: Literal["quick", "full"],
    processes: int,
    plot_only: bool,
) -> None:
    from kairos_ros.lab.factory.report import FACTORY_STUDY
    from kairos_ros.lab.gateway.report import GATEWAY_STUDY
    from kairos_ros.lab.rates.report import RATE_STUDY

    kinds: dict[str, StudyKind[Any]] = {
        FACTORY: FACTORY_STUDY, GATEWAY: GATEWAY_STUDY, RATE: RATE_STUDY,
    }  # fmt: skip
    try:
        kinds[kind].run(path, out, typer.echo, size=size, processes=processes, plot_only=plot_only)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"\n{out}/")
