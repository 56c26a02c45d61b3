"""The two standing questions of a robot cell (001 §2.2) and what may be answered."""

import numpy as np

from kairos_ros.vlm.judge import Question

SAFETY = "safety"
SAFETY_PROMPT = "is the workcell safe?"
SAFE, UNSAFE = "safe", "unsafe"

TASK_STATE = "task_state"
TASK_STATE_PROMPT = "ongoing, done, or failed?"
ONGOING, DONE, FAILED = "ongoing", "done", "failed"


def safety_question(
    instruction: str, images: tuple[np.ndarray, ...], prompt: str = SAFETY_PROMPT
) -> Question:
    """Is somebody in the cell? Unsafe when a person, or a part of one, is."""
    return Question(SAFETY, prompt, instruction, images, (SAFE, UNSAFE))


def task_state_question(
    instruction: str, images: tuple[np.ndarray, ...], prompt: str = TASK_STATE_PROMPT
) -> Question:
    """Is the task done, lost (its object is out of reach), or neither?"""
    return Question(TASK_STATE, prompt, instruction, images, (ONGOING, DONE, FAILED))
