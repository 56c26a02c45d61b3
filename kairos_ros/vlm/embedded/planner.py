"""The planner that ships: it finds the skill that a sentence asks for. Rules, no model.

A judge like the others: asked which of the skills to do next, it answers by the words that the goal
and a skill have in common. It does not look at pictures and it does not know when a part of a goal
is done, so that of several parts it names the first; a vision-language model behind the same
interface does both.
"""

import re
import time
from collections.abc import Sequence

from kairos_ros.vlm.embedded.words import words_of
from kairos_ros.vlm.judge import Failure, FailureCode, Question, Verdict, unknown

PLAN = "plan"
PLAN_PROMPT = "what should the robot do next?"
MODEL = "embedded:planner"
ENOUGH = 0.5
"""Least share of a skill's words that a goal must have."""
FILLERS = frozenset(("the", "a", "an", "to", "of", "at", "in", "on", "from", "for", "and", "it"))
"""Words that tell no skill from another."""
_PARTS = re.compile(r"[.;,]|\bthen\b|\bafter that\b|\bafterwards\b", re.IGNORECASE)


class RulePlanner:
    """Judge over questions whose allowed answers are skills."""

    model = MODEL

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        start = time.perf_counter()
        return [_planned(question, start) for question in questions]

    def close(self) -> None:
        """Nothing to free."""


def parts_of(goal: str) -> list[str]:
    """What a goal asks for, one after the other: "open the door, then ..." has two parts."""
    parts = [part.strip() for part in _PARTS.split(goal)]
    return [part for part in parts if set(words_of(part)) - FILLERS] or [goal]


def subgoals(goal: str, skills: Sequence[str]) -> list[str]:
    """The skill that each part of a goal asks for; the part's own words where it is like none."""
    named = [(part, *likest(skills, part)) for part in parts_of(goal)]
    return [skill if score >= ENOUGH else part for part, score, skill in named]


def likeness(skill: str, goal: str) -> float:
    """Share of the skill's telling words that the goal has, 0..1, less a little for each of the
    goal's words that the skill has not: among equals, the one that says more of the goal wins."""
    wanted, said = set(words_of(skill)) - FILLERS, set(words_of(goal)) - FILLERS
    if not wanted:
        return 0.0
    return len(wanted & said) / len(wanted) - 0.01 * len(said - wanted)


def _planned(question: Question, start: float) -> Verdict | Failure:
    part = parts_of(question.instruction)[0]
    score, skill = likest(question.answers, part)
    took_s = time.perf_counter() - start
    if score < ENOUGH:
        return Failure(
            FailureCode.UNKNOWN_INSTRUCTION,
            unknown(part, question.answers, skill if score > 0 else None),
            took_s,
            MODEL,
        )
    return Verdict(skill, None, took_s, MODEL)


def likest(skills: Sequence[str], part: str) -> tuple[float, str]:
    """How much the skill most like a part of a goal is like it, and that skill; the first of
    equals."""
    best = max(skills, key=lambda skill: likeness(skill, part))
    return likeness(best, part), best
