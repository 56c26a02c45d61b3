"""The fleet of a soak, and what happens to it."""

import math
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.serving.robots50 import HORIZON, IMAGES, PER_PROCESS
from bench.soak.soak_outcome import (
    CLOUD,
    CUT,
    EDGE,
    Fault,
    Interval,
    Outcome,
    Timetable,
    percentile,
)
from bench.support.process_growth import sample
from bench.support.robot_counts import Report, Totals
from bench.support.servers import Kairos, environment
from bench.support.virtual_fleet import VirtualFleet
from kairos_ros.host.interrupt import Interrupt
from kairos_ros.lab.testbed.cloud import Cloud
from kairos_ros.lab.testbed.link_proxy import Conditions

REPORT_S = 5.0
LINK = Conditions(delay_s=0.01, bits_per_s=3e8)
EDGE_MS, CLOUD_MS = "20+4b", "10+2b"
"""Each can bear the fleet alone; the edge's alone is busy enough that requests overflow."""
MAX_BATCH = 8
TASK_ACTIONS = 900
"""Of a task, half a minute; then the robot has another one."""


def soak(folder: Path, minutes: float, robots: int, console: Console | None = None) -> Outcome:
    """Runs it; what was measured until the end or Ctrl-C. Raises RuntimeError where a process of
    robots ended by itself, KairosError where something never got ready."""
    table = Timetable(60.0 * minutes)
    env = environment()
    policy = f"emulated:latency_ms={{}},chunk=50,dim=7,state=7,images={IMAGES}"
    outcome = Outcome(table)
    with ExitStack() as stack:
        cloud = Cloud(folder / "logs", folder / "keys", policy.format(CLOUD_MS), LINK)
        stack.enter_context(cloud)
        edge = policy.format(EDGE_MS)
        server = Kairos(
            folder / "logs",
            env,
            policy=edge,
            engines=[cloud.engine],
            keys=str(cloud.here.path),
            max_batch=MAX_BATCH,
        )
        stack.enter_context(server)
        options = ("--policy", edge, "--horizon", HORIZON, "--task-actions", TASK_ACTIONS)
        fleet = VirtualFleet(robots, folder / "logs", env, PER_PROCESS, *options)
        stack.enter_context(fleet)
        interrupt = stack.enter_context(Interrupt(at_once=cloud.kill_all))
        fleet.start(robots)
        fleet.report()
        _Run(outcome, cloud, server, fleet, interrupt, console).run()
    return outcome


