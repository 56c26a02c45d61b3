"""Bags in, a dataset out: which tasks become episodes, and what is said of those that do not."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.wire_check import printable
from kairos_ros.recording.datasets.episode import (
    Episode,
    Kind,
    TaskFrames,
    episode,
    unfit,
)
from kairos_ros.recording.datasets.tasks_of import STATUS, TASK, bare, tasks_of
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.run_source import bag_name
from kairos_ros.telemetry.events import TaskKey

if TYPE_CHECKING:
    from kairos_ros.recording.datasets.lerobot_writer import LeRobotWriter

OLDEST_PERIODS = 2.5
"""Control periods that a frame's picture may be old, unless it is said otherwise."""
FRAMES = (
    "a frame for every action that the arm executed, at its control rate: state just before the "
    "action, action as the guard let it through. Periods in which the arm held have no frame; "
    "held_periods counts them."
)
_CAMERA = re.compile(r"\w[\w.-]*")
Progress = Callable[[float], object]
"""Share of the work that is done."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tasks become episodes, and how."""

    robots: tuple[str, ...] = ()
    """Patterns of names, such as `arm_*`; empty: all."""
    tasks: tuple[str, ...] = ()
    """Patterns of a task's kind, scene or instruction; empty: all."""
    only: frozenset[Kind] = frozenset()
    """Tasks of one of these kinds; empty: all."""
    without: frozenset[Kind] = frozenset()
    """No tasks of these kinds."""
    judge: str = ""
    """Service of a monitor that says which tasks succeeded and which failed; empty: the robot."""
    pictures: bool = True
    video: bool = True
    """Else pictures are stored as such."""
    oldest_picture_s: float | None = None
    """A task with a frame whose picture is older is left out; None: OLDEST_PERIODS."""

    def takes(self, robot: str, *names: str) -> bool:
        """names: kind, scene and instruction of the task."""
        return _fits(self.robots, (robot,)) and _fits(self.tasks, names)


@dataclass(slots=True)
class Exported:
    """What an export came to."""

    frames: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    """In their order: where each comes from."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Tasks, by why they are no episodes."""
    messages_left_out: list[str] = field(default_factory=list)
    """Of bags: a line for each topic and reason."""


def export(
    bags: Sequence[Path],
    out: Path,
    choice: Choice,
    repo_id: str,
    tell: Callable[[str], None],
    progress: Progress,
) -> Exported:
    """Writes the tasks of these bags into a new LeRobot dataset in `out`.

    Where that does not end, nothing is left. Raises ConfigError for an `out` that exists or cannot
    be written, what is no bag, robots that do not fit into one dataset, and if there is no task.
    """
    unfinished = out.with_name(f"{out.name}.partial")
    for folder in (out, unfinished):
        if folder.exists():
            raise ConfigError(f"{folder} exists; remove it, or name another folder by --out")
    bags = list({path.resolve(): path for path in bags}.values())
    body = _common_body(bags, choice, tell)
    work = _Export(unfinished, repo_id, choice, body)
    try:
        for number, path in enumerate(bags):
            with Bag(path, tell) as bag:
                work.add(bag, partial(_share, progress, number, len(bags)))
        if work.writer is None:
            raise ConfigError(_nothing(work.done.left_out))
        work.writer.close(_document(bags, choice, work.done))
        unfinished.rename(out)
    except OSError as error:
        work.discard()
        why = error.strerror or error
        raise ConfigError(f"{out} could not be written ({why}); nothing of it is left") from error
    except BaseException:
        work.discard()
        raise
    return work.done


@dataclass(frozen=True, slots=True)
class _Body:
    """What a robot announces, as far as all robots of a dataset must agree in it."""

    state_dim: int
    action_dim: int
    rate_hz: float
    cameras: tuple[tuple[str, int, int], ...]
    """Name in requests, height and width in px."""

    def __str__(self) -> str:
        cameras = ", ".join(f"{name} {height}x{width}" for name, height, width in self.cameras)
        return (
            f"{self.state_dim} state values, {self.action_dim} action values, "
            f"{self.rate_hz:g} Hz, cameras: {cameras or 'none'}"
        )


