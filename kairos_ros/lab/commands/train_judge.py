"""`kairos train-judge`: renders cells, trains the embedded judge, examines it, writes its card."""

from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES


def train_judge_command(
    out: Annotated[Path, typer.Option(help="Model folder to write.")] = Path(
        "models/factory_judge"
    ),
    work: Annotated[
        Path, typer.Option(help="Rendered pictures and the resumable state are kept here.")
    ] = Path("runs/train_judge"),
    policy: Annotated[
        Path, typer.Option(help="Policy folder that drives the arm in every second episode.")
    ] = Path("models/metaworld_flow"),
    tasks: Annotated[
        str, typer.Option(help="Comma-separated Meta-World tasks; empty means all known ones.")
    ] = "",
    losable: Annotated[
        int, typer.Option(min=2, help="Episodes of each task whose object can get lost.")
    ] = 200,
    others: Annotated[int, typer.Option(min=2, help="Episodes of each other task.")] = 70,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all pictures.")] = 6,
    test_episodes: Annotated[
        int, typer.Option(min=2, help="Held-out episodes per task; half as many shifted ones.")
    ] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
) -> None:
    """Train the judge that ships, on pictures of the simulated cells, on one CPU thread.

    Run the same command again to continue a stopped training, or to examine a finished one again.
    """
    import torch

    from kairos_ros.lab.judges.certify import certify
    from kairos_ros.lab.judges.scenes import TRAIN_FROM, collect_frames
    from kairos_ros.lab.judges.train import JudgeSettings, Pictures, train_judge

    torch.set_num_threads(1)
    scenes = tuple(part.strip() for part in tasks.split(",") if part.strip()) or tuple(SCENES)
    settings = JudgeSettings(
        scenes=scenes, losable=losable, others=others, epochs=epochs, seed=seed
    )
    try:
        frames = collect_frames(
            settings.episodes(),
            first_seed=TRAIN_FROM,
            px=settings.image_px,
            look=None,
            policy=policy,
            per_moment=2,
            folder=work / "pictures",
            report=typer.echo,
        )
        pictures = Pictures(frames)
        done = train_judge(settings, pictures, name=out.name, out=out, work=work, report=typer.echo)
        if not done:
            raise typer.Exit(130)
        certify(
            out,
            settings.scenes,
            episodes=test_episodes,
            policy=policy,
            folder=work / "pictures",
            report=typer.echo,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues")
        raise typer.Exit(130) from None
