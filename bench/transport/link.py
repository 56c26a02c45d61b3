"""An emulated network link: two network namespaces joined by TUN devices, and one process between
them that delays, jitters, drops, rate-limits and cuts packets. For kernels without `netem`.

The packets are real: TCP, CURVE and ZeroMQ on both sides feel what they would feel on such a link.
A busy machine may deliver them later than the conditions say; `Link.report` tells by how much.
`python -m bench link` says whether this machine allows it, and measures it against itself.
"""

import argparse
import contextlib
import ctypes
import fcntl
import itertools
import json
import math
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kairos_ros.lab.testbed.link_proxy import Conditions

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 1500
ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 16_000_000
"""What waits on a rate-limited link at most; the rest is dropped, as a router does."""
PRIORITY = 1
"""Real-time priority of the carrying process: a wire does not wait for its turn on a busy machine.
(Niceness would not do: it counts within a session only, where the scheduler groups by session.)"""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What went over the link in both directions since the report before."""

    packets: int
    bytes: int
    dropped: int
    """Lost as the conditions want it, beyond what waits at most, or into a cut."""
    late_p50_ms: float
    """How much later than the conditions say packets were delivered: the emulator's own error."""
    late_p99_ms: float
    late_max_ms: float


def why_not() -> str:
    """Why this machine cannot emulate links; empty where it can."""
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    if os.geteuid() != 0:
        return "network namespaces need root here"
    name = f"kairos-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made.stderr.strip() if made.returncode else ""


