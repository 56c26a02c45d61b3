"""What a robot without ROS and `kairos doors` tell each other. What does not fit is a WireError.

Robot to doors: `announce {...}` once, `request {...}`, `report {...}` when something changes and
every second. Doors to robot: `welcome {robot, session}` first, `server {...}` whenever a serving
node says how it is, `answer {...}`, and `error {reason}` before a connection is closed.

Robot and session of requests and answers are those of the connection; they do not travel. Times are
durations in integer nanoseconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import (
    Actions,
    Answer,
    Execution,
    Observation,
    Refetch,
    Refusal,
    Request,
    RequestId,
    no_actions,
)
from kairos_ros.core.fit import RobotInterface
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.wire_check import (
    CAMERAS,
    ID_BYTES,
    LONGEST_S,
    OBSERVATIONS,
    TEXT_BYTES,
    TooLargeError,
    check_text,
    is_name,
)
from kairos_ros.transport.field_checks import (
    checks_of,
    count,
    flag,
    list_of,
    number,
    refusal_code,
    text,
)
from kairos_ros.transport.frames import Message, check_all_taken, take_array

SUBPROTOCOL = "kairos.v1"
"""Of the WebSocket (RFC 6455 §1.9): a server that does not speak it is known by that."""
CONTROL_RATES_HZ = (0.1, 1000.0)
MOST_VALUES = 1000
"""Of a state or an action."""
MOST_PX = 16384
"""Height or width of a picture."""
_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Announce:
    """What a robot senses and accepts, and which policy its tasks ask for."""

    interface: RobotInterface
    control_rate_hz: float
    policy: str = ""
    """Empty: the server's default."""


@dataclass(frozen=True, slots=True)
class RobotReport:
    """What a robot does, for its status."""

    state: RobotState
    task: str = ""
    instruction: str = ""
    round: int = 0
    remaining: int = 0
    """Actions left of the running chunk."""
    stalled_ns: int = 0
    horizon: int = 0
    """Actions of the running chunk."""
    tasks_done: int = 0
    actions_executed: int = 0
    dropped: int = 0
    """Answers not used."""
    silences: int = 0
    """Requests that had to be repeated because nothing came back."""
    server: str = ""
    """Identity of the serving node that is asked."""
    policy: str = ""
    """That requests ask for."""


_REPORT = checks_of(RobotReport)
_EXECUTION = checks_of(Execution)
_ACTIONS = checks_of(Actions)


def welcome_message(robot: str, session: str) -> Message:
    return Message("welcome", {"robot": robot, "session": session})


def read_welcome(message: Message) -> tuple[str, str]:
    """Robot and session."""
    return text(message.fields, "robot"), text(message.fields, "session")


def error_message(reason: str) -> Message:
    return Message("error", {"reason": reason[:TEXT_BYTES]})


def read_error(message: Message) -> str:
    return text(message.fields, "reason")


def announce_message(announce: Announce) -> Message:
    robot = announce.interface
    fields = {
        "state_dim": robot.state_dim,
        "action_dim": robot.action_dim,
        "cameras": {key: list(size or ()) for key, size in robot.cameras.items()},
        "absent": sorted(robot.absent),
        "control_rate_hz": float(announce.control_rate_hz),
        "policy": announce.policy,
    }
    return Message("announce", fields)


