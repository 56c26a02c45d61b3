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
    # a robot gives the round up that it waited for when a busy machine let it stand still
    assert all(robot.actions + robot.abandoned == robot.rounds > 1 for robot in totals)
    assert sum(robot.abandoned for robot in totals) < sum(robot.actions for robot in totals) / 4
    assert measured.chunks_per_s > 0
