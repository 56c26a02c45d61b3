"""Fifty robots on one serving node, as real processes over DDS (issue of scale, not of speed)."""

import pytest

from bench.serving.robots50 import ROBOTS, fifty_robots

pytestmark = pytest.mark.slow


def test_one_serving_node_answers_every_request_of_fifty_robots_with_cameras(tmp_path):
    server, robots = fifty_robots(tmp_path)
    with server, robots:
        robots.start(ROBOTS)
        measured = robots.measure(8.0, server.pids())
        totals = robots.stop()

    assert len(totals) == ROBOTS
    assert [robot.unanswered for robot in totals] == [0] * ROBOTS
    assert [robot.wrong for robot in totals] == [0] * ROBOTS
    assert [robot.refused for robot in totals] == [0] * ROBOTS
    assert all(robot.actions == robot.rounds > 1 for robot in totals)
    assert measured.chunks_per_s > 0
