"""Everything that a robot node talks to: answers with real messages, for reach-v3 with Meta-World's
scripted expert, rolled out over a chunk, so that a task that succeeds has really succeeded.
"""

import numpy as np
import rclpy
from announced import AnnouncedServer
from diagnostic_msgs.msg import DiagnosticArray
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import ActionChunk, ChunkRequest, ExecutionInfo, RobotStatus
from light_node import LightNode
from rclpy.action import ActionClient
from wire import Spinner, done, in_executor, meet

from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.sim.metaworld_scenes import expert

PATIENT = ("request_timeout_s:=30.0", "request_timeout_max_s:=30.0", "max_pause_s:=30.0")
"""Parameters of a robot that asks for each round once, however long it or its peer stands still."""
REACH = {"instruction": "move the gripper to the target", "scene": "reach-v3", "seed": 3}


class Peer:
    """Answers a robot's requests, gives it goals, listens."""

    def __init__(self, robot: str, context: rclpy.Context) -> None:
        self.robot = robot
        self.answer = lambda request: []
        self.heard = {kind: [] for kind in (ChunkRequest, RobotStatus, ExecutionInfo)}
        self.diagnostics = []
        self.feedback = []
        self.node = LightNode("peer", context)
        self._chunks = self.node.create_publisher(
            ActionChunk, f"/{robot}/action_chunk", qos.EXCHANGE
        )
        self.server = AnnouncedServer(self.node)
        subscribe = self.node.create_subscription
        self.listen()
        subscribe(RobotStatus, "/kairos/robot_status", self.heard[RobotStatus].append, qos.ROSTER)
        subscribe(
            ExecutionInfo,
            f"/{robot}/execution_info",
            self.heard[ExecutionInfo].append,
            qos.TELEMETRY,
        )
        subscribe(
            DiagnosticArray,
            "/diagnostics",
            lambda array: self.diagnostics.extend(array.status),
            qos.DIAGNOSTICS,
        )
        self._client = ActionClient(self.node, ExecuteTask, f"/{robot}/execute_task")
        self._spinner = Spinner(self.node)
        self.executor = self._spinner.executor

    def close(self):
        # in Jazzy, a node stays in the graph as long as an action client of its own
        self.within(self._client.destroy)
        self._spinner.close()

    def listen(self):
        self._asked = self.node.create_subscription(
            ChunkRequest, f"/{self.robot}/chunk_request", self._on_request, qos.EXCHANGE
        )

    def go_deaf(self):
        self.within(lambda: self.node.destroy_subscription(self._asked))

    def _on_request(self, request):
        self.heard[ChunkRequest].append(request)
        for chunk in self.answer(request):
            self._chunks.publish(chunk)

    def give(self, **goal):
        """Sends a goal when the robot is there; returns its handle."""
        meet(self._client, self.executor)
        return done(
            self.within(
                lambda: self._client.send_goal_async(
                    ExecuteTask.Goal(**(REACH | goal)),
                    feedback_callback=lambda message: self.feedback.append(message.feedback),
                )
            )
        )

    def within(self, act):
        """Runs `act` in the thread that spins, and returns what it returns."""
        return in_executor(self.executor, act)

    def result(self, handle):
        return done(self.within(handle.get_result_async))

    @property
    def requests(self):
        return self.heard[ChunkRequest]

    @property
    def statuses(self):
        return [s for s in self.heard[RobotStatus] if s.robot == self.robot]

    def diagnostic(self, key):
        """The newest value of `key` that the robot reported."""
        reported = (v.value for s in self.diagnostics for v in s.values if v.key == key)
        return next(iter([*reported][-1:]), None)


def chunk_for(request, actions=None, **changes):
    """An answer to `request`, by default 10 actions of a scripted expert."""
    actions = expert_chunk(request.state) if actions is None else actions
    fields = {
        "server": request.server,
        "robot": request.robot,
        "session": request.session,
        "task": request.task,
        "round": request.round,
        "attempt": request.attempt,
        "kind": ActionChunk.ACTIONS,
        "horizon": len(actions),
        "action_dim": actions.shape[1],
        "actions": np.asarray(actions, np.float32).ravel(),
    }
    return ActionChunk(**(fields | changes))


def expert_chunk(state, horizon=10):
    """The expert's actions if the hand moved exactly as told: 1/100 m per unit."""
    now, change, goal = np.split(np.asarray(state, np.float64), [18, 36])
    obs = np.concatenate([now, now - change, goal])
    scripted = expert("reach-v3")
    chunk = []
    for _ in range(horizon):
        chunk.append(np.clip(scripted.get_action(obs), -1, 1))
        obs[:3] += chunk[-1][:3] / 100
    return np.array(chunk, np.float32)
