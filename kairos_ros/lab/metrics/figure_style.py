"""Colours of everything that shows runs: figures, pages and their tables."""

INK = "#222222"
"""Lines and text that must be read first, such as a measured curve."""
FAINT_INK = "#555555"
"""Notes, limits and objectives."""
PALE = "#f1f1f1"
"""Behind a bar: what it could reach."""
BASELINE = "#9a9a9a"
"""The first run of a comparison."""
OURS = "#0b7a75"
"""The second run, or the only one."""
OTHERS = ("#c77700", "#5b5fc7", "#b0457b", "#5a8f29", "#1f7fbf", "#8a6d3b")
STALLED = "#d1495b"
FIRST_WAIT = "#eab0b8"
WAITING = "#c5ccd3"
COMPUTE = "#4a6fa5"
EXECUTING = ("#0b7a75", "#4fb3ab")
"""Of rounds with odd and even numbers, so that neighbours can be told apart."""
IDLE = "#e4e4e4"
DOWN = INK
RETURNING = "#e9a23b"
"""The arm is on its way to its safe state."""
RETRYING = "#4a6fa5"
NEEDS_HUMAN = "#7b2d8b"
TASK_END = "#d4a017"
FAULT = "#f2c14e"
"""Shade behind the time in which a fault was there."""
CAUSES = {
    "first wait": FIRST_WAIT,
    "queueing": STALLED,
    "compute": COMPUTE,
    "network": "#8e7cc3",
    "asked again": "#e08e45",
    "late request": "#b9a23c",
    "robot": "#7a7a7a",
    "refused": "#7d2e46",
    "unanswered": DOWN,
    "unknown": WAITING,
    "after the first action": STALLED,
}

MOST_DRAWN = 1 + 1 + len(OTHERS)
"""Runs that get a colour, and so a curve."""


def run_colours(runs: int) -> list[str]:
    """One per run that is drawn."""
    return [OURS] if runs == 1 else [BASELINE, OURS, *OTHERS][:runs]
