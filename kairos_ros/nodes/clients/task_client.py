"""Gives one robot a task, or ends the one that it does: the client side of `ExecuteTask`."""

import contextlib
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from action_msgs.msg import GoalInfo
from action_msgs.srv import CancelGoal
from rclpy.action import ActionClient
from rclpy.client import Client
from unique_identifier_msgs.msg import UUID

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import KairosError, WireError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.core.name_patterns import matches
from kairos_ros.core.server_status import SILENT_NS, ReceivedStatus, ServerState
from kairos_ros.msg import RobotStatus, ServerStatus
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.messages.server import server_from
from kairos_ros.nodes.qos import ROSTER

FOUND_WITHIN_S = 15.0
SETTLE_S = 0.5
"""A robot that has just been found may not have found this client yet: its answer would be lost."""
ANSWER_WITHIN_S = 10.0
STOPPED_WITHIN_S = 10.0
GONE_AFTER_S = 3.0
HEARTBEAT_S = 1.2
"""A robot tells its status at least this often."""
AGAIN_S = 1.0
"""After which a robot that still moves is told again to end its task."""


class TaskClient:
    """A node in the calling thread; every wait has an end. A context manager."""

    def __init__(self, robot: str, domain: int | None = None, names: FleetNames = ROOT) -> None:
        """robot: its name in the fleet, or the namespace of a fleet below that one and its name
        there. domain: ROS domain; None for that of the environment. names: of the fleet."""
        self._robot = robot
        self._listens_since_ns = time.monotonic_ns()
        self._statuses: dict[tuple[str, str], RobotStatus] = {}
        """By name, as `robot`, and session: two nodes by mistake may have one name."""
        self._standalone = StandaloneNode(f"task_client_{uuid.uuid4().hex[:8]}", domain, names)
        node = self._standalone.node
        action = names.robot(robot, "execute_task")
        self._client: ActionClient = ActionClient(node, ExecuteTask, action)
        self._canceler: Client = node.create_client(CancelGoal, f"{action}/_action/cancel_goal")
        self._servers: dict[str, tuple[str, ReceivedStatus]] = {}
        """By identity: the namespace of its fleet below `names`, and what it says."""
        parts = robot.split("/")
        for below in ("/".join(parts[:depth]) for depth in range(len(parts))):
            fleet = FleetNames.below(f"{names.prefix}{below}")
            on_status, on_server = partial(self._on_status, below), partial(self._on_server, below)
            node.create_subscription(RobotStatus, fleet.common("robot_status"), on_status, ROSTER)
            node.create_subscription(ServerStatus, fleet.common("server_status"), on_server, ROSTER)

    def __enter__(self) -> "TaskClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._standalone.close()

    def find(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Waits for the robot. Raises KairosError where there is none, naming those there are."""

        def here() -> bool:
            return self._client.server_is_ready() and self._canceler.service_is_ready()

        if not self._spin_until(lambda: here() or interrupted(), FOUND_WITHIN_S):
            others = ", ".join(sorted({robot for robot, _ in self._statuses})) or "none"
            raise KairosError(
                f"there is no robot {self._robot!r} that takes tasks; robots here: {others} "
                "(--namespace, ROS_DOMAIN_ID and ROS_AUTOMATIC_DISCOVERY_RANGE say where is here)"
            )
        self._spin_until(lambda: False, SETTLE_S)

    def send(
        self,
        goal: ExecuteTask.Goal,
        feedback: Callable[[ExecuteTask.Feedback], None],
        interrupted: Callable[[], bool],
    ) -> ExecuteTask.Result:
        """Gives the task and returns how it ended; once `interrupted`, cancels it first.

        Raises KairosError for a robot that does not take it, does not answer, or is gone. A goal
        that it may have taken without saying so is canceled.
        """
        if self.nodes > 1:
            raise KairosError(
                f"{self.nodes} robot nodes are called {self._robot!r}; end all but one of them"
            )
        goal_id = UUID(uuid=list(uuid.uuid4().bytes))
        asked = self._client.send_goal_async(
            goal, feedback_callback=lambda message: feedback(message.feedback), goal_uuid=goal_id
        )
        if not self._spin_until(asked.done, ANSWER_WITHIN_S):
            self._cancel(goal_id)
            raise KairosError(f"{self._robot} did not answer the goal; it was canceled")
        handle = asked.result()
        assert handle is not None
        if not handle.accepted:
            # its status is another topic, which may be heard after its answer
            self._spin_until(lambda: bool(self._busy()), HEARTBEAT_S)
            busy = next(iter(self._busy()), None)
            why = (
                f"it does {busy.instruction!r}; kairos task cancel {self._robot} ends that"
                if busy
                else "its log says why"
            )
            raise KairosError(f"{self._robot} did not take the task: {why}")
        done = handle.get_result_async()
        canceled_at, seen_at = 0.0, time.monotonic()
        while not done.done():
            self._standalone.spin(0.1)
            now = time.monotonic()
            if interrupted() and not canceled_at:
                canceled_at = now
                handle.cancel_goal_async()
            if self._client.server_is_ready():
                seen_at = now
            if now - seen_at > GONE_AFTER_S:
                raise KairosError(f"{self._robot} is gone, and what became of the task is unknown")
            if canceled_at and now - canceled_at > STOPPED_WITHIN_S:
                raise KairosError(f"{self._robot} did not end the task; stop the arm by hand")
        ended = done.result()
        assert ended is not None
        return ended.result

    def cancel(self) -> str:
        """Ends whatever task runs, whoever gave it. Returns its instruction; empty where none ran.

        Raises KairosError for a robot that does not answer or does not stop.
        """
        self._spin_until(lambda: bool(self._sessions()), ANSWER_WITHIN_S)
        before = self._busy()
        canceled = self._cancel(UUID())
        self._spin_until(lambda: False, HEARTBEAT_S)  # what a robot said before says nothing now
        give_up = time.monotonic() + STOPPED_WITHIN_S
        while self._busy() and time.monotonic() < give_up:
            # of two nodes with this name one has answered, maybe not the one that moves
            if not self._spin_until(lambda: not self._busy(), AGAIN_S):
                canceled += self._cancel(UUID())
        if self._busy():
            raise KairosError(f"{self._robot} did not end its task; stop the arm by hand")
        if not (canceled or before):
            return ""
        return before[0].instruction if before and before[0].instruction else "a task"

    def why_unserved(self, policy: str) -> str:
        """Why no serving node answers this robot; empty while one is heard, or may still be.

        policy: that the task asks for; empty: the robot's.
        """
        now_ns = time.monotonic_ns()
        mine = [
            one.status
            for below, one in self._servers.values()
            for robot in self._sessions()
            if not one.is_silent(now_ns)
            and _full_name(below, robot.robot) == self._robot
            and matches(one.status.robots, robot.robot)
        ]
        active = next((status for status in mine if status.state is ServerState.ACTIVE), None)
        if active:
            asked = policy or next((robot.policy for robot in self._sessions()), "")
            served = asked in {one.name for one in active.policies}
            loaded = not served or active.interface_of(asked) is not None
            return "" if loaded else f"policy {asked} is not loaded yet"
        told = "; ".join(f"{status} is {status.state.name.lower()}" for status in mine)
        if not told and now_ns - self._listens_since_ns < SILENT_NS:
            return ""  # one that serves may not have been heard yet
        return told or "no serving node is heard"

    def _sessions(self) -> list[RobotStatus]:
        """The newest status of every node of this robot's name."""
        return [status for (robot, _), status in self._statuses.items() if robot == self._robot]

    def _busy(self) -> list[RobotStatus]:
        return [status for status in self._sessions() if status.task]

    @property
    def nodes(self) -> int:
        """How many robot nodes have this name: one, unless somebody made a mistake."""
        return len(self._sessions())

    def _cancel(self, goal_id: UUID) -> int:
        """How many goals are being canceled: that one, or with an id of zeros all of them."""
        request = CancelGoal.Request(goal_info=GoalInfo(goal_id=goal_id))
        answer: Any = self._canceler.call_async(request)
        if not self._spin_until(answer.done, ANSWER_WITHIN_S):
            raise KairosError(f"{self._robot} does not answer; stop the arm by hand")
        return len(answer.result().goals_canceling)

    def _on_status(self, below: str, message: RobotStatus) -> None:
        robot = _full_name(below, message.robot)
        if message.state == RobotStatus.LEAVING:
            self._statuses.pop((robot, message.session), None)
        else:
            self._statuses[robot, message.session] = message

    def _on_server(self, below: str, message: ServerStatus) -> None:
        with contextlib.suppress(WireError):
            status = server_from(message)
            self._servers[status.server] = below, ReceivedStatus(status, time.monotonic_ns())

    def _spin_until(self, condition: Callable[[], bool], within_s: float) -> bool:
        give_up = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > give_up:
                return False
            self._standalone.spin(0.1)
        return True


def _full_name(below: str, robot: str) -> str:
    """Of a robot in the fleet whose namespace is `below` that of the client's."""
    return f"{below}/{robot}" if below else robot
