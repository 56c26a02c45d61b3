"""The colours of the view, by what they mean. Chosen for a dark background."""

from kairos_ros.viz.shape import Colour


def _hex(text: str, opacity: float = 1.0) -> Colour:
    r, g, b = (round(int(text[i : i + 2], 16) / 255, 4) for i in (1, 3, 5))
    return r, g, b, opacity


INK = _hex("#e8edf0")
FAINT = _hex("#8b979f")
FLOOR = _hex("#333d45")
TABLE = _hex("#5a656e")
EMPTY = _hex("#39424a")
"""The part of a bar that is not filled."""
METAL = _hex("#c3ccd2")
JOINT = _hex("#7d8991")
OBJECT = _hex("#f2b134", 0.85)
GOAL = _hex("#8fd14f", 0.55)

TO_COME = _hex("#17c3b2")
EXECUTED = _hex("#9c6ade")
TRIMMED = _hex("#9a9a9a", 0.75)
NEXT = _hex("#4f8ef7")
"""A chunk that has arrived and whose turn comes when the running one ends."""

EDGE = _hex("#17c3b2")
CLOUD = _hex("#4f8ef7")
QUEUE = _hex("#f2b134")
WAITING = _hex("#f2b134")

RUNNING = _hex("#17c3b2")
HOLDING = _hex("#f07b3c")
IDLE = _hex("#6b767e")
RETURNING = _hex("#f2b134")
SURPRISED = _hex("#ff2d46")
"""The arm does not move as the running chunk says."""
NEEDS_HUMAN = _hex("#c04cfd")

SAFE = _hex("#8fd14f")
UNSAFE = _hex("#ff2d46")
UNJUDGED = _hex("#6b767e")


def faded(colour: Colour, opacity: float) -> Colour:
    return (*colour[:3], round(opacity, 3))


def mixed(a: Colour, b: Colour, share: float) -> Colour:
    """`a` where share is 0, `b` where it is 1."""
    r, g, blue, opacity = (round(p + (q - p) * share, 4) for p, q in zip(a, b, strict=True))
    return r, g, blue, opacity
