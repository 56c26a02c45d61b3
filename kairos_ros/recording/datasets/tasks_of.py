"""One pass over a bag: its tasks, each as soon as all of it was read."""

from collections.abc import Iterator
from typing import Any

from kairos_ros.core.errors import WireError
from kairos_ros.recording.datasets.episode import TaskFrames
from kairos_ros.recording.pipeline import TRUTH
from kairos_ros.recording.reader import Bag, BagMessage
from kairos_ros.recording.tasks import BagTask
from kairos_ros.telemetry.decode import decode
from kairos_ros.telemetry.events import (
    CellJudged,
    ChunkRequested,
    ControlReported,
    ModeChanged,
    ProgressJudged,
    RobotReported,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)

LINGER_S = 2.0
"""Topics are not in step: what belongs to a task may come so long after its end."""
PICTURE = "sensor_msgs/msg/CompressedImage"
STATUS = "kairos_ros/msg/RobotStatus"
TASK = "kairos_ros/msg/TaskEvent"
_OF_TASKS = (
    *(STATUS, TASK, "kairos_ros/msg/PolicyState", "kairos_ros/msg/ChunkRequest"),
    *("kairos_ros/msg/PipelineEvent", "kairos_ros/msg/TaskProgress"),
    "kairos_ros/msg/SafetyVerdict",
)
_OVERLAP = 2
"""A task's first pictures may come before anything else is heard of it."""
_CAMERA, _PREFIX = "/camera/", "observation.images."


def tasks_of(bag: Bag, *, pictures: bool) -> Iterator[TaskFrames]:
    """The tasks of a bag, in the order in which they ended, then those without an end.

    Messages that make no sense are left out and counted by `bag`. Raises ConfigError for damage.
    """
    reader = _Reader(bag, pictures)
    for message in bag.messages((*_OF_TASKS, PICTURE) if pictures else _OF_TASKS):
        try:
            reader.take(message)
        except (AttributeError, TypeError, ValueError, WireError) as error:
            bag.leave_out(message, str(error))
        yield from reader.over(message.at_s - LINGER_S)
    yield from reader.over(None)


class _Reader:
    def __init__(self, bag: Bag, pictures: bool) -> None:
        self._names, self._pictures = bag.names, pictures
        self._tasks: dict[TaskKey, TaskFrames] = {}
        self._looks: dict[str, dict[str, list[tuple[int, bytes]]]] = {}
        """Robot -> camera -> stamp in ns and picture, since its newest task began."""
        self._wire_names: dict[str, dict[str, str]] = {}
        """Robot -> camera -> what requests call its pictures."""
        self._given: set[TaskKey] = set()

    def take(self, message: BagMessage) -> None:
        robot, body = self._names.robot_of(message.topic), message.body
        if message.type == PICTURE:
            self._look(robot, message)
            return
        event = decode(message.type, message.topic, body, message.at_s, self._names)
        key = getattr(event, "key", None)
        match event:
            case RobotReported():
                if len(body.image_keys) == len(getattr(body, "request_image_keys", ())):
                    keys = zip(body.image_keys, body.request_image_keys, strict=True)
                    self._wire_names[event.robot] = {key: bare(name) for key, name in keys}
            case None:
                pass
            case _ if key is not None and key.robot != robot:
                pass  # said of another robot than its topic's, as robots drop it
            case ControlReported() | ModeChanged() if event.key.task:
                self._of(event.key).said.append(event)
            case TaskStartReported():
                self._of(event.key).task.began = event
            case TaskEndReported():
                self._of(event.key).task.ended = event
            case ChunkRequested():
                seen = self._seen(body) if self._pictures else {}
                self._of(event.key).asked(event, seen)
            case CellJudged():
                self._of(event.key).said.append(event)
            case ProgressJudged() if not message.topic.endswith(TRUTH):
                self._of(event.key).said.append(event)

    def over(self, before_s: float | None) -> Iterator[TaskFrames]:
        """Tasks that ended before this time; None: all that are left."""
        if not self._tasks:
            return
        for key, told in list(self._tasks.items()):
            ended = told.task.ended
            if before_s is not None and (ended is None or ended.at_s > before_s):
                continue
            del self._tasks[key]
            self._given.add(key)
            yield told

    def _of(self, key: TaskKey) -> TaskFrames:
        if key in self._given:
            return TaskFrames(key, BagTask(key))  # too late: of no task that is waited for
        found = self._tasks.get(key)
        if found is None:
            found = self._tasks[key] = TaskFrames(key, BagTask(key))
            before = self._looks.get(key.robot, {})
            found.looks = {camera: shown[-_OVERLAP:] for camera, shown in before.items()}
            self._looks[key.robot] = found.looks
        return found

    def _look(self, robot: str, message: BagMessage) -> None:
        """A picture of a camera of the robot itself, `/ROBOT/camera/KEY/compressed`."""
        looks = self._looks.get(robot)
        if looks is None or _CAMERA not in message.topic:
            return
        camera = message.topic.split("/")[-2]
        camera = self._wire_names.get(robot, {}).get(camera, camera)
        stamp = message.body.header.stamp
        at_ns = stamp.sec * 1_000_000_000 + stamp.nanosec
        looks.setdefault(camera, []).append((at_ns, bytes(message.body.data)))

    @staticmethod
    def _seen(body: Any) -> dict[str, bytes]:
        pairs = zip(body.image_keys, body.images, strict=True)
        return {bare(key): bytes(image.data) for key, image in pairs}


def bare(key: str) -> str:
    """A camera's name of what requests call its pictures."""
    return key.removeprefix(_PREFIX)