class Link:
    """The two namespaces and the process between them. A context manager.

    Processes are put on a side by prefixing their command with `inside(side)`, 0 or 1; with `home`
    side 0 is the namespace that everything else runs in, too. They reach each other at
    `addresses`. `set` changes the conditions at any time.
    """

    def __init__(self, conditions: Conditions | None = None, *, home: bool = False) -> None:
        self.conditions = conditions or Conditions()
        mark = os.getpid() * 64 + next(_NUMBERS) % 64
        self.device = f"kl{mark}"
        self.namespaces = ("" if home else f"kairos-a-{mark}", f"kairos-b-{mark}")
        net = f"10.{231 + mark // 250 % 8}.{mark % 250}"
        self.addresses = (f"{net}.1", f"{net}.2")

    def __enter__(self) -> "Link":
        try:
            for namespace, address in zip(self.namespaces, self.addresses, strict=True):
                within = ["-n", namespace] if namespace else []
                if namespace:
                    _ip("netns", "add", namespace)
                    _ip(*within, "link", "set", "lo", "up")
                _ip(*within, "tuntap", "add", self.device, "mode", "tun")
                _ip(*within, "addr", "add", f"{address}/24", "dev", self.device)
                _ip(*within, "link", "set", self.device, "mtu", str(MTU), "txqueuelen", "10000")
                _ip(*within, "link", "set", self.device, "up")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bench.transport.link",
                    "--carry",
                    self.device,
                    *self.namespaces,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            if self._process.stdout.readline() != "ready\n":
                raise OSError("the link emulator did not start")
        except BaseException:
            self._remove()
            raise
        self.set(self.conditions)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._remove()

    def set(self, conditions: Conditions) -> None:
        """Holds from now on, for packets that are not under way yet; a cut holds for these, too."""
        self.conditions = conditions
        self._ask(json.dumps(asdict(conditions)))

    def change(self, **changes: float | str) -> None:
        """`set`, with only these conditions changed."""
        self.set(replace(self.conditions, **changes))  # type: ignore[arg-type]

    def report(self) -> LinkReport:
        """What the link carried since it was last asked, and how punctually."""
        return LinkReport(**json.loads(self._ask("report")))

    def congestion(self, control: str) -> None:
        """TCP's congestion control on both sides, for connections made from now on.

        The two sides' default, which is this machine's, stays what it is elsewhere. Raises OSError
        where the kernel does not offer `control` (net.ipv4.tcp_allowed_congestion_control).
        """
        for namespace, address in zip(self.namespaces, self.addresses, strict=True):
            within = ["-n", namespace] if namespace else []
            subnet = address.rpartition(".")[0] + ".0/24"
            route = ["route", "replace", subnet, "dev", self.device, "src", address]
            made = subprocess.run(
                ["ip", *within, *route, "congctl", control], capture_output=True, text=True
            )
            if made.returncode:
                raise OSError(f"congestion control {control!r}: {made.stderr.strip()}")

    def inside(self, side: int) -> list[str]:
        """Prefix of a command line that shall run on a side."""
        namespace = self.namespaces[side]
        return ["ip", "netns", "exec", namespace] if namespace else []

    def _ask(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise OSError("the link emulator has died")
        return answer

    def _remove(self) -> None:
        for namespace in self.namespaces:
            what = ["netns", "del", namespace] if namespace else ["link", "del", self.device]
            subprocess.run(["ip", *what], capture_output=True)


_NUMBERS = itertools.count()


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Makes this *thread* a member of a namespace for a while: sockets opened then stay there."""
    if not namespace:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        open("/proc/thread-self/ns/net", "rb") as home,
        open(f"/run/netns/{namespace}", "rb") as there,
    ):
        _setns(libc, there.fileno())
        try:
            yield
        finally:
            _setns(libc, home.fileno())


def _setns(libc: ctypes.CDLL, fd: int) -> None:
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


# The process between the namespaces


class _Way:
    """One direction: packets in the order in which they will leave."""

    def __init__(self, out: int) -> None:
        self.out = out
        self.queue: deque[tuple[float, bytes]] = deque()
        self.free_at = 0.0
        """When the rate limit lets the next packet begin."""
        self.last_at = 0.0
        self.late_s = array("f")
        """Of every packet delivered since the last report."""
        self.bytes = 0
        self.dropped = 0

    def take(self, now: float, packet: bytes, conditions: Conditions) -> None:
        if conditions.loss and random.random() < conditions.loss:
            self.dropped += 1
            return
        begin = now
        if conditions.bits_per_s:
            begin = max(now, self.free_at)
            if (begin - now) * conditions.bits_per_s / 8 > LIMIT_BYTES:
                self.dropped += 1
                return
            begin = self.free_at = begin + len(packet) * 8 / conditions.bits_per_s
        at = begin + conditions.delay_s + conditions.jitter_s * random.random()
        self.last_at = max(self.last_at, at)
        self.queue.append((self.last_at, packet))

    def deliver(self) -> float:
        """Writes what is due; when the next packet is, or infinity."""
        while self.queue:
            at, packet = self.queue[0]
            late_s = time.monotonic() - at
            if late_s < 0:
                return at
            self.queue.popleft()
            self.late_s.append(late_s)
            self.bytes += len(packet)
            with contextlib.suppress(OSError):
                os.write(self.out, packet)
        return math.inf

    def cut(self) -> None:
        """What is under way is lost."""
        self.dropped += len(self.queue)
        self.queue.clear()


def _reported(ways: Sequence[_Way]) -> LinkReport:
    """And begins to count anew."""
    late_s = sorted(itertools.chain(*(way.late_s for way in ways)))
    p50, p99 = (late_s[len(late_s) * p // 100] if late_s else 0.0 for p in (50, 99))
    report = LinkReport(
        packets=len(late_s),
        bytes=sum(way.bytes for way in ways),
        dropped=sum(way.dropped for way in ways),
        late_p50_ms=1e3 * p50,
        late_p99_ms=1e3 * p99,
        late_max_ms=1e3 * late_s[-1] if late_s else 0.0,
    )
    for way in ways:
        way.late_s, way.bytes, way.dropped = array("f"), 0, 0
    return report


def carry(device: str, namespaces: Sequence[str]) -> None:
    """Moves packets until standard input ends; each line of it is new conditions, or `report`."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    devices = [_device(device, namespace) for namespace in namespaces]
    ways = {devices[0]: _Way(devices[1]), devices[1]: _Way(devices[0])}
    names = {devices[0]: "out", devices[1]: "back"}
    conditions = Conditions()
    commands = sys.stdin.fileno()
    print("ready", flush=True)
    while True:
        for fd, way in ways.items():
            if conditions.cut in ("both", names[fd]):
                way.cut()
        due = min([way.deliver() for way in ways.values()])
        # select, because epoll waits for whole milliseconds
        left = max(0.0, min(1.0, due - time.monotonic()))
        for fd in select.select([*devices, commands], [], [], left)[0]:
            if fd == commands:
                line = sys.stdin.readline()
                if not line:
                    return
                if line == "report\n":
                    print(json.dumps(asdict(_reported([*ways.values()]))), flush=True)
                    continue
                conditions = Conditions(**json.loads(line))
                print("set", flush=True)
                continue
            now = time.monotonic()
            way = ways[fd]
            for _ in range(256):
                try:
                    packet = os.read(fd, 65_535)
                except BlockingIOError:
                    break
                if conditions.cut in ("both", names[fd]):
                    way.dropped += 1
                else:
                    way.take(now, packet, conditions)


def _device(device: str, namespace: str) -> int:
    with entered(namespace):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def main() -> None:
    """Says whether links can be emulated here, and how true a 100 ms link is."""
    argparse.ArgumentParser(prog="python -m bench link", description=main.__doc__).parse_args()
    if reason := why_not():
        print(f"LINKS CANNOT BE EMULATED HERE: {reason}")
        sys.exit(1)
    conditions = Conditions(delay_s=0.05, bits_per_s=1e9)
    with Link(conditions) as link, contextlib.ExitStack() as stack:
        with entered(link.namespaces[1]):
            server = stack.enter_context(socket.create_server((link.addresses[1], 0)))
        with entered(link.namespaces[0]):
            here = stack.enter_context(socket.create_connection(server.getsockname(), timeout=10))
        there = stack.enter_context(server.accept()[0])
        for size in (1, 1, 1, 500_000, 500_000, 500_000):
            began = time.monotonic()
            sender = threading.Thread(target=here.sendall, args=(bytes(size),))
            sender.start()
            left = size
            while left:
                left -= len(there.recv(min(left, 1 << 20)))
            there.sendall(b"!")
            here.recv(1)
            sender.join()
            took_ms = 1e3 * (time.monotonic() - began)
            print(f"{size:7d} bytes there and 1 back in {took_ms:6.1f} ms; link: {conditions}")
        print(link.report())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--carry"]:
        carry(sys.argv[2], sys.argv[3:])
    else:
        main()
