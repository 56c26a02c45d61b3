"""The model card of a simulated arm's policy: what was measured, and what that says."""

import json
from collections.abc import Sequence
from pathlib import Path

from kairos_ros.lab.training.arm.trial import MAX_ACTIONS, Trial
from kairos_ros.lab.world.reach import CONTROL_RATE_HZ, DONE_M, INSTRUCTION, state_names
from kairos_ros.robot.description.arm import ArmDescription


def row(trial: Trial) -> list[str]:
    """Of the table of `HEADER`, also on the command line."""
    low, high = trial.interval
    return [
        str(trial.horizon) if trial.horizon else "expert",
        f"{100 * trial.successes / trial.episodes:.0f} ({100 * low:.0f}–{100 * high:.0f})",
        f"{trial.median_s:.1f}",
        f"{trial.median_miss_mm:.0f}",
        f"{trial.worst_miss_mm:.0f}",
    ]


FILM = "episode.png"
HEADER = ["horizon", "success %", "median s", "median miss mm", "worst miss mm"]


def write_evaluation(policy: Path, first_seed: int, trials: Sequence[Trial]) -> None:
    """evaluation.json beside the weights."""
    rows = [
        {name: getattr(trial, name) for name in Trial.__slots__}
        | {"success": trial.successes / trial.episodes}
        for trial in trials
    ]
    text = json.dumps({"first_seed": first_seed, "trials": rows}, indent=2)
    (policy / "evaluation.json").write_text(text + "\n")


def write_card(policy: Path, arm: ArmDescription, first_seed: int, trials: Sequence[Trial]) -> None:
    """README.md beside the weights; numbers come from training.json and `trials` alone."""
    training = json.loads((policy / "training.json").read_text())
    settings = training["settings"]
    limit = "minutes" if settings["steps"] is None else "steps"
    demos = next(iter(training["demonstrations"].values()))
    size_mb = (policy / "model.safetensors").stat().st_size / 1e6
    names = state_names(arm)
    lines = [
        f"# {policy.name}: touch the ball with a simulated {arm.name}",
        "",
        f"A flow-matching MLP (LeRobot type `flow_mlp`, {size_mb:.1f} MB). It reads no images.",
        "",
        f"- Instruction: “{INSTRUCTION}”.",
        f"- State, float32 [{len(names)}]: {', '.join(f'`{name}`' for name in names)}; joints in"
        " rad (slides in m), balls in m in the frame of the hand's base.",
        f"- Actions, {CONTROL_RATE_HZ:g} per second, float32 [50, {len(arm.joints)}]: targets of"
        " the same joints.",
        f"- Done: every tip within {1000 * DONE_M:g} mm of its ball, all joints still.",
        "",
        f"![An episode]({FILM})",
        "",
        "## Success on held-out episodes",
        f"{trials[0].episodes} episodes from seed {first_seed} up, which no demonstration used:"
        f" other starts, other balls, at most {MAX_ACTIONS / CONTROL_RATE_HZ:g} s, through the"
        " simulated driver's controller and servos; 95 % intervals.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(row(trial)) + " |" for trial in trials),
        "",
        "```sh",
        f"kairos train --tasks {arm.name}-reach --{limit} {settings[limit]:g} --demonstrations"
        f" {settings['episodes']} --batch-size {settings['batch_size']} --width {settings['width']}"
        f" --seed {settings['seed']} --threads {training['cpu_threads']}",
        f"kairos evaluate-arm {arm.name} --episodes {trials[0].episodes}",
        "```",
        "",
        "## How it was made",
        f"{demos['episodes']} demonstrations ({demos['steps']} steps) by inverse kinematics;"
        f" {training['steps']} training steps in {training['training_minutes']} minutes of a shared"
        f" machine on {training['device']}.",
        "",
        "## Limits",
        "- Simulation only: it has never moved a real arm, and the ball's place is told, not seen.",
        "- Nothing collides in this simulation, the arm with itself included.",
        "- While it was measured here, the arm waited for its policy; no network lay between.",
        "",
    ]
    (policy / "README.md").write_text("\n".join(lines))