class _Run:
    """The time between the first request and the end."""

    def __init__(
        self,
        outcome: Outcome,
        cloud: Cloud,
        server: Kairos,
        fleet: VirtualFleet,
        interrupt: Interrupt,
        console: Console | None,
    ) -> None:
        self._outcome, self._cloud, self._server, self._fleet = outcome, cloud, server, fleet
        self._interrupt, self._console = interrupt, console
        self._rng = random.Random(0)
        self._robots = len(fleet.numbers)
        self._next = self._robots
        self._reports: list[Report] = []
        self._of_lost = Totals()
        """What the robots of lost hosts had told."""
        self._told = -1
        self._began_s = time.monotonic()

    def run(self) -> None:
        outcome, table = self._outcome, self._outcome.timetable
        faults = list(table.faults())
        mend_s = math.inf
        report_s = turn_s = 0.0
        while (now_s := time.monotonic() - self._began_s) < table.length_s:
            if self._interrupt.requested:
                outcome.interrupted = True
                break
            if faults and now_s >= faults[0].at_s:
                name = faults.pop(0).name
                self._make(name)
                outcome.happened.append(Fault(now_s, name))
                mend_s = now_s + table.cut_s if name == CUT else mend_s
            if now_s >= mend_s:
                self._cloud.change(cut="")
                mend_s = math.inf
            if now_s >= turn_s:
                self._turn()
                turn_s = now_s + table.turn_s
            if now_s >= report_s:
                self._report(now_s)
                report_s = now_s + REPORT_S
            time.sleep(0.1)
        self._cloud.change(cut="")
        self._report(time.monotonic() - self._began_s)
        self._fleet.stop()
        self._reports = self._fleet.report()
        outcome.totals = self._totals()

    def _make(self, fault: str) -> None:
        if fault == EDGE:
            os.kill(self._edge_worker(), signal.SIGKILL)
        elif fault == CUT:
            self._cloud.change(cut="both")
        elif fault == CLOUD:
            self._cloud.kill()
            self._cloud.start()
        else:
            self._lose_a_host()

    def _lose_a_host(self) -> None:
        at = self._rng.randrange(len(self._reports))
        self._of_lost += self._reports[at].totals
        for _ in self._fleet.lose(at):
            self._outcome.cut_off += 1
            self._come()

    def _turn(self) -> None:
        """Somebody leaves, or somebody comes in his place."""
        numbers = self._fleet.numbers
        if len(numbers) < self._robots:
            self._come()
        else:
            self._fleet.go(self._rng.choice(numbers))
            self._outcome.left += 1

    def _come(self) -> None:
        """Under a name that nobody had before."""
        self._fleet.come(self._next)
        self._next += 1
        self._outcome.came += 1

    def _edge_worker(self) -> int:
        """The only child of the serving node. Raises RuntimeError while there is none."""
        node, *workers = self._server.pids()
        if not workers:
            raise RuntimeError(f"the serving node {node} has no engine worker now")
        return workers[0]

    def _report(self, now_s: float) -> None:
        outcome = self._outcome
        self._reports = self._fleet.report()
        windows = [report.window for report in self._reports]
        trips = np.concatenate([window.round_trip_ms for window in windows])
        late = np.concatenate([window.late_ms for window in windows])
        outcome.intervals.append(
            Interval(
                now_s,
                sum(report.robots for report in self._reports),
                sum(window.cloud for window in windows),
                sum(window.acted for window in windows),
                sum(window.held for window in windows),
                percentile(late, 99),
                trips,
            )
        )
        for name, pid in self._pids().items():
            if (one := sample(pid, now_s)) is not None:
                outcome.processes.setdefault(name, []).append(one)
        outcome.totals = self._totals()
        self._tell()

    def _tell(self) -> None:
        """A line that is written over and over; elsewhere than at a terminal, a line a minute."""
        if self._console is None:
            return
        minute = int(self._outcome.intervals[-1].at_s // 60)
        if self._console.is_terminal:
            self._console.print(progress(self._outcome), end="\r")
        elif minute != self._told:
            self._console.print(progress(self._outcome))
        self._told = minute

    def _totals(self) -> Totals:
        return sum((report.totals for report in self._reports), self._of_lost)

    def _pids(self) -> dict[str, int]:
        node, *workers = self._server.pids()
        found = {"serving node": node, "link": self._cloud.link_pid, **self._fleet.pids()}
        if workers:
            found["edge worker"] = workers[0]
        if self._cloud.worker is not None:
            found["cloud worker"] = self._cloud.worker.pid
        return found


def progress(outcome: Outcome) -> str:
    """One line: how far it is, and what has happened so far."""
    last, totals = outcome.intervals[-1], outcome.totals
    node = outcome.processes["serving node"][-1]
    share = last.cloud / max(1, len(last.trips_ms))
    return (
        f"{last.at_s / 60:5.1f} of {outcome.timetable.length_s / 60:g} min: "
        f"{totals.requests} requests, {totals.wrong} wrong, {totals.refused} refused; "
        f"p50 {percentile(last.trips_ms, 50):.0f} ms, p99 {percentile(last.trips_ms, 99):.0f} ms, "
        f"cloud {share:.0%}; node {node.memory_mb:.0f} MB, {node.descriptors} descriptors, "
        f"{node.threads} threads; {len(outcome.happened)} faults"
    )
