"""Ports for servers that have to be told theirs before they start."""

import os
import socket

BLOCK = 100
"""Ports of one process of tests."""
_next = 0


def free_ports(wanted: int = 1) -> int:
    """The first of some TCP ports in a row that nobody listens at.

    They are those of this process's ROS domain, which no other process of tests has, and below
    those that the kernel gives to connections: nobody takes them before the server starts.
    """
    global _next
    first = 20_000 + BLOCK * int(os.environ["ROS_DOMAIN_ID"])
    for _ in range(BLOCK):
        port = _next if _next + wanted <= BLOCK else 0
        _next = port + wanted
        if all(_is_free(first + one) for one in range(port, _next)):
            return first + port
    raise AssertionError(f"no {wanted} free ports from {first} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
