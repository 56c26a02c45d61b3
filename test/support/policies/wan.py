"""A long link for tests, with whatever this machine allows."""

import contextlib
import json
import subprocess
import sys
import warnings
from dataclasses import asdict, replace

from free_ports import free_ports

from bench.transport.link import Link, why_not
from kairos_ros.lab.testbed.link_proxy import LINK_PROXY, Conditions

PORT = free_ports(2)
"""Where a worker listens at its end; a second one may listen at the next port."""


class NamespaceWan:
    """Real packets between two network namespaces: the test's own, and that of the worker."""

    truthful = True

    def __init__(self, conditions: Conditions) -> None:
        self._link = Link(conditions, home=True)

    def __enter__(self):
        self._link.__enter__()
        self.prefix = self._link.inside(1)
        self.there = self._link.addresses[1]
        return self

    def __exit__(self, *_):
        self._link.__exit__()

    def here(self, port: int) -> str:
        """Where a worker that listens at `there` is dialled."""
        return f"tcp://{self.there}:{port}"

    def change(self, **changes):
        self._link.change(**changes)


class ProxyWan:
    """A TCP proxy within this host, where namespaces are not allowed."""

    truthful = False
    prefix = ()
    there = "127.0.0.1"

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._proxies = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def here(self, port: int) -> str:
        if port not in self._proxies:
            proxy = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    LINK_PROXY,
                    "--to",
                    f"127.0.0.1:{port}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._stack.callback(proxy.communicate)
            self._proxies[port] = (proxy, proxy.stdout.readline().split()[1])
            self.change()
        return f"tcp://127.0.0.1:{self._proxies[port][1]}"

    def change(self, **changes):
        self._conditions = replace(self._conditions, **changes)
        for proxy, _ in self._proxies.values():
            proxy.stdin.write(json.dumps(asdict(self._conditions)) + "\n")
            proxy.stdin.flush()
            assert proxy.stdout.readline() == "set\n"


def wan(conditions: Conditions):
    """The best link that this machine allows; loud where that is only a proxy."""
    if reason := why_not():
        warnings.warn(
            f"NO NETWORK NAMESPACES HERE ({reason}): a TCP proxy stands in for the WAN, which "
            "loses no packets",
            stacklevel=2,
        )
        return ProxyWan(conditions)
    return NamespaceWan(conditions)
