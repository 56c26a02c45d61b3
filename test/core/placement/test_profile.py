import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.profile import EngineProfile

# 80 + 35 b ms, as facts about pi05-sized policies assume; throughput 8.7, 13.3, 18.2, 22.2, 25 /s.
PROFILE = EngineProfile(
    policy_id="pi05-1a2b3c4d",
    machine="2 x some CPU",
    device="cpu",
    dtype="float32",
    batch_sizes=(1, 2, 4, 8, 16),
    p50_s=(0.115, 0.150, 0.220, 0.360, 0.640),
    p10_s=(0.110, 0.140, 0.210, 0.350, 0.600),
    p90_s=(0.120, 0.160, 0.230, 0.380, 0.700),
    network_s=0.005,
)


def test_latency_is_linear_between_measured_batch_sizes():
    assert PROFILE.latency_s(1) == 0.115
    assert PROFILE.latency_s(3) == pytest.approx(0.185)
    assert PROFILE.latency_s(12) == pytest.approx(0.5)


def test_beyond_the_largest_batch_throughput_stays():
    assert PROFILE.latency_s(32) == pytest.approx(1.28)


def test_saturation_is_where_throughput_stops_growing_by_more_than_five_percent():
    flat = (0.1, 0.1, 0.1, 0.192, 0.384)  # 10, 20, 40, 41.7, 41.7 /s
    profile = replace(PROFILE, p50_s=flat, p10_s=flat, p90_s=flat)
    assert profile.saturation_batch == 4
    assert PROFILE.saturation_batch == 16
    assert profile.latencies_ns() == (100_000_000,) * 4


def test_a_dip_in_throughput_does_not_hide_a_better_batch_behind_it():
    bumpy = (0.1, 0.21, 0.22, 0.25, 0.6)  # 10, 9.5, 18, 32, 27 /s
    assert replace(PROFILE, p50_s=bumpy, p10_s=bumpy, p90_s=bumpy).saturation_batch == 8


def test_a_profile_survives_json():
    text = json.dumps(PROFILE.to_dict())
    assert EngineProfile.from_dict(json.loads(text)) == PROFILE


def test_a_profile_of_another_policy_is_refused():
    PROFILE.require_policy("pi05-1a2b3c4d")
    with pytest.raises(
        ConfigError, match=r"measured with policy 'pi05-1a2b3c4d'.*runs 'smolvla-0'"
    ):
        PROFILE.require_policy("smolvla-0")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": 2}, "not an engine profile of format 1"),
        ({"p50_s": [0.1]}, "p50_s must hold 5 positive numbers"),
        ({"p50_s": [0.115, 0.15, "fast", 0.36, 0.64]}, "could not convert"),
        ({"batch_sizes": [2, 4, 8, 16, 32]}, "ascend from 1"),
        ({"p10_s": [0.2, 0.2, 0.2, 0.2, 0.2]}, "does not hold"),
        ({"network_s": -1}, "network_s must be >= 0"),
    ],
)
def test_a_damaged_profile_says_what_is_wrong(change, what):
    with pytest.raises(ConfigError, match=what):
        EngineProfile.from_dict(PROFILE.to_dict() | change)


def test_a_profile_without_a_field_names_it():
    data = PROFILE.to_dict()
    del data["device"]
    with pytest.raises(ConfigError, match="field 'device' is missing"):
        EngineProfile.from_dict(data)


@given(st.integers(1, 100))
def test_a_larger_batch_never_looks_faster_than_a_smaller_one(batch):
    assert PROFILE.latency_s(batch) <= PROFILE.latency_s(batch + 1)
