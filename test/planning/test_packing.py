"""ModelCapacity of a server, and robots onto servers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import profile

from kairos_ros.core.pipeline import Component
from kairos_ros.planning.capacity import ModelCapacity
from kairos_ros.planning.ilp import Configuration, choose
from kairos_ros.planning.packing import Stream, isolated, pack

SYSTEM1 = Component.SYSTEM1
CAPACITY = ModelCapacity(profile(SYSTEM1, (10, 20, 30), (0.05, 0.06, 0.1), (0.1, 0.15, 0.35)), 4000)


def test_a_server_carries_what_keeps_tail_and_mean_between_measured_rates():
    assert max(CAPACITY.limits(0.2)) == pytest.approx(20 + 10 * 0.05 / 0.2)
    assert max(CAPACITY.limits(0.2, 0.055)) == pytest.approx(15)
    assert max(CAPACITY.limits(0.1)) == 10
    assert max(CAPACITY.limits(0.09)) == 0
    assert max(CAPACITY.limits(9)) == 30


def test_a_model_that_does_not_fit_the_memory_carries_nothing():
    small = ModelCapacity(CAPACITY.profile, 999)
    assert not small.fits
    assert not any(small.limits(9))


def test_noise_in_a_profile_does_not_make_more_load_faster():
    noisy = ModelCapacity(profile(SYSTEM1, (10, 20, 30), (0.06, 0.05, 0.1), (0.2, 0.1, 0.3)), 4000)
    assert max(noisy.limits(0.15)) == 0
    assert max(noisy.limits(0.2)) == 20


def test_isolated_packing_fills_servers_and_leaves_the_rest_to_one():
    servers = isolated(Stream(0, 8, 3.0, (10.0,)))
    assert [server.robots for server in servers] == [{0: 3}, {0: 3}, {0: 2}]
    assert isolated(Stream(0, 8, 11.0, (10.0,))) is None


def test_classes_share_a_server_where_it_keeps_both_latencies():
    """3 robots of 3/s in 10/s, and 2 of 4/s in 9/s: alone 2 servers each would be 1 + 1."""
    servers = pack([Stream(0, 4, 3.0, (10.0,)), Stream(1, 1, 4.0, (9.0,))])
    assert [server.robots for server in servers] == [{1: 1, 0: 1}, {0: 3}]
    assert servers[0].load_hz == 7
    assert servers[0].limits_hz == (9.0,)


STREAMS = st.lists(
    st.builds(
        Stream,
        owner=st.integers(0, 10**6),
        robots=st.integers(1, 40),
        rate_hz=st.floats(0.1, 5),
        limits_hz=st.tuples(st.floats(5, 40), st.floats(5, 40)),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda one: one.owner,
)


@given(STREAMS)
def test_packing_covers_every_robot_keeps_every_limit_and_never_needs_more_than_isolated(streams):
    servers = pack(streams)
    for stream in streams:
        assert sum(one.robots.get(stream.owner, 0) for one in servers) == stream.robots
    of = {stream.owner: stream for stream in streams}
    for server in servers:
        load = sum(of[owner].rate_hz * robots for owner, robots in server.robots.items())
        limits = [of[owner].limits_hz for owner in server.robots]
        assert load == pytest.approx(server.load_hz)
        assert load <= max(map(min, *limits) if len(limits) > 1 else limits[0]) * (1 + 1e-6)
    assert len(servers) <= sum(len(isolated(stream)) for stream in streams)


@settings(max_examples=25)
@given(st.integers(1, 30), st.floats(0.3, 4), st.floats(4, 20))
def test_isolated_packing_is_what_the_integer_program_finds(robots, rate, limit):
    stream = Stream(0, robots, rate, (limit,))
    least = len(isolated(stream))
    assert least == math.ceil(robots / stream.per_server)
    configurations = [
        Configuration(("m", SYSTEM1), stream, k, 0.0)
        for k in range(1, min(stream.per_server, robots) + 1)
    ]
    found = choose(configurations, 50)
    assert len(found["m", SYSTEM1]) == least
    assert choose(configurations, least - 1) is None
