"""Asks the serving node of a fleet for lifecycle transitions, as a lifecycle manager does."""

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState

from kairos_ros.drill.stage import Stage, TookTooLongError

WITHIN_S = 15.0
SERVICE = "/kairos/serving/change_state"


def pause(stage: Stage) -> None:
    """Robots are refused from now on. Raises TookTooLongError."""
    _change(stage, Transition.TRANSITION_DEACTIVATE, "deactivate")


def resume(stage: Stage) -> None:
    """Robots are served again. Raises TookTooLongError."""
    _change(stage, Transition.TRANSITION_ACTIVATE, "activate")


def _change(stage: Stage, transition: int, what: str) -> None:
    client = stage.session.driver.client(ChangeState, SERVICE)
    stage.until(client.service_is_ready, WITHIN_S, f"waiting for {SERVICE}")
    request = ChangeState.Request(transition=Transition(id=transition))
    answer = client.call_async(request)
    stage.until(answer.done, WITHIN_S, f"waiting for the serving node to {what}")
    if not answer.result().success:
        raise TookTooLongError(f"the serving node does not {what}; is it configured?")
