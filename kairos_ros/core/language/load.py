"""How many questions an engine has, and what was counted of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanguageLoad:
    """Questions of an engine now, and what was counted since it was loaded."""

    waiting: int
    """For a frame of their robot, or for a slot."""
    answering: int
    slots: int
    """Questions that can be answered at a time."""
    put_off: int
    """How often a question could not start because no slot was free."""
    restarts: int
    """How often a question gave its slot up to an older one, and started anew."""
