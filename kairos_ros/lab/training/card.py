"""The model card: what was measured, as tables, a figure and plain words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.lab.training.evaluate import HORIZONS, Evaluation, Score, by_family
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

FIGURE = "success_vs_horizon.png"
GREY, OURS = "#8a8a8a", "#0b6fb8"
MARKERS = {"static": "o", "confidence": "s", "tail_agreement": "^"}

STATE_INPUTS = (
    "- `observation.state`, float32 [39]: hand position (m), gripper opening (0–1), poses of up"
    " to two objects; the change of these over the last step; the goal position (m). The goal"
    " is observable (Meta-World's `partially_observable=False`).",
)


def against_static(evaluation: Evaluation, family: str) -> list[float]:
    """Success of each of a family's settings minus the static curve at the same executed horizon.

    Percentage points; the static curve is interpolated linearly between its measured horizons.
    """
    families = by_family(evaluation)
    static = families["static"]
    at = [score.mean_horizon for score in static]
    success = [score.success for score in static]
    return [
        100 * (score.success - float(np.interp(score.mean_horizon, at, success)))
        for score in families[family]
    ]


def verdict(evaluation: Evaluation, family: str) -> str:
    """How a family of horizon policies compares with the static knob, in one sentence."""
    gaps = against_static(evaluation, family)
    mean, low, high = np.mean(gaps), min(gaps), max(gaps)
    side = "above" if mean > 0 else "below"
    return (
        f"`{family}` lies {abs(mean):.1f} points {side} the static curve at equal executed horizon"
        f" (mean over {len(gaps)} settings, {low:+.1f} to {high:+.1f})"
    )


def write_figure(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Success against mean executed horizon, over all tasks, with 95 % intervals; a panel each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1,
        len(evaluations),
        figsize=(6 * len(evaluations), 4.2),
        layout="constrained",
        squeeze=False,
    )
    for axes, evaluation in zip(panels[0], evaluations, strict=True):
        for family, scores in by_family(evaluation).items():
            success = np.array([100 * s.success for s in scores])
            low, high = 100 * np.array([s.interval for s in scores]).T
            axes.errorbar(
                [s.mean_horizon for s in scores],
                success,
                yerr=[success - low, high - success],
                marker=MARKERS.get(family, "x"),
                linestyle="--" if family == "tail_agreement" else "-",
                color=GREY if family == "static" else OURS,
                capsize=2,
                label=family,
            )
        axes.set_xlabel("mean executed horizon (actions per round)")
        axes.set_ylabel("success over all tasks (%)")
        axes.set_title(_finding(evaluation), fontsize=9)
        axes.legend(frameon=False, loc="lower left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _finding(evaluation: Evaluation) -> str:
    best = evaluation.overall(evaluation.best_static)
    lines = [
        f"{_condition(evaluation).capitalize()}: best static horizon {best.success:.1%} at"
        f" {best.mean_horizon:.0f} actions"
    ]
    lines += [
        f"{family}: {np.mean(against_static(evaluation, family)):+.1f} points against static"
        " at equal horizon"
        for family in by_family(evaluation)
        if family != "static"
    ]
    return "\n".join(lines)


def _condition(evaluation: Evaluation) -> str:
    conditions = []
    if evaluation.look != "demo":
        conditions.append("in random light and colours, half with things on the table")
    if evaluation.disturbance:
        conditions.append(f"with σ = {evaluation.disturbance:g} noise on every executed action")
    return " and ".join(conditions) or "without disturbance"


def write_card(policy: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write README.md and the figure into the policy folder; the first evaluation leads."""
    main = evaluations[0]
    write_figure(evaluations, policy / FIGURE)
    training = json.loads((policy / "training.json").read_text())
    best = main.best_static
    settings, demos = training["settings"], training["demonstrations"]
    eyes = training.get("eyes")
    size_mb = (policy / "model.safetensors").stat().st_size / 1e6
    good = sum(score.success >= 0.9 for score in main.of(best))
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: lerobot",
        "pipeline_tag: robotics",
        "tags: [robotics, flow-matching, meta-world]",
        "---",
        f"# {policy.name}",
        "",
        f"A flow-matching MLP (LeRobot type `flow_mlp`, {size_mb:.1f} MB) that does"
        f" {len(settings['scenes'])} Meta-World v3 tasks from their instruction"
        + (", two cameras and what the arm knows of itself." if eyes else " and a 39-value state.")
        + " It emits chunks of 50 actions in 10 Euler steps. This file is written by"
        " `kairos evaluate`; the numbers are in `evaluation*.json`.",
        "",
        f"At its best static horizon (`{best}`) it succeeds in"
        f" **{_percent(main.overall(best))}** of held-out episodes;"
        f" {good} of {len(main.scenes)} tasks reach 90 %.",
        "",
        f"![Success against executed horizon]({FIGURE})",
        "",
    ]
    for evaluation in evaluations:
        lines += _results(evaluation)
    lines += [
        "## What goes in and out",
        *(_camera_inputs(policy) if eyes else STATE_INPUTS),
        "- `task`: one of the instructions below; any other is refused.",
        "- action, float32 [50, 4] in [−1, 1]: hand motion (1 = 1 cm per step) and gripper effort.",
        "",
        *(f"  - `{scene}`: “{SCENES[scene]}”" for scene in settings["scenes"]),
        "",
        "## How it was made",
        f"- {settings['episodes']} successful demonstrations per task by Meta-World's scripted"
        " experts under bursts of disturbance"
        f" ({sum(d['steps'] for d in demos.values())} steps;"
        f" the experts solved {_solved(demos)} of the attempts).",
        f"- {training['steps']} steps of {settings['batch_size']} in"
        f" {training['training_minutes']} minutes on {training['device']}"
        + (
            f" with {training['cpu_threads']} threads of a shared machine"
            if training["device"] == "cpu"
            else ""
        )
        + f", seed {settings['seed']}.",
        *(_beginning(settings["start"]) if settings.get("start") else ()),
        *(_seeing(settings["eyes"], eyes) if eyes else ()),
        f"- Evaluated on scene seeds from {main.first_seed} up, which no demonstration used; the"
        " same seeds for every horizon policy; an episode ends at success or after 500 actions.",
        "",
        "```sh",
        *_commands(policy.name, training, evaluations),
        "```",
        "",
        "## Limits",
        "- It knows these tasks in simulation only and has never seen a real robot"
        + (
            "; its cameras are where the simulator has them."
            if eyes
            else " or an image; it sees exact object poses."
        ),
        "- Success is Meta-World's own criterion; the episode stops at the first success.",
        "- One training, one seed: differences of a point or two between horizon policies lie"
        " within the intervals above.",
        "- Simulated without latency: here the arm waits while the policy thinks.",
        "",
    ]
    (policy / "README.md").write_text("\n".join(lines))


