"""Runs what a plan puts on one host besides the first one, and follows that one's plan."""

import time
from collections.abc import Callable
from pathlib import Path

from kairos_ros.bringup.foreground import how
from kairos_ros.bringup.planned.change import PlannedFleet, live_parameters
from kairos_ros.bringup.planned.hosts.host_part import (
    RESTARTED,
    ToldPlan,
    Topics,
    check_sole,
    new_session,
    part_of,
    read_told_plan,
)
from kairos_ros.bringup.planned.hosts.part_check import check_part
from kairos_ros.bringup.planned.hosts.restarts import Restarts
from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.host_status import TEXT, HostStatus, digest
from kairos_ros.core.wire_check import printable

TELL_S = 1.0
AGAIN_S = 5.0
"""A plan that cannot be followed is looked at again: the host's own file may have been mended."""


class HostRunner:
    """`turn` is to be called again and again, in the thread that starts the host's processes."""

    def __init__(
        self,
        host: str,
        fleet: Fleet,
        planned: PlannedFleet,
        topics: Topics,
        spin: Callable[[float], None],
        say: Callable[[str], None],
    ) -> None:
        """planned: what runs until the first host tells another plan. spin: takes in messages.
        say: for whoever looks at the program."""
        self.host, self._fleet, self._topics = host, fleet, topics
        self._spin, self._say = spin, say
        self._told = ToldPlan("", planned, staged=False)
        self._file = Path(planned.file)
        self._kept = planned
        """What is not in it is not stopped before a staged plan is applied."""
        self._robots = planned.robots | planned.served.routes.keys()
        self._text, self._problem = "", ""
        self._runs: dict[str, ProcessSpec] = {}
        self._restarts = Restarts(fleet, say)
        self._session = new_session()
        self._due_s = self._again_s = 0.0

    def check_sole(self, *, starting: bool = False) -> None:
        """As `host_part.check_sole`."""
        check_sole(self._topics, self.host, self._session, starting=starting)

    def turn(self) -> None:
        """Takes about 0.1 s. Raises ConfigError where another program, which was first, runs the
        part of this host."""
        self._spin(0.1)
        self._fleet.reap()
        again = self._problem and time.monotonic() >= self._again_s
        if again or self._topics.plan != self._text:
            self._text = self._topics.plan
            self._again_s = time.monotonic() + AGAIN_S
            self._take(self._text)
        self._adapt()
        self._restarts.look(
            {key: spec for key, spec in self._runs.items()
             if spec.kind is ProcessKind.WORKER or spec.executable in RESTARTED}
        )  # fmt: skip
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + TELL_S
            self._tell()

    def _take(self, text: str) -> None:
        self._due_s = 0.0  # the first host waits for what this one says of it
        try:
            told = read_told_plan(text)
            robots = told.fleet.robots | told.fleet.served.routes.keys()
            if not robots & self._robots:
                raise ConfigError(
                    f"host {told.host} runs {told.fleet.file}, of which no robot is in the file "
                    "that this host was started with; give both hosts the same fleet file"
                )
            check_part(told, self.host, self._file)
        except ConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._say(
                    f"the plan that was told is not followed: {printable(self._problem, TEXT)}"
                )
            return
        self._problem = ""
        if told.fleet != self._told.fleet or told.staged != self._told.staged:
            verb = "prepares for" if told.staged else "runs by"
            self._say(f"host {self.host} {verb} {told.fleet.served.identity}")
        self._told = told
        if not told.staged:
            self._kept = told.fleet

    def _adapt(self) -> None:
        kept, told = part_of(self._kept, self.host), part_of(self._told.fleet, self.host)
        wanted = {**told, **kept}
        for key, spec in list(self._runs.items()):
            other = wanted.get(key)
            same = other is not None and (spec == other or live_parameters(spec, other) is not None)
            if not same:
                del self._runs[key]
                if key in self._fleet.processes:
                    self._fleet.dismiss(key)
        for key, spec in wanted.items():
            if key not in self._runs:
                if not self._fleet.is_gone(key):
                    continue
                self._fleet.start(spec)
            self._runs[key] = spec

    def _tell(self) -> None:
        self.check_sole()
        plan = self._told.fleet if self._told.staged else self._kept
        there = part_of(plan, self.host).keys() <= self._runs.keys()
        self._topics.tell_status(
            HostStatus(
                self.host,
                self._session,
                plan.served.identity if there else "",
                {key: how(code) for key, code in self._fleet.dead().items()},
                self._restarts.failed,
                dict(self._restarts.ended),
                digest(self._text) if self._text else "",
                self._problem,
            )
        )
