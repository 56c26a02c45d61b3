"""What an examination found, as JSON: everything that the model card prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from kairos_ros.lab.judges.exam import (
    ANSWERS,
    ExamScore,
    Marked,
    calibration_error,
    confusion,
    reliability,
    score,
)
from kairos_ros.lab.judges.scenes import Frames
from kairos_ros.vlm.questions import SAFETY, UNSAFE

SIZES = ((0.0, 0.01), (0.01, 0.03), (0.03, 0.1), (0.1, 1.0))
"""Shares of the picture that an intruder covers, from ... to."""


def report(
    marked: Sequence[Marked],
    frames: Mapping[str, Frames],
    prompts: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Scores by kind, task, wording and size of the intruder; JSON-ready.

    The first prompt of each kind is the one that everything but `wordings` is about.
    """
    usual = [one for one in marked if one.prompt == prompts[one.kind][0]]
    kinds = {}
    for kind, answers in ANSWERS.items():
        rows = [one for one in usual if one.kind == kind]
        kinds[kind] = {
            "all": score_of(rows),
            "answers": list(answers),
            "confusion": confusion(rows, kind).tolist(),
            "recall": {a: score_of([r for r in rows if r.truth == a]) for a in answers},
            "tasks": {s: score_of([r for r in rows if r.scene == s]) for s in frames},
            "task_recall": {
                s: {
                    a: score_of([r for r in rows if r.scene == s and r.truth == a]) for a in answers
                }
                for s in frames
            },
            "wordings": {
                p: score_of([m for m in marked if m.kind == kind and m.prompt == p])
                for p in prompts[kind]
            },
            "reliability": [list(row) for row in reliability(rows)],
            "calibration_error": round(calibration_error(rows), 4),
        }
    unsafe = [one for one in usual if one.kind == SAFETY and one.truth == UNSAFE]
    sizes = [
        {
            "covers": [low, high],
            **score_of([o for o in unsafe if low <= frames[o.scene].covered[o.picture] < high]),
        }
        for low, high in SIZES
    ]
    return {
        "pictures": sum(len(f.state) for f in frames.values()),
        "episodes": sum(len(set(f.seed.tolist())) for f in frames.values()),
        "kinds": kinds,
        "intruder_sizes": sizes,
    }


def score_of(rows: Sequence[Marked]) -> dict[str, Any]:
    """How many of `rows` are right, with Wilson's 95 % interval; JSON-ready."""
    if not rows:
        return {"right": 0, "asked": 0}
    found: ExamScore = score(rows)
    low, high = found.interval
    return {
        "right": found.right,
        "asked": found.asked,
        "accuracy": round(found.accuracy, 4),
        "accuracy_95": [round(low, 4), round(high, 4)],
    }
