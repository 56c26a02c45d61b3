"""What a study shows, in words computed from its table: a headline, a paragraph, the numbers."""

from collections.abc import Mapping, Sequence

import pandas as pd

from kairos_ros.evaluation.study.comparison import (
    Optimum,
    Reduction,
    Verdict,
    optima,
    reductions,
)
from kairos_ros.evaluation.study.definition import Best, Claim, Compare, Study, Value
from kairos_ros.evaluation.study.metrics import METRICS

NOTHING = "No cell of this comparison has run yet."


def headline(study: Study, frame: pd.DataFrame) -> str:
    """The first claim in one line, for the figure's title."""
    claim = study.claims[0]
    name = claim.metric[0]
    label = METRICS[name].label
    if isinstance(claim, Best):
        found = [o for o in optima(frame, claim) if o.metric == name]
        if not found:
            return NOTHING
        bests = ", ".join(_with_places(_grouped({_place(o.per): str(o.best) for o in found})))
        return f"{_capital(label)} is lowest at {claim.over.replace('_', ' ')} {bests}"
    pairs = [r for r in reductions(frame, claim) if r.metric == name]
    if not pairs:
        return NOTHING
    return (
        f"{_names(claim.ours)} against {_names(claim.baseline)}: {label} "
        f"{_range([r.median for r in pairs])}{_resolved_at(pairs)}"
    )


def finding(study: Study, frame: pd.DataFrame) -> str:
    """Markdown: one paragraph, then every number it was made from."""
    sentences = [f"*{study.question.strip()}*"]
    tables = []
    for claim in study.claims:
        sentence, table = _claim(claim, frame)
        sentences.append(sentence)
        tables.append(table)
    return "\n\n".join([" ".join(sentences), *filter(None, tables)]) + "\n"


def _claim(claim: Claim, frame: pd.DataFrame) -> tuple[str, str]:
    if isinstance(claim, Best):
        found = optima(frame, claim)
        return _best_sentence(claim, found), _best_table(claim, found)
    pairs = reductions(frame, claim)
    return _sentence(claim, pairs), _table(claim, pairs)


def _sentence(claim: Compare, found: Sequence[Reduction]) -> str:
    if not found:
        return f"{_names(claim.ours)} against {_names(claim.baseline)}: {NOTHING}"
    parts = []
    for name in claim.metric:
        pairs = [r for r in found if r.metric == name]
        verdicts = [_verdict(v, pairs) for v in ("lower", "higher", "unclear", "same")]
        parts.append(f"{METRICS[name].label} is {'; '.join(filter(None, verdicts))}")
        goals = [r for r in pairs if r.goal is not None]
        if goals and goals[0].goal is not None:
            reached = sum(bool(r.reached) for r in goals)
            goal = f"{100 * goals[0].goal:.1f} %"
            parts[-1] += f" (goal of {goal} lower reached in {reached} of {len(goals)})"
    where = _resolved_at(found)
    return f"**{_names(claim.ours)}** against {_names(claim.baseline)}{where}: {'. '.join(parts)}."


def _verdict(verdict: Verdict, pairs: Sequence[Reduction]) -> str:
    chosen = [r for r in pairs if r.verdict == verdict]
    if not chosen:
        return ""
    if verdict == "same":
        return f"the same {_on(chosen)}".rstrip()
    if verdict == "unclear":
        ranges = (_spread(r, signed=True) for r in chosen)
        return "lower or higher by seed " + _list(_at_place(chosen, ranges))
    ranges = (_spread(r, signed=False) for r in chosen)
    return f"{verdict} on every seed, by " + _list(_at_place(chosen, ranges))


def _best_sentence(claim: Best, found: Sequence[Optimum]) -> str:
    over = claim.over.replace("_", " ")
    if not found:
        return f"Which {over} is best: {NOTHING}"
    parts = []
    for name in claim.metric:
        some = [o for o in found if o.metric == name]
        texts = [
            f"{o.best} ({_change(o.gain.median)} against {claim.reference}"
            f"{'' if o.gain.verdict in ('lower', 'same') else ', not on every seed'}; "
            f"worst {o.worst}, {_change(o.loss.median)})"
            if o.best != claim.reference
            else f"{o.best} (worst {o.worst}, {_change(o.loss.median)})"
            for o in some
        ]
        places = [_place(o.per) for o in some]
        best = _list([f"{t} on {p}" if p else t for t, p in zip(texts, places, strict=True)])
        parts.append(f"{METRICS[name].label} is lowest at {best}")
    return f"**{_capital(over)}**: {'. '.join(parts)}."


