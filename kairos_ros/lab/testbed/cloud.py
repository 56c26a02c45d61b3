"""A cloud worker beside the demo's fleet: `kairos worker` with keys, at the far end of a proxy.

Everything is a real process of its own; only the distance is emulated, by `link_proxy`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from kairos_ros.bringup.process_spec import program_path
from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.engine.paced import PREFIX
from kairos_ros.lab.testbed.link_proxy import LINK_PROXY, Conditions
from kairos_ros.lab.testbed.tied_program import TIED_PROGRAM
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

NAME = "cloud"
"""Of the engine, as the serving node calls it."""
POLICY = "demo"
"""Of the policy, in the worker's registry."""
WAN = Conditions(delay_s=0.05, bits_per_s=1e9)
"""100 ms there and back, 1 Gbit/s: the network of Dai et al. §5."""
EDGE_PACE = "120+60b"
CLOUD_PACE = "30+8b"
"""Milliseconds per batch and robot. The demo's own policy needs a few: no fleet that fits on this
machine would be too much for it, so it is given the time of a large model, on a small GPU here and
on a large one there."""
STOPS_WITHIN_S = 5.0

Clocks = tuple[float, float]
"""Wall and monotonic clock, in seconds ahead of this host's."""


class LinkError(KairosError):
    """The emulated link did not start, or is gone."""


@dataclass(frozen=True, slots=True)
class Paces:
    """How long engines take at least, as `paced:latency_ms=` says it."""

    edge: str = EDGE_PACE
    cloud: str = CLOUD_PACE

    def __str__(self) -> str:
        return f"edge {_words(self.edge)}, cloud {_words(self.cloud)}"


@dataclass(frozen=True, slots=True)
class Cut:
    """When the link is cut, in seconds since the run began."""

    from_s: float
    for_s: float

    def holds_at(self, now_s: float) -> bool:
        return self.from_s <= now_s < self.from_s + self.for_s


def parse_cuts(text: str) -> tuple[Cut, ...]:
    """Reads `20:5` or `20:5,60:30`, seconds from:for. Raises ConfigError."""
    try:
        pairs = [part.split(":") for part in text.split(",")] if text else []
        cuts = tuple(Cut(float(from_s), float(for_s)) for from_s, for_s in pairs)
    except ValueError:
        cuts = (Cut(-1.0, 0.0),)
    if not all(0 <= cut.from_s < 86400 and 0 < cut.for_s < 86400 for cut in cuts):
        raise ConfigError(
            f"cloud cut {text!r}: write FROM:FOR in seconds since robots get tasks, for example "
            "20:5, several separated by commas"
        )
    return cuts


def paced(policy: str, pace: str) -> str:
    """`policy` at a pace, for a serving node or a worker."""
    return f"{PREFIX}latency_ms={pace}:{policy}"


