"""A process of virtual robots, driven over a pipe: `python -m ...live_replay.robot_process FD`.

One thread. Answers are taken from DDS every `POLL_S` and count from the moment they arrived;
control periods in which something is decided are computed when due, all others by count.
"""

import heapq
import os
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import rclpy
from rclpy.node import Node

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.execution.task import Task
from kairos_ros.host.orphan import leave_with_launcher
from kairos_ros.lab.live_replay.process_messages import (
    BeginRun,
    CancelTasks,
    GiveTask,
    Leave,
    ProcessCounts,
    Ready,
    Report,
    Seen,
    Setup,
    TaskDone,
    decode,
    encode,
)
from kairos_ros.lab.live_replay.task_events import TaskEvents
from kairos_ros.lab.live_replay.topics import ReplayTopics
from kairos_ros.lab.sim.virtual_robot import Assignment, Ended, Send, VirtualRobot
from kairos_ros.msg import RobotStatus
from kairos_ros.nodes.limited_node import LimitedNode
from kairos_ros.nodes.process import join_ros
from kairos_ros.nodes.robot.messages import Identity, request_message
from kairos_ros.telemetry.answer import answer_of

POLL_S = 0.002
NOTHING = Seen()
SETTLE_S = 0.5
"""After our side has found the serving node: it may still be about to find ours, and what it says
before that is lost."""


class _Robot:
    """A virtual robot and what it is doing."""

    def __init__(self, who: Identity, virtual: VirtualRobot) -> None:
        self.who = who
        self.virtual = virtual
        self.horizon = ""
        """Asked for in place of what the virtual robot asks for, if not empty."""
        self.task: Task | None = None
        """The newest one."""
        self.last_ns = 0
        """Newest instant it was told of: its time never goes back."""
        self.due_ns: int | None = None
        """Of the one event in the heap that counts."""


