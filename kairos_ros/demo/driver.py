"""Gives tasks to robots over ROS and watches the fleet: one node, one thread, no locks."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.qos import QoSProfile

from kairos_ros.action import ExecuteTask
from kairos_ros.demo.live import LiveEngine, LiveFleet
from kairos_ros.demo.tiers import ServedChunk
from kairos_ros.demo.workload import Job
from kairos_ros.evaluation.run import CANCELED, LOST, Activity, TaskRecord, Timeline
from kairos_ros.msg import ActionChunk, FleetState, RobotStatus
from kairos_ros.nodes.qos import EVENTS, ROSTER, TELEMETRY
from kairos_ros.nodes.side_node import SideNode
from kairos_ros.robot.metaworld_scenes import SCENES

MAX_ACTIONS = 500
"""Meta-World's own limit on an episode; a task that needs more has failed."""
MAX_DURATION_S = 90.0
CONTROL_RATE_HZ = 30.0
"""Until a robot has told its own."""
DECISION_EVERY_S = 0.5
ACCEPT_WITHIN_S = 15.0
RESULT_WITHIN_S = MAX_DURATION_S + 30.0

_ACTIVITIES: dict[int, Activity] = {
    RobotStatus.IDLE: "idle",
    RobotStatus.RUNNING: "executing",
    RobotStatus.HOLDING: "holding",
    RobotStatus.LEAVING: "down",
}


@dataclass(slots=True)
class _Assignment:
    """A task that a robot works on; every future has a deadline, as rclpy's never time out."""

    job: Job
    wanted_s: float
    given_s: float
    goal: Any
    handle: Any = None
    result: Any = None


