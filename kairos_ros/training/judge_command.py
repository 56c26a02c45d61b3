"""`kairos train-judge`: renders cells, trains the embedded judge, examines it, writes its card."""

from pathlib import Path
from typing import Annotated

import typer

TRAIN_FROM, CALIBRATE_FROM, TEST_FROM = 600_000, 800_000, 1_500_000
"""First scene seeds; those from 1,000,000 up train nothing in this package."""
CALIBRATION_EPISODES, TEST_EPISODES = 12, 40


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
    losable: Annotated[
        int, typer.Option(min=2, help="Episodes of each task whose object can get lost.")
    ] = 200,
    others: Annotated[int, typer.Option(min=2, help="Episodes of each other task.")] = 60,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all pictures.")] = 9,
    test_episodes: Annotated[
        int, typer.Option(min=2, help="Held-out episodes per task, in each of two looks.")
    ] = TEST_EPISODES,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
) -> None:
    """Train the judge that ships, on pictures of the simulated cells, on one CPU thread.

    Run the same command again to continue a stopped training.
    """
    import torch

    from kairos_ros.training.judge_scenes import collect_frames
    from kairos_ros.training.judge_train import JudgeSettings, Pictures, train_judge

    torch.set_num_threads(1)
    settings = JudgeSettings(losable=losable, others=others, epochs=epochs, seed=seed)
    episodes = settings.episodes()
    pictures = work / "pictures"

    def collect(kind, first_seed, counts, look, per_moment):
        typer.echo(f"{kind} pictures:")
        return collect_frames(
            counts,
            first_seed=first_seed,
            px=settings.image_px,
            look=look,
            policy=policy,
            per_moment=per_moment,
            folder=pictures,
            report=typer.echo,
        )

    trained = collect("training", TRAIN_FROM, episodes, None, 2)
    done = train_judge(
        settings, Pictures(trained), name=out.name, out=out, work=work, report=typer.echo
    )
    if not done:
        raise typer.Exit(130)
