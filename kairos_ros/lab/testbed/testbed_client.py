"""Gives tasks to robots over ROS and watches the fleet: one node, one thread, no locks."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.qos import QoSProfile

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import WireError
from kairos_ros.core.robot_state import RobotState
from kairos_ros.lab.testbed.live import LiveFleet, activity_of
from kairos_ros.lab.testbed.workload import SceneTask
from kairos_ros.msg import ActionChunk, FleetState, RobotStatus
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.bounded import FLEET_BYTES, subscribe
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.qos import EVENTS, ROSTER, TELEMETRY
from kairos_ros.recording.runs.run import ACTIVITIES, CANCELED, LOST, TaskRecord, Timeline
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.telemetry.decode import chunk_answered, robot_reported
from kairos_ros.telemetry.decode_fleet import fleet_reported
from kairos_ros.telemetry.events import ChunkAnswered, RobotReported

MAX_ACTIONS = 500
"""Meta-World's own limit on an episode; a task that needs more has failed."""
MAX_DURATION_S = 90.0
DECISION_EVERY_S = 0.5
ACCEPT_WITHIN_S = 15.0
RESULT_LATE_S = 30.0
"""After the longest that the task may take."""

REFUSED = "refused: "
"""Begins the outcome of a task that the server refused for good."""

NOT_ACCEPTED = "failed: the robot did not accept the task"


@dataclass(slots=True)
class _Assignment:
    """A task that a robot works on; every future has a deadline, as rclpy's never time out."""

    job: SceneTask
    wanted_s: float
    given_s: float
    result_within_s: float
    goal: Any
    handle: Any = None
    result: Any = None