def free_port() -> int:
    """A TCP port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Cloud:
    """The far end: keys, worker and link. A context manager; on leaving all of it has ended.

    `folder` gets `cloud.log`, and `keys/`, which is removed again: they are good for one demo.
    """

    def __init__(self, folder: Path, keys: Path, policy: str, conditions: Conditions = WAN) -> None:
        """policy: what the worker serves. keys: a new folder for the keys of both sides."""
        self.policy = policy
        self.conditions = conditions
        self.log = folder / "cloud.log"
        self.port = free_port()
        """Where the worker listens; robots' serving node reaches it through the proxy only."""
        self.there, self.here = KeyFolder(keys / "cloud"), KeyFolder(keys / "edge")
        self.worker: subprocess.Popen[bytes] | None = None
        self._leads_to = self.port
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Cloud":
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.there.trust(self.here.new("edge", Role.CLIENT).key)
        self.here.trust(self.there.new("cloud", Role.SERVER).key)
        self._out: IO[bytes] = self._stack.enter_context(self.log.open("ab"))
        self._proxy = subprocess.Popen(
            [
                sys.executable,
                "-m",
                LINK_PROXY,
                "--to",
                f"127.0.0.1:{self.port}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._out,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(self._end)
        try:
            ready = self._answer()
            if not ready.startswith("ready "):
                raise LinkError(f"the emulated link did not start ({ready!r}); see {self.log}")
            self.endpoint = f"tcp://127.0.0.1:{ready.split()[1]}"
            self.change()
            self.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def link(self) -> str:
        """What the link does, in words."""
        conditions = self.conditions
        rate = f"{conditions.bits_per_s / 1e6:.0f} Mbit/s" if conditions.bits_per_s else "no limit"
        return f"{2e3 * conditions.delay_s:.0f} ms there and back, {rate}"

    @property
    def link_pid(self) -> int:
        """Of the process that stands for the link."""
        return self._proxy.pid

    @property
    def engine(self) -> str:
        """Of the serving node's parameter `engines`."""
        return f"{NAME}={self.endpoint},policy={POLICY}"

    def start(self) -> None:
        """Starts the worker, at first or again."""
        self.worker = self._start(self.port, self.policy, self.there)

    def start_other(
        self, *, policy: str = "", keys: KeyFolder | None = None, clocks_s: Clocks = (0, 0)
    ) -> int:
        """Starts another worker beside it, which nobody is led to yet; returns its port.

        policy, keys: other ones than those of this cloud. clocks_s: by how much its wall clock and
        its monotonic clock are ahead of those of this host.
        """
        port = free_port()
        self._start(port, policy or self.policy, keys or self.there, clocks_s)
        return port

    def lead_to(self, port: int) -> None:
        """The link leads to another port of the far end from now on, and drops who is connected."""
        self._leads_to = port
        self._set({"to": port})

    @property
    def as_planned(self) -> bool:
        """The link leads to this cloud's own worker, and that one runs."""
        own = self.worker is not None and self.worker.poll() is None
        return own and self._leads_to == self.port

    def _start(
        self, port: int, policy: str, keys: KeyFolder, clocks_s: Clocks = (0, 0)
    ) -> subprocess.Popen[bytes]:
        kairos = program_path("kairos")
        options = ["--listen", f"tcp://127.0.0.1:{port}", "--keys", str(keys.path)]
        options += ["--policy", f"{POLICY}={policy}"]
        clocks = map(str, clocks_s)
        tied = [sys.executable, "-m", TIED_PROGRAM, str(os.getpid()), *clocks]
        process = subprocess.Popen(
            [*tied, kairos, "worker", *options],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
            start_new_session=True,
        )
        self._workers.append(process)
        return process

    def kill(self) -> None:
        """SIGKILL to the worker."""
        if self.worker is not None and self.worker.poll() is None:
            self.worker.kill()
            self.worker.wait()

    def end_others(self) -> None:
        """SIGKILL to every worker but this cloud's own."""
        for process in self._workers:
            if process is not self.worker and process.poll() is None:
                process.kill()
                process.wait()

    def change(self, **conditions: object) -> None:
        """What the link does from now on. Raises LinkError where it is gone."""
        self.conditions = replace(self.conditions, **conditions)  # type: ignore[arg-type]
        self._set({})

    def _set(self, more: dict[str, int]) -> None:
        assert self._proxy.stdin is not None
        try:
            self._proxy.stdin.write(json.dumps(asdict(self.conditions) | more) + "\n")
            self._proxy.stdin.flush()
        except OSError:
            raise LinkError(f"the emulated link is gone; see {self.log}") from None
        if self._answer() != "set":
            raise LinkError(f"the emulated link does not answer; see {self.log}")

    def dead(self) -> dict[str, int]:
        """Exit codes of what ended by itself."""
        processes = {"cloud": self.worker, "link": self._proxy}
        codes = {name: p.poll() for name, p in processes.items() if p is not None}
        return {name: code for name, code in codes.items() if code is not None}

    def kill_all(self) -> None:
        """SIGKILL to everything, at once."""
        processes: list[subprocess.Popen[Any]] = [*self._workers, self._proxy]
        for process in processes:
            if process.poll() is None:
                process.kill()

    def _answer(self) -> str:
        assert self._proxy.stdout is not None
        return str(self._proxy.stdout.readline()).strip()

    def _end(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        self._proxy.kill()
        self._proxy.communicate()
        for process in self._workers:
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _words(pace: str) -> str:
    base, plus, row = pace.partition("+")
    return f"{base} ms a batch" + (f" and {row.removesuffix('b')} ms a robot" if plus else "")
