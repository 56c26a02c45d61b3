"""Starts a plan as real processes on this host."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kairos_ros.bringup.process_spec import ProcessSpec, command
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import COMMON, ROOT, FleetNames
from kairos_ros.host.orphan import LAUNCHER_PID

GRACE_S = 8.0
"""Between SIGTERM and SIGKILL."""


class Fleet:
    """Runs a plan: one process per node, each in a session of its own, with its output in a file.

    A context manager; leaving it ends every process it started, by pid. Should the thread that
    started them end in any other way, the nodes leave by themselves (`leave_with_launcher`).

    names: of the fleet, whose namespace all nodes are in.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        logs: Path,
        env: Mapping[str, str] | None = None,
        names: FleetNames = ROOT,
    ) -> None:
        self.specs = list(specs)
        self.names = names
        self.logs = logs
        self.env = {**os.environ, **(env or {})}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._dismissed: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        """Processes that shall end, and until when they may take for it."""

    def __enter__(self) -> "Fleet":
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"no logs can be written to {self.logs}: {error.strerror}") from None
        try:
            for spec in self.specs:
                self.start(spec)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @staticmethod
    def key(spec: ProcessSpec) -> str:
        """Name of the process and of its log file: arm_1, serving, safety."""
        return spec.name if spec.namespace in ("", COMMON) else spec.namespace.replace("/", ".")

    def log(self, key: str) -> Path:
        """Where a process writes its output."""
        return self.logs / f"{key}.log"

    def start(self, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        """Starts one node of the plan, or starts it again once it has ended.

        Raises ConfigError where it cannot be started, and while another process has its key: nobody
        would look after that one.
        """
        key = self.key(spec)
        if key in self._dismissed or (key in self.processes and self.processes[key].poll() is None):
            raise ConfigError(f"two processes would be called {key!r}; give one another name")
        try:
            with self.log(key).open("ab") as log:
                self.processes[key] = subprocess.Popen(
                    command(spec, self.names),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**self.env, LAUNCHER_PID: str(os.getpid())},
                )
        except OSError as error:
            raise ConfigError(
                f"{key} cannot be started, with log file {self.log(key)}: {error.strerror}"
            ) from None
        return self.processes[key]

    def dismiss(self, key: str, grace_s: float = GRACE_S) -> None:
        """SIGTERM to one process, which does not belong to the fleet any more; `reap` sees to its
        end."""
        process = self.processes.pop(key)
        if process.poll() is None:
            process.terminate()
            self._dismissed[key] = process, time.monotonic() + grace_s

    def is_gone(self, key: str) -> bool:
        """Whether a process that was dismissed has ended."""
        self.reap()
        return key not in self._dismissed

    def reap(self) -> None:
        """Looks after processes that were dismissed: SIGKILL, if they take too long."""
        for key, (process, until) in list(self._dismissed.items()):
            if process.poll() is not None:
                del self._dismissed[key]
            elif time.monotonic() > until:
                process.kill()

    def dead(self) -> dict[str, int]:
        """Exit codes of the processes that ended."""
        codes = {key: process.poll() for key, process in self.processes.items()}
        return {key: code for key, code in codes.items() if code is not None}

    def tail(self, key: str, lines: int = 15) -> str:
        """The last lines that a process printed."""
        text = self.log(key).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL to every process, at once."""
        for process in self._all:
            if process.poll() is None:
                process.kill()

    @property
    def _all(self) -> list[subprocess.Popen[bytes]]:
        dismissed = (process for process, _ in self._dismissed.values())
        return [*self.processes.values(), *dismissed]

    def stop(self, grace_s: float = GRACE_S) -> None:
        """SIGTERM to every process, SIGKILL to those that are still there after `grace_s`.

        Not SIGINT: it is a KeyboardInterrupt in a Python program that has just begun to load.
        """
        running = [p for p in self._all if p.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + grace_s
        for process in running:
            try:
                process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
