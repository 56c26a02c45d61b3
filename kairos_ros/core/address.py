"""Addresses: of engines on other hosts, and those that other hosts can reach."""

import ipaddress
import re

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import MOST_PORT

_TCP = re.compile(
    r"tcp://(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[\w.*-]+)):(?P<port>[0-9]{1,5}|\*)"
)


def tcp_address(endpoint: str, *, listens: bool = False) -> tuple[str, int]:
    """Host and port of an engine's tcp://HOST:PORT, an IPv6 address in brackets. listens: either
    may be `*`; that port is 0. Raises ConfigError."""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ConfigError(
            f"engine endpoint {endpoint!r:.200}: write ipc:///PATH, tcp://ADDRESS:PORT or "
            "tcp://[IPV6]:PORT"
        )
    host, port = match["v6"] or match["host"], match["port"]
    if port != "*" and not 1 <= int(port) <= MOST_PORT:
        raise ConfigError(f"engine endpoint {endpoint!r:.200}: a port is 1 to {MOST_PORT}")
    if "*" in host + port and not listens:
        raise ConfigError(
            f"engine endpoint {endpoint!r}: a host and a port are dialled; '*' is for the side "
            "that listens"
        )
    return host, 0 if port == "*" else int(port)


def is_ip(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether no other host can reach it. Names but `localhost` are not looked up: False."""
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)
