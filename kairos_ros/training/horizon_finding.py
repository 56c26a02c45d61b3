"""What the horizon study shows, in words and one table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kairos_ros.training.horizon_dominance import (
    Outcomes,
    Verdict,
    best_per_task,
    best_static,
    judge,
    longest_equal,
    task_gap,
)

if TYPE_CHECKING:
    from kairos_ros.training.horizon_study import Measured


def finding(results: Sequence["Measured"]) -> str:
    """A paragraph and a table for each disturbance."""
    return "\n".join(_section(measured) for measured in results)


def verdicts(measured: "Measured") -> list[Verdict]:
    return [judge(measured.static, name, o) for name, o in measured.dynamic.items()]


def _section(measured: "Measured") -> str:
    best, equal = best_static(measured.static), longest_equal(measured.static)
    judged = verdicts(measured)
    names, hindsight = best_per_task(measured.static)
    head = (
        f"## sigma = {measured.disturbance:g}: {len(measured.tasks)} tasks, "
        f"{hindsight.success.shape[1]} episodes each\n\n"
        f"The most successful static horizon is `{best}` ({_rate(measured.static[best])}); the "
        f"longest within one point of it is `{equal}` ({_rate(measured.static[equal])}, "
        f"{measured.static[equal].horizon:.1f} actions per round). The best static horizon of each "
        f"task, chosen in hindsight on these very episodes, gives {_rate(hindsight)} at "
        f"{hindsight.horizon:.1f}."
    )
    lines = [head, "", *(_sentence(v, measured) for v in judged if v.rule.startswith("calib")), ""]
    lines += [
        "| rule | mean executed horizon | rounds per episode | success % | against the static "
        "curve, points (95 %) | dominated by | resamples in which dominated |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {o.horizon:.1f} | {o.rounds_per_episode:.1f} | {100 * o.rate:.1f} | | | |"
        for name, o in measured.static.items()
    ]
    for verdict in judged:
        o = measured.dynamic[verdict.rule]
        low, high = verdict.against_curve_95
        lines.append(
            f"| `{verdict.rule}` | {o.horizon:.1f} | {o.rounds_per_episode:.1f} | "
            f"{100 * o.rate:.1f} | {100 * verdict.against_curve:+.1f} ({100 * low:+.1f} to "
            f"{100 * high:+.1f}) | {verdict.dominated_by and f'`{verdict.dominated_by}`'} | "
            f"{verdict.dominated:.0%} |"
        )
    lines.append(
        f"| best static per task, in hindsight | {hindsight.horizon:.1f} | "
        f"{hindsight.rounds_per_episode:.1f} | {100 * hindsight.rate:.1f} | | | |"
    )
    lines += ["", *_per_task(measured, names, hindsight), ""]
    return "\n".join(lines)


def _sentence(verdict: Verdict, measured: "Measured") -> str:
    ours = measured.dynamic[verdict.rule]
    (low, high), (gap_low, gap_high) = verdict.ratio_95, verdict.gap_95
    return (
        f"`{verdict.rule}` executes {ours.horizon:.1f} actions per round, {verdict.ratio:.2f} times"
        f" that of `{verdict.reference}` ({low:.2f} to {high:.2f}), with {_rate(ours)} success, "
        f"{100 * verdict.gap:+.1f} points ({100 * gap_low:+.1f} to {100 * gap_high:+.1f}) against "
        "the most successful static horizon."
    )


def _per_task(measured: "Measured", names: list[str], hindsight: Outcomes) -> list[str]:
    rules = [name for name in measured.dynamic if name.startswith("calib")]
    lines = [
        "| task | best static, in hindsight | "
        + " | ".join(f"{rule}: success %, rounds per episode, difference" for rule in rules)
        + " |",
        "|---|---|" + "---|" * len(rules),
    ]
    for task, (scene, name) in enumerate(zip(measured.tasks, names, strict=True)):
        cells = [f"`{name}` {100 * hindsight.success[task].mean():.0f} %, "]
        cells[0] += f"{hindsight.rounds[task].mean():.1f} rounds"
        for rule in rules:
            ours = measured.dynamic[rule]
            gap, (low, high) = task_gap(ours, hindsight, task)
            cells.append(
                f"{100 * ours.success[task].mean():.0f}, {ours.rounds[task].mean():.1f}, "
                f"{100 * gap:+.0f} ({100 * low:+.0f} to {100 * high:+.0f})"
            )
        lines.append(f"| {scene} | " + " | ".join(cells) + " |")
    return lines


def _rate(outcomes: Outcomes) -> str:
    return f"{100 * outcomes.rate:.1f} %"
