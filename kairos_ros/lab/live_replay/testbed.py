"""One replay: a serving node, virtual robots in a few processes, and the tasks they get."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_ros.bringup import plan as bringup
from kairos_ros.core.errors import KairosError
from kairos_ros.host.interrupt import Interrupt
from kairos_ros.lab.live_replay.process_messages import (
    BeginRun,
    CancelTasks,
    GiveTask,
    ProcessCounts,
    Ready,
    RecordedTask,
    Setup,
    TaskDone,
)
from kairos_ros.lab.live_replay.progress import ReplayProgress
from kairos_ros.lab.live_replay.robot_processes import RobotProcesses, split
from kairos_ros.lab.live_replay.server import ServerWatch
from kairos_ros.lab.sim.arrivals import TraceTask
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.testbed.processes import (
    READY_WITHIN_S,
    FleetError,
    Interrupted,
    Processes,
    describe_exit,
    wait_until,
)
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, TaskRecord, Timeline
from kairos_ros.robot.adapter import RobotSpec

HEARD_WITHIN_S = 15.0
"""A serving node that runs already tells of itself five times per second."""
SILENT_S = 10.0
"""A serving node that is not ours and says nothing for this long is gone."""
CANCEL_WITHIN_S = 5.0
BEGIN_IN_NS = 200_000_000
"""From the order to begin to the beginning of the run."""


@dataclass(frozen=True, slots=True)
class ReplayWorkload:
    """What the robots do."""

    jobs: Iterator[TraceTask]
    tasks: int
    recorded: tuple[RecordedTask, ...]
    index_of: Mapping[str, int]
    """Index into `recorded` by name of the trace."""
    rules: Rules
    spec: RobotSpec


@dataclass(slots=True)
class ReplayTestbed:
    """A context manager: on leaving nothing runs any more that was started here."""

    serving: Mapping[str, Any] | None
    """Parameters of the serving node to start; None: it runs already."""
    logs: Path
    display: ReplayProgress
    failure: str = ""
    """Why the run ended early, if something broke."""
    ready_s: float = 0.0
    """From the start to a serving node that serves."""
    counts: list[ProcessCounts] = field(default_factory=list)

    interrupt: Interrupt = field(init=False)
    watch: ServerWatch = field(init=False)
    _processes: Processes = field(init=False)
    _robots: RobotProcesses | None = None

    def __post_init__(self) -> None:
        specs = [] if self.serving is None else [bringup.serving(**self.serving)]
        self._processes = Processes(self.logs, specs, kill_others=self._kill_robots)
        self.interrupt = self._processes.interrupt

    def __enter__(self) -> "ReplayTestbed":
        self._processes.__enter__()
        try:
            self.watch = ServerWatch()
        except BaseException:
            self._processes.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.display.say("stopping")
            self.watch.__exit__(*error)
        finally:
            self._processes.__exit__()

    def wait_for_the_server(self) -> None:
        """Until the serving node is active. Raises Interrupted, or FleetError where it is not."""
        heard_by_s = time.monotonic() + HEARD_WITHIN_S

        def active() -> bool:
            unheard = self.serving is None and self.watch.state is None
            if unheard and time.monotonic() > heard_by_s:
                domain = os.environ.get("ROS_DOMAIN_ID", "0")
                raise FleetError(
                    f"no serving node in ROS domain {domain}; set ROS_DOMAIN_ID to that of one "
                    "that runs, or leave out --external to start one"
                )
            return self.watch.active

        self.ready_s = self._wait_until(active, self.watch.progress, lambda: self.watch.spin(0.1))

    def probe(self, task: RecordedTask, spec: RobotSpec) -> None:
        """Asks one question of the traces.

        Raises ConfigError where the serving node refuses it, and as `wait_for_the_server`.
        """
        probe = self.watch.probe(task, spec)
        try:
            asking = "waiting for the answer to a first request"
            self._wait_until(probe.answered, asking, lambda: self.watch.spin(0.02))
        finally:
            probe.leave()

    def run(self, robots: Sequence[str], work: ReplayWorkload) -> FleetRun:
        """All tasks of the workload; what was done of them when it is interrupted or breaks.

        Raises FleetError for a start that fails, Interrupted before the first task.
        """
        setups = [Setup(names, work.rules, work.spec, work.recorded) for names in split(robots)]
        with RobotProcesses(setups, self.logs) as self._robots:
            self._wait_for_the_robots(self._robots)
            run = _Run(self, self._robots, robots, work)
            run.live()
            try:
                self.counts = self._robots.leave()
            except KairosError as error:
                self.failure = self.failure or str(error)
            return run.result()

    def broken(self) -> str:
        """Why the run cannot go on; empty while it can."""
        for key, code in self._processes.dead().items():
            return describe_exit("the serving node", code, self._processes.log(key))
        silent_s = time.monotonic() - self.watch.heard_s
        if self.serving is None and self.watch.active and silent_s > SILENT_S:
            return f"the serving node has said nothing for {silent_s:.0f} s"
        return ""

    def _wait_for_the_robots(self, processes: RobotProcesses) -> None:
        ready = 0

        def hear() -> None:
            nonlocal ready
            ready += sum(isinstance(report, Ready) for report in processes.hear(0.05))
            self.watch.spin(0.0)

        def progress() -> str:
            return f"{ready} of {len(processes)} processes of robots ready"

        self._wait_until(lambda: ready == len(processes), progress, hear)

    def _wait_until(
        self, true: Callable[[], bool], what: str | Callable[[], str], spin: Callable[[], None]
    ) -> float:
        """Returns the seconds it took. Raises Interrupted, and FleetError where it is in vain."""

        def step(progress: str) -> None:
            if self.interrupt.requested:
                raise Interrupted("interrupted")
            if reason := self.broken():
                raise FleetError(reason)
            self.display.say(progress)
            spin()

        hint = f"; see {self.logs}" if self.serving else "; is one in this ROS domain?"
        return wait_until(true, READY_WITHIN_S, what, step, hint)

    def _kill_robots(self) -> None:
        if self._robots is not None:
            self._robots.kill()


class _Run:
    """The tasks of one workload, given to robots as they become free."""

    def __init__(
        self,
        testbed: ReplayTestbed,
        processes: RobotProcesses,
        robots: Sequence[str],
        work: ReplayWorkload,
    ) -> None:
        self._testbed = testbed
        self._processes = processes
        self._work = work
        self._robots = tuple(robots)
        self._free = deque(robots)
        self._busy: set[str] = set()
        self._next: TraceTask | None = next(work.jobs, None)
        self._waiting: deque[TraceTask] = deque()
        self._timeline = Timeline()
        self._tasks: list[TaskRecord] = []
        self._rounds: list[RoundRecord] = []
        self._last_given_s = 0.0
        self._length_s = 0.0

    def live(self) -> None:
        """Until all tasks are over, or something ends them."""
        testbed = self._testbed
        self._epoch_ns = time.monotonic_ns() + BEGIN_IN_NS
        for robot in self._robots:
            self._timeline.report(robot, 0.0, "idle")
        try:
            self._processes.tell_all(BeginRun(self._epoch_ns))
            self._begin_staggered()
            while self._busy or self._waiting or self._next is not None:
                if testbed.interrupt.requested:
                    break
                if reason := testbed.broken():
                    testbed.failure = reason
                    break
                self._give_tasks()
                self._hear(self._pause_s())
                testbed.watch.spin(0.0)
                testbed.display.show(len(self._tasks), self._work.tasks, len(self._busy))
            self._cancel()
        except KairosError as error:
            testbed.failure = str(error)
        self._length_s = self._now_s()

    def result(self) -> FleetRun:
        return FleetRun(
            robots=self._robots,
            length_s=self._length_s,
            tasks=tuple(sorted(self._tasks, key=lambda task: task.number)),
            spans=self._timeline.spans(self._length_s),
            open_s=((0.0, self._last_given_s),),
            rounds=tuple(sorted(self._rounds, key=lambda r: (r.robot, r.requested_s))),
        )

    def _begin_staggered(self) -> None:
        """Back to back, the first tasks begin anywhere in a control period, as real fleets do."""
        if self._next is None or self._next.wanted_s is not None:
            return
        count = len(self._free)
        for i in range(count):
            if self._next is None:
                return
            period_ns = round(1e9 / self._next.trace.control_rate_hz)
            self._start(self._next, self._epoch_ns + period_ns * i // count)
            self._next = next(self._work.jobs, None)

    def _give_tasks(self) -> None:
        """The oldest task to the robot that has been free for longest."""
        now_s = self._now_s()
        while (job := self._next) is not None:
            if job.wanted_s is None and len(self._waiting) >= len(self._free):
                break
            if job.wanted_s is not None and job.wanted_s > now_s:
                break
            self._waiting.append(job)
            self._next = next(self._work.jobs, None)
        while self._waiting and self._free:
            self._start(self._waiting.popleft(), time.monotonic_ns())

    def _start(self, job: TraceTask, at_ns: int) -> None:
        robot = self._free.popleft()
        at_s = (at_ns - self._epoch_ns) / 1e9
        wanted_s = at_s if job.wanted_s is None else job.wanted_s
        task = self._work.index_of[job.trace.name]
        self._processes.tell(robot, GiveTask(robot, task, job.number, wanted_s, at_ns))
        self._busy.add(robot)
        self._last_given_s = at_s

    def _hear(self, within_s: float) -> None:
        for report in self._processes.hear(within_s):
            if isinstance(report, TaskDone):
                self._note(report)

    def _note(self, done: TaskDone) -> None:
        ended = done.ended
        self._busy.discard(done.robot)
        self._free.append(done.robot)
        self._tasks.append(ended.task)
        self._rounds += ended.rounds
        for span in ended.spans:
            self._timeline.report(done.robot, span.start_s, span.activity)
        self._timeline.report(done.robot, ended.task.ended_s, "idle")

    def _pause_s(self) -> float:
        job = self._next
        if job is None or job.wanted_s is None or self._waiting:
            return 0.1
        return min(0.1, max(0.0, job.wanted_s - self._now_s()))

    def _cancel(self) -> None:
        """Ends what still runs; its records are kept as canceled."""
        if not self._busy:
            return
        self._processes.tell_all(CancelTasks())
        until_s = time.monotonic() + CANCEL_WITHIN_S
        while self._busy and time.monotonic() < until_s:
            self._hear(0.1)

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._epoch_ns) / 1e9
