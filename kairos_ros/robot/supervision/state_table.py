"""Every rule of the robot's state machine, as a table (Rosa §3.3)."""

from dataclasses import dataclass
from enum import StrEnum

from kairos_ros.core.pipeline import Fallback


class Mode(StrEnum):
    RUNNING = "running"
    """Executes chunks."""
    HOLDING = "holding"
    """Keeps its position: no task, not known to be safe, or waiting for an answer."""
    RETURNING = "returning_to_safe_state"
    RETRYING = "retrying"
    """Body and scene are being reset for another attempt."""
    WAITING = "waiting_for_human"


class Effect(StrEnum):
    """What the robot does at once. `STOP` comes first."""

    STOP = "stop"
    """Hold; drop every buffered action."""
    RESEND = "resend"
    """Ask the transition's component again."""
    REPLAN = "replan"
    """Ask for a new plan, and for actions as soon as the robot runs again."""
    RETURN = "return"
    """Move to the safe state."""
    RESET = "reset"
    """Reset body and scene."""
    CALL_HUMAN = "call human"
    SUCCEED = "succeed"
    """The task has succeeded."""
    FAIL = "fail"
    """The task has failed."""


class Trigger(StrEnum):
    """Why a transition is made."""

    STOP_AND_RESEND = Fallback.STOP_AND_RESEND.value
    USE_LAST_PLAN = Fallback.USE_LAST_PLAN.value
    STOP_AND_REPLAN = Fallback.STOP_AND_REPLAN.value
    RETURN_TO_SAFE_STATE = Fallback.RETURN_TO_SAFE_STATE.value
    STOP_AND_CALL_HUMAN = Fallback.STOP_AND_CALL_HUMAN.value
    UNSAFE = "unsafe, nothing to do but hold"
    CLEAR = "safe and answered"
    DONE = "task done"
    FAILED = "task failed"
    RESET_STILL_DUE = "safe again, reset still due"
    RESET_DONE = "reset done"
    RESET_FAILED = "reset failed"
    AT_SAFE_STATE = "at the safe state"
    HUMAN_NEXT = "at the safe state, limit used up"
    NO_WAY_BACK = "safe state not reached"
    RELEASED = "released by a human"
    TASK_ENDED = "task ended"


RUNNING, HOLDING, RETURNING, RETRYING, WAITING = Mode
WORKING = (RUNNING, HOLDING)
MINDFUL = (RUNNING, HOLDING, RETURNING, RETRYING)
"""Modes in which violations count."""
SAME = None


@dataclass(frozen=True, slots=True)
class TransitionRow:
    trigger: Trigger
    sources: tuple[Mode, ...]
    target: Mode | None
    effects: tuple[Effect, ...] = ()


TABLE = (
    TransitionRow(Trigger.CLEAR, (HOLDING,), RUNNING),
    TransitionRow(Trigger.STOP_AND_RESEND, MINDFUL, HOLDING, (Effect.STOP, Effect.RESEND)),
    TransitionRow(Trigger.STOP_AND_REPLAN, MINDFUL, HOLDING, (Effect.STOP, Effect.REPLAN)),
    TransitionRow(Trigger.RETURN_TO_SAFE_STATE, MINDFUL, RETURNING, (Effect.STOP, Effect.RETURN)),
    TransitionRow(Trigger.STOP_AND_CALL_HUMAN, MINDFUL, WAITING, (Effect.STOP, Effect.CALL_HUMAN)),
    TransitionRow(Trigger.USE_LAST_PLAN, WORKING, SAME),
    TransitionRow(Trigger.UNSAFE, (HOLDING, WAITING), SAME, (Effect.STOP,)),
    TransitionRow(Trigger.DONE, WORKING, HOLDING, (Effect.STOP, Effect.SUCCEED)),
    TransitionRow(Trigger.FAILED, WORKING, RETRYING, (Effect.STOP, Effect.RESET)),
    TransitionRow(Trigger.RESET_DONE, (RETRYING,), HOLDING),
    TransitionRow(Trigger.RESET_STILL_DUE, (HOLDING,), RETRYING, (Effect.RESET,)),
    TransitionRow(Trigger.RESET_FAILED, (RETRYING,), HOLDING, (Effect.STOP, Effect.FAIL)),
    TransitionRow(Trigger.AT_SAFE_STATE, (RETURNING,), HOLDING, (Effect.STOP,)),
    TransitionRow(Trigger.HUMAN_NEXT, (RETURNING,), WAITING, (Effect.STOP, Effect.CALL_HUMAN)),
    TransitionRow(
        Trigger.NO_WAY_BACK, (RETURNING, RETRYING), WAITING, (Effect.STOP, Effect.CALL_HUMAN)
    ),
    TransitionRow(Trigger.RELEASED, (WAITING,), HOLDING),
    TransitionRow(Trigger.TASK_ENDED, MINDFUL, HOLDING, (Effect.STOP,)),
    TransitionRow(Trigger.TASK_ENDED, (WAITING,), SAME),
)
ROWS = {(row.trigger, mode): row for row in TABLE for mode in row.sources}
"""Trigger and mode -> row; a trigger without a row for the mode changes nothing."""