def read_announce(message: Message) -> Announce:
    fields = message.fields
    check_all_taken(iter(message.arrays))
    dims = {name: count(fields, name) for name in ("state_dim", "action_dim")}
    for name, dim in dims.items():
        if not 1 <= dim <= MOST_VALUES:
            raise WireError(f"{name} is {dim}; it goes from 1 to {MOST_VALUES}")
    rate_hz, (slowest, fastest) = number(fields, "control_rate_hz"), CONTROL_RATES_HZ
    if not slowest <= rate_hz <= fastest:
        raise WireError(f"control_rate_hz is {rate_hz}; it goes from {slowest} to {fastest}")
    cameras = fields.get("cameras")
    if not isinstance(cameras, dict) or len(cameras) > CAMERAS:
        raise WireError(f"cameras is no map of at most {CAMERAS} cameras")
    sizes = {_camera(key): _size(key, size) for key, size in cameras.items()}
    absent = [_camera(key) for key in list_of(fields, "absent")]
    if len(absent) > CAMERAS:
        raise WireError(f"absent names more than {CAMERAS} cameras")
    interface = RobotInterface(**dims, cameras=sizes, absent=frozenset(absent))
    return Announce(interface, rate_hz, check_text("policy", text(fields, "policy")))


def report_message(report: RobotReport) -> Message:
    fields = {one.name: getattr(report, one.name) for one in fields_of(report)}
    return Message("report", fields | {"state": int(report.state)})


def read_report(message: Message) -> RobotReport:
    fields = message.fields
    check_all_taken(iter(message.arrays))
    state = count(fields, "state")
    if state not in set(RobotState):
        raise WireError(f"robot state {state} is unknown")
    plain = {name: check(fields, name) for name, check in _REPORT.items()}
    _check_plain(plain)
    return RobotReport(state=RobotState(state), **plain)


def request_message(request: Request) -> Message:
    asked = request.id
    keys = list(request.observation.images)
    arrays: list[NDArray[Any]] = []
    for seen in (*request.earlier, request.observation):
        arrays.append(np.asarray(seen.state, np.float32))
        arrays += [np.frombuffer(seen.images[key], np.uint8) for key in keys]
    fields: dict[str, Any] = {name: getattr(asked, name) for name in ("task", "round", "attempt")}
    fields |= {name: getattr(request, name) for name in (*_TEXTS, *_COUNTS)}
    fields["execution"] = {name: getattr(request.execution, name) for name in _EXECUTION}
    fields |= {"images": keys, "earlier": len(request.earlier)}
    for name in ("committed", "executed"):
        rows = np.asarray(getattr(request, name), np.float32)
        fields[name] = len(rows) > 0
        arrays += [rows] if len(rows) else []
    return Message("request", fields, tuple(arrays))


_TEXTS = {
    "server": ID_BYTES,
    "instruction": TEXT_BYTES,
    "kind": TEXT_BYTES,
    "horizon_policy": TEXT_BYTES,
    "policy": TEXT_BYTES,
}
_COUNTS = ("seed", "observed_ago_ns", "deadline_ns", "task_actions")


def read_request(message: Message, robot: str, session: str) -> Request:
    """robot, session: of the connection that it came from."""
    fields, arrays = message.fields, iter(message.arrays)
    plain: dict[str, Any] = {
        name: check_text(name, text(fields, name), most) for name, most in _TEXTS.items()
    }
    plain |= {name: count(fields, name) for name in _COUNTS}
    _check_plain({name: value for name, value in plain.items() if name != "seed"})
    asked = RequestId(
        robot,
        session,
        check_text("task", text(fields, "task"), ID_BYTES),
        _uint32(fields, "round"),
        _uint32(fields, "attempt"),
    )
    keys = [_camera(key) for key in list_of(fields, "images")]
    if len(set(keys)) != len(keys) or len(keys) > CAMERAS:
        raise WireError(f"images is no list of at most {CAMERAS} different cameras")
    earlier = count(fields, "earlier")
    if earlier >= OBSERVATIONS:
        raise TooLargeError(f"{earlier + 1} observations, at most {OBSERVATIONS} are accepted")
    *before, newest = [_observation(keys, arrays) for _ in range(earlier + 1)]
    committed, executed = (_rows(fields, name, arrays) for name in ("committed", "executed"))
    check_all_taken(arrays)
    return Request(
        asked,
        **plain,
        execution=_execution(fields.get("execution")),
        observation=newest,
        earlier=tuple(before),
        committed=committed,
        executed=executed,
    )


