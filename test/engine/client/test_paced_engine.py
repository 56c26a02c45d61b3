"""A policy at another model's pace: the same chunks, later."""

import time

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.paced import parse_paced
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferRequest

POLICY = "emulated:latency_ms=1,chunk=10,state=2,dim=2"
REQUESTS = [
    InferRequest("arm_1", "s", "1", 1, 0, n, "reach", np.array([0.5, n], np.float32))
    for n in range(3)
]


def engine(policy):
    return load_engine(EngineOptions(policy), lambda _: None)


def test_a_paced_policy_answers_what_the_policy_answers_but_no_sooner_than_its_pace():
    paced, plain = engine(f"paced:latency_ms=50+20b:{POLICY}"), engine(POLICY)
    began = time.monotonic()
    slow = paced.infer(REQUESTS)
    assert time.monotonic() - began >= 0.11
    for ours, theirs in zip(slow, plain.infer(REQUESTS), strict=True):
        assert np.array_equal(ours.chunk, theirs.chunk)


def test_a_paced_policy_is_the_same_policy_and_says_that_it_is_paced():
    paced, plain = engine(f"paced:latency_ms=50+20b:{POLICY}"), engine(POLICY)
    assert paced.description.policy_id == plain.description.policy_id
    assert paced.description.device == "emulated (paced)"
    assert dict(paced.description.warmup)[1] == pytest.approx(0.07)


@pytest.mark.parametrize(
    "text", ["paced:/models/pick", "paced:latency_ms=5", "paced:latency_ms=5,chunk=3:/models/pick"]
)
def test_a_pace_that_is_written_wrongly_is_refused_with_the_form(text):
    with pytest.raises(ConfigError, match="latency_ms=150\\+40b:POLICY"):
        parse_paced(text)


@pytest.mark.parametrize("option", ["rtc", "compile"])
def test_an_emulated_policy_with_what_needs_a_sampler_is_refused(option):
    with pytest.raises(ConfigError, match=f"{option}: an emulated policy has no sampler"):
        load_engine(EngineOptions("emulated:", **{option: True}), lambda _: None)
