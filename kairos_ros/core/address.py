"""Addresses: of engines on other hosts, and those that other hosts can reach."""

import ipaddress
import re

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import MOST_PORT

_TCP = re.compile(
    r"tcp://(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)


def tcp_address(endpoint: str) -> tuple[str, int]:
    """Host and port of tcp://HOST:PORT, an IPv6 address in brackets. Raises ConfigError."""
    match = _TCP.fullmatch(endpoint)
    port = int(match["port"]) if match else 0
    if match is None or not 1 <= port <= MOST_PORT:
        raise ConfigError(f"{endpoint!r:.200} is no address of an engine: tcp://HOST:PORT")
    return match["v6"] or match["host"], port


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
