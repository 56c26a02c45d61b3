"""Options that say where a server listens."""

import ipaddress
import socket

from kairos_ros.core.errors import ConfigError


def address(listen: str) -> tuple[str, int]:
    """Host and port of `--listen`. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError as error:
        raise ConfigError(
            f"--listen {listen!r}: {error}; write ADDRESS:PORT, for example 127.0.0.1:8370"
        ) from error
    if not 0 <= number < 65536:
        raise ConfigError(f"--listen {listen!r}: a port is 0 to 65535")
    return host, number


def is_loopback(host: str) -> bool:
    """host: an address, as `address` returns it."""
    return ipaddress.ip_address(host).is_loopback


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ConfigError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()  # who opens the printed address at once is answered
    except OSError as error:
        bound.close()
        raise ConfigError(f"--listen {host}:{port}: {error.strerror}; choose another") from error
    return bound
