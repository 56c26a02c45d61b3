"""A monitor against the simulator's truth about the very pictures that it judged.

The truth is recorded beside the answers (`/ROBOT/task_truth`); no judge and no robot hears it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kairos_ros.core.pipeline import Component, TaskState
from kairos_ros.recording.runs.pipeline import JudgementRecord, PipelineRecord, TransitionRecord
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.robot.supervision.state_table import Effect


@dataclass(frozen=True, slots=True)
class Confusion:
    """What the monitors said of the cells of one task class."""

    scene: str
    counts: Mapping[tuple[TaskState, TaskState], int]
    """(truth, said) -> judgements."""
    unknown: int
    """Judgements of pictures whose truth is unclear or was not recorded."""
    succeeded: int
    """Tasks that their robots ended because the monitor said "done" of a picture whose truth is
    known."""
    confirmed: int
    """Those of them in which it was."""

    @property
    def scored(self) -> int:
        return sum(self.counts.values())

    @property
    def agreement(self) -> float:
        """Share of the scored judgements that were right; NaN without any."""
        right = sum(n for (truth, said), n in self.counts.items() if truth is said)
        return right / self.scored if self.scored else float("nan")

    def recall(self, truth: TaskState) -> float:
        """Of the pictures that show `truth`, the share of which it was said; NaN without any."""
        shown = sum(n for (one, _), n in self.counts.items() if one is truth)
        return self.counts.get((truth, truth), 0) / shown if shown else float("nan")


def confusions(run: FleetRun) -> list[Confusion]:
    """By task class, in the order of their names; empty where no truth was recorded."""
    record = run.pipeline or PipelineRecord()
    scenes = {(task.robot, task.task): task.scene for task in run.tasks}
    of_class: defaultdict[str, list[JudgementRecord]] = defaultdict(list)
    for one in record.judged:
        scene = scenes.get((one.robot, one.task))
        if one.component is Component.MONITOR and scene is not None:
            of_class[scene].append(one)
    if not any(one.truth for mine in of_class.values() for one in mine):
        return []
    return [
        _confusion(scene, mine, list(_decisive(mine, record.moves)))
        for scene, mine in sorted(of_class.items())
    ]


def _decisive(
    judged: list[JudgementRecord], moves: Iterable[TransitionRecord]
) -> Iterator[JudgementRecord]:
    """The "done" that ended each task: the one about the picture whose age the robot told when it
    ended it. The recorder may get that answer after the end of the task."""
    for end in moves:
        if end.component == Component.MONITOR and Effect.SUCCEED in end.effects:
            pictured_s = end.at_s - end.frame_age_s
            said = [
                one
                for one in judged
                if (one.robot, one.task, one.said) == (end.robot, end.task, TaskState.DONE)
            ]
            if said:
                yield min(said, key=lambda one: abs(one.pictured_s - pictured_s))


def _confusion(
    scene: str, mine: list[JudgementRecord], decisive: list[JudgementRecord]
) -> Confusion:
    known = [one for one in mine if one.truth is not None]
    decisive = [one for one in decisive if one.truth is not None]
    return Confusion(
        scene,
        Counter((one.truth, TaskState(one.said)) for one in mine if one.truth is not None),
        len(mine) - len(known),
        len(decisive),
        sum(one.truth is TaskState.DONE for one in decisive),
    )