def answer_message(answer: Answer) -> Message:
    asked, body = answer.id, answer.body
    fields: dict[str, Any] = {name: getattr(asked, name) for name in ("task", "round", "attempt")}
    fields["server"] = answer.server
    match body:
        case Actions():
            fields |= {"kind": "actions"} | {name: getattr(body, name) for name in _ACTIONS}
            arrays = (np.asarray(body.actions), np.asarray(body.confidence))
            return Message("answer", fields, arrays)
        case Refusal():
            fields |= {"code": int(body.code), "reason": body.reason[:TEXT_BYTES]}
            fields["retry_after_ns"] = body.retry_after_ns
            return Message("answer", fields | {"kind": "refusal"})
        case Refetch():
            return Message("answer", fields | {"kind": "refetch"})


def read_answer(message: Message, robot: str, session: str) -> Answer:
    """robot, session: of the connection that it came from."""
    fields, arrays = message.fields, iter(message.arrays)
    asked = RequestId(
        robot, session, text(fields, "task"), _uint32(fields, "round"), _uint32(fields, "attempt")
    )
    body: Actions | Refusal | Refetch
    match text(fields, "kind"):
        case "actions":
            plain = {name: check(fields, name) for name, check in _ACTIONS.items()}
            _check_plain(plain)
            actions = take_array(arrays, np.float32, 2, "actions")
            confidence = take_array(arrays, np.float32, 1, "confidence")
            body = Actions(actions=actions, confidence=confidence, **plain)
        case "refusal":
            retry_ns = count(fields, "retry_after_ns")
            _check_plain({"retry_after_ns": retry_ns})
            body = Refusal(refusal_code(fields), text(fields, "reason"), retry_ns)
        case "refetch":
            body = Refetch()
        case kind:
            raise WireError(f"answer kind {kind[:40]!r} is unknown")
    check_all_taken(arrays)
    return Answer(asked, body, text(fields, "server"))


def _execution(told: Any) -> Execution:
    if not isinstance(told, dict):
        raise WireError("execution is no map")
    plain = {name: check(told, name) for name, check in _EXECUTION.items()}
    _check_plain(plain)
    return Execution(**plain)


def _check_plain(plain: Mapping[str, Any]) -> None:
    """Durations are no longer than `LONGEST_S`, counts fit messages, texts are no longer than
    `TEXT_BYTES`."""
    for name, value in plain.items():
        if isinstance(value, str):
            check_text(name, value)
        elif name.endswith("_ns"):
            if value > LONGEST_S * 1e9:
                raise WireError(f"{name} is {value}; a duration is at most {LONGEST_S:g} s")
        elif type(value) is int and value > _UINT32:
            raise WireError(f"{name} is {value}; it goes to {_UINT32}")


def _uint32(fields: Mapping[str, Any], name: str) -> int:
    value = count(fields, name)
    if value > _UINT32:
        raise WireError(f"{name} is {value}; it goes to {_UINT32}")
    return value


def _camera(key: Any) -> str:
    if not isinstance(key, str) or not is_name(key):
        raise WireError(f"{str(key)[:80]!r} is no name of a camera: letters, digits and _")
    return key


def _size(key: str, size: Any) -> tuple[int, int] | None:
    if size == []:
        return None
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(type(n) is int and 0 < n <= MOST_PX for n in size)
    ):
        raise WireError(f"the size of camera {key} is no [height_px, width_px]")
    return size[0], size[1]


def _observation(keys: list[str], arrays: Iterator[NDArray[Any]]) -> Observation:
    state = take_array(arrays, np.float32, 1, "state")
    images = {key: take_array(arrays, np.uint8, 1, "image").tobytes() for key in keys}
    return Observation(state, images)


def _rows(fields: Mapping[str, Any], name: str, arrays: Iterator[NDArray[Any]]) -> NDArray[Any]:
    return take_array(arrays, np.float32, 2, name) if flag(fields, name) else no_actions()
