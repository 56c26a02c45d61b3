"""Requests to a policy that reads several observations bring those of the last control periods."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kairos_ros.msg import ServerStatus as ServerStatusMessage

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Actions, Answer, Observation, Refetch
from kairos_ros.core.execution.effects import Observe, Send
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import Task
from kairos_ros.core.server_status import ServerState, ServerStatus
from kairos_ros.core.wire_check import OBSERVATIONS
from kairos_ros.nodes.messages.server import server_from, server_message
from kairos_ros.robot.observation_history import ObservationHistory

PERIOD = 33_000_000
CONFIG = LoopConfig("arm_1", "now", 1, PERIOD, 0, 20 * PERIOD, 80 * PERIOD)
LEAST_SERVER = ServerStatus("a", ServerState.ACTIVE, policy="p")


class Robot:
    """A loop and its body, which sees the number of the control period."""

    def __init__(self, observations):
        self.loop = Loop(CONFIG, LatencyEstimate(0, 3 * PERIOD), ServerBinding("arm_1"))
        self.now, self.number, self.looked = 0, 0, 0
        self.sent, self.first = [], 1
        self._history = ObservationHistory(self)
        status = replace(LEAST_SERVER, observations=observations)
        self.loop.binding.heard(status, self.now)
        self.loop.start(Task("1", "reach"), self.now)

    def observe(self):
        self.looked += 1
        return Observation(np.array([self.number], np.float32))

    def carry_out(self, effects):
        for effect in effects:
            match effect:
                case Observe(earlier):
                    self._history.keep(earlier)
                case Send(request, observations):
                    self.sent.append(self._history.put_into(request, observations)[0])

    def tick(self, pause=0):
        self.now += PERIOD + pause
        self.number += 1
        if pause:
            self.first = self.number
        self.loop.binding.resumed(self.now)  # it keeps talking
        self.carry_out(self.loop.tick(self.now, lambda action: action))

    def say(self, body):
        """The server answers the newest request, between two periods."""
        if self.sent:
            answer = Answer(self.sent[-1].id, body, "a")
            self.carry_out(self.loop.receive(answer, self.now + PERIOD // 2))


def seen(request):
    return [int(one.state[0]) for one in (*request.earlier, request.observation)]


def test_a_policy_that_reads_one_observation_gets_one_taken_when_it_is_sent():
    robot = Robot(observations=1)
    for _ in range(5):
        robot.tick()
    assert [seen(request) for request in robot.sent] == [[1]]
    assert robot.looked == 1  # no more than before


def test_the_first_observation_of_a_task_is_repeated():
    robot = Robot(observations=3)
    robot.tick()
    assert seen(robot.sent[0]) == [1, 1, 1]


def test_a_request_brings_the_observations_of_the_last_control_periods():
    robot = Robot(observations=3)
    robot.tick()
    robot.say(actions(8))
    for _ in range(20):
        robot.tick()
    assert seen(robot.sent[1]) == [5, 6, 7]  # with three of eight actions left


def test_a_refetch_between_two_periods_brings_those_that_ended_with_this_period():
    robot = Robot(observations=2)
    robot.tick()
    robot.tick()
    robot.tick()
    robot.say(Refetch())
    assert [seen(request) for request in robot.sent] == [[1, 1], [2, 3]]


def test_a_chunk_for_a_refetched_observation_begins_where_that_was_taken():
    """The look was taken before the action of its period: that action is skipped in the chunk."""
    robot, said = Robot(observations=2), []
    robot.tick()
    robot.say(actions(8))
    for _ in range(6):
        robot.tick()
    robot.say(Refetch())
    newest = robot.sent[-1]
    assert (newest.id.round, newest.id.attempt) == (2, 1)
    executed = robot.loop.task_executed
    assert newest.execution.chunk_index == executed - 1
    robot.say(actions(8, first=executed - 1))
    for _ in range(4):
        robot.now += PERIOD
        robot.loop.binding.resumed(robot.now)
        said += [effect.action[0] for effect in robot.loop.tick(robot.now, lambda a: a)[-1:]]
    assert said == list(range(executed, executed + 4))


def test_nothing_from_before_a_pause_is_sent_as_if_it_were_one_period_ago():
    robot = Robot(observations=3)
    for _ in range(4):
        robot.tick()
    robot.tick(pause=10**9)
    robot.tick()
    robot.say(Refetch())
    assert seen(robot.sent[-1]) in ([5, 5, 5], [5, 5, 6])


@given(
    st.integers(2, 5),
    st.lists(st.sampled_from(["tick", "tick", "tick", "answer", "refetch", "pause"]), max_size=60),
)
def test_observations_are_one_control_period_apart_whatever_happens(observations, events):
    robot = Robot(observations)
    for event in events:
        before = len(robot.sent)
        match event:
            case "tick":
                robot.tick()
            case "pause":
                robot.tick(pause=10**9)
            case "answer":
                robot.say(actions(8))
            case "refetch":
                robot.say(Refetch())
        for request in robot.sent[before:]:
            last = range(robot.number - observations + 1, robot.number + 1)
            assert seen(request) == [max(robot.first, number) for number in last]
    assert robot.looked == robot.number  # one look a period


@pytest.mark.parametrize(("told", "read"), [(0, 1), (1, 1), (OBSERVATIONS, OBSERVATIONS)])
def test_a_robot_learns_from_its_server_how_many_observations_are_read(told, read):
    message = server_message(replace(LEAST_SERVER, observations=told))
    assert server_from(message).observations == read


def test_a_server_cannot_make_a_robot_keep_any_number_of_observations():
    with pytest.raises(WireError, match="reads 17 observations"):
        server_from(ServerStatusMessage(server="a", observations=OBSERVATIONS + 1))


def actions(length, first=0):
    chunk = np.arange(first, first + length, dtype=np.float32)[:, None]
    return Actions(chunk, np.ones(length, np.float32), policy="p", server_ns=10**15)
