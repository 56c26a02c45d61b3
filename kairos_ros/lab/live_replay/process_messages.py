"""What `kairos replay` and its processes of virtual robots tell each other over a pipe.

A message is msgpack, `[name of the class, its fields]`, and every field is checked on reading.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import msgpack
import numpy as np
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from kairos_ros.core.errors import KairosError, WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.virtual_robot import Ended
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.recording.runs.trace_file import trace_from_lines, trace_lines
from kairos_ros.robot.adapter import RobotSpec


def _rules_to_json(rules: Rules) -> str:
    values = {one.name: getattr(rules, one.name) for one in fields(Rules)}
    calibration = rules.calibration.to_dict() if rules.calibration is not None else None
    return json.dumps(values | {"calibration": calibration})


def _rules_from_json(text: str) -> Rules:
    values = json.loads(text)
    given = values.pop("calibration")
    return Rules(**values, calibration=HorizonCalibration.from_dict(given) if given else None)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a request brings besides its newest state."""

    images: Mapping[str, bytes] = field(default_factory=dict)
    """Camera key -> JPEG bytes."""
    earlier: tuple[Observation, ...] = ()
    """Of the control periods before, oldest first."""


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """A recorded task, as a virtual robot needs it: without chunks."""

    trace: Trace
    horizon: str = ""
    """Horizon policy of its requests; empty: the recorded lengths, or what the rules say."""
    seen: tuple[Seen, ...] = ()
    """Of every round; empty where the policy reads nothing but one state."""


@dataclass(frozen=True, slots=True)
class _SentTasks:
    """Recorded tasks on their way: what several rounds saw is sent once."""

    seen: tuple[tuple[dict[str, bytes], tuple[tuple[bytes, dict[str, bytes]], ...]], ...]
    """Images, and state and images of each earlier observation."""
    tasks: tuple[tuple[list[bytes], str, tuple[int, ...]], ...]
    """Lines of the trace, horizon policy, and index into `seen` of every round."""


_SENT_TASKS = TypeAdapter(_SentTasks)


def _sent(tasks: Sequence[RecordedTask]) -> dict[str, Any]:
    number: dict[int, int] = {}
    seen: list[Any] = []
    for one in (one for task in tasks for one in task.seen):
        if id(one) not in number:
            number[id(one)] = len(seen)
            before = [(look.state.tobytes(), dict(look.images)) for look in one.earlier]
            seen.append((dict(one.images), before))
    rows = [
        (trace_lines(task.trace), task.horizon, [number[id(one)] for one in task.seen])
        for task in tasks
    ]
    return {"seen": seen, "tasks": rows}


def _received(data: Any) -> tuple[RecordedTask, ...]:
    sent = _SENT_TASKS.validate_python(data)
    seen = [
        Seen(images, tuple(Observation(np.frombuffer(s, np.float32), i) for s, i in earlier))
        for images, earlier in sent.seen
    ]
    return tuple(
        RecordedTask(trace_from_lines(lines), horizon, tuple(seen[i] for i in of_rounds))
        for lines, horizon, of_rounds in sent.tasks
    )


@dataclass(frozen=True, slots=True)
class Setup:
    """The robots of one process and everything they may be asked to do. Sent first."""

    robots: tuple[str, ...]
    rules: Annotated[Rules, PlainValidator(_rules_from_json), PlainSerializer(_rules_to_json)]
    spec: RobotSpec
    tasks: Annotated[tuple[RecordedTask, ...], PlainValidator(_received), PlainSerializer(_sent)]


@dataclass(frozen=True, slots=True)
class BeginRun:
    """The run begins: records count from here, in ns of the machine's monotonic clock."""

    epoch_ns: int


@dataclass(frozen=True, slots=True)
class GiveTask:
    """A task for a robot that is free."""

    robot: str
    task: int
    """Index into `Setup.tasks`."""
    number: int
    wanted_s: float
    at_ns: int
    """When it begins; monotonic."""


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """End all running tasks."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Close the topics of all robots, send `ProcessCounts` and end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The serving node has opened the topics of all robots of this process."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A robot is free again."""

    robot: str
    ended: Ended


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """What a process did, at its end."""

    cpu_s: float
    """Since the run began."""
    late_ms: list[float]
    """How late every control period in which something was decided began: whether the machine
    kept up."""
    dropped: dict[str, int]
    """Answers not used, by reason."""
    silences: int
    """Requests repeated because nothing came back."""
    requests: int


Order = Setup | BeginRun | GiveTask | CancelTasks | Leave
Report = Ready | TaskDone | ProcessCounts

_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (Setup, BeginRun, GiveTask, CancelTasks, Leave, Ready, TaskDone, ProcessCounts)
}


def encode(message: Order | Report) -> bytes:
    name = type(message).__name__
    packed: bytes = msgpack.packb([name, _KINDS[name].dump_python(message)])
    return packed


def decode(data: bytes) -> Any:
    """An Order or a Report. Raises WireError for anything else."""
    try:
        name, values = msgpack.unpackb(data)
        return _KINDS[name].validate_python(values)
    except (ValueError, TypeError, LookupError, KairosError) as error:
        raise WireError(f"this is no message of a replay: {error}") from None
