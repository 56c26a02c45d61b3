"""A serving node that gets no CPU for a while: it was late, and its robots were not silent."""

import signal
import time

from kairos_ros.msg import ActionChunk
from wire import WireRobot, until

from kairos_ros.bringup.plan import serving

POLICY = "emulated:latency_ms=1,chunk=20,dim=2,state=2"
STOPPED_S = 4.0
"""Longer than a robot may be silent for."""


def test_robots_that_spoke_while_the_serving_node_stood_still_are_not_given_up(start, wire):
    server = start(serving(policy=POLICY, horizon="static:10"))
    wire.serving_since()
    robots = [WireRobot(wire, f"late_{n}", state=[0.0, 0.0]).join() for n in range(6)]
    server.send(signal.SIGSTOP)
    time.sleep(STOPPED_S)  # they announce themselves all the while
    server.send(signal.SIGCONT)
    answers = [robot.ask(2, attempt=500) for robot in robots]
    assert [answer.kind for answer in answers] == [ActionChunk.ACTIONS] * len(robots)
    heard = len(wire.fleet)
    until(lambda: len(wire.fleet) > heard + 2, what="for further states")
    assert wire.counter("robot_lost") == 0

    for robot in robots:
        robot.leave()
