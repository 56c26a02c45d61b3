"""Load profiles: what they hold, what they refuse, and those that are assumed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import Load, LoadProfile
from kairos_ros.core.pipeline import Component
from kairos_ros.planning.assumed import assumed_profile, batch_line, batch_queue, shared_queue

LOAD = Load(
    batch=4,
    memory_mib=9000,
    rates_hz=(10.0, 20.0, 30.0),
    mean_s=(0.05, 0.06, 0.1),
    quantiles_s=((0.05, 0.06, 0.1), (0.06, 0.08, 0.15), (0.07, 0.09, 0.2), (0.08, 0.12, 0.4)),
)
PROFILE = LoadProfile(
    model="pi05",
    version="pi05-1a2b3c4d",
    components=(Component.SYSTEM1,),
    device="H200",
    machine="one",
    source="measured",
    basis="by hand",
    batching="discrete",
    sizes=(1, 4),
    service_s=(0.04, 0.1),
    loads=(LOAD,),
)


def test_a_profile_survives_its_file():
    assert LoadProfile.from_dict(json.loads(json.dumps(PROFILE.to_dict()))) == PROFILE


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("source", "guessed", "source 'guessed'"),
        ("device", "", "must not be empty"),
        ("sizes", (2, 4), "ascend from 1"),
        ("service_s", (0.04,), "service_s must hold 2"),
        ("loads", (LOAD, LOAD), "batches of loads must ascend"),
    ],
)
def test_contradictions_are_refused(field, value, says):
    with pytest.raises(ConfigError, match=says):
        replace(PROFILE, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("rates_hz", (10.0, 10.0, 30.0), "ascending"),
        ("mean_s", (0.05, 0.06), "must hold 3"),
        ("mean_s", (0.05, float("nan"), 0.1), "must hold 3 positive"),
        ("quantiles_s", LOAD.quantiles_s[::-1], "a higher quantile is below a lower one"),
        ("quantiles_s", LOAD.quantiles_s[:2], "2 quantiles instead of 4"),
    ],
)
def test_loads_that_contradict_themselves_are_refused(field, value, says):
    with pytest.raises(ConfigError, match=says):
        replace(LOAD, **{field: value})


@pytest.mark.parametrize("lacks", ["model", "loads", "sizes"])
def test_a_file_without_a_field_is_refused_with_its_name(lacks):
    data = PROFILE.to_dict()
    del data[lacks]
    with pytest.raises(ConfigError, match=f"'{lacks}' is missing"):
        LoadProfile.from_dict(data)


def test_an_engine_profile_is_no_load_profile():
    with pytest.raises(ConfigError, match="kairos profile --load"):
        LoadProfile.from_dict({"format": 1, "policy_id": "x"})


def test_a_batch_line_is_milliseconds():
    assert batch_line("31.3+9.7b") == pytest.approx((0.0313, 0.0097))
    with pytest.raises(ConfigError, match="31\\+10b"):
        batch_line("fast")


def test_a_batch_queue_without_load_takes_one_batch_of_one():
    latency = batch_queue(0.0001, np.array([0.0, 0.05, 0.08]), 0.0, 500, seed=0)
    assert latency == pytest.approx(0.05)


def test_a_batch_queue_waits_as_long_as_queueing_theory_says():
    """M/D/1 at half load: the mean wait is ρ s / (2 (1 - ρ)) = s / 2."""
    latency = batch_queue(10.0, np.array([0.0, 0.05]), 0.0, 100_000, seed=0)
    assert latency.mean() == pytest.approx(0.05 + 0.025, rel=0.03)


def test_a_shared_queue_takes_as_long_as_queueing_theory_says():
    """Processor sharing at half load: 0.05 s of work take 0.05 / (1 - 0.5) s in the mean. With n
    in flight each takes n times as long as alone."""
    seconds = np.array([0.05 * n for n in range(200)])
    latency = shared_queue(10.0, seconds, 0.0, 100_000, seed=0)
    assert latency.mean() == pytest.approx(0.1, rel=0.03)


def test_beyond_the_most_in_flight_requests_wait_their_turn():
    one_at_a_time = shared_queue(10.0, np.array([0.0, 0.05]), 0.0, 20_000, seed=3)
    in_batches_of_one = batch_queue(10.0, np.array([0.0, 0.05]), 0.0, 20_000, seed=3)
    assert one_at_a_time == pytest.approx(in_batches_of_one)


def test_an_assumed_profile_says_so_and_covers_ten_rates_of_every_batch():
    profile = assumed_profile(
        "m", [Component.SYSTEM1], "H200", "31.3+9.7b", [1, 4], 9000, 10, arrivals=2000
    )
    assert profile.assumed
    assert "assumed" in profile.machine
    assert [load.batch for load in profile.loads] == [1, 4]
    assert [load.memory_mib for load in profile.loads] == [9010, 9040]
    assert profile.loads[0].rates_hz[-1] == pytest.approx(1 / 0.041, rel=1e-4)
    assert profile.loads[1].rates_hz == pytest.approx(
        [4 / 0.0701 * (i + 1) / 10 for i in range(10)], rel=1e-4
    )
    assert profile.batch_s(3) == pytest.approx(0.0604)
