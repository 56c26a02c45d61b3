"""What a study shows, in words computed from its table: a headline, a paragraph, the numbers."""

from collections.abc import Mapping, Sequence

import pandas as pd

from kairos_ros.lab.sim.recorded import ENGINES
from kairos_ros.lab.sim.rules import RECORDED
from kairos_ros.lab.sim.workloads import SYNTHETIC
from kairos_ros.lab.study.comparison import (
    Optimum,
    Reduction,
    Verdict,
    optima,
    reductions,
)
from kairos_ros.lab.study.definition import Best, Claim, Compare, Study, Value
from kairos_ros.lab.study.metrics import METRICS

LISTED = 4
"""Places that a sentence lists; more are counted."""
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
        bests = ", ".join(dict.fromkeys(str(o.best) for o in found))
        return f"{_capital(label)} is lowest at {claim.over.replace('_', ' ')} {bests}"
    pairs = [r for r in reductions(frame, claim) if r.metric == name]
    if not pairs:
        return NOTHING
    return (
        f"{_place(claim.ours)} against {_place(claim.baseline)}: {label} "
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
    sentences += _assumed(frame)
    if study.differs:
        sentences.append(f"What differs from Dai et al.: {study.differs.strip()}")
    return "\n\n".join([" ".join(sentences), *filter(None, [*tables, _recorded(frame)])]) + "\n"


def _recorded(frame: pd.DataFrame) -> str:
    """What each horizon policy of recorded workloads costs in accuracy, and how often it asks."""
    of = frame[frame["workload"] == RECORDED].groupby("horizon", sort=False)
    if not len(of):
        return ""
    rows = [["horizon policy", "success, recorded alone (%)", "rounds per task"]]
    for name, cells in of:
        rows.append(
            [
                str(name),
                f"{100 * cells['success'].mean():.1f}",
                f"{cells['rounds_per_task'].mean():.2f}",
            ]
        )
    return _markdown(rows)


def _assumed(frame: pd.DataFrame) -> list[str]:
    """What the numbers follow from and nobody measured."""
    found = []
    recorded = frame.loc[frame["workload"] == RECORDED, "engine"].unique()
    if len(recorded):
        engines = [f"{name} {ENGINES[name][0]} ms, up to {ENGINES[name][1]}" for name in recorded]
        found.append(f"Latencies of engines are assumptions: {'; '.join(engines)} per batch.")
    dynamic = frame[(frame["horizon"] == "dynamic") & frame["rounds_ratio"].isna()]
    ratios = [f"{name} {SYNTHETIC[name].rounds_ratio:g}" for name in dynamic["workload"].unique()]
    if ratios:
        found.append(
            "How many times fewer rounds the dynamic horizon needs is an assumption in synthetic "
            f"workloads: {', '.join(ratios)}."
        )
    return found


def _claim(claim: Claim, frame: pd.DataFrame) -> tuple[str, str]:
    if isinstance(claim, Best):
        found = optima(frame, claim)
        return _best_sentence(claim, found), _best_table(claim, found)
    pairs = reductions(frame, claim)
    return _sentence(claim, pairs), _table(claim, pairs)


def _sentence(claim: Compare, found: Sequence[Reduction]) -> str:
    if not found:
        return f"{_place(claim.ours)} against {_place(claim.baseline)}: {NOTHING}"
    parts = []
    for name in claim.metric:
        pairs = [r for r in found if r.metric == name]
        verdicts = [_verdict(v, pairs) for v in ("lower", "higher", "unclear", "same")]
        parts.append(f"{METRICS[name].label} {'; '.join(filter(None, verdicts))}")
        if name in claim.paper:
            parts[-1] += f" (Dai et al.: {claim.paper[name]})"
    who = f"**{_place(claim.ours)}** against {_place(claim.baseline)}{_resolved_at(found)}"
    return f"{who}: {'. '.join(map(_capital, parts))}."


def _verdict(verdict: Verdict, pairs: Sequence[Reduction]) -> str:
    """Where the change is so, and between which medians."""
    chosen = [r for r in pairs if r.verdict == verdict]
    if not chosen:
        return ""
    where = _where([r.per for r in chosen], len(pairs))
    if verdict == "same":
        return f"the same{where}"
    if verdict == "unclear":
        low, high = min(min(r.by_seed) for r in chosen), max(max(r.by_seed) for r in chosen)
        return f"{_tenths(-low)} % higher to {_tenths(high)} % lower depending on the seed{where}"
    seeds = "on every seed" if len(chosen[0].by_seed) > 1 else "on one seed"
    return f"{_range([r.median for r in chosen])} {seeds}{where}"


def _best_sentence(claim: Best, found: Sequence[Optimum]) -> str:
    over = claim.over.replace("_", " ")
    if not found:
        return f"Which {over} is best: {NOTHING}"
    parts = []
    for name in claim.metric:
        some = [o for o in found if o.metric == name]
        groups: dict[Value, list[Optimum]] = {}
        for o in some:
            groups.setdefault(o.best, []).append(o)
        texts = [
            f"{best}{_gain(claim, chosen)}{_where([o.per for o in chosen], len(some))}"
            for best, chosen in groups.items()
        ]
        paper = f" (Dai et al.: {claim.paper[name]})" if name in claim.paper else ""
        parts.append(f"{METRICS[name].label} is lowest at {'; '.join(texts)}{paper}")
    return f"**{_capital(over)}**: {'. '.join(map(_capital, parts))}."


def _gain(claim: Best, chosen: Sequence[Optimum]) -> str:
    """By how much the best value beats the reference, if it is another one."""
    if chosen[0].best == claim.reference:
        return ""
    if all(o.gain.verdict == "same" for o in chosen):
        return f" (no better than {claim.reference})"
    sure = all(o.gain.verdict == "lower" for o in chosen)
    seeds = "on every seed" if sure else "not on every seed"
    if len(chosen[0].gain.by_seed) == 1:
        seeds = "on one seed"
    change = _range([o.gain.median for o in chosen], digits=1)
    return f" ({change} than at {claim.reference}, {seeds})"


def _where(places: Sequence[Mapping[str, Value]], every: int) -> str:
    """` on a, b`, in words that stay short; the table has all of them."""
    if len(places) == every:
        return " everywhere" if every > 1 else ""
    if len(places) > LISTED:
        return f" in {len(places)} of {every} cases"
    return f" on {_places(places)}"


def _table(claim: Compare, found: Sequence[Reduction]) -> str:
    if not found:
        return ""
    rows = [["metric", "where", _place(claim.baseline), _place(claim.ours), "reduction", "seeds"]]
    if claim.paper:
        rows[0].append("Dai et al.")
    for r in found:
        shown = METRICS[r.metric]
        row = [
            shown.axis,
            _place({**r.at, **r.per}) or "-",
            f"{r.baseline * shown.scale:.2f}",
            f"{r.ours * shown.scale:.2f}",
            _spread(r),
            str(len(r.by_seed)),
        ]
        if claim.paper:
            row.append(r.paper or "-")
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
            _spread(o.gain),
            str(o.worst),
            f"{_tenths(-o.loss.median)} %",
        ]
        for o in found
    ]
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _spread(found: Reduction) -> str:
    """Median and, of several seeds, range, in percent."""
    if len(found.by_seed) == 1:
        return f"{_tenths(found.median)} %"
    low, high = min(found.by_seed), max(found.by_seed)
    return f"{_tenths(found.median)} % ({_tenths(low)} to {_tenths(high)})"


