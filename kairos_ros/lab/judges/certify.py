"""Examines a trained judge on scenes that it never saw, and writes its card."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.lab.judges.card import CONFUSION, MISTAKES, RELIABILITY, write_judge_card
from kairos_ros.lab.judges.exam import best_temperature, examine, latencies_s
from kairos_ros.lab.judges.figures import draw_confusion, draw_mistakes, draw_reliability
from kairos_ros.lab.judges.prompts import HELD_OUT, TRAINED
from kairos_ros.lab.judges.report import report as reported
from kairos_ros.lab.judges.report import score_of
from kairos_ros.lab.judges.scenes import (
    CALIBRATE_FROM,
    SHIFTED_FROM,
    TEST_FROM,
    Frames,
    collect_frames,
)
from kairos_ros.lab.training.camera.look import Look
from kairos_ros.vlm.embedded.embedded_judge import EmbeddedJudge, fitted
from kairos_ros.vlm.embedded.tiny_vlm import read_model, write_description

PROMPTS = {kind: (*prompts[:2], *HELD_OUT[kind]) for kind, prompts in TRAINED.items()}
"""Wordings of the examination, the usual one first."""
SMALL_PX = 144
"""A camera that takes smaller pictures than the model sees."""


def certify(
    model: Path,
    scenes: Sequence[str],
    *,
    episodes: int,
    policy: Path,
    folder: Path,
    report: Callable[[str], None],
) -> None:
    """Sets the temperature in `model`, writes evaluation.json, figures and the card.

    `episodes` per task on held-out scenes, half as many for calibration and on shifted scenes.
    """

    def pictures(name: str, first_seed: int, count: int, look: Look | None) -> dict[str, Frames]:
        report(f"{name} pictures:")
        return collect_frames(
            dict.fromkeys(scenes, count),
            first_seed=first_seed,
            px=description.shape.image_px,
            look=look,
            policy=policy,
            per_moment=1,
            folder=folder,
            report=report,
        )

    description, network = read_model(model)
    description = replace(description, temperature=1.0)
    half = max(2, episodes // 2)
    calibration = pictures("calibration", CALIBRATE_FROM, half, None)
    usual = {kind: prompts[:1] for kind, prompts in PROMPTS.items()}
    marked = examine(EmbeddedJudge(description, network), calibration, usual)
    description = replace(description, temperature=best_temperature(marked))
    judge = EmbeddedJudge(description, network)
    held_out = pictures("held-out", TEST_FROM, episodes, "demo")
    shifted = pictures("shifted", SHIFTED_FROM, half, "shifted")
    exams: dict[str, Any] = {}
    for name, frames, prompts in (("held_out", held_out, PROMPTS), ("shifted", shifted, usual)):
        marked = examine(judge, frames, prompts)
        exams[name] = reported(marked, frames, prompts)
        for kind, found in exams[name]["kinds"].items():
            report(f"{name}: {kind} {found['all']['accuracy']:.1%} of {found['all']['asked']}")
        if name == "held_out":
            asked = [m for m in marked if m.prompt == PROMPTS[m.kind][0]]
            draw_mistakes(asked, frames, model / MISTAKES)
    clock, computing = latencies_s(judge, held_out[scenes[0]].image[0])
    marked = examine(judge, {s: _taken_at(f, SMALL_PX) for s, f in held_out.items()}, usual)
    small = {k: score_of([m for m in marked if m.kind == k]) for k in usual}
    report(f"{SMALL_PX} px: {', '.join(f'{k} {s["accuracy"]:.1%}' for k, s in small.items())}")
    evaluation = exams | {
        "small": {"px": SMALL_PX, "kinds": small},
        "test_episodes": episodes,
        "latency_ms": {"calls": len(clock), "clock": _ms(clock), "computing": _ms(computing)},
        "calibration_pictures": sum(len(f.state) for f in calibration.values()),
    }
    (model / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
    write_description(model, description)
    titles: Mapping[str, Any] = {"Held-out": exams["held_out"], "Shifted": exams["shifted"]}
    draw_confusion(titles, model / CONFUSION)
    draw_reliability(titles, model / RELIABILITY)
    write_judge_card(model)
    report(f"wrote {model}")


def _taken_at(frames: Frames, px: int) -> Frames:
    """The same pictures from a camera of `px` pixels."""
    return replace(frames, image=np.stack([fitted(image, px) for image in frames.image]))


def _ms(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{p}": round(1000 * float(np.percentile(seconds, p)), 2) for p in (50, 99)}
