"""The two standing questions of a robot cell (Rosa §2.2) and what may be answered."""

from kairos_ros.core.pipeline import TaskState

SAFETY = "safety"
SAFETY_PROMPT = "is the workcell safe?"
SAFE, UNSAFE = "safe", "unsafe"

TASK_STATE = "task_state"
TASK_STATE_PROMPT = "ongoing, done, or failed?"
ONGOING, DONE, FAILED = (state.value for state in TaskState)
"""In words; done: as asked for. Failed: its object is out of reach."""
