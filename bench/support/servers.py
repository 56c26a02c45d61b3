"""The servers under test as real processes: one serving node, or one PolicyServer per robot."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.support.process_cost import with_children
from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.processes import Fleet
from kairos_ros.host.domain import claim_domain

ROOT = Path(__file__).resolve().parents[2]
FIRST_PORT = 18_080
LOADED_WITHIN_S = 240.0


def environment(*, modules: Path | None = None, **variables: str) -> dict[str, str]:
    """For every process of a benchmark: one CPU thread for tensors, DDS on this machine only.

    `modules`: a folder that servers may import plugins from.
    """
    path = [str(ROOT), *([str(modules)] if modules else []), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_DOMAIN_ID": str(_domain()),
        **variables,
    }


@functools.cache
def _domain() -> int:
    """One for the whole run: a second serving node in it would answer, too."""
    return claim_domain()


class Kairos:
    """One serving node with its engine worker. A context manager."""

    def __init__(self, logs: Path, env: dict[str, str], **parameters: Any) -> None:
        self._fleet = Fleet([bringup.serving(**parameters)], logs, env)

    def __enter__(self) -> "Kairos":
        self._fleet.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._fleet.stop()

    def pids(self) -> list[int]:
        """The node and its worker."""
        return with_children(process.pid for process in self._fleet.processes.values())


class PolicyServers:
    """As many of LeRobot's PolicyServers as `grow` was asked for. A context manager."""

    def __init__(self, logs: Path, env: dict[str, str]) -> None:
        self._logs = logs
        self._env = {**os.environ, **env}
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "PolicyServers":
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def grow(self, count: int) -> None:
        """Starts servers up to `count` and waits until they listen."""
        for number in range(len(self.processes), count):
            with (self._logs / f"policy_server_{number}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "bench.support.peers.lerobot_server",
                            str(port(number)),
                        ],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=self._logs,
                        env=self._env,
                        start_new_session=True,
                    )
                )
        until = time.monotonic() + LOADED_WITHIN_S
        for number, process in enumerate(self.processes):
            while not _listens(port(number)):
                if process.poll() is not None or time.monotonic() > until:
                    text = (self._logs / f"policy_server_{number}.log").read_text()
                    raise RuntimeError(f"PolicyServer {number} does not listen:\n{text[-2000:]}")
                time.sleep(0.2)

    def pids(self, count: int) -> list[int]:
        """Of the first `count` servers."""
        return with_children(process.pid for process in self.processes[:count])


def port(number: int) -> int:
    """Where the PolicyServer of this robot listens."""
    return FIRST_PORT + number


def _listens(number: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", number)) == 0
