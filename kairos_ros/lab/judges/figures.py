"""The model card's pictures: confusion, reliability, and what the judge got wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from kairos_ros.lab.judges.exam import Marked
from kairos_ros.lab.judges.scenes import Frames
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.vlm.questions import SAFETY, TASK_STATE

FEW = 8
NAMES = {SAFETY: "safety", TASK_STATE: "task state"}


def draw_confusion(exams: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A row per set of pictures, a matrix per kind of question; rows are the truth."""
    shades = LinearSegmentedColormap.from_list("ours", ["white", OURS])
    figure, axes = plt.subplots(
        len(exams), 2, figsize=(8, 3.6 * len(exams)), layout="constrained", squeeze=False
    )
    for row, (title, exam) in zip(axes, exams.items(), strict=True):
        for ax, (kind, found) in zip(row, exam["kinds"].items(), strict=True):
            counts = np.array(found["confusion"])
            shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
            ax.imshow(shares, cmap=shades, vmin=0, vmax=1)
            for (i, j), n in np.ndenumerate(counts):
                ink = "white" if shares[i, j] > 0.5 else "black"
                ax.text(j, i, f"{n}\n{shares[i, j]:.1%}", ha="center", va="center", color=ink)
            ax.set_xticks(range(len(counts)), found["answers"])
            ax.set_yticks(range(len(counts)), found["answers"])
            ax.set_xlabel("answered (pictures)")
            ax.set_ylabel("true (pictures)")
            accuracy = found["all"]["accuracy"]
            ax.set_title(f"{title}: {accuracy:.1%} of {NAMES[kind]} answers are right", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_reliability(exams: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Accuracy against stated probability; the diagonal is a judge that means what it says.

    Bins of fewer than FEW answers are left out.
    """
    figure, axes = plt.subplots(
        1, len(exams), figsize=(4.6 * len(exams), 4), layout="constrained", squeeze=False
    )
    for ax, (title, exam) in zip(axes[0], exams.items(), strict=True):
        ax.plot([0.3, 1], [0.3, 1], color=BASELINE, linewidth=1, label="as stated")
        for (kind, found), marker in zip(exam["kinds"].items(), "os", strict=True):
            stated, right, count = np.array([r for r in found["reliability"] if r[2] >= FEW]).T
            label = f"{NAMES[kind]} (mean gap {found['calibration_error']:.1%})"
            ax.plot(stated, right, color=OURS, linewidth=1)
            ax.scatter(
                stated,
                right,
                s=10 + 200 * count / count.sum(),
                marker=marker,
                color=OURS if marker == "o" else "white",
                edgecolor=OURS,
                label=label,
                zorder=3,
            )
        ax.set_xlabel("probability that the judge gives its answer")
        ax.set_ylabel("share of these answers that is right")
        worst = max(found["calibration_error"] for found in exam["kinds"].values())
        ax.set_title(f"{title}: off by {worst:.1%} on average, or less", fontsize=10)
        ax.legend(frameon=False, loc="lower right", fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_mistakes(
    marked: Sequence[Marked], frames: Mapping[str, Frames], path: Path, most: int = 24
) -> None:
    """The wrong answers that the judge was surest of, with picture, truth and answer."""
    wrong = sorted((one for one in marked if not one.right), key=lambda one: -one.confidence)
    shown = wrong[:most]
    columns = 6
    rows = max(1, -(-len(shown) // columns))
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.3 * columns, 2.75 * rows), layout="constrained", squeeze=False
    )
    for ax in axes.flat:
        ax.axis("off")
    for ax, one in zip(axes.flat, shown, strict=False):
        ax.imshow(frames[one.scene].image[one.picture])
        task = SCENES[one.scene] if one.kind == TASK_STATE else one.scene
        ax.set_title(
            f"{task}\nis {one.truth}, said {one.answer} ({one.confidence:.0%})", fontsize=7
        )
    figure.suptitle(
        f"The {len(shown)} surest of {len(wrong)} wrong answers out of {len(marked)}", fontsize=11
    )
    figure.savefig(path, dpi=90)
    plt.close(figure)
