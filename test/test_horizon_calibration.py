"""Calibrated horizons: plans by task and round, as data that fits one policy only."""

import json

import numpy as np
import pytest

from kairos_ros.bringup import check_horizon
from kairos_ros.core.calibration import Calibrated, HorizonCalibration, HorizonPlan
from kairos_ros.core.conformance import check_horizon_policy
from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizon import HorizonContext, parse_horizon
from kairos_ros.core.scheduling import parse_scheduling
from kairos_ros.nodes.serving_parameters import SERVING_PARAMETERS, serving_options
from kairos_ros.serving.calibration_file import NAME, find_calibration, write_calibration
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.profiles import warmup_profile
from kairos_ros.transport.messages import EngineDescription

LEVER = HorizonPlan((10, 10, 20, 50), after=10)
CALIBRATION = HorizonCalibration(
    "flow_mlp-1234",
    50,
    {("lever-pull-v3", "pull the lever up"): LEVER, ("reach-v3",): HorizonPlan((), 50)},
    unknown=HorizonPlan((), 5),
    how={"disturbance": 0.1},
)
CHUNK = np.zeros((50, 4), np.float32)
UPDATES = np.ones((10, 50, 4), np.float32)


def horizon(task: str, round_: int, calibration=CALIBRATION):
    return Calibrated(calibration)(UPDATES, CHUNK, HorizonContext(task, round_))


def test_each_round_of_a_task_has_the_horizon_that_was_planned():
    assert [horizon("lever-pull-v3", r).length for r in range(1, 7)] == [10, 10, 20, 50, 10, 10]
    assert [horizon("reach-v3", r).length for r in range(1, 4)] == [50, 50, 50]


def test_a_task_may_be_named_by_its_instruction():
    assert horizon("pull the lever up", 4).length == 50
    context = HorizonContext("line-2/lever", 4, instruction="pull the lever up")
    named = Calibrated(CALIBRATION)(UPDATES, CHUNK, context)
    assert (named.length, named.reason) == (50, "calibrated for round 4")


def test_a_task_that_was_not_calibrated_gets_the_careful_horizon_and_says_so():
    answer = horizon("make coffee", 1)
    assert answer.length == 5
    assert answer.reason == "calibrated for round 1, a task that was not calibrated"


def test_a_task_past_its_plan_says_so():
    assert horizon("lever-pull-v3", 5).reason == "calibrated for round 5, past its plan"


def test_calibrated_does_what_every_horizon_policy_must():
    check_horizon_policy(Calibrated(CALIBRATION))


def test_a_chunk_of_another_length_is_refused():
    with pytest.raises(PolicyError, match="chunks of 50 actions"):
        Calibrated(CALIBRATION)(UPDATES[:, :30], CHUNK[:30], HorizonContext("reach-v3"))


def test_calibrated_without_a_calibration_says_how_to_make_one():
    with pytest.raises(ConfigError, match="kairos calibrate"):
        parse_horizon("calibrated")
    assert isinstance(parse_horizon("calibrated", Calibrated(CALIBRATION)), Calibrated)


def test_a_calibration_survives_its_file(tmp_path):
    write_calibration(tmp_path / NAME, CALIBRATION)
    assert find_calibration(str(tmp_path)) == CALIBRATION
    assert find_calibration("emulated:latency", str(tmp_path / NAME)) == CALIBRATION


def test_a_policy_without_a_calibration_has_none_but_a_named_file_must_be_there(tmp_path):
    assert find_calibration(str(tmp_path)) is None
    assert find_calibration("emulated:latency") is None
    with pytest.raises(ConfigError, match="No such file"):
        find_calibration(str(tmp_path), str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 7}, "format 1"),
        ({"policy_id": None, "tasks": [{"names": ["a"], "rounds": [60], "after": 5}]}, "60 of a"),
        ({"tasks": [{"names": ["a"], "rounds": [0], "after": 5}]}, "not 0"),
        ({"tasks": [{"names": ["a"], "rounds": [2.5], "after": 5}]}, "not 2.5"),
        ({"tasks": [{"names": ["a"], "rounds": []}]}, "'after' is missing"),
        ({"tasks": [{"names": [], "rounds": [], "after": 5}]}, "without names"),
        ({"tasks": [{"names": ["a", "a"], "rounds": [], "after": 5}]}, "two plans"),
        ({"tasks": 7}, "not iterable"),
    ],
)
def test_a_wrong_calibration_file_is_refused_with_the_reason(tmp_path, change, complaint):
    file = tmp_path / NAME
    file.write_text(json.dumps(CALIBRATION.to_dict() | change))
    with pytest.raises(ConfigError, match=complaint) as error:
        find_calibration(str(tmp_path))
    assert str(file) in str(error.value)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / NAME).write_text("horizon: 5")
    with pytest.raises(ConfigError, match="no JSON"):
        find_calibration(str(tmp_path))


def test_horizons_of_another_policy_are_refused():
    CALIBRATION.require_policy("flow_mlp-1234")
    with pytest.raises(ConfigError, match="flow_mlp-9999"):
        CALIBRATION.require_policy("flow_mlp-9999")


def test_the_serving_node_finds_the_calibration_in_the_policy_folder(tmp_path):
    values = {spec.name: spec.default for spec in SERVING_PARAMETERS}
    values |= {"policy": str(tmp_path), "horizon": "calibrated"}
    with pytest.raises(ConfigError, match="kairos calibrate"):
        serving_options(values)
    write_calibration(tmp_path / NAME, CALIBRATION)
    policy = serving_options(values).parse_horizon("calibrated")
    assert policy(UPDATES, CHUNK, HorizonContext("lever-pull-v3", 3)).length == 20


def test_the_demo_asks_for_a_calibration_before_it_starts_anything(tmp_path):
    with pytest.raises(ConfigError, match="kairos calibrate"):
        check_horizon("calibrated", str(tmp_path))
    write_calibration(tmp_path / NAME, CALIBRATION)
    check_horizon("calibrated", str(tmp_path))


def test_a_server_refuses_an_engine_whose_policy_was_not_calibrated():
    engine = EngineDescription(
        policy_id="flow_mlp-9999", policy_type="flow_mlp", state_dim=39, images={}, action_dim=4,
        chunk_size=50, steps=10, instructions=None, device="cpu", dtype="float32", max_batch=4,
        warmup=((1, 0.1), (4, 0.13)),
    )  # fmt: skip
    dispatcher = Dispatcher(
        ServingOptions(parse_scheduling("fifo"), "static:5", calibration=CALIBRATION)
    )
    dispatcher.add_engine("edge", "edge")
    with pytest.raises(ConfigError, match="flow_mlp-1234"):
        dispatcher.engine_ready(0, "edge", engine, warmup_profile(engine))
