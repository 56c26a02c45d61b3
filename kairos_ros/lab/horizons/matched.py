"""Every setting of every knob against the static horizon at the same accuracy, and at the same
length (Dai et al. §5.2, Figure 11)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kairos_ros.lab.horizons.dominance import Measured, Outcomes


@dataclass(frozen=True, slots=True)
class Matched:
    """One setting of a knob."""

    rule: str
    times_longer: float | None
    """Mean executed horizon over that of the longest static horizon with at least its success;
    None: no static horizon has so much."""
    points: float | None
    """Success minus that of the static curve at the same executed horizon, in points; None: longer
    or shorter than every static horizon."""


def matched(static: Mapping[str, Outcomes], rule: str, ours: Outcomes) -> Matched:
    """`ours` against the static curve."""
    enough = [o.horizon for o in static.values() if o.rate >= ours.rate - 1e-9]
    curve = sorted((o.horizon, o.rate) for o in static.values())
    horizons, rates = zip(*curve, strict=True)
    inside = horizons[0] <= ours.horizon <= horizons[-1]
    return Matched(
        rule,
        ours.horizon / max(enough) if enough else None,
        100 * (ours.rate - float(np.interp(ours.horizon, horizons, rates))) if inside else None,
    )


def beside_paper(measured: Measured, paper: Mapping[str, str], differs: str) -> str:
    """Markdown: the best of every knob beside what Dai et al. give, then every setting."""
    found = [matched(measured.static, name, o) for name, o in measured.dynamic.items()]
    knobs = dict.fromkeys(m.rule.partition(":")[0] for m in found)
    lines = [
        "## Beside Dai et al.",
        "",
        "| knob | longest at matched accuracy, times | most success at matched horizon, points |",
        "|---|---|---|",
    ]
    for knob in knobs:
        of = [m for m in found if m.rule.partition(":")[0] == knob]
        times = [m.times_longer for m in of if m.times_longer is not None]
        points = [m.points for m in of if m.points is not None]
        lines.append(
            f"| `{knob}` | {f'{max(times):.2f}' if times else '-'} | "
            f"{f'{max(points):+.1f}' if points else '-'} |"
        )
    accuracy, horizon = paper.get("matched accuracy", "-"), paper.get("matched horizon", "-")
    lines += [f"| *Dai et al., confidence* | *{accuracy}* | *{horizon}* |", ""]
    lines += [
        "| setting | at matched accuracy, times | at matched horizon, points |",
        "|---|---|---|",
    ]
    for m in found:
        times_longer = "-" if m.times_longer is None else f"{m.times_longer:.2f}"
        lines.append(
            f"| `{m.rule}` | {times_longer} | {'-' if m.points is None else f'{m.points:+.1f}'} |"
        )
    return "\n".join([*lines, "", f"What differs from Dai et al.: {differs.strip()}", ""])
