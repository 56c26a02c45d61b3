"""How the standing questions may be worded: what the embedded judge hears in training, and after.

Wordings under test are never trained on; all of their words are, elsewhere.
"""

from kairos_ros.vlm.questions import SAFETY, SAFETY_PROMPT, TASK_STATE, TASK_STATE_PROMPT

TRAINED: dict[str, tuple[str, ...]] = {
    SAFETY: (
        SAFETY_PROMPT,
        "Is a person or a hand inside the robot's cell?",
        "Is the robot's workspace safe or unsafe?",
        "Answer unsafe if a human, an arm or a hand is in the workcell, else safe.",
        "Check the camera: is anybody near the robot?",
        "Has somebody entered the cell of the robot arm?",
        "Is it safe for the robot to move on?",
        "Do you see a human body in the image?",
        "safe or unsafe?",
    ),
    TASK_STATE: (
        TASK_STATE_PROMPT,
        "Is the task ongoing, done or failed?",
        "What is the state of the task in the image?",
        "Has the robot arm done its task, is it still ongoing, or has it failed?",
        "Judge the progress of the robot: ongoing, done, failed.",
        "Answer done if the goal is reached, failed if the object is out of reach, else ongoing.",
        "How far is the task?",
        "Look at the object and the goal. Is the task done?",
    ),
}
"""Kind of question -> wordings."""

HELD_OUT: dict[str, tuple[str, ...]] = {
    SAFETY: (
        "Is a human hand inside the workcell?",
        "Do you see somebody in the workspace of the robot?",
    ),
    TASK_STATE: (
        "Has the task failed, is it done, or still ongoing?",
        "What is the progress of the task?",
    ),
}
"""The same questions in other words."""