def _table(claim: Compare, found: Sequence[Reduction]) -> str:
    if not found:
        return ""
    rows = [["metric", "where", _names(claim.baseline), _names(claim.ours), "reduction", "seeds"]]
    if claim.goal:
        rows[0].append("goal")
    for r in found:
        shown = METRICS[r.metric]
        row = [
            shown.axis,
            _place({**r.at, **r.per}) or "-",
            f"{r.baseline * shown.scale:.2f}",
            f"{r.ours * shown.scale:.2f}",
            _spread(r, signed=True),
            str(len(r.by_seed)),
        ]
        if claim.goal:
            reached = {None: "-", True: "reached", False: "missed"}[r.reached]
            row.append(reached if r.goal is None else f"{100 * r.goal:.1f} %: {reached}")
        rows.append(row)
    return _markdown(rows)


def _best_table(claim: Best, found: Sequence[Optimum]) -> str:
    if not found:
        return ""
    over = claim.over.replace("_", " ")
    rows = [
        ["metric", "where", f"best {over}", f"below {claim.reference}", f"worst {over}", "above"]
    ]
    rows += [
        [
            METRICS[o.metric].label,
            _place({**o.at, **o.per}) or "-",
            str(o.best),
            _spread(o.gain, signed=True),
            str(o.worst),
            f"{-100 * o.loss.median:.1f} %",
        ]
        for o in found
    ]
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _spread(found: Reduction, *, signed: bool) -> str:
    """Median and range over seeds, in percent; unsigned: of the change's size."""
    sign = 1 if signed or found.median >= 0 else -1
    low, high = sorted((sign * min(found.by_seed), sign * max(found.by_seed)))
    return f"{100 * sign * found.median:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _change(reduction: float) -> str:
    return f"{-100 * reduction:+.1f} %"


def _range(medians: Sequence[float]) -> str:
    low, high = 100 * min(medians), 100 * max(medians)
    if len(medians) == 1:
        return f"{abs(low):.0f} % {'lower' if low >= 0 else 'higher'}"
    if low >= 0 or high <= 0:
        a, b = sorted((abs(low), abs(high)))
        return f"{a:.0f} to {b:.0f} % {'lower' if low >= 0 else 'higher'}"
    return f"from {-low:.0f} % higher to {high:.0f} % lower"


def _resolved_at(found: Sequence[Reduction]) -> str:
    """` at load 1.8`: what all of them share."""
    shared = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in found[0].at.items()
        if all(r.at.get(name) == value for r in found)
    ]
    return f" at {', '.join(shared)}" if shared else ""


def _at_place(found: Sequence[Reduction], texts: object) -> list[str]:
    shared = {n for n, v in found[0].at.items() if all(r.at.get(n) == v for r in found)}
    places = [
        _place({**r.per, **{n: v for n, v in r.at.items() if n not in shared}}) for r in found
    ]
    return [f"{t} on {p}" if p else str(t) for t, p in zip(texts, places, strict=True)]  # type: ignore[call-overload]


def _on(found: Sequence[Reduction]) -> str:
    places = list(filter(None, (_place(r.per) for r in found)))
    return f"on {_list(places)}" if places else ""


def _grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for place, value in values.items():
        groups.setdefault(value, []).append(place)
    return groups


def _with_places(groups: Mapping[str, Sequence[str]]) -> list[str]:
    if len(groups) == 1:
        return list(groups)
    return [f"{value} ({', '.join(places)})" for value, places in groups.items()]


def _place(labels: Mapping[str, Value]) -> str:
    """Words speak for themselves; numbers need their name."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        if not isinstance(value, str) or value[:1].isdigit()
        else value
        for name, value in labels.items()
    )


def _names(labels: Mapping[str, Value]) -> str:
    return _place(labels)


def _list(items: Sequence[str]) -> str:
    return ", ".join(items)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
