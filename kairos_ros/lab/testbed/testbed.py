"""One fleet of real processes, from its start through one or more runs to its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.host.interrupt import Interrupt
from kairos_ros.lab.testbed.cloud import Cloud, Cut
from kairos_ros.lab.testbed.display import Display
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.processes import READY_WITHIN_S, FleetError, Processes, wait_until
from kairos_ros.lab.testbed.testbed_client import TestbedClient
from kairos_ros.lab.testbed.workload import Arrivals, SceneTask
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.telemetry.events import ChunkAnswered
from kairos_ros.telemetry.fleet_view import RobotView

FINISH_WITHIN_S = 20.0
"""After the time is up, running tasks may finish for this long; then they are canceled."""
CANCEL_WITHIN_S = 4.0
SERVING_STOPS_WITHIN_S = 10.0
_SLICE_S = 0.05


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
class FleetTestbed:
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
    nodes: Sequence[ProcessSpec] = ()
    """What to start instead, where it is not `robots` equal arms and their server."""
    rviz: bool = False
    """Start the viz node, too."""
    cameras: str = ""
    """Of the arms (`robot.cameras_text`); empty: none."""
    failures: list[str] = field(default_factory=list)
    """Processes that ended by themselves, with what they printed last."""
    killed: set[str] = field(default_factory=set)
    """Processes that are dead on purpose now."""

    live: LiveFleet = field(init=False)
    fleet: Fleet = field(init=False)
    interrupt: Interrupt = field(init=False)
    client: TestbedClient = field(init=False)
    _processes: Processes = field(init=False)
    _gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        specs = self.nodes or bringup.plan(self.robots)
        names = [spec.namespace for spec in specs if spec.executable == "robot_node"]
        self.live = LiveFleet({name: RobotView(name) for name in names})
        self._processes = Processes(self.logs, cloud=self.cloud)
        self.fleet, self.interrupt = self._processes.fleet, self._processes.interrupt

    def __enter__(self) -> "FleetTestbed":
        self._processes.__enter__()
        try:
            self.client = TestbedClient(self.live)
            if self.cloud is not None:
                self.client.watch_chunks()
        except BaseException:
            self._processes.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.display.progress("stopping the fleet")
            self.client.__exit__(*error)
        finally:
            self._processes.__exit__(*error)

    @property
    def stopped(self) -> bool:
        """Interrupted, or the serving node or every robot is gone: no further run makes sense."""
        return (
            self.interrupt.requested
            or "serving" in self._gone
            or self.live.robots.keys() <= self._gone
        )

    def start(self, serving: Mapping[str, Any]) -> Startup:
        """Starts all processes and waits until every robot can be given a task.

        Raises FleetError when a process ends or time runs out, Interrupted after Ctrl-C.
        """
        began = time.monotonic()
        specs = self.nodes or bringup.plan(
            self.robots,
            record=self.bag or "",
            serve=self.parameters(serving),
            robot_parameters=self.robot_parameters,
            view=self.rviz,
            cameras=self.cameras,
        )
        for spec in specs:
            self.fleet.start(spec)
        seen: dict[str, float] = {}

        def ready() -> bool:
            now_s = time.monotonic() - began
            robots = len(self.client.ready())
            there = {
                "robot": robots > 0,
                "robots": robots == self.robots,
                "engine": self.live.active,
                "cloud": self.cloud is None or self.cloud_ready,
                "recorder": self.bag is None or self.client.recorded(),
            }
            for name in there.keys() - seen.keys():
                if there[name]:
                    seen[name] = now_s
            return seen.keys() == there.keys()

        def progress() -> str:
            count = len(self.client.ready())
            return f"{self._engine_progress()}, {count} of {self.robots} robots ready"

        self.wait_until(ready, progress)
        cloud_s = None if self.cloud is None else seen["cloud"]
        ready_s = time.monotonic() - began
        return Startup(seen["robot"], seen["robots"], seen["engine"], ready_s, cloud_s)

    def wait_until(
        self,
        true: Callable[[], object],
        what: str | Callable[[], str],
        within_s: float = READY_WITHIN_S,
    ) -> None:
        """Waits for something that a fleet without a fault brings about. Raises as `start`."""

        def step(progress: str) -> None:
            self._processes.check()
            self.display.progress(progress)
            self.client.spin(_SLICE_S)

        wait_until(true, within_s, what, step, f"; see {self.logs}")

    def serve(self, serving: Mapping[str, Any]) -> None:
        """Restarts the serving node with other parameters; the robots keep running.

        Raises as `start` does.
        """
        process = self.fleet.processes["serving"]
        process.terminate()
        deadline = time.monotonic() + SERVING_STOPS_WITHIN_S
        while process.poll() is None and time.monotonic() < deadline:
            self.client.spin(_SLICE_S)
        if process.poll() is None:
            process.kill()
            process.wait()
        before = self.live.server
        self.start_serving(serving)
        self.wait_until(
            lambda: self.live.active and self.live.server != before,
            lambda: f"{self.live.phase}: {self._engine_progress()}",
        )

    def start_serving(self, serving: Mapping[str, Any]) -> None:
        """Starts the serving node again, once it has ended."""
        self.live.active = False
        self.live.engines = ()
        self.fleet.start(bringup.serving(**self.parameters(serving)))

    def build_scenes(self, scenes: Sequence[str]) -> None:
        """Every robot builds every scene, with a task of one action, so that no run pays for it."""
        client = self.client
        client.begin()
        todo = {
            name: [SceneTask(0, scene, 0, 0.0) for scene in scenes] for name in self.live.robots
        }
        while (any(todo.values()) or client.busy()) and not self.stopped:
            left = sum(map(len, todo.values()))
            if client.now_s() > READY_WITHIN_S:
                raise FleetError(f"{left} scenes are not built after {READY_WITHIN_S:.0f} s")
            for robot in client.free():
                if todo[robot]:
                    client.give(robot, todo[robot].pop(), max_actions=1)
            client.spin(_SLICE_S)
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
    def chunks(self) -> list[ChunkAnswered]:
        """Every chunk of the newest run, where there is a cloud."""
        return self.client.chunks

    def run(self, arrivals: Arrivals, duration_s: float, cuts: Sequence[Cut] = ()) -> FleetRun:
        """Keeps the robots busy for `duration_s`, then lets them finish; ends when `stopped`.

        `cuts`: when the link to the cloud is cut meanwhile. Raises FleetError with the server's
        reason when it refuses a task before any robot has moved.
        """
        client, live = self.client, self.live
        client.begin()
        while not self.stopped:
            now_s = client.now_s()
            live.left_s = duration_s - now_s
            self._cut(cuts, now_s)
            live.tasks_waiting = arrivals.waiting(now_s)
            if now_s < duration_s:
                for robot in client.free():
                    job = arrivals.take(now_s)
                    if job is None:
                        break
                    client.give(robot, job)
            elif not client.busy() or now_s > duration_s + FINISH_WITHIN_S:
                break
            client.spin(_SLICE_S)
            self.notice_deaths()
            if client.refused:
                raise FleetError(f"no robot moves: {client.refused}")
            self.display.show(live)
        self._cut((), client.now_s())
        length_s = client.now_s()
        spans = client.timeline.spans(length_s)
        self.end_tasks()
        opened = ((0.0, min(duration_s, length_s)),)
        return FleetRun(tuple(live.robots), length_s, tuple(client.records), spans, opened)

    @property
    def first_action_s(self) -> float | None:
        """Start of the run to the first action of any robot."""
        return self.client.first_action_s

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

    def describe_exit(self, key: str) -> str:
        """Exit code and last lines of a process that ended."""
        return self._processes.describe_exit(key)

    def end_tasks(self) -> None:
        """Cancels what runs, and waits a moment for the results."""
        self.client.cancel()
        deadline = time.monotonic() + CANCEL_WITHIN_S
        while self.client.busy() and time.monotonic() < deadline:
            self.display.progress("ending the tasks that are still running")
            self.client.spin(_SLICE_S)
            self.notice_deaths()
        self.client.abandon()

    def parameters(self, serving: Mapping[str, Any]) -> dict[str, Any]:
        """Of the serving node, with what this fleet needs."""
        wanted: dict[str, Any] = {"policy": self.policy, **serving}
        if not self.nodes:  # whatever else is in this domain is not the demo's to move
            wanted["robots"] = list(self.live.robots)
        if self.cloud is not None:
            wanted |= {"engines": [self.cloud.engine], "keys": str(self.cloud.here.path)}
        return {name: value for name, value in wanted.items() if value}

    def _engine_progress(self) -> str:
        if self.live.active:
            waits = self.cloud is not None and not self.cloud_ready
            return "engine ready, cloud worker starting" if waits else "engine ready"
        states = [f"engine {engine.name} {engine.state}" for engine in self.live.engines]
        return ", ".join(states) or "serving node starting"

    def notice_deaths(self) -> None:
        """Tells of processes that ended since the last call; their robots get no more tasks."""
        for key, code in self._processes.dead().items():
            if key in self._gone or key in self.killed:
                continue
            self._gone.add(key)
            self.failures.append(self.describe_exit(key))
            log = self._processes.log(key)
            self.live.notices.append(f"{key} ended with exit code {code}, see {log}")
            if key in self.live.robots:
                self.client.lose(key)