def _common_body(bags: Sequence[Path], choice: Choice, tell: Callable[[str], None]) -> _Body:
    """Of all robots with tasks that are wanted. Raises ConfigError where there is none."""
    bodies: dict[_Body, str] = {}
    for path in bags:
        with Bag(path, tell) as bag:
            announced: dict[str, _Body] = {}
            working: set[str] = set()
            for message in bag.messages((STATUS, TASK)):
                robot = message.body.robot
                if message.type == STATUS:
                    announced[robot] = _body(message.body, choice)
                    continue
                told = message.body
                kind = told.task_kind or told.instruction
                if choice.takes(robot, kind, told.scene, told.instruction):
                    working.add(robot)
        for robot in sorted(working & announced.keys()):
            bodies.setdefault(announced[robot], f"{robot} of {path}")
    if not bodies:
        raise ConfigError("no robot with such a task is in the bags; see kairos bag info")
    if len(bodies) > 1:
        found = "; ".join(f"{robot} has {body}" for body, robot in bodies.items())
        raise ConfigError(
            f"one dataset holds robots of one kind: {found}. Choose by --robots or --tasks"
            + (", or leave pictures out by --no-pictures" if _differ_in_cameras(bodies) else "")
        )
    (body,) = bodies
    if strange := [name for name, _, _ in body.cameras if not _CAMERA.fullmatch(name)]:
        raise ConfigError(
            f"camera {printable(strange[0])!r} has no name for a dataset, which are letters, "
            "digits, _, - and dots; --no-pictures exports without"
        )
    if body.rate_hz != round(body.rate_hz) or not body.rate_hz:
        raise ConfigError(f"the control rate is {body.rate_hz:g} Hz; LeRobot takes whole ones only")
    return body


def _body(status: Any, choice: Choice) -> _Body:
    names = getattr(status, "request_image_keys", ()) or status.image_keys
    cameras = zip(names, status.image_height_px, status.image_width_px, strict=False)
    return _Body(
        status.state_dim,
        status.action_dim,
        status.control_rate_hz,
        tuple((bare(name), int(h), int(w)) for name, h, w in cameras) if choice.pictures else (),
    )


def _differ_in_cameras(bodies: Collection[_Body]) -> bool:
    return len({replace(body, cameras=()) for body in bodies}) == 1


