"""One replay: a serving node, virtual robots in a few processes, and the tasks they get."""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_ros import bringup
from kairos_ros.core.errors import KairosError
from kairos_ros.demo.interrupt import Interrupt
from kairos_ros.evaluation.replay.arrivals import Job
from kairos_ros.evaluation.replay.rules import Rules
from kairos_ros.evaluation.run import FleetRun, RoundRecord, TaskRecord, Timeline
from kairos_ros.replay.crews import Crews, split
from kairos_ros.replay.orders import Begin, Cancel, Crew, Done, Give, Ready, Role, Tally
from kairos_ros.replay.progress import Display
from kairos_ros.replay.server import ServerWatch
from kairos_ros.robot.adapter import RobotSpec

READY_WITHIN_S = 240.0
HEARD_WITHIN_S = 15.0
"""A serving node that runs already tells of itself five times per second."""
SILENT_S = 10.0
"""A serving node that is not ours and says nothing for this long is gone."""
CANCEL_WITHIN_S = 5.0
BEGIN_IN_NS = 200_000_000
"""From the order to begin to the beginning of the run."""


class ReplayError(KairosError):
    """The serving node or a process of robots is gone, or never got ready."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the robots do."""

    jobs: Iterator[Job]
    tasks: int
    roles: tuple[Role, ...]
    role_of: Mapping[str, int]
    """Index into `roles` by name of the trace."""
    rules: Rules
    spec: RobotSpec


@dataclass(slots=True)
class Session:
    """A context manager: on leaving nothing runs any more that was started here."""

    serving: Mapping[str, Any] | None
    """Parameters of the serving node to start; None: it runs already."""
    logs: Path
    display: Display
    failure: str = ""
    """Why the run ended early, if something broke."""
    ready_s: float = 0.0
    """From the start to a serving node that serves."""
    tallies: list[Tally] = field(default_factory=list)

    interrupt: Interrupt = field(init=False)
    watch: ServerWatch = field(init=False)
    _fleet: bringup.Fleet = field(init=False)
    _crews: Crews | None = None

    def __post_init__(self) -> None:
        specs = [] if self.serving is None else [bringup.serving(**self.serving)]
        env = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self._fleet = bringup.Fleet(specs, self.logs, env)
        self.interrupt = Interrupt(at_once=self._kill)

    def __enter__(self) -> "Session":
        self.interrupt.__enter__()
        try:
            self._fleet.__enter__()
            self.watch = ServerWatch()
        except BaseException:
            self._fleet.stop()
            self.interrupt.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.display.say("stopping")
            self.watch.__exit__(*error)
            self._fleet.stop()
        finally:
            self.interrupt.__exit__(*error)

    def wait_for_the_server(self) -> bool:
        """Until the serving node is active; False when interrupted. Raises ReplayError."""
        began_s = time.monotonic()
        while not self.watch.active:
            if self._must_stop("the serving node", began_s):
                return False
            unheard = self.serving is None and self.watch.state is None
            if unheard and time.monotonic() > began_s + HEARD_WITHIN_S:
                domain = os.environ.get("ROS_DOMAIN_ID", "0")
                raise ReplayError(
                    f"no serving node in ROS domain {domain}; set ROS_DOMAIN_ID to that of one "
                    "that runs, or leave out --external to start one"
                )
            self.display.say(self.watch.progress())
            self.watch.spin(0.1)
        self.ready_s = time.monotonic() - began_s
        return True

    def probe(self, role: Role, spec: RobotSpec) -> bool:
        """Asks one question of the traces; False when interrupted.

        Raises ConfigError where the serving node refuses it, ReplayError as above.
        """
        began_s = time.monotonic()
        probe = self.watch.probe(role, spec)
        try:
            while not probe.answered():
                if self._must_stop("the answer to a first request", began_s):
                    return False
                self.display.say("asking a first question")
                self.watch.spin(0.02)
        finally:
            probe.leave()
        return True

    def run(self, robots: Sequence[str], work: Workload) -> FleetRun | None:
        """All tasks of the workload; what was done of them when it is interrupted or breaks.

        None when that happens before the start. Raises ReplayError for a start that fails.
        """
        crews = [Crew(names, work.rules, work.spec, work.roles) for names in split(robots)]
        with Crews(crews, self.logs) as self._crews:
            if not self._wait_for_the_robots():
                return None
            run = _Run(self, self._crews, robots, work)
            run.live()
            try:
                self.tallies = self._crews.leave()
            except KairosError as error:
                self.failure = self.failure or str(error)
            return run.result()

    def broken(self) -> str:
        """Why the run cannot go on; empty while it can."""
        if dead := self._fleet.dead():
            (key, code) = next(iter(dead.items()))
            last = "\n".join(f"  {line}" for line in self._fleet.tail(key).splitlines())
            return (
                f"the serving node ended with exit code {code}; its last words "
                f"({self._fleet.log(key)}):\n{last}"
            )
        silent_s = time.monotonic() - self.watch.heard_s
        if self.serving is None and self.watch.active and silent_s > SILENT_S:
            return f"the serving node has said nothing for {silent_s:.0f} s"
        return ""

    def _wait_for_the_robots(self) -> bool:
        assert self._crews is not None
        began_s, ready = time.monotonic(), 0
        while ready < len(self._crews):
            if self._must_stop("the virtual robots", began_s):
                return False
            self.display.say(f"{ready} of {len(self._crews)} processes of robots ready")
            ready += sum(isinstance(r, Ready) for r in self._crews.hear(0.05))
            self.watch.spin(0.0)
        return True

    def _must_stop(self, what: str, began_s: float) -> bool:
        """Whether it was interrupted. Raises ReplayError when waiting makes no sense any more."""
        if reason := self.broken():
            raise ReplayError(reason)
        waited_s = time.monotonic() - began_s
        if waited_s > READY_WITHIN_S:
            where = f"see {self.logs}" if self.serving else "is one in this ROS domain?"
            raise ReplayError(f"waited {waited_s:.0f} s for {what} in vain; {where}")
        return self.interrupt.requested

    def _kill(self) -> None:
        self._fleet.kill()
        if self._crews is not None:
            self._crews.kill()


