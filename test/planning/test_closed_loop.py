"""How fast a robot can be, by formula and by a virtual robot that lives through it."""

import math

import numpy as np
import pytest

from kairos_ros.core.exchange import Actions, Answer
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.virtual_robot import Assignment, Send, VirtualRobot
from kairos_ros.planning.closed_loop import most_actions_hz, requests_hz
from kairos_ros.recording.runs.trace import Trace, TraceRound

RATE_HZ = 100.0
ACTIONS = 20
"""A chunk: 0.2 s of motion, t."""


def test_a_synchronous_robot_waits_for_everything():
    """Rosa eq. 4: 1 / (0.2 + 0.08 + 0.25 / 10)."""
    assert most_actions_hz(0.2, 0.08, 0.025, "synchronous") == pytest.approx(1 / 0.305)
    assert requests_hz(3.0, 0.2, 0.08, "synchronous") == 3.0


@pytest.mark.parametrize(
    ("latency_s", "most_hz"),
    [(0.0, 5.0), (0.1, 5.0), (0.15, 1 / 0.3), (0.2, 2.5), (0.3, 2.0)],
)
def test_an_overlapped_robot_halts_where_answers_take_more_than_half_of_a_chunk(latency_s, most_hz):
    assert most_actions_hz(0.2, latency_s, 0.5, "overlapped") == pytest.approx(most_hz)


def test_a_robot_that_never_halts_asks_more_often_than_it_acts():
    """A chunk of 0.2 s loses the 0.05 s that were executed before it came."""
    assert requests_hz(5.0, 0.2, 0.05, "overlapped") == pytest.approx(1 / 0.15)


def test_below_the_synchronous_rate_nothing_overlaps():
    assert requests_hz(4.0, 0.2, 0.05, "overlapped") == pytest.approx(4.0)
    assert requests_hz(3.0, 0.2, 0.05, "overlapped") == 3.0


def test_between_them_requests_are_as_derived():
    """f = 4.5: (2·4.5·0.2 - 1) / (0.2 - 0.05)."""
    assert requests_hz(4.5, 0.2, 0.05, "overlapped") == pytest.approx(0.8 / 0.15)


def test_what_the_loop_does_not_allow_takes_infinitely_many_requests():
    assert math.isinf(requests_hz(3.5, 0.2, 0.15, "overlapped"))
    assert math.isinf(requests_hz(4.5, 0.2, 0.05, "synchronous"))


def lived(latency_s, rules, seconds=60.0):
    """(actions/s in the planner's sense, requests/s) of the robot's own loop, every request of
    which is answered after a fixed time."""
    total = round(seconds * RATE_HZ)
    only = TraceRound(round=1, requested_at=0, observed_at=0, horizon=ACTIONS, executed=total)
    trace = Trace(
        "t", "kind", "do it", 0, RATE_HZ, ACTIONS, 1, "policy", "static", True, seconds, (only,)
    )  # fmt: skip
    robot = VirtualRobot("robot", "session", rules)
    robot.start(Assignment("task", 1, trace), 0)
    chunk = Actions(np.zeros((ACTIONS, 1), np.float32), np.ones(ACTIONS, np.float32))
    answers, sent, ended = [], [], None
    while ended is None:
        due = robot.next_event_ns()
        if answers and answers[0][0] <= due:
            now, request = answers.pop(0)
            effects = robot.receive(Answer(request.id, chunk), now)
        else:
            effects = robot.advance(due)
        for effect in effects:
            if isinstance(effect, Send):
                sent.append(effect.sent_ns)
                answers.append((effect.sent_ns + round(latency_s * 1e9), effect.request))
            else:
                ended = effect.task
    half = [at for at in sent if at > 0.5e9 * ended.duration_s]
    requests = (len(half) - 1) / ((half[-1] - half[0]) / 1e9)
    return ended.actions / RATE_HZ / 0.2 / ended.duration_s, requests


LEARNT = {"margin_ns": 0, "initial_network_ns": 50_000_000, "initial_engine_ns": 0}


@pytest.mark.parametrize("latency_s", [0.05, 0.08, 0.1])
def test_our_robots_loop_never_halts_as_long_as_the_bound_says_so(latency_s):
    actions, requests = lived(latency_s, Rules(**LEARNT))
    assert actions == pytest.approx(most_actions_hz(0.2, latency_s, 0, "overlapped"), rel=0.02)
    assert requests == pytest.approx(requests_hz(5.0, 0.2, latency_s, "overlapped"), rel=0.02)


def test_our_robots_loop_halts_by_as_much_as_the_bound_says():
    actions, _ = lived(0.15, Rules(**LEARNT))
    assert actions == pytest.approx(most_actions_hz(0.2, 0.15, 0, "overlapped"), rel=0.02)


@pytest.mark.parametrize("lead", [0, 2, 4])
def test_a_robot_that_asks_later_does_as_many_actions_for_its_requests_as_derived(lead):
    """`lead` actions are executed while an answer is under way; answers take 8."""
    actions, requests = lived(0.08, Rules(lead=lead, **LEARNT))
    assert requests == pytest.approx(1 / (0.08 + 0.2 - 2 * lead / RATE_HZ), rel=0.02)
    assert requests_hz(actions, 0.2, 0.08, "overlapped") == pytest.approx(requests, rel=0.03)