class TestbedClient:
    """Client of every robot's ExecuteTask action. A context manager; all times since `begin`."""

    def __init__(self, live: LiveFleet) -> None:
        self.live = live
        self.records: list[TaskRecord] = []
        self.chunks: list[ChunkAnswered] = []
        """Since `begin`, where `watch_chunks` was called."""
        self.timeline = Timeline()
        self.first_action_s: float | None = None
        self._assigned: dict[str, _Assignment] = {}
        self._not_before_s: dict[str, float] = {}
        self._lost: set[str] = set()
        self._services: dict[str, Any] = {}
        self._shown: dict[str, tuple[float, str]] = {}
        self._shown_last = 0.0
        self._origin = time.monotonic()
        self._standalone = StandaloneNode("demo")
        self._node = self._standalone.node
        self._clients: dict[str, ActionClient] = {
            robot: ActionClient(self._node, ExecuteTask, f"/{robot}/execute_task")
            for robot in live.robots
        }
        self.logger = self._node.get_logger()
        self._announcements = Announcements(self.logger)
        self.listen("/kairos/robot_status", RobotStatus, self._on_status, ROSTER)
        self.listen("/kairos/fleet_state", FleetState, self._on_fleet, TELEMETRY)

    def __enter__(self) -> "TestbedClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._standalone.close()

    def listen(
        self, topic: str, kind: type, callback: Callable[[Any], None], qos: QoSProfile = EVENTS
    ) -> None:
        """Hands every message of a topic to `callback`, from `spin`. One that is too large, or in
        which `callback` finds a WireError, is dropped with a warning."""

        def drop(error: WireError, raw: bytes = b"") -> None:
            warning = f"dropped a message of {topic}: {error}"
            self._node.get_logger().warning(warning, throttle_duration_sec=5.0)

        def came(message: Any) -> None:
            try:
                callback(message)
            except WireError as error:
                drop(error)

        subscribe(self._node, kind, topic, came, qos, most_bytes=FLEET_BYTES, refused=drop)

    def publisher(self, topic: str, kind: type, qos: QoSProfile = EVENTS) -> Any:
        """Of a topic, for whoever drives the fleet to say something itself."""
        return self._node.create_publisher(kind, topic, qos)

    def withdraw(self, publisher: Any) -> None:
        """Ends what `publisher` made."""
        self._node.destroy_publisher(publisher)

    def service_client(self, kind: type, service: str) -> Any:
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
        self.live.finished.clear()
        self.live.successes.clear()
        for name, robot in self.live.robots.items():
            if (activity := activity_of(robot)) is not None:
                self.timeline.report(name, 0.0, activity)

    @property
    def origin_s(self) -> float:
        """When the run began, on this host's monotonic clock."""
        return self._origin

    @property
    def refused(self) -> str:
        """How a task of this run ended that was refused before any robot moved; mostly empty."""
        if self.first_action_s is not None:
            return ""
        outcomes = (record.outcome for record in self.records)
        return next((outcome for outcome in outcomes if outcome.startswith(REFUSED)), "")

    def now_s(self) -> float:
        return time.monotonic() - self._origin

    def spin(self, for_s: float) -> None:
        """Handles what arrives; returns after the first message, at the latest after `for_s`."""
        self._standalone.spin(for_s)
        for robot, task in list(self._assigned.items()):
            self._advance(robot, task)

    def ready(self) -> set[str]:
        """Robots that have announced themselves and whose action server is there."""
        return {
            name
            for name, robot in self.live.robots.items()
            if robot.status is not None and self._clients[name].server_is_ready()
        }

    def recorded(self) -> bool:
        """Whether somebody listens to the events of every robot's tasks: a recorder does."""
        topics = (f"/{robot}/task_events" for robot in self.live.robots)
        return all(self._node.count_subscribers(topic) for topic in topics)

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
        self,
        robot: str,
        job: SceneTask,
        max_actions: int = MAX_ACTIONS,
        instruction: str = "",
        max_duration_s: float = MAX_DURATION_S,
    ) -> None:
        """Sends `robot` its next task; without an instruction, in the words of its scene.

        max_actions: 0 for no limit.
        """
        now_s = self.now_s()
        goal = ExecuteTask.Goal(
            instruction=instruction or SCENES[job.scene],
            task_kind=job.scene,
            scene=job.scene,
            seed=job.seed,
            max_duration_s=max_duration_s,
            max_actions=max_actions,
        )
        future = self._clients[robot].send_goal_async(
            goal, feedback_callback=lambda message: self._on_feedback(robot, message.feedback)
        )
        wanted_s = min(job.wanted_s or now_s, now_s)
        within_s = max_duration_s + RESULT_LATE_S
        self._assigned[robot] = _Assignment(job, wanted_s, now_s, within_s, future)

    def cancel(self, robot: str = "") -> None:
        """Asks a robot, or every one, to end its task; the results still have to be waited for."""
        for name, task in self._assigned.items():
            if task.handle is not None and robot in ("", name):
                task.handle.cancel_goal_async()

    def lose(self, robot: str) -> None:
        """The robot's process is gone: its task is lost and it gets no other."""
        self._lost.add(robot)
        gone = self.live.robots[robot]
        known = gone.status or RobotReported(time.monotonic(), robot)
        gone.status = replace(known, state=RobotState.LEAVING)
        self.timeline.report(robot, self.now_s(), "down")
        self._close(robot, LOST)

    def regain(self, robot: str) -> None:
        """A process of that name was started again: it may be given tasks once it is ready."""
        self._lost.discard(robot)
        self.live.robots[robot].status = None

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
                    self._close(robot, NOT_ACCEPTED)
                else:
                    task.result = task.handle.get_result_async()
            elif waited_s > ACCEPT_WITHIN_S:
                self._close(robot, LOST)
        elif task.result.done():
            answer = task.result.result()
            self._close(robot, _outcome(answer), answer.result)
        elif waited_s > task.result_within_s:
            task.handle.cancel_goal_async()
            self._close(robot, LOST)

    def _close(self, robot: str, outcome: str, result: ExecuteTask.Result | None = None) -> None:
        task = self._assigned.pop(robot, None)
        if task is None:
            return
        result = result or ExecuteTask.Result()
        now_s = self.now_s()
        scheduled = self.live.robots[robot].scheduled
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
            round_seam=tuple(result.round_seam),
            mean_step=result.mean_step,
            round_surprise=tuple(result.round_surprise),
            policy=scheduled.policy if scheduled else "",
        )
        self.records.append(record)
        if record.finished:
            self.live.finished[robot] += 1
            self.live.successes[robot] += record.success
        if not record.actions:
            self._not_before_s[robot] = now_s + 0.5  # a robot that refuses must not eat the list

    def _on_status(self, message: RobotStatus) -> None:
        if message.robot not in self.live.robots or message.robot in self._lost:
            return
        if self._announcements.read(message, self.live.robots) is None:
            return
        self.live.take(robot_reported(message, "", time.monotonic()))
        activity, now_s = ACTIVITIES[message.state], self.now_s()
        self.timeline.report(message.robot, now_s, activity)
        if activity == "executing" and self.first_action_s is None:
            self.first_action_s = now_s

    def _on_chunk(self, message: ActionChunk) -> None:
        chunk = chunk_answered(message, "", time.monotonic())
        if chunk is not None and not chunk.refused and chunk.key.robot in self.live.robots:
            self.live.take(chunk)
            self.chunks.append(chunk)

    def _on_feedback(self, name: str, feedback: ExecuteTask.Feedback) -> None:
        robot = self.live.robots[name]
        if robot.status is not None:
            robot.status = replace(
                robot.status,
                round=feedback.round,
                buffered=feedback.buffered,
                stalled_s=feedback.stalled_s,
            )

    def _on_fleet(self, message: FleetState) -> None:
        self.live.take(fleet_reported(message, "", time.monotonic()))
        scheduled = [r.scheduled for r in self.live.robots.values() if r.scheduled]
        self._show_a_decision({one.robot: one.reason for one in scheduled if one.reason})

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
