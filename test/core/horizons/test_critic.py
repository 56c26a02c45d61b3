"""Horizons by a critic: longer only where the risk allows it, careful without a state."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kairos_ros.core.conformance import check_horizon_policy
from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizons.calibration import (
    Calibrated,
    HorizonCalibration,
    HorizonPlan,
    StaticHorizons,
)
from kairos_ros.core.horizons.critic import BINS, ByRisk, Critic, features
from kairos_ros.core.horizons.policies import HorizonContext
from kairos_ros.engine.policies.calibration_file import find_calibration, write_calibration

STATE, DIMS, MEMBERS = 3, 4, 2
INPUTS = STATE + BINS * DIMS + 2
HORIZONS = (5, 10, 20, 50)
UPDATES = np.zeros((10, 50, DIMS), np.float32)
CHUNK = np.random.default_rng(0).normal(size=(50, DIMS)).astype(np.float32)
HERE = np.array([0.1, 0.2, 0.3], np.float32)


def drawn(seed: int, allowed: float = 0.1) -> Critic:
    """With weights drawn at random, so that risks are of all sizes."""
    rng = np.random.default_rng(seed)
    widths = (INPUTS, 8, len(HORIZONS) - 1)
    layers = tuple(
        (
            rng.normal(size=(MEMBERS, a, b)).astype(np.float32),
            rng.normal(-2, 2, size=(MEMBERS, 1, b)).astype(np.float32),
        )
        for a, b in pairwise(widths)
    )
    mean, spread = np.zeros(INPUTS, np.float32), np.ones(INPUTS, np.float32)
    return Critic(HORIZONS, allowed, np.zeros(DIMS, np.float32), mean, spread, layers)


def by_hand(steps: tuple[float, ...], allowed: float) -> Critic:
    """Whatever it sees, each longer horizon adds so much to minus the log of not failing."""
    biases = np.log(np.expm1(np.array(steps)))[None, None].astype(np.float32)
    layers = ((np.zeros((1, INPUTS, len(steps)), np.float32), biases),)
    return replace(drawn(0, allowed), layers=layers)


CALIBRATION = HorizonCalibration(
    "flow_mlp-1234",
    50,
    {
        ("lever-pull-v3", "pull the lever up"): HorizonPlan((), 10),
        ("reach-v3",): HorizonPlan((), 50),
    },
    unknown=HorizonPlan((), 5),
    static=StaticHorizons({("lever-pull-v3", "pull the lever up"): 7, ("reach-v3",): 50}, 5),
    critics={("lever-pull-v3", "pull the lever up"): drawn(1)},
)


@given(
    seed=st.integers(0, 50),
    state=arrays(np.float32, STATE, elements=st.floats(-1e9, 1e9, width=32)),
    lower=st.floats(0, 0.9),
    more=st.floats(0, 0.09),
)
def test_longer_horizons_are_riskier_and_more_allowed_risk_never_shortens(seed, state, lower, more):
    critic = drawn(seed, lower)
    context = HorizonContext("lever", 2, CHUNK[:7] + 0.1, state=state)
    risks = critic.risks(features(CHUNK, context, critic.offset))
    assert risks[0] == 0
    assert (np.diff(risks) >= 0).all()
    assert (risks <= 1).all()
    careful = ByRisk(critic, 7)(UPDATES, CHUNK, context)
    bold = ByRisk(replace(critic, allowed=lower + more), 7)(UPDATES, CHUNK, context)
    assert HORIZONS[0] <= careful.length <= bold.length <= HORIZONS[-1]
    assert careful.length in HORIZONS


def test_the_longest_horizon_within_the_allowed_risk_is_executed_and_the_reason_says_so():
    """1 - exp(-(0.02 + 0.03)) = 0.0488 of 20 actions; 50 add another 0.2."""
    critic = by_hand((0.02, 0.03, 0.2), allowed=0.05)
    answer = ByRisk(critic, 7)(UPDATES, CHUNK, HorizonContext(state=HERE))
    assert (answer.length, answer.reason) == (20, "risk 0.049 of 20 actions, 0.05 allowed")
    assert answer.confidence[4] == 1.0
    assert answer.confidence[19] == pytest.approx(np.exp(-0.05), abs=1e-6)
    assert answer.confidence[49] == pytest.approx(np.exp(-0.25), abs=1e-6)
    strict = ByRisk(replace(critic, allowed=0.0), 7)(UPDATES, CHUNK, HorizonContext(state=HERE))
    assert strict.length == HORIZONS[0]


@pytest.mark.parametrize("state", [HERE, None])
def test_it_does_what_every_horizon_policy_must(state):
    policy = ByRisk(drawn(1), 7)

    def here(updates, chunk, context):
        return policy(updates, chunk, replace(context, state=state))

    check_horizon_policy(here, dims=DIMS)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (None, "no state"),
        (np.zeros(0, np.float32), "state of shape (0,), not (3,)"),
        (np.zeros((1, STATE), np.float32), "state of shape (1, 3), not (3,)"),
        (np.array([0, np.nan, 0], np.float32), "state not finite"),
        (np.array([0, 0, np.inf], np.float32), "state not finite"),
    ],
)
def test_without_a_state_to_judge_by_the_tuned_static_horizon_is_executed(state, why):
    context = HorizonContext("lever-pull-v3", 1, state=state)
    answer = Calibrated(CALIBRATION)(UPDATES, CHUNK, context)
    assert answer.length == 7
    assert answer.reason == f"tuned horizon of 7 actions, no risk known: {why}"


def test_a_robots_units_and_normalised_ones_are_the_same_to_it():
    offset, scale = np.array([1, -2, 0, 5], np.float32), np.array([0.1, 3, 1, 50], np.float32)
    tail = CHUNK[3:30] + 0.2
    normalised = features(CHUNK, HorizonContext(tail=tail, state=HERE), offset)
    context = HorizonContext(tail=offset + scale * tail, scale=scale, state=HERE)
    assert features(offset + scale * CHUNK, context, offset) == pytest.approx(normalised, abs=1e-4)
    assert normalised[STATE] == pytest.approx(CHUNK[:5, 0].mean(), abs=1e-6)


def test_a_critic_replaces_the_plan_of_its_task_under_each_of_its_names_and_of_no_other():
    policy = CALIBRATION.policies()["calibrated"]

    def reason(task, instruction=""):
        context = HorizonContext(task, 1, instruction=instruction, state=HERE)
        return policy(UPDATES, CHUNK, context).reason

    assert reason("lever-pull-v3").startswith("risk ")
    assert reason("line 2", "pull the lever up").startswith("risk ")
    assert reason("reach-v3") == "calibrated as static 50"
    with pytest.raises(PolicyError, match="chunks of 50 actions"):
        policy(UPDATES[:, :30], CHUNK[:30], HorizonContext("lever-pull-v3", state=HERE))


def test_planned_rounds_come_before_a_critic_judges():
    """Also where the round is not known: it may be the first."""
    careful = HorizonPlan((10, 10), 10)
    names = ("lever-pull-v3", "pull the lever up")
    calibration = replace(
        CALIBRATION,
        tasks={**CALIBRATION.tasks, names: careful},
        critics={names: by_hand((0.001, 0.001, 0.001), 0.5)},
    )
    decide = Calibrated(calibration)
    executed = [
        decide(UPDATES, CHUNK, HorizonContext(names[0], round=number, state=HERE)).length
        for number in (1, 2, 3, 4, 0)
    ]
    assert executed == [10, 10, 50, 50, 10]


def test_a_calibration_with_a_critic_survives_its_file(tmp_path):
    write_calibration(tmp_path / "horizon_calibration.json", CALIBRATION)
    read = find_calibration(str(tmp_path))
    assert read is not None
    assert read.to_dict() == CALIBRATION.to_dict()
    (critic,) = read.critics.values()
    context = HorizonContext(state=HERE)
    seen = features(CHUNK, context, critic.offset)
    assert np.array_equal(critic.risks(seen), drawn(1).risks(seen))
    with pytest.raises(ConfigError, match=r"calibrated for policy 'flow_mlp-1234'.*'another-99'"):
        read.require_policy("another-99")


def changed(**fields):
    data = json.loads(json.dumps(CALIBRATION.to_dict()))
    data["critics"][0] |= fields
    return data


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"names": ["make coffee"]}, "a task without a plan"),
        ({"horizons": [5, 10, 20, 60]}, "horizon 60 of the critic of lever-pull-v3 exceeds"),
        ({"horizons": [5, 10, 50]}, "not one for each of the 2 horizons"),
        ({"horizons": [5, 50, 10, 20]}, "ascending"),
        ({"allowed": 1.0}, "allowed is a risk"),
        ({"allowed": float("nan")}, "allowed is a risk"),
        ({"mean": "AAAA"}, "buffer size"),
        ({"mean": "?"}, "base64"),
        ({"mean": "AAAAAA=="}, "do not fit 1 inputs"),
        ({"spread": CALIBRATION.to_dict()["critics"][0]["mean"]}, "spreads above 0"),
        ({"layers": []}, "outputs"),
        ({"layers": [{"shape": [1, 2], "weights": "", "biases": ""}]}, "not enough values"),
        ({"layers": 7}, "not iterable"),
        ({"offset": [0.0] * 5}, "features of shape"),  # nothing is left for the state
        ({"offset": [[0.0] * DIMS]}, "features of shape"),
    ],
)
def test_a_wrong_critic_is_refused_with_the_reason(fields, complaint):
    with pytest.raises(ConfigError, match=complaint):
        HorizonCalibration.from_dict(changed(**fields))


def test_a_critic_whose_risks_would_overflow_is_refused():
    weights, biases = drawn(1).layers[0]
    with pytest.raises(ConfigError, match="so large"):
        replace(drawn(1), layers=((weights * np.float32(1e37), biases), *drawn(1).layers[1:]))


def test_a_critic_with_numbers_that_are_not_finite_is_refused():
    weights, biases = drawn(1).layers[0]
    with pytest.raises(ConfigError, match="must be finite"):
        replace(drawn(1), layers=((weights * np.nan, biases), drawn(1).layers[1]))
