"""What the simulator knew of the pictures that monitors judged: scores them, and no more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kairos_ros.core.pipeline import TaskState

Picture = tuple[str, str, int, int]
"""Robot, task, and the stamp (s, ns) of one picture."""


@dataclass(frozen=True, slots=True)
class MonitorScore:
    """What the monitor said of the pictures of one task class whose truth is known."""

    task: str
    pictures: int
    right: int
    false_failed: int
    """It said "failed", and that was not so."""
    false_done: int
    failed: int
    """Pictures of failed tasks."""
    missed: int
    """Those of them of which it said something else."""


class GroundTruth:
    """Both, by picture, as they are heard."""

    def __init__(self) -> None:
        self._known: dict[Picture, tuple[float, TaskState]] = {}
        self._said: dict[Picture, TaskState] = {}

    def know(self, picture: Picture, state: TaskState, at_s: float) -> None:
        self._known[picture] = at_s, state

    def say(self, picture: Picture, state: TaskState) -> None:
        self._said[picture] = state

    def lost(self, robot: str, from_s: float) -> bool:
        """Whether the simulator has seen the object of a robot out of its reach since then."""
        return any(
            picture[0] == robot and at_s >= from_s and state is TaskState.FAILED
            for picture, (at_s, state) in self._known.items()
        )

    def scores(self, groups: Mapping[str, Sequence[str]]) -> list[MonitorScore]:
        """groups: task class -> its robots. Classes of which nothing was judged are left out."""
        found = []
        for task, robots in groups.items():
            both = [
                (self._known[picture][1], said)
                for picture, said in self._said.items()
                if picture[0] in robots and picture in self._known
            ]
            if both:
                found.append(_score(task, both))
        return found


def _score(task: str, both: Sequence[tuple[TaskState, TaskState]]) -> MonitorScore:
    wrong = [(truth, said) for truth, said in both if truth is not said]
    return MonitorScore(
        task,
        len(both),
        len(both) - len(wrong),
        sum(said is TaskState.FAILED for _, said in wrong),
        sum(said is TaskState.DONE for _, said in wrong),
        sum(truth is TaskState.FAILED for truth, _ in both),
        sum(truth is TaskState.FAILED for truth, _ in wrong),
    )
