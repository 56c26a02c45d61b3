"""Requests to a policy that keeps a state of every task tell what was executed, and bring what was
seen whenever so many actions had been."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kairos_ros.msg import ChunkRequest
from rclpy.serialization import deserialize_message, serialize_message

from kairos_ros.core.exchange import Actions, Answer, Observation, Refetch
from kairos_ros.core.execution.effects import Act, Observe, Send
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import Task
from kairos_ros.core.server_status import ServedPolicy, ServerState, ServerStatus
from kairos_ros.nodes.messages.server import server_from, server_message
from kairos_ros.nodes.robot.messages import Identity, request_message
from kairos_ros.nodes.serving.messages import to_request
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.observation_history import ObservationHistory

PERIOD = 33_000_000
CONFIG = LoopConfig("arm_1", "now", 1, PERIOD, 0, 20 * PERIOD, 80 * PERIOD)
OBSERVATIONS = 8
GUARDED = 0.25
"""What the guard adds to every action."""


class Robot:
    """A loop and its body, which sees how many actions it has executed."""

    def __init__(self, stride):
        self.loop = Loop(CONFIG, LatencyEstimate(0, 3 * PERIOD), ServerBinding("arm_1"))
        self.now, self.acted, self.first = 0, [], 0
        self.sent = []
        self._history = ObservationHistory(self)
        self.status = ServerStatus(
            *("a", ServerState.ACTIVE),
            policy="p",
            observations=OBSERVATIONS,
            keyframe_stride=stride,
        )
        self.loop.binding.heard(self.status, self.now)
        self.loop.start(Task("1", "reach"), self.now)

    def observe(self):
        return Observation(np.array([len(self.acted)], np.float32))

    def carry_out(self, effects):
        for effect in effects:
            match effect:
                case Observe(earlier, instead):
                    self._history.keep(earlier, instead=instead)
                case Send(request, observations, repeat):
                    sent, _ = self._history.put_into(request, observations, repeat=repeat)
                    self.sent.append(sent)
                case Act(action):
                    self.acted.append(action)

    def tick(self, pause=0):
        self.now += PERIOD + pause
        if pause:
            self.first = len(self.acted)
        self.loop.binding.resumed(self.now)
        self.carry_out(self.loop.tick(self.now, lambda action: action + np.float32(GUARDED)))

    def say(self, body):
        if self.sent:
            answer = Answer(self.sent[-1].id, body, "a")
            self.carry_out(self.loop.receive(answer, self.now + PERIOD // 2))


def actions(first):
    chunk = np.arange(first, first + 8, dtype=np.float32)[:, None]
    return Actions(chunk, np.ones(8, np.float32), policy="p", server_ns=10**15)


@given(
    st.integers(1, 4),
    st.lists(
        st.sampled_from(["tick", "tick", "tick", "tick", "answer", "refetch", "pause"]),
        max_size=120,
    ),
)
def test_keyframes_are_so_many_executed_actions_apart_whatever_happens(stride, events):
    robot = Robot(stride)
    for event in events:
        before = len(robot.sent)
        match event:
            case "tick":
                robot.tick()
            case "pause":
                robot.tick(pause=10**9)
            case "answer":
                robot.say(actions(first=100 * len(robot.sent)))
            case "refetch":
                robot.say(Refetch())
        for request in robot.sent[before:]:
            now = request.task_actions
            assert request.observation.state == [now]
            keyframes = [n for n in range(now) if n % stride == 0 and n >= robot.first]
            seen = [int(one.state[0]) for one in request.earlier]
            assert seen == keyframes[len(keyframes) - min(len(keyframes), OBSERVATIONS - 1) :]
            expected = robot.acted[:now][-OBSERVATIONS * stride :]
            assert np.array_equal(request.executed.ravel(), np.ravel(expected))


def test_what_was_executed_is_what_the_guard_made_of_it():
    robot = Robot(stride=1)
    robot.tick()
    robot.say(actions(first=10))
    for _ in range(8):
        robot.tick()
    assert robot.sent[1].task_actions == 5
    assert robot.sent[1].executed.ravel().tolist() == [10.25, 11.25, 12.25, 13.25, 14.25]


def test_a_request_travels_with_what_was_executed():
    robot = Robot(stride=2)
    robot.tick()
    robot.say(actions(first=10))
    for _ in range(8):
        robot.tick()
    who = Identity("arm_1", "now", RobotSpec(1, 1, 30.0))
    message = request_message(who, robot.sent[1])
    again = to_request(deserialize_message(serialize_message(message), ChunkRequest))
    assert again.task_actions == 5
    assert np.array_equal(again.executed, robot.sent[1].executed)
    assert [int(one.state[0]) for one in again.earlier] == [0, 2, 4]


def test_a_robot_learns_from_its_server_how_far_keyframes_are_apart():
    status = Robot(stride=3).status
    served = ServedPolicy("p", status.interface, 8)
    again = server_from(server_message(replace(status, policies=(served,))))
    assert again.interface.keyframe_stride == 3
    assert again.policies[0].interface.keyframe_stride == 3


def test_other_policies_are_told_nothing_of_it():
    robot = Robot(stride=0)
    robot.tick()
    robot.say(actions(first=10))
    for _ in range(8):
        robot.tick()
    assert robot.sent[1].task_actions == 0
    assert len(robot.sent[1].executed) == 0
