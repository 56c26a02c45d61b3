"""The processes of virtual robots, from the side that gives them orders."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from kairos_ros.host.orphan import LAUNCHER_PID
from kairos_ros.lab.live_replay.process_messages import (
    Leave,
    Order,
    ProcessCounts,
    Report,
    Setup,
    decode,
    encode,
)
from kairos_ros.lab.testbed.processes import FleetError, describe_exit

MOST_PROCESSES = 4
ROBOTS_PER_PROCESS = 8
"""More of them share a process only where there are MOST_PROCESSES already."""
LEAVES_WITHIN_S = 10.0


def split(robots: Sequence[str]) -> list[tuple[str, ...]]:
    """Names by process: as even as can be."""
    count = min(MOST_PROCESSES, -(-len(robots) // ROBOTS_PER_PROCESS))
    return [tuple(robots[i::count]) for i in range(count)]


class _Process:
    def __init__(self, number: int, setup: Setup, logs: Path) -> None:
        self.setup = setup
        self.log = logs / f"robots_{number}.log"
        logs.mkdir(parents=True, exist_ok=True)
        self.connection: Connection
        self.connection, theirs = Pipe()
        with self.log.open("wb") as log, theirs:
            program = "kairos_ros.lab.live_replay.robot_process"
            self.popen = subprocess.Popen(
                [sys.executable, "-m", program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, LAUNCHER_PID: str(os.getpid())},
            )

    def say(self, order: Order) -> None:
        """Raises FleetError when nobody is there any more."""
        try:
            self.connection.send_bytes(encode(order))
        except OSError:
            raise self.gone() from None

    def hear(self) -> Report:
        """Raises FleetError when nobody is there any more."""
        try:
            report: Report = decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self.gone() from None
        return report

    def gone(self) -> FleetError:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(2.0)
        return FleetError(describe_exit("a process of virtual robots", self.popen.poll(), self.log))

    def end(self) -> None:
        self.connection.close()
        try:
            self.popen.wait(LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class RobotProcesses:
    """All of them. A context manager; leaving it ends the processes, by pid."""

    def __init__(self, setups: Sequence[Setup], logs: Path) -> None:
        self._setups = setups
        self._logs = logs
        self._processes: list[_Process] = []
        self._of: dict[str, _Process] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "RobotProcesses":
        with ExitStack() as stack:
            for number, setup in enumerate(self._setups):
                process = _Process(number, setup, self._logs)
                stack.callback(process.end)
                self._processes.append(process)
                self._of |= dict.fromkeys(setup.robots, process)
            for process in self._processes:
                process.say(process.setup)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with suppress(FleetError):
                process.say(Leave())
        self._stack.close()

    def kill(self) -> None:
        """SIGKILL to every process, at once."""
        for process in self._processes:
            if process.popen.poll() is None:
                process.popen.kill()

    def __len__(self) -> int:
        return len(self._processes)

    def tell(self, robot: str, order: Order) -> None:
        """To the process of one robot. Raises FleetError."""
        self._of[robot].say(order)

    def tell_all(self, order: Order) -> None:
        for process in self._processes:
            process.say(order)

    def hear(self, within_s: float) -> Iterator[Report]:
        """What is there, waiting for the first of it. Raises FleetError."""
        by_connection = {process.connection: process for process in self._processes}
        for connection in wait(list(by_connection), within_s):
            process = by_connection[connection]  # type: ignore[index]
            yield process.hear()
            while process.connection.poll():
                yield process.hear()

    def leave(self) -> list[ProcessCounts]:
        """Ends the robots; what each process did. Raises FleetError."""
        self.tell_all(Leave())
        counts: list[ProcessCounts] = []
        until_s = time.monotonic() + LEAVES_WITHIN_S
        for process in self._processes:
            while process.connection.poll(max(0.0, until_s - time.monotonic())):
                if isinstance(report := process.hear(), ProcessCounts):
                    counts.append(report)
                    break
        return counts
