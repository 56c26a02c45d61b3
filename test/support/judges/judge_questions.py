"""The two standing questions of a cell, as judging nodes put them."""

import numpy as np

from kairos_ros.vlm.judge import Question
from kairos_ros.vlm.questions import (
    DONE,
    FAILED,
    ONGOING,
    SAFE,
    SAFETY,
    SAFETY_PROMPT,
    TASK_STATE,
    TASK_STATE_PROMPT,
    UNSAFE,
)


def safety_question(
    instruction: str, images: tuple[np.ndarray, ...], prompt: str = SAFETY_PROMPT
) -> Question:
    return Question(SAFETY, prompt, instruction, images, (SAFE, UNSAFE))


def task_state_question(instruction: str, images: tuple[np.ndarray, ...]) -> Question:
    return Question(TASK_STATE, TASK_STATE_PROMPT, instruction, images, (ONGOING, DONE, FAILED))