def _results(evaluation: Evaluation) -> list[str]:
    families = by_family(evaluation)
    static = [h for h in evaluation.horizons if h.startswith("static:")]
    cells = {(score.scene, score.horizon): score for score in evaluation.scores}
    overall = [evaluation.overall(h) for h in static]
    lines = [
        f"## Success {_condition(evaluation)}",
        f"{evaluation.episodes} episodes per cell, percent; the last row over all tasks with 95 %"
        " intervals.",
        "",
        "| task | " + " | ".join(h.replace(":", " ") for h in static) + " |",
        "|---|" + "---|" * len(static),
        *(
            f"| {scene} | "
            + " | ".join(f"{100 * cells[scene, h].success:.0f}" for h in static)
            + " |"
            for scene in evaluation.scenes
        ),
        "| **all** | " + " | ".join(_percent(score, "") for score in overall) + " |",
        "",
        "| horizon policy | mean executed horizon | success % | tasks ≥ 90 % |",
        "|---|---|---|---|",
        *(
            f"| `{s.horizon}` | {s.mean_horizon:.1f} | {_percent(s, '')} |"
            f" {sum(part.success >= 0.9 for part in evaluation.of(s.horizon))} |"
            for scores in families.values()
            for s in scores
        ),
        "",
    ]
    lines += [f"- {verdict(evaluation, family)}." for family in families if family != "static"]
    return [*lines, ""]


