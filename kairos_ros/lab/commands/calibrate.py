"""`kairos calibrate`: the options, and nothing that costs an import."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

if TYPE_CHECKING:
    from kairos_ros.core.horizons.calibration import HorizonCalibration


def calibrate_command(
    policy: Annotated[Path, typer.Argument(help="Policy folder.")] = Path("models/metaworld_flow"),
    tasks: Annotated[
        str, typer.Option(help="Comma-separated Meta-World tasks; empty means all known ones.")
    ] = "",
    episodes: Annotated[
        int,
        typer.Option(min=8, help="Per task, of each horizon and plan that the search tries."),
    ] = 128,
    worst_loss: Annotated[
        float,
        typer.Option(
            min=0.1, max=50.0, help="Points of success that no task may lose to static:tuned."
        ),
    ] = 2.0,
    slack: Annotated[
        float,
        typer.Option(
            min=0.0, help="Points of success that a plan may cost by the estimate of its test."
        ),
    ] = 0.0,
    error: Annotated[
        float,
        typer.Option(
            min=1e-6, max=0.5, help="Probability that any task loses --worst-loss after all."
        ),
    ] = 0.05,
    most_episodes: Annotated[
        int, typer.Option(min=32, help="Paired episodes of one test, which ends when it is sure.")
    ] = 3000,
    ladder: Annotated[
        str, typer.Option(help="Horizons to choose from, actions.")
    ] = "5,10,15,20,30,40,50",
    disturbance: Annotated[
        float, typer.Option(min=0.0, help="Noise on executed hand motions, action units.")
    ] = 0.0,
    lead: Annotated[
        int,
        typer.Option(
            min=0,
            help="Actions that robots execute between an observation and the first action of its "
            "chunk: latency and margin times control rate.",
        ),
    ] = 2,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON file; without it horizon_calibration.json in the policy folder."),
    ] = None,
    static_only: Annotated[
        bool,
        typer.Option(
            "--static-only",
            help="Keep the plans that the file has and tune static horizons only; with --out, the "
            "file to extend.",
        ),
    ] = False,
    work: Annotated[Path, typer.Option(help="Finished tasks are kept here.")] = Path(
        "runs/calibrate"
    ),
    processes: Annotated[int, typer.Option(min=1, max=256, help="Parallel processes.")] = 1,
) -> None:
    """Find the horizons that suit a policy: per task the largest static horizon at the highest
    accuracy, for HORIZON=static:tuned, and a plan that loses less than --worst-loss to it, for
    HORIZON=calibrated.

    Simulates one to ten thousand episodes per task, some minutes each. Run the same command again
    to continue a stopped one.
    """
    from kairos_ros.lab.horizons.calibrate import calibrate
    from kairos_ros.lab.horizons.search import SearchOptions
    from kairos_ros.serving.calibration_file import NAME, read_calibration, write_calibration

    options = SearchOptions(
        _ladder(ladder),
        episodes,
        worst_loss=worst_loss / 100,
        slack=slack / 100,
        error=error,
        most_episodes=most_episodes,
    )
    scenes = tuple(part.strip() for part in tasks.split(",") if part.strip()) or tuple(SCENES)
    out = out or policy / NAME
    if static_only and not out.is_file():
        raise ConfigError(
            f"--static-only keeps the plans of a calibration, but there is no {out}; leave it out, "
            "or name the calibration with --out"
        )
    try:
        calibration = calibrate(
            policy,
            scenes=scenes,
            options=options,
            disturbance=disturbance,
            lead=lead,
            keep=read_calibration(out) if static_only else None,
            work=work,
            processes=processes,
            report=typer.echo,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues", err=True)
        raise typer.Exit(130) from None
    write_calibration(out, calibration)
    _print(calibration)
    typer.echo(f"wrote {out}")


def _print(calibration: "HorizonCalibration") -> None:
    static = calibration.static
    assert static
    head = f"{'task':28} {'plan, actions per round':28} "
    typer.echo(f"{head}static:tuned  successes by static horizon")
    for names, h in static.tasks.items():
        plan = calibration.tasks.get(names, "")
        tried = ", ".join(f"{x}: {ok}" for x, ok in static.how["successes"][names[0]].items())
        typer.echo(f"{names[0]:28} {plan!s:28} {h:<13} {tried}")
    typer.echo(f"{'tasks that are none of these':28} {calibration.unknown!s:28} {static.general}")


def _ladder(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"ladder: whole numbers separated by commas, not {text!r}") from None
