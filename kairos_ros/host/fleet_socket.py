"""Where the program that runs a planned fleet can be spoken to, by its user, on its host.

Messages are JSON objects, one a line.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError, KairosError, WireError
from kairos_ros.host.user_folder import user_folder

LONGEST = 32 * 1024 * 1024
"""Bytes of a message: a fleet of ten thousand robots has a few."""
CHUNK = 65536
SEND_S = 3.0


class FleetConnection:
    """A connection. Closing it, or the end of its process, tells the other side."""

    def __init__(self, connected: socket.socket, wait_s: float) -> None:
        """wait_s: how long `receive` waits for a message; 0: not at all."""
        self._socket, self._wait_s = connected, wait_s
        self._buffer = bytearray()
        self._searched = 0
        self.closed = False
        """The other side has hung up."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def peer(self) -> int:
        """Process id of the other side."""
        size = struct.calcsize("3i")
        pid: int = struct.unpack(
            "3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )[0]
        return pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Waits for a slow reader for up to SEND_S; one that has gone is no error."""
        if not self.closed:
            try:
                self._socket.settimeout(SEND_S)
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self.closed = True

    def receive(self) -> dict[str, Any] | None:
        """The next message; None: there is none yet, or it is closed.

        Raises WireError for what is no message.
        """
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                text = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return _message(text)
            self._searched = len(self._buffer)
            if len(self._buffer) > LONGEST:
                raise WireError(f"a message is longer than {LONGEST} bytes")
            try:
                self._socket.settimeout(self._wait_s)
                more = self._socket.recv(CHUNK)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError:
                more = b""
            if not more:
                self.closed = True
                return None
            self._buffer += more

    def close(self) -> None:
        self.closed = True
        self._socket.close()


def _message(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("a message must be an object")
    return message


class FleetListener:
    """Where a running fleet listens. A context manager."""

    def __init__(self, namespace: str, host: str = "") -> None:
        """host: besides the first one, where the fleet has several; nobody asks that one."""
        self.path = _path(namespace, host)

    def __enter__(self) -> "FleetListener":
        """Raises ConfigError where another fleet of this user listens already."""
        if (other := _connected(self.path)) is not None:
            other.close()
            raise ConfigError(
                f"a planned fleet runs already {_where()} (it listens at {self.path}); change it "
                "with `kairos fleet apply`, or run this one in another ROS_DOMAIN_ID"
            )
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(str(self.path))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"nobody can ask this fleet: {self.path}: {error}; have XDG_RUNTIME_DIR name a "
                "folder that you can write to, with a short path"
            ) from None
        self._socket.listen(8)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def accept(self) -> FleetConnection | None:
        """Somebody who has connected, if anybody has."""
        try:
            connected, _ = self._socket.accept()
        except OSError:
            return None
        return FleetConnection(connected, 0.0)


def connect_to_fleet(namespace: str) -> FleetConnection:
    """A connection to the planned fleet that runs on this host. Raises KairosError without one."""
    connected = _connected(_path(namespace))
    if connected is None:
        raise KairosError(
            f"no planned fleet of this user runs {_where()} on this host; start one with `kairos "
            "fleet up FILE --planned`; one of several hosts is asked on the first of them"
        )
    return FleetConnection(connected, 0.2)


def _connected(path: Path) -> socket.socket | None:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(str(path))
    except OSError:
        connected.close()
        return None
    return connected


def _where() -> str:
    return f"in ROS domain {os.environ.get('ROS_DOMAIN_ID') or 0}"


def _path(namespace: str, host: str = "") -> Path:
    """Raises ConfigError where its folder is another's."""
    name = namespace.strip("/").replace("/", ".") or "fleet"
    name += f".host-{host}" if host else ""
    return user_folder("kairos-fleets") / f"{os.environ.get('ROS_DOMAIN_ID') or 0}.{name}.sock"
