"""What a benchmark hands back, and how its table and figure look."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kairos_ros.lab.metrics.figure_style import FAINT_INK


@dataclass(frozen=True, slots=True)
class Result:
    """A table to print, everything measured as JSON, and a figure."""

    header: list[str]
    rows: list[list[str]]
    data: dict[str, Any]
    plot: Callable[[Path], None]


@contextlib.contextmanager
def new_figure(path: Path, title: str, about: str, panels: int = 1) -> Iterator[Any]:
    """The axes (a list of them for several panels) of a PNG that is written at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(7 if panels == 1 else 4.2 * panels, 4.2))
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold")
    figure.text(0.02, 0.88, about, fontsize=9, color=FAINT_INK)
    figure.subplots_adjust(top=0.82, bottom=0.14, left=0.1, right=0.98, wspace=0.28)
    for axis in [axes] if panels == 1 else axes:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
