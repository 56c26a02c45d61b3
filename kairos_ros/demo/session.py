"""One fleet of real processes, from its start through one or more runs to its end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_ros import bringup
from kairos_ros.core.errors import KairosError
from kairos_ros.demo.cloud import Cloud
from kairos_ros.demo.cuts import Cut
from kairos_ros.demo.display import Display
from kairos_ros.demo.driver import Driver
from kairos_ros.demo.interrupt import Interrupt
from kairos_ros.demo.live import LiveFleet, LiveRobot
from kairos_ros.demo.tiers import ServedChunk
from kairos_ros.demo.workload import Arrivals, Job
from kairos_ros.evaluation.run import FleetRun

READY_WITHIN_S = 240.0
FINISH_WITHIN_S = 20.0
"""After the time is up, running tasks may finish for this long; then they are canceled."""
CANCEL_WITHIN_S = 4.0
SERVING_STOPS_WITHIN_S = 10.0
LAST_WORDS = 15
"""Lines."""
_SLICE_S = 0.05


class FleetError(KairosError):
    """A process of the fleet ended, or the fleet did not get ready."""


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds since the first process was started."""

    first_robot_s: float
    all_robots_s: float
    engine_s: float
    """The serving node accepts robots: its engine is loaded and warm."""
    ready_s: float
    cloud_s: float | None = None
    """The serving node has found the cloud worker; None where there is none."""


