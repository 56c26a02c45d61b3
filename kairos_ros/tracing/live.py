"""The tasks of a fleet as they happen, until each is over and can be told."""

from collections import Counter, OrderedDict

from kairos_ros.recording.tasks import BagRound, BagTask
from kairos_ros.telemetry.events import (
    ChunkAnswered,
    Event,
    RobotReported,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)

SETTLED_AFTER_S = 1.0
"""After a task's end nothing of it is under way any more."""
SILENT_AFTER_S, UNFINISHED_AFTER_S = 60.0, 600.0
"""A task that nothing is heard of for so long is over: one whose robot tells no ends of tasks, and
one whose end was missed."""
MOST_TASKS, MOST_ROUNDS, MOST_TOLD = 1000, 5000, 1000


class LiveTasks:
    """Fed with events in the order in which they came. Times are the listener's, in seconds."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        """Rounds and tasks that are not kept, by reason."""
        self._open: OrderedDict[TaskKey, BagTask] = OrderedDict()
        """Heard last is last."""
        self._heard_s: dict[TaskKey, float] = {}
        self._told: OrderedDict[TaskKey, None] = OrderedDict()
        """Tasks that are over; what comes late of them is left out."""
        self._servers: dict[str, str] = {}
        """Robot -> the serving node that it asks."""

    def take(self, event: Event) -> None:
        match event:
            case RobotReported():
                self._servers[event.robot] = event.server
                if len(self._servers) > MOST_TASKS:
                    self._servers.pop(next(iter(self._servers)))
            case TaskStartReported():
                if task := self._task(event.key, event.at_s):
                    task.began = event
            case TaskEndReported():
                if task := self._task(event.key, event.at_s):
                    task.ended = event
            case ChunkAnswered():
                self._answered(event)

    def over(self, now_s: float) -> list[BagTask]:
        """Tasks that have ended, or that nothing is heard of any more; they are forgotten."""
        done = [task for key, task in self._open.items() if self._is_over(key, task, now_s)]
        for task in done:
            self._close(task.key)
        return done

    def all(self) -> list[BagTask]:
        """Every task that is left; they are forgotten."""
        left = list(self._open.values())
        for task in left:
            self._close(task.key)
        return left

    def _is_over(self, key: TaskKey, task: BagTask, now_s: float) -> bool:
        if task.ended is not None:
            return now_s - task.ended.at_s >= SETTLED_AFTER_S
        most_s = SILENT_AFTER_S if task.began is None else UNFINISHED_AFTER_S
        return now_s - self._heard_s[key] >= most_s

    def _answered(self, chunk: ChunkAnswered) -> None:
        if self._servers.get(chunk.key.robot, "") not in ("", chunk.server):
            self.left_out["other_server"] += 1
            return
        task = self._task(chunk.key, chunk.at_s)
        if task is None:
            return
        if chunk.round not in task.rounds and len(task.rounds) >= MOST_ROUNDS:
            self.left_out["round_of_a_long_task"] += 1
            return
        task.rounds.setdefault(chunk.round, BagRound()).answers.append(chunk)

    def _task(self, key: TaskKey, at_s: float) -> BagTask | None:
        """None for one that is over."""
        if key in self._told:
            self.left_out["after_the_end"] += 1
            return None
        task = self._open.setdefault(key, BagTask(key))
        self._open.move_to_end(key)
        self._heard_s[key] = at_s
        if len(self._open) > MOST_TASKS:
            self.left_out["task_of_too_many"] += 1
            self._close(next(iter(self._open)))
        return task

    def _close(self, key: TaskKey) -> None:
        del self._open[key], self._heard_s[key]
        self._told[key] = None
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
