"""What one robot's body was told and saw, period by period, in a file: evidence for afterwards.

Written below the loop and the guard, so it does not depend on what either of them believes. One
msgpack array per record, appended by one `write`, so that the file of a killed node is readable up
to its last period: about 5 kB/s for a small arm at 30 Hz.
"""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgpack
import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.exchange import Observation
from kairos_ros.robot.adapter import RobotAdapter, RobotSpec, TaskGoal

log = logging.getLogger(__name__)

SUFFIX = ".body"
Kind = Literal["task", "reset", "ready", "observe", "act", "hold"]


@dataclass(frozen=True, slots=True)
class BodyEvent:
    """One record."""

    kind: Kind
    """task: a goal was accepted. reset, ready: the body's reset began, ended. observe: the body was
    looked at, for a request or in a control period whose observation a request may bring. act,
    hold: what it did in one control period."""
    at_ns: int
    """The kernel's monotonic clock, when it began."""
    task: str = ""
    """Of `task`: its id."""
    state: np.ndarray | None = None
    """float32 [state_dim]; of `observe` what was seen, of `act` the state before it."""
    action: np.ndarray | None = None
    """float32 [action_dim], of `act`: after the guard."""


class BodyLog:
    """Appends records. Never fails: without room on the disk it says so once and goes on."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be made."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigError(
                f"parameter body_log: {path} cannot be made: {error.strerror}; name a folder that "
                "this user can write to"
            ) from error
        self._broken = False

    def write(self, kind: Kind, *content: str | bytes, at_ns: int | None = None) -> None:
        """Callable from any thread."""
        if self._broken:
            return
        # not time.monotonic: the log of a process whose clock was tampered with stays comparable
        at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) if at_ns is None else at_ns
        try:
            os.write(self._file, msgpack.packb([kind, at_ns, *content]))
        except OSError as error:
            self._broken = True
            log.error("the body log ends here: %s", error.strerror)

    def close(self) -> None:
        """Nothing is written afterwards."""
        if not self._broken:
            self._broken = True
            os.close(self._file)


class LoggedBody:
    """A RobotAdapter that writes down what it hands on to another one."""

    def __init__(self, body: RobotAdapter, record: BodyLog) -> None:
        self._body = body
        self._record = record

    @property
    def spec(self) -> RobotSpec:
        return self._body.spec

    def reset(self, goal: TaskGoal) -> None:
        self._record.write("reset")
        self._body.reset(goal)
        self._record.write("ready")

    def observe(self) -> Observation:
        seen = self._body.observe()
        self._record.write("observe", _bytes(seen.state))
        return seen

    def state(self) -> np.ndarray:
        return self._body.state()

    def act(self, action: np.ndarray) -> None:
        self._record.write("act", _bytes(self._body.state()), _bytes(action))
        self._body.act(action)

    def hold(self) -> None:
        self._record.write("hold")
        self._body.hold()

    def succeeded(self) -> bool | None:
        return self._body.succeeded()

    def close(self) -> None:
        self._record.close()
        self._body.close()

    def __getattr__(self, name: str) -> Any:
        """Whatever else this body can do."""
        return getattr(self._body, name)


def log_path(folder: Path, robot: str, session: str) -> Path:
    """The file of one session of one robot."""
    return folder / f"{robot.replace('/', '.')}.{session}{SUFFIX}"


def read_body_log(path: Path) -> Iterator[BodyEvent]:
    """The records, in order; a last one that was cut off is left out.

    Raises ConfigError for a file that is none.
    """
    records = msgpack.Unpacker(max_buffer_size=1 << 30)
    records.feed(path.read_bytes())
    try:
        for kind, at_ns, *content in records:
            yield _event(kind, at_ns, content)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ConfigError(f"{path} is no body log: {error}") from error


def _event(kind: str, at_ns: int, content: list[str | bytes]) -> BodyEvent:
    match kind, content:
        case "task", [str() as task]:
            return BodyEvent("task", at_ns, task)
        case "observe", [bytes() as state]:
            return BodyEvent("observe", at_ns, state=_floats(state))
        case "act", [bytes() as state, bytes() as action]:
            return BodyEvent("act", at_ns, state=_floats(state), action=_floats(action))
        case ("reset" | "ready" | "hold") as plain, []:
            return BodyEvent(plain, at_ns)
    raise ValueError(f"record {kind!r:.40} with {len(content)} parts")


def _bytes(values: np.ndarray) -> bytes:
    return np.asarray(values, "<f4").tobytes()


def _floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4")