def _camera_inputs(policy: Path) -> list[str]:
    features = json.loads((policy / "config.json").read_text())["input_features"]
    cameras = {key: f["shape"][1:] for key, f in features.items() if f["type"] == "VISUAL"}
    return [
        "- `observation.state`, float32 [8]: hand position (m), gripper opening (0–1), and the"
        " change of these over the last step. No object pose, no goal.",
        *(
            f"- `{key}`, {high}×{wide} pixels: Meta-World's camera of that name."
            for key, (high, wide) in cameras.items()
        ),
        "- Where the task has a goal that is no object, the scene marks it with a ball"
        " (Meta-World's own marker).",
    ]


def _beginning(start: str) -> list[str]:
    return [f"- All but the eyes began with the weights of `{start}`, which reads poses."]


def _seeing(settings: dict[str, Any], eyes: dict[str, dict[str, Any]]) -> list[str]:
    """How the eyes were trained, and how wrong they are."""
    moments = sum(scene["moments"] for scene in eyes.values())
    return [
        f"- The eyes learned from {moments} pictured moments of {settings['episodes']} more"
        " demonstrations per task, half of them in random light and colours, to tell the poses of"
        " objects and goal, which the simulator knows. The rest of the policy was trained on poses"
        " as wrong as the eyes are about episodes held back from them. Median and 90 % quantile of"
        " that error, mm:",
        "",
        "  | task | object | goal |",
        "  |---|---|---|",
        *(
            f"  | {scene} | "
            + " | ".join(
                f"{median:.0f} / {most:.0f}"
                for median, most in zip(row["median_mm"], row["p90_mm"], strict=True)
            )
            + " |"
            for scene, row in eyes.items()
        ),
        "",
    ]


def _commands(name: str, training: dict[str, Any], evaluations: Sequence[Evaluation]) -> list[str]:
    settings = training["settings"]
    limit = "minutes" if settings["steps"] is None else "steps"
    train = f"kairos train --{limit} {settings[limit]:g} --demonstrations {settings['episodes']}"
    if tuple(settings["scenes"]) != tuple(SCENES):
        train += f" --tasks {','.join(settings['scenes'])}"
    train += f" --batch-size {settings['batch_size']} --width {settings['width']}"
    if settings["learning_rate"] != 1e-3:
        train += f" --learning-rate {settings['learning_rate']:g}"
    if eyes := settings.get("eyes"):
        limit = "minutes" if eyes["steps"] is None else "steps"
        train += f" --start {settings['start']}" if settings.get("start") else ""
        train += f" --cameras --pictured {eyes['episodes']} --eyes-{limit} {eyes[limit]:g}"
    exam = "kairos evaluate" + (f" --policy models/{name}" if eyes else "")
    return [
        train + f" --seed {settings['seed']}",
        *(
            f"{exam} --episodes {e.episodes}"
            + (f" --tasks {','.join(e.scenes)}" if e.scenes != list(SCENES) else "")
            + (f" --horizons '{';'.join(e.horizons)}'" if e.horizons != list(HORIZONS) else "")
            + (f" --disturbance {e.disturbance:g}" if e.disturbance else "")
            + (f" --look {e.look}" if e.look != "demo" else "")
            for e in evaluations
        ),
    ]


def _percent(score: Score, unit: str = " %") -> str:
    low, high = score.interval
    return f"{100 * score.success:.1f}{unit} ({100 * low:.1f}–{100 * high:.1f})"


def _solved(demos: dict[str, dict[str, int]]) -> str:
    share = sum(d["episodes"] for d in demos.values()) / sum(d["attempts"] for d in demos.values())
    return f"{share:.0%}"
