"""The state machine's table as a picture in Mermaid."""

from kairos_ros.robot.supervision.state_table import HOLDING, TABLE


def state_diagram() -> str:
    """One arrow per row of `TABLE` and pair of states, joined where they
    lead from and to the same two."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in TABLE:
        for source in row.sources:
            target = row.target or source
            told = row.trigger.value.replace("_", " ")
            if target is not source:
                labels.setdefault((source.value, target.value), []).append(told)
    arrows = [f"  {a} --> {b}: {'<br/>'.join(why)}" for (a, b), why in labels.items()]
    return "\n".join(["stateDiagram-v2", f"  [*] --> {HOLDING.value}", *arrows])


def state_rows() -> str:
    """The table itself, in Markdown."""
    lines = ["| what happens | in | leads to | and at once |", "|---|---|---|---|"]
    for row in TABLE:
        sources = ", ".join(mode.value for mode in row.sources)
        target = row.target.value if row.target else "the same"
        effects = ", ".join(effect.value for effect in row.effects) or "–"
        lines.append(f"| {row.trigger.value} | {sources} | {target} | {effects} |")
    return "\n".join(lines)


def state_page() -> str:
    """Both, as they stand in docs/fleet.md."""
    return f"```mermaid\n{state_diagram()}\n```\n\n{state_rows()}\n"