@dataclass(slots=True)
class Session:
    """A context manager: on entering nothing runs yet, on leaving nothing runs any more."""

    robots: int
    policy: str
    """Parameter `policy` of the serving node; empty: the policy that ships."""
    logs: Path
    display: Display
    bag: Path | None = None
    """Folder to record the fleet into."""
    cloud: Cloud | None = None
    """Takes what would wait longer at the edge; entered and left with this."""
    robot_parameters: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[bringup.NodeSpec] = ()
    """What to start instead, where it is not `robots` equal arms and their server."""
    rviz: bool = False
    """Start the viz node, too."""
    failures: list[str] = field(default_factory=list)
    """Processes that ended by themselves, with what they printed last."""
    meant: set[str] = field(default_factory=set)
    """Processes that are meant to be dead now."""

    live: LiveFleet = field(init=False)
    fleet: bringup.Fleet = field(init=False)
    interrupt: Interrupt = field(init=False)
    driver: Driver = field(init=False)
    _gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        specs = self.nodes or bringup.plan(self.robots)
        names = [spec.namespace for spec in specs if spec.executable == "robot_node"]
        self.live = LiveFleet({name: LiveRobot() for name in names})
        self.fleet = bringup.Fleet([], self.logs, {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"})
        self.interrupt = Interrupt(at_once=self._kill)

    def __enter__(self) -> "Session":
        self.interrupt.__enter__()
        try:
            if self.cloud is not None:
                self.cloud.__enter__()
            self.fleet.__enter__()
            self.driver = Driver(self.live)
            if self.cloud is not None:
                self.driver.watch_chunks()
        except BaseException:
            if self.cloud is not None:
                self.cloud.__exit__()
            self.interrupt.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.display.progress("stopping the fleet")
            self.driver.__exit__(*error)
            self.fleet.stop()
        finally:
            if self.cloud is not None:
                self.cloud.__exit__()
            self.interrupt.__exit__(*error)

    @property
    def stopped(self) -> bool:
        """Interrupted, or the serving node or every robot is gone: no further run makes sense."""
        return (
            self.interrupt.requested
            or "kairos" in self._gone
            or self.live.robots.keys() <= self._gone
        )

    def start(self, serving: Mapping[str, str]) -> Startup | None:
        """Starts all processes and waits until every robot can be given a task.

        Returns None when interrupted. Raises FleetError when a process ends or time runs out.
        """
        began = time.monotonic()
        specs = self.nodes or bringup.plan(
            self.robots,
            record=self.bag or "",
            serve=self.parameters(serving),
            robot_parameters=self.robot_parameters,
            view=self.rviz,
        )
        for spec in specs:
            self.fleet.start(spec)
        seen: dict[str, float] = {}
        while True:
            now_s = time.monotonic() - began
            ready = self.driver.ready()
            if ready:
                seen.setdefault("robot", now_s)
            if len(ready) == self.robots:
                seen.setdefault("robots", now_s)
            if self.live.active:
                seen.setdefault("engine", now_s)
            if self.cloud_ready:
                seen.setdefault("cloud", now_s)
            if len(seen) == 3 + (self.cloud is not None):
                return Startup(
                    seen["robot"], seen["robots"], seen["engine"], now_s, seen.get("cloud")
                )
            if self.interrupt.requested:
                return None
            self._wait(
                f"{self._engine_progress()}, {len(ready)} of {self.robots} robots ready", began
            )

    def serve(self, serving: Mapping[str, str]) -> None:
        """Restarts the serving node with other parameters; the robots keep running.

        Raises FleetError as `start` does.
        """
        process = self.fleet.processes["kairos"]
        process.terminate()
        deadline = time.monotonic() + SERVING_STOPS_WITHIN_S
        while process.poll() is None and time.monotonic() < deadline:
            self.driver.spin(_SLICE_S)
        if process.poll() is None:
            process.kill()
            process.wait()
        before = self.live.server
        self.live.active = False
        self.live.engines = ()
        began = time.monotonic()
        self.fleet.start(bringup.serving(**self.parameters(serving)))
        while not (self.live.active and self.live.server != before):
            if self.interrupt.requested:
                return
            self._wait(f"{self.live.phase}: {self._engine_progress()}", began)

    def build_scenes(self, scenes: Sequence[str]) -> None:
        """Every robot builds every scene, with a task of one action, so that no run pays for it."""
        driver = self.driver
        driver.begin()
        todo = {name: [Job(0, scene, 0, 0.0) for scene in scenes] for name in self.live.robots}
        while (any(todo.values()) or driver.busy()) and not self.stopped:
            left = sum(map(len, todo.values()))
            if driver.now_s() > READY_WITHIN_S:
                raise FleetError(f"{left} scenes are not built after {READY_WITHIN_S:.0f} s")
            for robot in driver.free():
                if todo[robot]:
                    driver.give(robot, todo[robot].pop(), max_actions=1)
            driver.spin(_SLICE_S)
            self.notice_deaths()
            for name in self._gone & todo.keys():
                todo[name].clear()
            self.display.progress(f"the robots build their scenes, {left} to go")
        self.end_tasks()

    @property
    def cloud_ready(self) -> bool:
        """There is an engine elsewhere that takes requests."""
        return any(e.remote and e.state in ("ready", "busy") for e in self.live.engines)

    @property
    def chunks(self) -> list[ServedChunk]:
        """Every chunk of the newest run, where there is a cloud."""
        return self.driver.chunks

    def run(self, arrivals: Arrivals, duration_s: float, cuts: Sequence[Cut] = ()) -> FleetRun:
        """Keeps the robots busy for `duration_s`, then lets them finish; ends when `stopped`.

        `cuts`: when the link to the cloud is cut meanwhile.
        """
        driver, live = self.driver, self.live
        driver.begin()
        while not self.stopped:
            now_s = driver.now_s()
            live.left_s = duration_s - now_s
            self._cut(cuts, now_s)
            live.tasks_waiting = arrivals.waiting(now_s)
            if now_s < duration_s:
                for robot in driver.free():
                    job = arrivals.take(now_s)
                    if job is None:
                        break
                    driver.give(robot, job)
            elif not driver.busy() or now_s > duration_s + FINISH_WITHIN_S:
                break
            driver.spin(_SLICE_S)
            self.notice_deaths()
            self.display.show(live)
        self._cut((), driver.now_s())
        length_s = driver.now_s()
        spans = driver.timeline.spans(length_s)
        self.end_tasks()
        opened = ((0.0, min(duration_s, length_s)),)
        return FleetRun(tuple(live.robots), length_s, tuple(driver.records), spans, opened)

    @property
    def first_action_s(self) -> float | None:
        """Start of the run to the first action of any robot."""
        return self.driver.first_action_s

    def _cut(self, cuts: Sequence[Cut], now_s: float) -> None:
        """Brings the link to what it shall be now, and tells the view."""
        if self.cloud is None:
            return
        cut = next((cut for cut in cuts if cut.holds_at(now_s)), None)
        before = self.cloud.conditions.cut
        if bool(cut) != bool(before):
            self.cloud.change(cut="both" if cut else "")
            said = f"CUT for {cut.for_s:g} s" if cut else "whole again"
            self.live.notices.append(f"{now_s:.0f} s: the link to the cloud is {said}")
        left = f"CUT, {cut.from_s + cut.for_s - now_s:.0f} s to go" if cut else ""
        self.live.link = left or self.cloud.link

    def end_tasks(self) -> None:
        """Cancels what runs, and waits a moment for the results."""
        self.driver.cancel()
        deadline = time.monotonic() + CANCEL_WITHIN_S
        while self.driver.busy() and time.monotonic() < deadline:
            self.display.progress("ending the tasks that are still running")
            self.driver.spin(_SLICE_S)
            self.notice_deaths()
        self.driver.abandon()

    def parameters(self, serving: Mapping[str, Any]) -> dict[str, Any]:
        """Of the serving node, with what this fleet needs."""
        wanted = {"policy": self.policy, **serving}
        if self.cloud is not None:
            wanted |= {"engines": [self.cloud.engine], "keys": str(self.cloud.here.path)}
        return {name: value for name, value in wanted.items() if value}

    def _engine_progress(self) -> str:
        if self.live.active:
            waits = self.cloud is not None and not self.cloud_ready
            return "engine ready, cloud worker starting" if waits else "engine ready"
        states = [f"engine {engine.name} {engine.state}" for engine in self.live.engines]
        return ", ".join(states) or "serving node starting"

    def _wait(self, what: str, began: float) -> None:
        """One step of waiting for the fleet to get ready."""
        dead = self._dead()
        if dead:
            (key, code), *others = dead.items()
            also = f"\nalso ended: {', '.join(name for name, _ in others)}" if others else ""
            raise FleetError(self._obituary(key, code) + also)
        waited_s = time.monotonic() - began
        if waited_s > READY_WITHIN_S:
            raise FleetError(
                f"the fleet is not ready after {waited_s:.0f} s ({what}); see {self.logs}"
            )
        self.display.progress(f"{what} ({waited_s:.0f} s)")
        self.driver.spin(_SLICE_S)

    def notice_deaths(self) -> None:
        """Tells of processes that ended since the last call; their robots get no more tasks."""
        for key, code in self._dead().items():
            if key in self._gone or key in self.meant:
                continue
            self._gone.add(key)
            self.failures.append(self._obituary(key, code))
            self.live.notices.append(f"{key} ended with exit code {code}, see {self._log(key)}")
            if key in self.live.robots:
                self.driver.lose(key)

    def _dead(self) -> dict[str, int]:
        return self.fleet.dead() | (self.cloud.dead() if self.cloud else {})

    def _log(self, key: str) -> Path:
        elsewhere = self.cloud is not None and key in self.cloud.dead()
        return self.cloud.log if self.cloud is not None and elsewhere else self.fleet.log(key)

    def _obituary(self, key: str, code: int) -> str:
        log = self._log(key)
        words = log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
        last = "\n".join(f"  {line}" for line in words)
        return f"{key} ended with exit code {code}; its last words ({log}):\n{last}"

    def _kill(self) -> None:
        if self.cloud is not None:
            self.cloud.kill_all()
        for process in self.fleet.processes.values():
            if process.poll() is None:
                process.kill()
