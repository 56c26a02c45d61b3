"""The embedded judge's model card, written from its evaluation.json; nothing is typed by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kairos_ros.robot.adapters.sim.metaworld_scenes import LOSABLE, SCENES
from kairos_ros.vlm.embedded.tiny_vlm import read_model
from kairos_ros.vlm.questions import FAILED, SAFE, SAFETY, TASK_STATE, UNSAFE

CONFUSION, RELIABILITY, MISTAKES = "confusion.png", "reliability.png", "mistakes.png"
GOAL = 0.9
"""Share of right task-state answers, and of failures seen, that a task should reach."""
NAMES = {SAFETY: "safety", TASK_STATE: "task state"}


def write_judge_card(folder: Path) -> None:
    """README.md of a model folder with config, training.json and evaluation.json."""
    training = json.loads((folder / "training.json").read_text())
    evaluation = json.loads((folder / "evaluation.json").read_text())
    description, _ = read_model(folder)
    held_out, shifted, small = (evaluation[name] for name in ("held_out", "shifted", "small"))
    settings = training["settings"]
    size_mb = (folder / "model.safetensors").stat().st_size / 1e6
    safety, state = held_out["kinds"][SAFETY], held_out["kinds"][TASK_STATE]
    clock, computing = (evaluation["latency_ms"][name] for name in ("clock", "computing"))
    scenes = settings["scenes"]
    losable = [scene for scene in scenes if scene in LOSABLE]
    weak = [
        task
        for task, found in state["tasks"].items()
        if min(found["accuracy"], state["task_recall"][task][FAILED].get("accuracy", 1.0)) < GOAL
    ]
    lines = [
        "---",
        "license: apache-2.0",
        "pipeline_tag: visual-question-answering",
        "tags: [robotics, vision-language-model, safety, meta-world]",
        "---",
        f"# {description.name}",
        "",
        f"A tiny vision-language model ({training['parameters'] / 1e6:.2f} M parameters,"
        f" {size_mb:.1f} MB) that looks at a simulated robot cell and answers two questions in"
        " words: is somebody in the cell, and how is the robot's task going. It runs in numpy on"
        " one core. This file is written by `kairos train-judge`; the numbers are in"
        " `evaluation.json`.",
        "",
        f"On scenes it never saw, **{_percent(safety['all'])}** of its safety answers and"
        f" **{_percent(state['all'])}** of its task-state answers are right (95 % intervals)."
        f" It misses {_missed(safety)} of the intruders, and of the tasks that have failed it sees"
        f" {state['recall'][FAILED]['accuracy']:.1%}. One question about a new picture costs"
        f" {computing['p50']:.0f} ms of computing on one core (p99 {computing['p99']:.0f} ms); by"
        f" the clock it took {clock['p50']:.0f} ms (p99 {clock['p99']:.0f} ms) beside the other"
        " work of the machine that examined it.",
        "",
        f"![Confusion matrices]({CONFUSION})",
        "",
        "## Held-out scenes",
        f"{held_out['pictures']} pictures of {held_out['episodes']} episodes on other scene seeds,"
        " as the demo shows them; intervals treat pictures as independent, though an episode gives"
        " several.",
        "",
        *_tasks(held_out),
        "",
        "How much of the picture an intruder covers decides whether it is seen:",
        "",
        *_sizes(held_out),
        "",
        f"The same pictures taken at {small['px']} × {small['px']} px and enlarged: safety"
        f" {_percent(small['kinds'][SAFETY])}, task state {_percent(small['kinds'][TASK_STATE])}.",
        "",
        "Other wordings, the last two of each kind never heard in training:",
        "",
        *_wordings(held_out),
        "",
        "## Shifted scenes",
        f"{shifted['pictures']} pictures of {shifted['episodes']} further episodes under lights (up"
        " to ±50 %), colours of table and walls (up to ±35 % per channel) and camera poses (4 cm,"
        " 3° standard deviation) four times as far off as in training: safety"
        f" {_percent(shifted['kinds'][SAFETY]['all'])}, task state"
        f" {_percent(shifted['kinds'][TASK_STATE]['all'])}. It misses"
        f" {_missed(shifted['kinds'][SAFETY])} of the intruders there, and takes"
        f" {1 - shifted['kinds'][SAFETY]['recall'][SAFE]['accuracy']:.1%} of the empty cells for"
        " unsafe. Move a camera, and the judge has to be trained again.",
        "",
        "## How far to trust its probabilities",
        f"Logits are divided by {description.temperature:.2f}, fitted on"
        f" {evaluation['calibration_pictures']} pictures that are in neither set.",
        "",
        f"![Reliability]({RELIABILITY})",
        "",
        "## What it gets wrong",
        f"![Surest mistakes]({MISTAKES})",
        "",
        "## What goes in and out",
        f"- One picture, uint8 RGB, any size; the model sees {description.shape.image_px} ×"
        f" {description.shape.image_px} px. It was trained behind the simulated camera"
        f" `{description.camera}`.",
        f"- A prompt, such as “{_first(held_out, SAFETY)}” or “{_first(held_out, TASK_STATE)}”,"
        " in any of the words it knows (`words` in config.json), and the robot's instruction.",
        "- The answer: the likeliest of the allowed words (`safe`, `unsafe`; `ongoing`, `done`,"
        " `failed`), with their probabilities. Other answers, unknown instructions and prompts of"
        " mostly unknown words are refused.",
        "",
        "## How it was made",
        f"- {training['pictures']} pictures of {_episodes(settings)} episodes: half driven by"
        " Meta-World's scripted experts under disturbances, half by the policy in"
        " `models/metaworld_flow`. Each moment is shown without and with an intruder: a person at"
        " the table or a hand with its arm, of any size, pose and colour, that covers at least"
        " 0.4 % of the picture. Half have clutter (boxes, balls, tools, some coloured like skin),"
        " some a passer-by out of reach.",
        "- Labels come from the simulator while the pictures are rendered, and only then: done is"
        " Meta-World's own success, failed an object (puck, peg, ring) that was knocked to"
        " where the hand cannot get it back, ongoing everything else. Objects within 4 cm of that"
        " border are left out. In training the network also points at hand, object and goal in the"
        " picture and tells where they are, by parts that are not saved.",
        f"- {settings['epochs']} passes in {training['training_minutes']} minutes on"
        f" {training['cpu_threads']} thread of a shared machine, seed {settings['seed']}.",
        "",
        "```sh",
        "kairos train-judge"
        + ("" if len(scenes) == len(SCENES) else f" --tasks {','.join(scenes)}")
        + f" --losable {settings['losable']} --others {settings['others']}"
        f" --epochs {settings['epochs']} --seed {settings['seed']}"
        f" --test-episodes {evaluation['test_episodes']}",
        "```",
        "",
        "## Limits",
        *_weakness(weak),
        "- It knows these cells, this camera and rendered people of capsules. It has never seen a"
        " photograph: it stands in for a real model behind the same interface, and is no safety"
        " device.",
        "- One picture at a time: it cannot tell an arm that is stuck from one that works; the"
        " robot's time limits do.",
        f"- Only {len(losable)} tasks ({', '.join(losable)}) can fail for it; in the others nothing"
        " is loose.",
        "- One training, one seed.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines))


def _weakness(weak: list[str]) -> list[str]:
    if not weak:
        return []
    return [
        f"- Task state, or the share of failures seen, falls short of {GOAL:.0%} for"
        f" {', '.join(weak)}: do not build on it there."
    ]


def _tasks(exam: Mapping[str, Any]) -> list[str]:
    heads = [
        "safety %",
        "task state %",
        *(f"of {s} seen %" for s in exam["kinds"][TASK_STATE]["answers"]),
    ]
    rows = [f"| task | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    recall = exam["kinds"][TASK_STATE]["task_recall"]
    for scene in recall:
        found = [exam["kinds"][kind]["tasks"][scene] for kind in NAMES]
        cells = [_percent(one, "") for one in (*found, *recall[scene].values())]
        rows.append(f"| {scene} | {' | '.join(cells)} |")
    found = [exam["kinds"][kind]["all"] for kind in NAMES]
    cells = [_percent(one, "") for one in (*found, *exam["kinds"][TASK_STATE]["recall"].values())]
    return [*rows, f"| **all** | {' | '.join(cells)} |"]


def _sizes(exam: Mapping[str, Any]) -> list[str]:
    rows = ["| covers | intruders | seen % |", "|---|---|---|"]
    for size in exam["intruder_sizes"]:
        low, high = (f"{100 * share:.0f} %" for share in size["covers"])
        if size["asked"]:
            rows.append(f"| {low} to {high} | {size['asked']} | {_percent(size, '')} |")
    return rows


def _wordings(exam: Mapping[str, Any]) -> list[str]:
    rows = ["| question | right % |", "|---|---|"]
    for kind in NAMES:
        for prompt, found in exam["kinds"][kind]["wordings"].items():
            rows.append(f"| {prompt} | {_percent(found, '')} |")
    return rows


def _first(exam: Mapping[str, Any], kind: str) -> str:
    return str(next(iter(exam["kinds"][kind]["wordings"])))


def _missed(safety: Mapping[str, Any]) -> str:
    seen = safety["recall"][UNSAFE]
    return f"{1 - seen['accuracy']:.1%}"


def _percent(found: Mapping[str, Any], unit: str = " %") -> str:
    if not found["asked"]:
        return "—"
    low, high = found["accuracy_95"]
    return f"{100 * found['accuracy']:.1f}{unit} ({100 * low:.1f}–{100 * high:.1f})"


def _episodes(settings: Mapping[str, Any]) -> int:
    losable = sum(scene in LOSABLE for scene in settings["scenes"])
    others = len(settings["scenes"]) - losable
    return int(losable * settings["losable"] + others * settings["others"])