class RobotProcess:
    """All robots of this process."""

    def __init__(self, setup: Setup, parent: Connection, node: Node) -> None:
        """`node` must be in no executor, which would take the answers away."""
        self._setup = setup
        self._parent = parent
        self._node = node
        self._topics = ReplayTopics(node)
        self._robots: dict[str, _Robot] = {}
        self._heap: list[tuple[int, str]] = []
        self._late_ms: list[float] = []
        self._dropped: Counter[str] = Counter()
        self._requests = 0
        self._began_cpu_s = 0.0
        self._seen: dict[int, Seen] = {
            id(recorded): seen
            for task in setup.tasks
            for recorded, seen in zip(task.trace.rounds, task.seen, strict=False)
        }
        self._blank = np.zeros(setup.spec.state_dim, np.float32)
        self._sessions = {name: uuid.uuid4().hex for name in setup.robots}

    def live(self) -> None:
        """Until told to leave, or until the parent is gone."""
        for name, session in self._sessions.items():
            self._topics.open(Identity(name, session, self._setup.spec))
        self._wait_for_the_server()
        try:
            while self._obey():
                self._receive()
                self._advance()
                self._parent.poll(self._pause_s())
        finally:
            self._topics.close(*self._sessions)

    def _wait_for_the_server(self) -> None:
        found_s: float | None = None
        while found_s is None or time.monotonic() < found_s + SETTLE_S:
            if found_s is None and all(map(self._topics.ready, self._sessions)):
                found_s = time.monotonic()
            self._topics.stay_alive()
            if self._parent.poll(0.02):  # nobody orders anything yet but to leave
                return
        self._tell(Ready())

    def _obey(self) -> bool:
        """Carries out what was ordered; False: leave."""
        while self._parent.poll():
            match decode(self._parent.recv_bytes()):
                case BeginRun(epoch_ns):
                    self._begin(epoch_ns)
                case GiveTask() as give:
                    self._start(give)
                case CancelTasks():
                    now_ns = time.monotonic_ns()
                    for robot in self._robots.values():
                        robot.last_ns = max(now_ns, robot.last_ns)
                        self._apply(robot, robot.virtual.cancel(robot.last_ns))
                case Leave():
                    self._tell(self._counts())
                    return False
        return True

    def _tell(self, report: Report) -> None:
        self._parent.send_bytes(encode(report))

    def _begin(self, epoch_ns: int) -> None:
        self._began_cpu_s = time.process_time()
        self._events = TaskEvents(self._node, self._setup.robots, epoch_ns)
        rules, spec = self._setup.rules, self._setup.spec
        self._robots = {
            name: _Robot(
                Identity(name, session, spec), VirtualRobot(name, session, rules, epoch_ns)
            )
            for name, session in self._sessions.items()
        }

    def _start(self, give: GiveTask) -> None:
        robot, recorded = self._robots[give.robot], self._setup.tasks[give.task]
        robot.horizon = recorded.horizon
        rate_hz = recorded.trace.control_rate_hz
        robot.who = replace(robot.who, spec=replace(robot.who.spec, control_rate_hz=rate_hz))
        task = str(give.number)
        robot.last_ns = max(give.at_ns, robot.last_ns)
        robot.virtual.start(
            Assignment(task, give.number, recorded.trace, give.wanted_s), robot.last_ns
        )
        begun = robot.virtual.task
        assert begun is not None
        robot.task = replace(begun, horizon_policy=robot.horizon)
        self._topics.tell(give.robot, RobotStatus.RUNNING, task)
        self._events.began(robot.who, robot.task)
        self._schedule(robot)

    def _receive(self) -> None:
        for message, arrived_ns in self._topics.take():
            robot = self._robots.get(message.robot)
            if robot is None:
                continue
            try:
                answer = answer_of(message)
            except WireError:
                self._dropped["malformed"] += 1
                continue
            robot.last_ns = max(arrived_ns, robot.last_ns)
            self._apply(robot, robot.virtual.receive(answer, robot.last_ns))

    def _advance(self) -> None:
        now_ns = time.monotonic_ns()
        while self._heap and self._heap[0][0] <= now_ns:
            due_ns, name = heapq.heappop(self._heap)
            robot = self._robots[name]
            if robot.due_ns != due_ns:
                continue
            self._late_ms.append((now_ns - due_ns) / 1e6)
            robot.last_ns = max(now_ns, robot.last_ns)
            self._apply(robot, robot.virtual.advance(robot.last_ns))

    def _apply(self, robot: _Robot, effects: list[Send | Ended]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(robot, effect)
            else:
                assert robot.task is not None  # that has ended
                self._topics.tell(robot.who.robot, RobotStatus.IDLE)
                self._events.ended(robot.who, robot.task, effect)
                self._tell(TaskDone(robot.who.robot, effect))
        self._schedule(robot)

    def _send(self, robot: _Robot, send: Send) -> None:
        self._requests += 1
        request, observed = send.request, send.observed
        state = self._blank if observed.state is None else observed.state
        seen = self._seen.get(id(observed), NOTHING)
        sent = replace(
            request,
            horizon_policy=robot.horizon or request.horizon_policy,
            observation=Observation(state, seen.images),
            earlier=seen.earlier,
            observed_ago_ns=max(0, time.monotonic_ns() - send.sent_ns),
        )
        self._topics.send(request_message(robot.who, sent))

    def _schedule(self, robot: _Robot) -> None:
        due_ns = robot.virtual.next_event_ns()
        if due_ns is not None and due_ns != robot.due_ns:
            heapq.heappush(self._heap, (due_ns, robot.who.robot))
        robot.due_ns = due_ns

    def _pause_s(self) -> float:
        if not self._heap:
            return POLL_S
        return min(POLL_S, max(0.0, (self._heap[0][0] - time.monotonic_ns()) / 1e9))

    def _counts(self) -> ProcessCounts:
        dropped = Counter(self._dropped)
        for robot in self._robots.values():
            dropped += robot.virtual.dropped
        return ProcessCounts(
            cpu_s=time.process_time() - self._began_cpu_s,
            late_ms=self._late_ms,
            dropped=dropped,
            silences=sum(robot.virtual.silences for robot in self._robots.values()),
            requests=self._requests,
        )


def main() -> None:
    leave_with_launcher()
    parent = Connection(int(sys.argv[1]))
    join_ros([])
    node = LimitedNode(f"virtual_robots_{os.getpid()}")
    try:
        with suppress(EOFError, BrokenPipeError):  # the parent is gone: so is the run
            RobotProcess(decode(parent.recv_bytes()), parent, node).live()
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
