"""Virtual robots in several processes, started, measured and stopped together."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.client_process import ClientProcess
from bench.support.process_cost import cpu_s
from bench.support.robot_counts import Report, Totals, Window

ROBOTS_PER_PROCESS = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """A stretch of time of a whole fleet."""

    seconds: float
    chunks_per_s: float
    stall_fraction: float
    round_trip_p50_ms: float
    round_trip_p99_ms: float
    late_p99_ms: float
    """How late the clients began their control periods."""
    client_cpu: float
    """CPU that all clients together used, 1 = one core."""
    server_cpu: float
    actions_per_s: float
    within_slo: float
    """Share of the round trips; 1 where none was given."""


class VirtualFleet:
    """A context manager. Robots keep their process, and a PolicyServer of their own, over runs."""

    def __init__(
        self, robots: int, logs: Path, env: Mapping[str, str], per_process: int, *arguments: object
    ) -> None:
        self._per_process = per_process
        self._stack = contextlib.ExitStack()
        self._processes: list[ClientProcess] = []
        self._running: list[ClientProcess] = []
        self._where: dict[int, ClientProcess] = {}
        self._logs, self._env, self._arguments = logs, env, arguments
        with contextlib.ExitStack() as stack:
            for first in range(0, robots, per_process):
                self._processes.append(stack.enter_context(self._new(first)))
            self._stack = stack.pop_all()

    def _new(self, first: int, log: str = "") -> ClientProcess:
        options = ("--first", first, "--count", self._per_process, *self._arguments)
        path = self._logs / f"robots_{log or first}.log"
        return ClientProcess(path, self._env, "bench.support.virtual_robot", *options)

    def __enter__(self) -> "VirtualFleet":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def start(self, robots: int) -> None:
        """The first `robots` begin; returns when each of them has executed an action."""
        self._running = []
        for process in self._processes:
            count = min(self._per_process, robots - self._per_process * len(self._running))
            if count <= 0:
                break
            first = self._per_process * len(self._running)
            self._where |= dict.fromkeys(range(first, first + count), process)
            process.tell({"start": count})
            self._running.append(process)
        for process in self._running:
            if (said := process.hear()) != "started":
                raise RuntimeError(f"a process of robots did not start: {said}")

    def measure(
        self, seconds: float, server_pids: list[int], slo_ms: float = float("inf")
    ) -> Measured:
        clients = [process.pid for process in self._running]
        client_s, server_s = -cpu_s(clients), -cpu_s(server_pids)
        for process in self._running:
            process.tell({"measure": seconds})
        windows = [process.hear() for process in self._running]
        client_s, server_s = client_s + cpu_s(clients), server_s + cpu_s(server_pids)
        periods = {key: sum(window[key] for window in windows) for key in ("acted", "held")}
        trips = np.concatenate([window["round_trip_ms"] for window in windows])
        late = np.concatenate([window["late_ms"] for window in windows])
        return Measured(
            seconds=seconds,
            chunks_per_s=len(trips) / seconds,
            stall_fraction=periods["held"] / max(1, sum(periods.values())),
            round_trip_p50_ms=_quantile(trips, 0.5),
            round_trip_p99_ms=_quantile(trips, 0.99),
            late_p99_ms=_quantile(late, 0.99),
            client_cpu=client_s / seconds,
            server_cpu=server_s / seconds,
            actions_per_s=periods["acted"] / seconds,
            within_slo=float((trips <= slo_ms).mean()) if len(trips) else float("nan"),
        )

    def come(self, number: int) -> None:
        """Robot `number` begins, in the process that has the fewest."""
        count = Counter(dict.fromkeys(self._running, 0))
        count.update(self._where.values())
        process = self._where[number] = min(self._running, key=count.__getitem__)
        process.tell({"come": number})

    def go(self, number: int) -> None:
        """Robot `number` says goodbye once it has its answers."""
        self._where.pop(number).tell({"go": number})

    def lose(self, at: int) -> list[int]:
        """SIGKILL to a running process, which another one without robots takes the place of.

        Returns the numbers of the robots that went with it.
        """
        lost = self._running[at]
        lost.kill()
        gone = [number for number, process in self._where.items() if process is lost]
        for number in gone:
            del self._where[number]
        self._running[at] = self._stack.enter_context(self._new(0, f"again_{at}"))
        return gone

    def report(self) -> list[Report]:
        """Of every process, since its last report."""
        for process in self._running:
            process.tell({"report": True})
        told = [process.hear() for process in self._running]
        return [
            Report(Window(**one["window"]), Totals(**one["totals"]), one["robots"]) for one in told
        ]

    @property
    def numbers(self) -> list[int]:
        """Of the robots that came and were not told to go."""
        return list(self._where)

    def pids(self) -> dict[str, int]:
        """Of the running processes, by what they are called."""
        return {f"robots {n}": process.pid for n, process in enumerate(self._running, 1)}

    def stop(self) -> list[Totals]:
        """No more requests; what happened to all of them, per robot."""
        for process in self._running:
            process.tell({"stop": True})
        return [Totals(**robot) for process in self._running for robot in process.hear()]


def _quantile(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else float("nan")
