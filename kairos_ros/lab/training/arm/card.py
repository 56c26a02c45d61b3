"""The model card of a simulated arm's policy: what was measured, and what that says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kairos_ros.lab.training.arm.trial import MAX_ACTIONS, Trial
from kairos_ros.lab.training.camera.look import Look
from kairos_ros.lab.world.reach import CONTROL_RATE_HZ, DONE_M, INSTRUCTION, state_names
from kairos_ros.robot.description.arm import ArmDescription

FILM = "episode.png"
HEADER = ["horizon", "success %", "median s", "median miss mm", "worst miss mm"]
LOOKS = {
    "demo": "## Success on held-out episodes",
    "shifted": "## The same in random light and colours, half with things lying about",
}
"""Look -> heading of its table, in this order."""


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


def write_evaluation(
    policy: Path, first_seed: int, trials: Sequence[Trial], look: Look = "demo"
) -> None:
    """evaluation.json beside the weights, evaluation_LOOK.json for another look."""
    rows = [
        {name: getattr(trial, name) for name in Trial.__slots__}
        | {"success": trial.successes / trial.episodes}
        for trial in trials
    ]
    text = json.dumps({"first_seed": first_seed, "trials": rows}, indent=2)
    _evaluation(policy, look).write_text(text + "\n")


def write_card(policy: Path, arm: ArmDescription) -> None:
    """README.md beside the weights; numbers come from training.json and evaluation*.json alone."""
    training = json.loads((policy / "training.json").read_text())
    settings = training["settings"]
    limit = "minutes" if settings["steps"] is None else "steps"
    demos = next(iter(training["demonstrations"].values()))
    size_mb = (policy / "model.safetensors").stat().st_size / 1e6
    features = json.loads((policy / "config.json").read_text())["input_features"]
    cameras = {name: f["shape"][1:] for name, f in features.items() if f["type"] == "VISUAL"}
    names = arm.joints if cameras else state_names(arm)
    measured = [look for look in LOOKS if _evaluation(policy, look).exists()]
    title = "touch the ball that it sees, with" if cameras else "touch the ball with"
    reads = "It is not told where the ball is." if cameras else "It reads no images."
    ball = "" if cameras else ", balls in m in the frame of the hand's base"
    eyes, start = settings.get("eyes"), settings.get("start")
    command = "kairos train"
    if eyes:
        seeing = "minutes" if eyes["steps"] is None else "steps"
        command += f" --cameras --pictured {eyes['episodes']} --eyes-{seeing} {eyes[seeing]:g}"
    if start:
        command += f" --start {start}"
    lines = [
        f"# {policy.name}: {title} a simulated {arm.name}",
        "",
        f"A flow-matching MLP (LeRobot type `flow_mlp`, {size_mb:.1f} MB). {reads}",
        "",
        f"- Instruction: “{INSTRUCTION}”.",
        f"- State, float32 [{len(names)}]: {', '.join(f'`{name}`' for name in names)}; joints in"
        f" rad (slides in m){ball}.",
        *(
            f"- `{name}`, {high}×{wide} pixels: the camera of that name of the simulated driver."
            for name, (high, wide) in cameras.items()
        ),
        f"- Actions, {CONTROL_RATE_HZ:g} per second, float32 [50, {len(arm.joints)}]: targets of"
        " the same joints.",
        f"- Done: every tip within {1000 * DONE_M:g} mm of its ball, all joints still.",
        "",
        f"![An episode]({FILM})",
        "",
        *(line for look in measured for line in _success(policy, look)),
        "```sh",
        f"{command} --tasks {arm.name}-reach --{limit} {settings[limit]:g} --demonstrations"
        f" {settings['episodes']} --batch-size {settings['batch_size']} --width {settings['width']}"
        + _learning_rate(settings)
        + f" --seed {settings['seed']} --threads {training['cpu_threads']}",
        *(_exam(policy, arm, look, bool(cameras)) for look in measured),
        "```",
        "",
        "## How it was made",
        f"{demos['episodes']} demonstrations ({demos['steps']} steps) by inverse kinematics;"
        f" {training['steps']} training steps in {training['training_minutes']} minutes of a shared"
        f" machine on {training['device']}.",
        *(_seeing(start, training["eyes"]) if eyes else ()),
        "",
        "## Limits",
        "- Simulation only: it has never moved a real arm"
        + (
            "; it knows this ball, and cameras where the simulated driver has them."
            if cameras
            else ", and the ball's place is told, not seen."
        ),
        "- Nothing collides in this simulation, the arm with itself included.",
        "- While it was measured here, the arm waited for its policy; no network lay between.",
        "",
    ]
    (policy / "README.md").write_text("\n".join(lines))


def _evaluation(policy: Path, look: str) -> Path:
    return policy / ("evaluation.json" if look == "demo" else f"evaluation_{look}.json")


def _trials(policy: Path, look: str) -> tuple[int, list[Trial]]:
    """The first seed, and what was measured."""
    told = json.loads(_evaluation(policy, look).read_text())
    fields = Trial.__slots__
    return told["first_seed"], [Trial(**{n: row[n] for n in fields}) for row in told["trials"]]


def _success(policy: Path, look: str) -> list[str]:
    first_seed, trials = _trials(policy, look)
    lines = [LOOKS[look]]
    if look == "demo":
        lines.append(
            f"{trials[0].episodes} episodes from seed {first_seed} up, which no demonstration used:"
            f" other starts, other balls, at most {MAX_ACTIONS / CONTROL_RATE_HZ:g} s, through the"
            " simulated driver's controller and servos; 95 % intervals."
        )
    best = max(
        (t for t in trials if t.horizon), key=lambda t: (t.successes, t.horizon), default=None
    )
    if best:
        low, high = best.interval
        lines.append(
            f"At its best static horizon, {best.horizon} actions, it touches the ball in"
            f" **{100 * best.successes / best.episodes:.0f} % ({100 * low:.0f}–{100 * high:.0f})**"
            " of them."
        )
    return [
        *lines,
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(row(trial)) + " |" for trial in trials),
        "",
    ]


def _exam(policy: Path, arm: ArmDescription, look: str, cameras: bool) -> str:
    _, trials = _trials(policy, look)
    horizons = ",".join(str(trial.horizon) for trial in trials if trial.horizon)
    return (
        f"kairos evaluate-arm {arm.name}"
        + (f" --policy models/{policy.name}" if cameras else "")
        + f" --episodes {trials[0].episodes}"
        + (f" --horizons {horizons}" if horizons not in ("", "10,25,50") else "")
        + (f" --look {look}" if look != "demo" else "")
    )


def _learning_rate(settings: dict[str, Any]) -> str:
    rate = settings["learning_rate"]
    return f" --learning-rate {rate:g}" if rate != 1e-3 else ""


def _seeing(start: str, eyes: dict[str, Any]) -> list[str]:
    """How the eyes were trained, and how wrong they are."""
    scene = next(iter(eyes.values()))
    median, most = scene["median_mm"][0], scene["p90_mm"][0]
    begun = f" All but the eyes began with the weights of `{start}`." if start else ""
    return [
        "",
        f"The eyes learned from {scene['moments']} rendered moments, half of them in random light"
        " and colours, to tell the ball's place, which the simulator knows. About moments held"
        f" back they are wrong by {median:g} mm (median; 90 %: {most:g} mm). The rest of the policy"
        f" was trained on places as wrong as these.{begun}",
    ]
