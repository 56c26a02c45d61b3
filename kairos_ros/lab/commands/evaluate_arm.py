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
    look: Annotated[
        str,
        typer.Option(
            help="demo, or shifted: every episode in random light and colours, half with things"
            " lying about; for policies that read cameras."
        ),
    ] = "demo",
) -> None:
    """Measure success on held-out starts and balls; writes evaluation JSON and model card.

    A policy that reads cameras gets pictures as the arm's simulated driver renders them."""
    from kairos_ros.core.fit import camera_name
    from kairos_ros.engine.policies.saved_policy import policy_inputs
    from kairos_ros.lab.training.camera.look import look_called
    from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen
    from kairos_ros.robot.description.arm import arm_called

    known, seen_in = arm_called(arm), look_called(look)
    folder = policy or Path("models", f"{arm}_reach")
    if not (folder / "training.json").exists():
        raise ConfigError(
            f"{folder} holds no policy of kairos train; train one: kairos train --tasks {arm}-reach"
        )
    read = policy_inputs(str(folder)).cameras or {}
    cameras = {camera_name(feature): size for feature, size in read.items()}
    if seen_in != "demo" and not cameras:
        raise ConfigError(f"{folder} reads no cameras: --look {look} would change nothing")
    lengths = _lengths(horizons)
    render_off_screen()  # before anything imports MuJoCo

    import torch
    from rich.console import Console
    from rich.table import Table

    from kairos_ros.lab.training.arm.card import FILM, HEADER, row, write_card, write_evaluation
    from kairos_ros.lab.training.arm.film import write_film
    from kairos_ros.lab.training.arm.senses import Senses
    from kairos_ros.lab.training.arm.trial import try_expert, try_policy
    from kairos_ros.lab.training.demonstrations import HELD_OUT_SEED
    from kairos_ros.lab.training.rollout import PolicyUnderTest

    torch.set_num_threads(1)
    under_test = PolicyUnderTest(folder)
    senses = Senses(known, cameras, seen_in)
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + episodes)
    trials = []
    for horizon in lengths:
        for trial in try_policy(under_test, senses, seeds, horizon):
            typer.echo(f"horizon {horizon}: {trial.successes} of {trial.episodes} touched")
        trials.append(trial)
    if seen_in == "demo":  # the expert sees nothing
        trials.append(try_expert(known, seeds))
    table = Table(*HEADER, title=f"{folder.name}, {episodes} held-out episodes each")
    for trial in trials:
        table.add_row(*row(trial))
    Console().print(table)
    write_evaluation(folder, HELD_OUT_SEED, trials, seen_in)
    if seen_in == "demo":
        write_film(under_test, senses, HELD_OUT_SEED, lengths[0], folder / FILM)
    senses.close()
    write_card(folder, known)


def _lengths(text: str) -> list[int]:
    """Raises ConfigError for what is no list of horizons."""
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"--horizons is {text!r}; give whole numbers from 1 up, such as 10,25,50")
    return lengths
