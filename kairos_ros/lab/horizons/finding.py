"""What the horizon study shows, in words and one table."""

from collections.abc import Sequence

from kairos_ros.lab.horizons.dominance import (
    Measured,
    Outcomes,
    RuleComparison,
    best_per_task,
    best_static,
    difference,
    judge,
    longest_equal,
    task_gap,
)


def finding(results: Sequence[Measured]) -> str:
    """A paragraph and a table for each condition."""
    return "\n".join(_section(measured) for measured in results)


def verdicts(measured: Measured) -> list[RuleComparison]:
    return [judge(measured.static, name, o) for name, o in measured.dynamic.items()]


def _section(measured: Measured) -> str:
    best, equal = best_static(measured.static), longest_equal(measured.static)
    judged = verdicts(measured)
    names, hindsight = best_per_task(measured.static)
    head = (
        f"## {measured.condition[:1].upper() + measured.condition[1:]}: "
        f"{len(measured.tasks)} tasks, "
        f"{hindsight.success.shape[1]} episodes each\n\n"
        f"The most successful static horizon is `{best}` ({_rate(measured.static[best])}); the "
        f"longest within one point of it is `{equal}` ({_rate(measured.static[equal])}, "
        f"{measured.static[equal].horizon:.1f} actions per round). The best static horizon of each "
        f"task, chosen in hindsight on these very episodes, gives {_rate(hindsight)} at "
        f"{hindsight.horizon:.1f}."
    )
    tuned = measured.tuned
    lines = [head, ""]
    if tuned:
        lines += [
            "`static:tuned`, the baseline, is each task's largest static horizon at the highest "
            f"accuracy on seeds of its own: {_rate(tuned)} with {tuned.rounds_per_episode:.1f} "
            f"rounds per episode, {tuned.horizon:.1f} actions each.",
            "",
        ]
    lines += [*(_sentence(v, measured) for v in judged if v.rule.startswith("calib")), ""]
    lines += [
        "| rule | mean executed horizon | rounds per episode | success % | against "
        "`static:tuned`: success, points (95 %) | rounds per episode (95 %) | times fewer rounds | "
        "worst task, points | against the static curve, points (95 %) | dominated by | resamples "
        "in which dominated |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, o in measured.static.items():
        lines.append(f"| `{name}` | {_numbers(o, measured)} | | | |")
    if tuned:
        lines.append(f"| **`static:tuned`** | {_numbers(tuned, None)} | | | |")
    for verdict in judged:
        lines.append(
            f"| `{verdict.rule}` | {_numbers(measured.dynamic[verdict.rule], measured)} | "
            f"{_points(verdict.against_curve, verdict.against_curve_95)} | "
            f"{verdict.dominated_by and f'`{verdict.dominated_by}`'} | {verdict.dominated:.0%} |"
        )
    lines.append(f"| best static per task, in hindsight | {_numbers(hindsight, measured)} | | | |")
    lines += ["", *_per_task(measured, names, hindsight), ""]
    return "\n".join(lines)


def _numbers(ours: Outcomes, measured: Measured | None) -> str:
    """Horizon, rounds and success, and the last two against the baseline."""
    numbers = f"{ours.horizon:.1f} | {ours.rounds_per_episode:.2f} | {100 * ours.rate:.1f} | "
    if measured is None or measured.tuned is None:
        return numbers + " | | | "
    tuned = measured.tuned
    d = difference(ours, tuned)
    low, high = d.rounds_95
    against = f"{d.rounds:+.2f} ({low:+.2f} to {high:+.2f})"
    gaps = ours.success.mean(axis=1) - tuned.success.mean(axis=1)
    worst = int(gaps.argmin())
    return (
        f"{numbers}{_points(d.success, d.success_95)} | {against} | "
        f"{tuned.rounds_per_episode / ours.rounds_per_episode:.2f} | "
        f"{measured.tasks[worst]} {100 * gaps[worst]:+.1f}"
    )


def _points(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _sentence(verdict: RuleComparison, measured: Measured) -> str:
    ours = measured.dynamic[verdict.rule]
    (low, high), (gap_low, gap_high) = verdict.ratio_95, verdict.gap_95
    return (
        f"`{verdict.rule}` executes {ours.horizon:.1f} actions per round, {verdict.ratio:.2f} times"
        f" that of `{verdict.reference}` ({low:.2f} to {high:.2f}), with {_rate(ours)} success, "
        f"{100 * verdict.gap:+.1f} points ({100 * gap_low:+.1f} to {100 * gap_high:+.1f}) against "
        "the most successful static horizon." + _against_tuned(ours, measured.tuned)
    )


def _against_tuned(ours: Outcomes, tuned: Outcomes | None) -> str:
    if not tuned:
        return ""
    d = difference(ours, tuned)
    low, high = d.rounds_95
    return (
        f" Against `static:tuned` it is {_points(d.success, d.success_95)} points of success and "
        f"{d.rounds:+.2f} ({low:+.2f} to {high:+.2f}) rounds per episode."
    )


def _per_task(measured: Measured, names: list[str], hindsight: Outcomes) -> list[str]:
    """Each task against the baseline; without one, against its best static horizon."""
    rules = [name for name in measured.dynamic if name.startswith("calib")]
    base, title = hindsight, "best static, in hindsight"
    if measured.tuned:
        base, title = measured.tuned, "`static:tuned`"
        names = [f"static:{measured.tuned_horizons[task]}" for task in measured.tasks]
    lines = [
        f"| task | {title}: success %, rounds per episode | "
        + " | ".join(f"{rule}: success %, rounds per episode, difference" for rule in rules)
        + " |",
        "|---|---|" + "---|" * len(rules),
    ]
    for task, (scene, name) in enumerate(zip(measured.tasks, names, strict=True)):
        cells = [f"`{name}`: {_of_task(base, task)}"]
        for rule in rules:
            ours = measured.dynamic[rule]
            gap, (low, high) = task_gap(ours, base, task)
            cells.append(
                f"{_of_task(ours, task)}, {100 * gap:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            )
        lines.append(f"| {scene} | " + " | ".join(cells) + " |")
    return lines


def _of_task(outcomes: Outcomes, task: int) -> str:
    return f"{100 * outcomes.success[task].mean():.1f}, {outcomes.rounds[task].mean():.1f}"


def _rate(outcomes: Outcomes) -> str:
    return f"{100 * outcomes.rate:.1f} %"