class _Run:
    """The tasks of one workload, given to robots as they become free."""

    def __init__(
        self, session: Session, crews: Crews, robots: Sequence[str], work: Workload
    ) -> None:
        self._session = session
        self._crews = crews
        self._work = work
        self._robots = tuple(robots)
        self._free = deque(robots)
        self._busy: set[str] = set()
        self._next: Job | None = next(work.jobs, None)
        self._waiting: deque[Job] = deque()
        self._timeline = Timeline()
        self._tasks: list[TaskRecord] = []
        self._rounds: list[RoundRecord] = []
        self._last_given_s = 0.0
        self._length_s = 0.0

    def live(self) -> None:
        """Until all tasks are over, or something ends them."""
        session = self._session
        self._epoch_ns = time.monotonic_ns() + BEGIN_IN_NS
        for robot in self._robots:
            self._timeline.report(robot, 0.0, "idle")
        try:
            self._crews.tell_all(Begin(self._epoch_ns))
            self._begin_staggered()
            while self._busy or self._waiting or self._next is not None:
                if session.interrupt.requested:
                    break
                if reason := session.broken():
                    session.failure = reason
                    break
                self._give_tasks()
                self._hear(self._pause_s())
                session.watch.spin(0.0)
                session.display.show(len(self._tasks), self._work.tasks, len(self._busy))
            self._cancel()
        except KairosError as error:
            session.failure = str(error)
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

    def _start(self, job: Job, at_ns: int) -> None:
        robot = self._free.popleft()
        at_s = (at_ns - self._epoch_ns) / 1e9
        wanted_s = at_s if job.wanted_s is None else job.wanted_s
        role = self._work.role_of[job.trace.name]
        self._crews.tell(robot, Give(robot, role, job.number, wanted_s, at_ns))
        self._busy.add(robot)
        self._last_given_s = at_s

    def _hear(self, within_s: float) -> None:
        for report in self._crews.hear(within_s):
            if isinstance(report, Done):
                self._note(report)

    def _note(self, done: Done) -> None:
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
        self._crews.tell_all(Cancel())
        until_s = time.monotonic() + CANCEL_WITHIN_S
        while self._busy and time.monotonic() < until_s:
            self._hear(0.1)

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._epoch_ns) / 1e9