def _tenths(share: float) -> str:
    """In percent; never -0.0."""
    return _number(round(100 * share, 1) + 0.0, 1)


def _number(percent: float, digits: int) -> str:
    """Where the baseline is zero, whatever is not is ∞ above it."""
    return f"{percent:.{digits}f}".replace("inf", "∞")


def _range(medians: Sequence[float], digits: int = 0) -> str:
    low, high = 100 * min(medians), 100 * max(medians)
    if max(abs(low), abs(high)) < 5:
        digits = 1
    word = "lower" if low >= 0 else "higher"
    if low < 0 < high:
        return f"from {_number(-low, digits)} % higher to {_number(high, digits)} % lower"
    a, b = (_number(v, digits) for v in sorted((abs(low), abs(high))))
    return f"{a} % {word}" if a == b else f"{a} to {b} % {word}"


def _resolved_at(found: Sequence[Reduction]) -> str:
    """` at load 1.8`: what all of them share."""
    shared = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in found[0].at.items()
        if all(r.at.get(name) == value for r in found)
    ]
    return f" at {', '.join(shared)}" if shared else ""


def _places(labels: Sequence[Mapping[str, Value]]) -> str:
    """`replay (a, b), observation (a)`: the last label in groups of the others."""
    groups: dict[str, list[str]] = {}
    for per in labels:
        *names, last = per or {"": ""}
        outer = _place({name: per[name] for name in names})
        groups.setdefault(outer, []).append(_place({last: per[last]}) if per else "")
    if list(groups) == [""]:
        return ", ".join(groups[""])
    return ", ".join(f"{outer} ({', '.join(inner)})" for outer, inner in groups.items())


def _place(labels: Mapping[str, Value]) -> str:
    """Words speak for themselves; numbers need their name."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        if not isinstance(value, str) or value[:1].isdigit()
        else value
        for name, value in labels.items()
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
