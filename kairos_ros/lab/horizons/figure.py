"""Success against executed horizon, static in grey, ours in colour; a panel per condition."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_ros.lab.horizons.dominance import (
    Measured,
    Outcomes,
    difference,
    horizon_interval,
    judge,
)
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.recording.runs.summary import wilson_95

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"confidence": ("s", "#7fb7b4"), "tail_agreement": ("^", "#3f9590")}


def write_figure(path: Path, results: Sequence[Measured]) -> None:
    """PNG; bars are 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(results), figsize=(6.2 * len(results), 4.6), layout="constrained", squeeze=False,
        sharey=True,
    )  # fmt: skip
    for axes, measured in zip(panels[0], results, strict=True):
        _panel(axes, measured)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axes: "Axes", measured: Measured) -> None:
    _curve(axes, "static", measured.static, "o", BASELINE)
    if measured.tuned:
        _curve(axes, "static:tuned", {"static:tuned": measured.tuned}, "D", BASELINE, size=9)
    for family, (marker, colour) in STYLES.items():
        rules = {n: o for n, o in measured.dynamic.items() if n.startswith(family)}
        if rules:
            _curve(axes, family, rules, marker, colour)
    calibrated = {n: o for n, o in measured.dynamic.items() if n.startswith("calibrated")}
    for (name, outcomes), marker in zip(calibrated.items(), "*PDX", strict=False):
        _curve(axes, name, {name: outcomes}, marker, OURS, size=11)
    axes.set_xlabel("mean executed horizon (actions per round)")
    axes.set_ylabel("success over all tasks (%)")
    axes.set_title(_title(measured), fontsize=9)
    axes.legend(frameon=False, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)


def _curve(
    axes: "Axes",
    label: str,
    rules: Mapping[str, Outcomes],
    marker: str,
    colour: str,
    size: float = 6,
) -> None:
    points = sorted(rules.values(), key=lambda o: o.horizon)
    success = [100 * o.rate for o in points]
    spans = [wilson_95(int(o.success.sum()), o.success.size) for o in points]
    wide = [horizon_interval(o) for o in points]
    axes.errorbar(
        [o.horizon for o in points],
        success,
        yerr=[
            [max(0.0, s - 100 * low) for s, (low, _) in zip(success, spans, strict=True)],
            [max(0.0, 100 * high - s) for s, (_, high) in zip(success, spans, strict=True)],
        ],
        xerr=[
            [o.horizon - low for o, (low, _) in zip(points, wide, strict=True)],
            [high - o.horizon for o, (_, high) in zip(points, wide, strict=True)],
        ],
        marker=marker,
        markersize=size,
        color=colour,
        elinewidth=0.8,
        capsize=2,
        label=label,
    )


def _title(measured: Measured) -> str:
    where = measured.condition
    calibrated = [name for name in measured.dynamic if name.startswith("calibrated")]
    if not calibrated:
        return where.capitalize()
    if measured.tuned is None:
        judged = [judge(measured.static, name, measured.dynamic[name]) for name in calibrated]
        verdict = max(judged, key=lambda v: (v.gap >= -0.01, v.ratio))
        return (
            f"{where.capitalize()}: {verdict.rule} executes {verdict.ratio:.1f} times\nthe longest "
            f"static horizon within a point of the best, success {100 * verdict.gap:+.1f} points"
        )
    gaps = {name: difference(measured.dynamic[name], measured.tuned) for name in calibrated}
    name = min(gaps, key=lambda n: (gaps[n].success < -0.01, gaps[n].rounds))
    return (
        f"{where.capitalize()}: against each task's tuned static horizon,\n{name} takes "
        f"{gaps[name].rounds:+.1f} rounds per episode, success {100 * gaps[name].success:+.1f} "
        "points"
    )
