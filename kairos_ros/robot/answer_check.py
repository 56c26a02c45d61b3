"""Whether an answer is one that a robot waits for: the same rule for real and virtual robots."""

from typing import Protocol

from kairos_ros.robot.run import Run


class Addressed(Protocol):
    """Echo of the request that an answer belongs to."""

    @property
    def robot(self) -> str: ...

    @property
    def session(self) -> str: ...

    @property
    def task(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def attempt(self) -> int: ...


def unwanted(answer: Addressed, robot: str, session: str, run: Run | None, *, actions: bool) -> str:
    """Why an answer is of no use to this robot, whatever it holds; empty if it may be.

    run: the robot's task in progress. actions: the answer brings some, and is neither a refusal nor
    a refetch.
    """
    if answer.robot != robot:
        return "other_robot"
    if answer.session != session:
        return "other_session"
    if run is None:
        return "no_task"
    if answer.task != run.task.id:
        return "other_task"
    if answer.round < run.round:
        return "old_round"
    if answer.round > run.round or answer.attempt >= len(run.attempts):
        return "never_requested"
    if not run.awaiting:
        return "stopped" if run.abandoned else "repeated"
    newest = answer.attempt == len(run.attempts) - 1 and not run.refused
    return "" if actions or newest else "repeated"
