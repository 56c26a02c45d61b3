"""Whether an answer is one that a robot waits for: the same rule for real and virtual robots."""

from kairos_ros.core.exchange import Actions, Answer
from kairos_ros.robot.run import Run


def unwanted(answer: Answer, robot: str, session: str, run: Run | None) -> str:
    """Why an answer is of no use to this robot, whatever it holds; empty if it may be.

    run: the robot's task in progress.
    """
    answered = answer.id
    if answered.robot != robot:
        return "other_robot"
    if answered.session != session:
        return "other_session"
    if run is None:
        return "no_task"
    if answered.task != run.task.id:
        return "other_task"
    if answered.round < run.round:
        return "old_round"
    if answered.round > run.round or answered.attempt >= len(run.attempts):
        return "never_requested"
    if not run.awaiting:
        return "stopped" if run.abandoned else "repeated"
    newest = answered.attempt == len(run.attempts) - 1 and not run.refused
    return "" if newest or isinstance(answer.body, Actions) else "repeated"
