"""Where a command listens: what people write, and a socket of it."""

import ipaddress
import resource
import socket
from types import FrameType
from typing import TYPE_CHECKING

from kairos_ros.core.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

SEND_BUFFER_BYTES = 1 << 18
"""Of each connection."""


def address_of(listen: str, option: str = "--listen") -> tuple[str, int]:
    """What an option says, ADDRESS:PORT. Raises ConfigError for anything else."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError as error:
        raise ConfigError(
            f"{option} {listen!r}: {error}; write ADDRESS:PORT, for example 127.0.0.1:8370"
        ) from error
    if not 0 <= number < 65536:
        raise ConfigError(f"{option} {listen!r}: a port is 0 to 65535")
    return host, number


def bind(host: str, port: int, *, listening: bool = True) -> socket.socket:
    """A socket that keeps little for peers which do not read. Raises ConfigError where the address
    cannot be had.

    listening: who opens the address at once waits for an answer; else it is refused until somebody
    serves.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        bound.bind((host, port))
        if listening:
            bound.listen()
    except OSError as error:
        bound.close()
        raise ConfigError(f"--listen {host}:{port}: {error.strerror}; choose another") from error
    return bound


def more_files(wanted: int) -> int:
    """Raises this process's limit of open files to what is wanted, as far as it may be. Returns
    how many it can open then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def serve(server: "uvicorn.Server", bound: socket.socket) -> None:
    """Until SIGINT or SIGTERM; what is open then may take as long as the server's configuration
    says. A second signal does not cut it short: under ros2 launch, Ctrl-C sends two."""

    def end(sig: int, frame: FrameType | None) -> None:
        server.should_exit = True

    server.handle_exit = end  # type: ignore[method-assign]
    server.run(sockets=[bound])
