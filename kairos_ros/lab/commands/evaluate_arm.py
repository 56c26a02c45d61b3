"""`kairos evaluate-arm`: how often the policy of a simulated arm does its task."""

from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.core.errors import ConfigError


def evaluate_arm_command(
    arm: Annotated[str, typer.Argument(help="so101, bi_so101 or franka.")],
    policy: Annotated[
        Path | None,
        typer.Option(help="Policy folder to evaluate and write into [default: models/ARM_reach]."),
    ] = None,
    horizons: Annotated[
        str, typer.Option(help="Actions executed per chunk, separated by commas.")
    ] = "10,25,50",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per horizon.")] = 100,
) -> None:
    """Measure success on held-out starts and balls; writes evaluation JSON and model card."""
    from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen
    from kairos_ros.robot.description.arm import arm_called

    known = arm_called(arm)
    folder = policy or Path("models", f"{arm}_reach")
    if not (folder / "training.json").exists():
        raise ConfigError(
            f"{folder} holds no policy of kairos train; train one: kairos train --tasks {arm}-reach"
        )
    lengths = _lengths(horizons)
    render_off_screen()  # before anything imports MuJoCo

    import torch
    from rich.console import Console
    from rich.table import Table

    from kairos_ros.lab.training.arm.card import FILM, HEADER, row, write_card, write_evaluation
    from kairos_ros.lab.training.arm.film import write_film
    from kairos_ros.lab.training.arm.trial import try_expert, try_policy
    from kairos_ros.lab.training.demonstrations import HELD_OUT_SEED
    from kairos_ros.lab.training.rollout import PolicyUnderTest

    torch.set_num_threads(1)
    under_test = PolicyUnderTest(folder)
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + episodes)
    trials = []
    for horizon in lengths:
        for trial in try_policy(under_test, known, seeds, horizon):
            typer.echo(f"horizon {horizon}: {trial.successes} of {trial.episodes} touched")
        trials.append(trial)
    trials.append(try_expert(known, seeds))
    table = Table(*HEADER, title=f"{folder.name}, {episodes} held-out episodes each")
    for trial in trials:
        table.add_row(*row(trial))
    Console().print(table)
    write_evaluation(folder, HELD_OUT_SEED, trials)
    write_film(under_test, known, HELD_OUT_SEED, lengths[0], folder / FILM)
    write_card(folder, known, HELD_OUT_SEED, trials)


def _lengths(text: str) -> list[int]:
    """Raises ConfigError for what is no list of horizons."""
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"--horizons is {text!r}; give whole numbers from 1 up, such as 10,25,50")
    return lengths
