"""`kairos calibrate`: the options, and nothing that costs an import."""

from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.metaworld_scenes import SCENES


def calibrate_command(
    policy: Annotated[Path, typer.Argument(help="Policy folder.")] = Path("models/metaworld_flow"),
    tasks: Annotated[
        str, typer.Option(help="Comma-separated Meta-World tasks; empty means all known ones.")
    ] = "",
    episodes: Annotated[
        int, typer.Option(min=8, help="Paired episodes that a horizon must pass, per task.")
    ] = 128,
    allowance: Annotated[
        int, typer.Option(min=0, help="Episodes that it may lose, net of those that it wins.")
    ] = 2,
    ladder: Annotated[
        str, typer.Option(help="Horizons to choose from, actions; the first is the reference.")
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
    work: Annotated[Path, typer.Option(help="Finished tasks are kept here.")] = Path(
        "runs/calibrate"
    ),
    processes: Annotated[int, typer.Option(min=1, max=256, help="Parallel processes.")] = 1,
) -> None:
    """Find the horizons that cost a policy no success: a plan per task, for HORIZON=calibrated.

    Simulates up to a thousand episodes per task, about a minute each. Run the same command again
    to continue a stopped one.
    """
    from kairos_ros.serving.calibration_file import NAME, write_calibration
    from kairos_ros.training.calibrate import calibrate
    from kairos_ros.training.horizon_search import SearchOptions

    options = SearchOptions(_ladder(ladder), episodes, allowance=allowance)
    scenes = tuple(part.strip() for part in tasks.split(",") if part.strip()) or tuple(SCENES)
    try:
        calibration = calibrate(
            policy,
            scenes=scenes,
            options=options,
            disturbance=disturbance,
            lead=lead,
            work=work,
            processes=processes,
            report=typer.echo,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues", err=True)
        raise typer.Exit(130) from None
    out = out or policy / NAME
    write_calibration(out, calibration)
    typer.echo(f"{'task':28} {'plan, actions per round':28} rounds per episode  success")
    for scene, row in calibration.how["found"].items():
        plan = next(plan for names, plan in calibration.tasks.items() if scene in names)
        rounds = f"{row['rounds_per_episode']:.1f} (at {options.ladder[0]}: "
        rounds += f"{row['reference_rounds']:.1f})"
        typer.echo(f"{scene:28} {plan!s:28} {rounds:19} {row['success']:.1%}")
    typer.echo(f"wrote {out}")


def _ladder(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"ladder: whole numbers separated by commas, not {text!r}") from None