class Driver:
    """Client of every robot's ExecuteTask action. A context manager; all times since `begin`."""

    def __init__(self, live: LiveFleet) -> None:
        self.live = live
        self.records: list[TaskRecord] = []
        self.chunks: list[ServedChunk] = []
        """Since `begin`, where `watch_chunks` was called."""
        self.timeline = Timeline()
        self.first_action_s: float | None = None
        self._assigned: dict[str, _Assignment] = {}
        self._not_before_s: dict[str, float] = {}
        self._lost: set[str] = set()
        self._services: dict[str, Any] = {}
        self._rate_hz: dict[str, float] = {}
        self._shown: dict[str, tuple[float, str]] = {}
        self._shown_last = 0.0
        self._origin = time.monotonic()
        self._side = SideNode("demo")
        self._node = self._side.node
        self._clients = {
            robot: ActionClient(self._node, ExecuteTask, f"/{robot}/execute_task")
            for robot in live.robots
        }
        self._node.create_subscription(RobotStatus, "/kairos/robot_status", self._on_status, ROSTER)
        self._node.create_subscription(FleetState, "/kairos/fleet_state", self._on_fleet, TELEMETRY)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self._side.close()

    def listen(
        self, topic: str, kind: type, callback: Callable[[Any], None], qos: QoSProfile = EVENTS
    ) -> None:
        """Hands every message of a topic to `callback`, from `spin`."""
        self._node.create_subscription(kind, topic, callback, qos)

    def publisher(self, topic: str, kind: type, qos: QoSProfile = EVENTS) -> Any:
        """Of a topic, for whoever drives the fleet to say something itself."""
        return self._node.create_publisher(kind, topic, qos)

    def client(self, kind: type, service: str) -> Any:
        """Of a service; the same one every time. Its futures are done by `spin`."""
        if service not in self._services:
            self._services[service] = self._node.create_client(kind, service)
        return self._services[service]

    def watch_chunks(self) -> None:
        """Records where every chunk was computed."""
        for robot in self.live.robots:
            self.listen(f"/{robot}/action_chunk", ActionChunk, self._on_chunk)

    def begin(self) -> None:
        """Starts a run at time 0: no records, an empty timeline."""
        self._origin = time.monotonic()
        self.records.clear()
        self.chunks.clear()
        self._not_before_s.clear()
        self.timeline = Timeline()
        self.first_action_s = None
        for name, robot in self.live.robots.items():
            robot.done = robot.succeeded = 0
            if robot.activity is not None:
                self.timeline.report(name, 0.0, robot.activity)

    @property
    def origin_s(self) -> float:
        """When the run began, on this host's monotonic clock."""
        return self._origin

    def now_s(self) -> float:
        return time.monotonic() - self._origin

    def spin(self, for_s: float) -> None:
        """Handles what arrives; returns after the first message, at the latest after `for_s`."""
        self._side.spin(for_s)
        for robot, task in list(self._assigned.items()):
            self._advance(robot, task)

    def ready(self) -> set[str]:
        """Robots that have announced themselves and whose action server is there."""
        return {
            name
            for name, robot in self.live.robots.items()
            if robot.activity is not None and self._clients[name].server_is_ready()
        }

    def free(self) -> list[str]:
        """Robots that can be given a task now."""
        now_s = self.now_s()
        return [
            name
            for name in self.live.robots
            if name not in self._assigned
            and name not in self._lost
            and self._not_before_s.get(name, 0.0) <= now_s
        ]

    def busy(self) -> bool:
        return bool(self._assigned)

    def oldest_s(self) -> float:
        """When the task that has been running longest was given; infinite without one."""
        return min((task.given_s for task in self._assigned.values()), default=math.inf)

    def give(
        self, robot: str, job: Job, max_actions: int = MAX_ACTIONS, instruction: str = ""
    ) -> None:
        """Sends `robot` its next task; without an instruction, in the words of its scene."""
        now_s = self.now_s()
        goal = ExecuteTask.Goal(
            instruction=instruction or SCENES[job.scene],
            task_kind=job.scene,
            scene=job.scene,
            seed=job.seed,
            max_duration_s=MAX_DURATION_S,
            max_actions=max_actions,
        )
        future = self._clients[robot].send_goal_async(
            goal, feedback_callback=lambda message: self._on_feedback(robot, message.feedback)
        )
        self._assigned[robot] = _Assignment(job, min(job.wanted_s or now_s, now_s), now_s, future)

    def cancel(self, robot: str = "") -> None:
        """Asks a robot, or every one, to end its task; the results still have to be waited for."""
        for name, task in self._assigned.items():
            if task.handle is not None and robot in ("", name):
                task.handle.cancel_goal_async()

    def lose(self, robot: str) -> None:
        """The robot's process is gone: its task is lost and it gets no other."""
        self._lost.add(robot)
        self.live.robots[robot].activity = "down"
        self.timeline.report(robot, self.now_s(), "down")
        self._close(robot, LOST)

    def regain(self, robot: str) -> None:
        """A process of that name was started again: it may be given tasks once it is ready."""
        self._lost.discard(robot)
        self.live.robots[robot].activity = None

    def abandon(self) -> None:
        """Stops waiting for results that did not come."""
        for robot in list(self._assigned):
            self._close(robot, CANCELED)

    def _advance(self, robot: str, task: _Assignment) -> None:
        waited_s = self.now_s() - task.given_s
        if task.handle is None:
            if task.goal.done():
                task.handle = task.goal.result()
                if not task.handle.accepted:
                    self._close(robot, "failed: the robot did not accept the task")
                else:
                    task.result = task.handle.get_result_async()
            elif waited_s > ACCEPT_WITHIN_S:
                self._close(robot, LOST)
        elif task.result.done():
            answer = task.result.result()
            self._close(robot, _outcome(answer), answer.result)
        elif waited_s > RESULT_WITHIN_S:
            task.handle.cancel_goal_async()
            self._close(robot, LOST)

    def _close(self, robot: str, outcome: str, result: ExecuteTask.Result | None = None) -> None:
        task = self._assigned.pop(robot, None)
        if task is None:
            return
        result = result or ExecuteTask.Result()
        now_s = self.now_s()
        record = TaskRecord(
            number=task.job.number,
            robot=robot,
            scene=task.job.scene,
            seed=task.job.seed,
            wanted_s=task.wanted_s,
            given_s=task.given_s,
            ended_s=now_s,
            outcome=outcome,
            success=result.success,
            duration_s=result.duration_s,
            first_wait_s=result.first_wait_s,
            stalled_s=result.stalled_s,
            actions=result.actions,
            round_latency_s=tuple(result.round_latency_s),
            round_executed=tuple(result.round_executed),
            refusals=result.refusals,
            dropped=result.dropped,
            guarded=result.guarded,
        )
        self.records.append(record)
        if record.finished:
            live = self.live.robots[robot]
            live.done += 1
            live.succeeded += record.success
        if not record.actions:
            self._not_before_s[robot] = now_s + 0.5  # a robot that refuses must not eat the list

    def _on_status(self, message: RobotStatus) -> None:
        robot = self.live.robots.get(message.robot)
        if robot is None or message.robot in self._lost:
            return
        activity = _ACTIVITIES[message.state]
        robot.activity = activity
        robot.task = message.instruction
        robot.round = message.round
        if message.control_rate_hz > 0:
            self._rate_hz[message.robot] = message.control_rate_hz
        robot.buffered_s = message.buffered / self._rate_hz.get(message.robot, CONTROL_RATE_HZ)
        robot.stalled_s = message.stalled_s
        now_s = self.now_s()
        self.timeline.report(message.robot, now_s, activity)
        if activity == "executing" and self.first_action_s is None:
            self.first_action_s = now_s

    def _on_chunk(self, message: ActionChunk) -> None:
        robot = self.live.robots.get(message.robot)
        if robot is None or message.kind != ActionChunk.ACTIONS:
            return
        chunk = ServedChunk(
            at_s=self.now_s(),
            robot=message.robot,
            task=message.task,
            round=message.round,
            tier=message.tier,
            engine=message.engine,
            reason=message.reason,
            server_s=message.server_s,
            compute_s=message.compute_s,
        )
        robot.serve(chunk)
        self.chunks.append(chunk)

    def _on_feedback(self, name: str, feedback: ExecuteTask.Feedback) -> None:
        robot = self.live.robots[name]
        robot.round = feedback.round
        robot.buffered_s = feedback.buffered / self._rate_hz.get(name, CONTROL_RATE_HZ)
        robot.stalled_s = feedback.stalled_s

    def _on_fleet(self, message: FleetState) -> None:
        live = self.live
        live.server, live.active = message.server, message.active
        live.scheduling, live.horizon = message.scheduling, message.horizon
        live.queue = message.queue_length
        live.requests_per_s, live.chunks_per_s = message.requests_per_s, message.chunks_per_s
        live.counters = dict(zip(message.counter_names, message.counter_values, strict=True))
        live.engines = tuple(
            LiveEngine(
                name=e.engine,
                tier=e.tier,
                state=e.state,
                batch=e.batch_size,
                max_batch=e.max_batch,
                load=e.load,
                batches=e.batches,
                restarts=e.restarts,
                error=e.last_error,
                rtt_s=e.rtt_s,
                mbps=e.bandwidth_mbps,
                in_flight=e.in_flight,
                request_bytes=e.request_bytes,
            )
            for e in message.engines
        )
        for seen in message.robots:
            robot = live.robots.get(seen.robot)
            if robot is None:
                continue
            robot.horizon, robot.horizon_reason = seen.horizon, seen.horizon_reason
            robot.wait_ratio = seen.wait_ratio
            robot.pending, robot.running = seen.pending, seen.running
        self._show_a_decision({seen.robot: seen.reason for seen in message.robots if seen.reason})

    def _show_a_decision(self, reasons: dict[str, str]) -> None:
        """Adds a new decision now and then, of the robots in turn: people read them."""
        now = time.monotonic()
        turns = sorted(reasons, key=lambda robot: self._shown.get(robot, (0.0, ""))[0])
        news = [r for r in turns if self._shown.get(r, (0.0, ""))[1] != reasons[r]]
        if news and now - self._shown_last >= DECISION_EVERY_S:
            self._shown[news[0]] = (now, reasons[news[0]])
            self._shown_last = now
            self.live.decisions.append((news[0], reasons[news[0]]))


def _outcome(answer: Any) -> str:
    if answer.status == GoalStatus.STATUS_CANCELED:
        return CANCELED
    return answer.result.outcome or "failed: the robot gave no reason"