class _Export:
    """A dataset that is being made. LeRobot makes its folder at the first episode."""

    def __init__(self, folder: Path, repo_id: str, choice: Choice, body: _Body) -> None:
        self._folder, self._repo_id, self._choice, self._body = folder, repo_id, choice, body
        periods = OLDEST_PERIODS / body.rate_hz
        given_s = choice.oldest_picture_s
        self._oldest_s = periods if given_s is None else given_s
        self.writer: LeRobotWriter | None = None
        self._first: Episode | None = None
        self._known: set[TaskKey] = set()
        self.done = Exported()

    def add(self, bag: Bag, progress: Callable[[float], object]) -> None:
        for told in tasks_of(bag, pictures=bool(self._body.cameras)):
            ended = told.task.ended
            goal = ended.goal if ended else told.task.began
            names = (goal.kind, goal.scene, goal.instruction) if goal else ()
            if not self._choice.takes(told.key.robot, *names):
                continue
            if ended is not None and bag.length_s:
                progress(ended.at_s / bag.length_s)
            if reason := self._add(bag, told):
                self.done.left_out[reason] += 1
        self.done.messages_left_out += bag.left_out

    def discard(self) -> None:
        if self.writer is not None:
            self.writer.discard()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _add(self, bag: Bag, told: TaskFrames) -> str:
        """Why a task is left out; empty where it is an episode now."""
        judge, only, without = self._choice.judge, self._choice.only, self._choice.without
        if reason := unfit(told):
            return reason
        if told.key in self._known:
            return "it is in another of the bags, too"
        self._known.add(told.key)
        if judge and judge not in (reports := told.reports()):
            others = ", ".join(sorted(reports)) or "none"
            return f"monitor {judge} said nothing of it (monitors that did: {others})"
        found = episode(told, judge)
        if only and not only & found.kinds:
            return f"it is none of {', '.join(sorted(only))}"
        if unwanted := without & found.kinds:
            return f"it is {' and '.join(sorted(unwanted))}"
        if reason := self._pictures(found):
            return reason
        try:
            self._writer_for(found).add(found)
        except WireError as error:
            return str(error)
        self.done.frames += len(found.frames)
        self.done.kinds.update(found.kinds)
        self.done.episodes.append(_source(len(self.done.episodes), bag.path, found))
        return ""

    def _pictures(self, found: Episode) -> str:
        """What is wrong with an episode's pictures; empty: nothing."""
        for camera, _, _ in self._body.cameras:
            if not all(camera in frame.pictures for frame in found.frames):
                return f"it lacks pictures of {camera}; --no-pictures exports it without any"
            if max(frame.pictures[camera].age_s for frame in found.frames) > self._oldest_s:
                return (
                    f"a picture of {camera} is older than {self._oldest_s:.3g} s: record with "
                    "camera_rate_hz at the control rate, or allow it by --oldest-picture"
                )
        return ""

    def _writer_for(self, found: Episode) -> "LeRobotWriter":
        """Raises ConfigError for an episode of another kind of robot than the first."""
        from kairos_ros.recording.datasets.lerobot_writer import DatasetShape, LeRobotWriter

        if self._first is None or self.writer is None:
            cameras = {name: (height, width) for name, height, width in self._body.cameras}
            shape = DatasetShape(
                found.state_names, found.action_dim, round(self._body.rate_hz), cameras
            )
            video = self._choice.video
            self.writer = LeRobotWriter(self._folder, self._repo_id, shape, video=video)
            self._first = found
        first = self._first
        if (found.state_names, found.action_dim) != (first.state_names, first.action_dim):
            raise ConfigError(
                f"one dataset holds robots of one kind: {found.key.robot} has the state "
                f"{_list(found.state_names)} and {found.action_dim} action values, "
                f"{first.key.robot} has {_list(first.state_names)} and {first.action_dim}. "
                "Choose by --robots or --tasks"
            )
        return self.writer


def _source(number: int, bag: Path, found: Episode) -> dict[str, Any]:
    goal = found.ended.goal
    return {
        "episode_index": number,
        "bag": bag_name(bag),
        "robot": found.key.robot,
        "session": found.key.session,
        "task": found.key.task,
        "kind": goal.kind,
        "instruction": goal.instruction,
        "scene": goal.scene,
        "seed": goal.seed,
        "outcome": found.ended.outcome,
        "kinds": sorted(found.kinds),
        "frames": len(found.frames),
        "guarded": found.ended.guarded,
    }


def _document(bags: Sequence[Path], choice: Choice, done: Exported) -> dict[str, Any]:
    return {
        "format": "kairos_ros dataset",
        "version": 1,
        "bags": [bag_name(path) for path in bags],
        "choice": asdict(choice)
        | {name: sorted(getattr(choice, name)) for name in ("only", "without")},
        "frames": FRAMES,
        "episodes": done.episodes,
        "left_out": dict(done.left_out),
    }


def _nothing(left_out: Counter[str]) -> str:
    told = "; ".join(f"{count}: {reason}" for reason, count in left_out.most_common())
    return f"no task of the bags can be exported. Left out: {told or 'none was there'}"


def _share(progress: Progress, number: int, of: int, share: float) -> None:
    progress((number + share) / of)


def _fits(patterns: Collection[str], names: Collection[str]) -> bool:
    return not patterns or any(fnmatchcase(n, p) for n in names for p in patterns)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
