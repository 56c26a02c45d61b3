"""Ports for processes that are told where to listen, and that may be started there again."""

import os
import socket

OWN = 64
"""Ports of each process of tests, so that those which run beside each other have others."""
FIRST, PROCESSES = 21_000, 180
"""Below the ports that Linux gives to connections (32768 and more)."""

_given = 0


def free_ports(wanted: int = 1) -> int:
    """The first of some ports in a row that nobody listens at; others at every call."""
    global _given
    while _given + wanted <= OWN:
        first = FIRST + os.getpid() % PROCESSES * OWN + _given
        _given += wanted
        if all(map(_is_free, range(first, first + wanted))):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
