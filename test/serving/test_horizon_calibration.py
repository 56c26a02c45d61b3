"""Calibrated horizons: plans and static horizons by task, as data that fits one policy only."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from kairos_ros.bringup.plan import check_horizon
from kairos_ros.core.conformance import check_horizon_policy
from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.exchange import (
    Announcement,
    Execution,
    Observation,
    Refusal,
    Request,
    RequestId,
)
from kairos_ros.core.horizons.calibration import (
    Calibrated,
    HorizonCalibration,
    HorizonPlan,
    StaticHorizons,
)
from kairos_ros.core.horizons.policies import HorizonContext, TailAgreement, parse_horizon
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.engine.policies.calibration_file import NAME, find_calibration, write_calibration
from kairos_ros.nodes.serving.parameters import SERVING_PARAMETERS, serving_options
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import HorizonPolicies, ServingOptions
from kairos_ros.transport.messages import EngineDescription, InferResult

LEVER = HorizonPlan((10, 10, 20, 50), after=10)
CALIBRATION = HorizonCalibration(
    "flow_mlp-1234",
    50,
    {("lever-pull-v3", "pull the lever up"): LEVER, ("reach-v3",): HorizonPlan((), 50)},
    unknown=HorizonPlan((), 5),
    how={"disturbance": 0.1},
)
TUNED = replace(
    CALIBRATION,
    static=StaticHorizons(
        {("lever-pull-v3", "pull the lever up"): 10, ("reach-v3",): 50}, general=15
    ),
)
LIMITED = replace(
    CALIBRATION, tasks=CALIBRATION.tasks | {("reach-v3",): HorizonPlan((), 50, longest_lead=5)}
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
    assert answer.reason == "calibrated as static 5, a task that was not calibrated"


def test_a_task_past_its_plan_says_so():
    assert horizon("lever-pull-v3", 5).reason == "calibrated for round 5, past its plan"


def test_a_task_with_a_longer_lead_than_its_plan_bears_is_served_as_without_a_calibration():
    def answer(task, lead):
        context = HorizonContext(task, 2, CHUNK[:8], lead=lead)
        return Calibrated(LIMITED)(UPDATES, CHUNK, context)

    assert [answer("reach-v3", lead).length for lead in (0, 5)] == [50, 50]
    late = answer("reach-v3", 6)
    assert late.length == 8, "as far as the chunk before reaches"
    assert late.reason == (
        "agrees with all 8 remaining actions of the previous chunk, calibrated for a lead of up to "
        "5 actions, here 6"
    )
    assert answer("lever-pull-v3", 25).reason == "calibrated for round 2", "no limit is known"


def test_a_served_task_keeps_the_longest_lead_that_it_has_had():
    mine = replace(ANOTHER, policy_id="flow_mlp-1234")
    dispatcher = Dispatcher(ServingOptions(parse_scheduling("fifo"), "auto", calibration=LIMITED))
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", mine, warmup_profile(mine))
    dispatcher.announce(0, Announcement("a", "s", "t"))
    (session,) = dispatcher.sessions.values()
    seconds = count(1)

    def reason(task, round_, remaining, surprised=False):
        now_ns = next(seconds) * 1_000_000_000
        request = Request(
            RequestId("a", "s", task, round_, 0),
            "reach-v3",
            execution=Execution(round=round_ - 1, remaining=remaining, surprised=surprised),
            observation=Observation(np.zeros(39, np.float32)),
        )
        (submit,) = dispatcher.request(now_ns, request)
        chunk = InferResult(CHUNK, UPDATES)
        dispatcher.batch_done(now_ns + 1, "edge", submit.batch, [chunk], 0.1)
        return session.horizon_reason

    assert {reason("t", 1, 0), reason("t", 2, 5)} == {"calibrated as static 50"}
    early = reason("t", 3, 40, surprised=True)
    assert early == "calibrated as static 50; 10 after a surprise", "these 40 are given up"
    assert reason("t", 4, 6).endswith("here 6")
    assert reason("t", 5, 2).endswith("here 6"), "a short chunk leaves less, and nothing is faster"
    assert reason("u", 1, 0) == "calibrated as static 50", "another task"


def test_calibrated_does_what_every_horizon_policy_must():
    check_horizon_policy(Calibrated(CALIBRATION))


def test_a_chunk_of_another_length_is_refused():
    with pytest.raises(PolicyError, match="chunks of 50 actions"):
        Calibrated(CALIBRATION)(UPDATES[:, :30], CHUNK[:30], HorizonContext("reach-v3"))


def test_calibrated_without_a_calibration_says_how_to_make_one():
    with pytest.raises(ConfigError, match="kairos calibrate"):
        parse_horizon("calibrated")
    assert isinstance(parse_horizon("calibrated", CALIBRATION.policies()), Calibrated)


@pytest.mark.parametrize("text", ["static:tuned", "static:h=tuned"])
def test_static_tuned_executes_the_tasks_own_static_horizon_in_every_round(text):
    tuned = parse_horizon(text, TUNED.policies())

    def length(*context, **named):
        return tuned(UPDATES, CHUNK, HorizonContext(*context, **named)).length

    assert [length("lever-pull-v3", r) for r in (0, 1, 9)] == [10, 10, 10]
    assert length("line-2/lever", instruction="pull the lever up") == 10
    assert length("reach-v3", 1) == 50
    unknown = tuned(UPDATES, CHUNK, HorizonContext("make coffee"))
    assert (unknown.length, unknown.reason) == (
        15,
        "static 15, tuned, a task that was not calibrated",
    )
    assert (
        parse_horizon("static:10", TUNED.policies())(UPDATES, CHUNK, HorizonContext()).length == 10
    )


def test_static_tuned_does_what_every_horizon_policy_must():
    check_horizon_policy(TUNED.policies()["static:tuned"])


@pytest.mark.parametrize("name", ["calibrated", "static:tuned"])
def test_a_policy_without_a_sampler_can_be_calibrated_too(name):
    """K = 0: there are no updates to judge by, and neither rule needs any."""
    none = np.zeros((0, 50, 4), np.float32)
    policy = parse_horizon(name, TUNED.policies())
    assert policy(none, CHUNK, HorizonContext("lever-pull-v3", 1)).length == 10


def test_static_tuned_of_an_untuned_calibration_says_what_to_run():
    for known in ({}, CALIBRATION.policies()):
        with pytest.raises(ConfigError, match=r"run 'kairos calibrate' \(--static-only"):
            parse_horizon("static:tuned", known)


def test_static_tuned_refuses_a_chunk_of_another_length():
    with pytest.raises(PolicyError, match="static:tuned: made for chunks of 50 actions"):
        TUNED.policies()["static:tuned"](UPDATES[:, :30], CHUNK[:30], HorizonContext("reach-v3"))


@pytest.mark.parametrize("calibration", [CALIBRATION, TUNED, LIMITED])
def test_a_calibration_survives_its_file(tmp_path, calibration):
    """Also one of before static horizons were tuned."""
    write_calibration(tmp_path / NAME, calibration)
    assert find_calibration(str(tmp_path)) == calibration
    assert find_calibration("emulated:latency", str(tmp_path / NAME)) == calibration
    assert ("static" in json.loads((tmp_path / NAME).read_text())) == (calibration is TUNED)


def test_a_policy_without_a_calibration_has_none_but_a_named_file_must_be_there(tmp_path):
    assert find_calibration(str(tmp_path)) is None
    assert find_calibration("emulated:latency") is None
    with pytest.raises(ConfigError, match="No such file"):
        find_calibration(str(tmp_path), str(tmp_path / "other.json"))


def _counted(successes, episodes=8):
    how = {"successes": successes, "episodes": episodes}
    return {"tasks": [{"names": ["a"], "horizon": 5}], "general": 5, "how": how}


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
        ({"static": {"tasks": []}}, "'general' is missing"),
        ({"static": {"tasks": [], "general": 0}}, "not 0"),
        ({"static": {"tasks": [{"names": ["a"], "horizon": 60}], "general": 5}}, "60 of static:tu"),
        ({"static": {"tasks": [{"names": ["a", "a"], "horizon": 6}], "general": 5}}, "two plans"),
        ({"static": 7}, "not subscriptable"),
        ({"unknown": {"rounds": [], "after": 5, "longest_lead": "2"}}, "longest_lead is a number"),
        ({"tasks": [{"names": "reach", "rounds": [], "after": 5}]}, "names is a list"),
        ({"tasks": [{"names": ["a"], "rounds": [], "after": h} for h in (5, 6)]}, "two rows"),
        ({"static": _counted({"a": {"5": 8, "60": 8}})}, "60 of the counts of a exceeds"),
        ({"static": _counted({"a": {"0": 8}})}, "not 0"),
        ({"static": _counted({"a": {}})}, "counts of episodes"),
        ({"static": _counted({"a": 8})}, "counts of episodes"),
        ({"static": _counted({"a": {"5": "all"}})}, "counts of episodes"),
        ({"static": _counted({"a": {"five": 8}})}, "counts of episodes"),
        ({"static": _counted({"a": {"5": 8}}, episodes=0)}, "counts of episodes"),
        ({"static": _counted([8])}, "counts of episodes"),
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
    values |= {"policy": str(tmp_path), "policies": [], "horizon": "calibrated"}
    with pytest.raises(ConfigError, match="kairos calibrate"):
        serving_options(values)
    write_calibration(tmp_path / NAME, CALIBRATION)
    policy = serving_options(values).parse_horizon("calibrated")
    assert policy(UPDATES, CHUNK, HorizonContext("lever-pull-v3", 3)).length == 20
    with pytest.raises(ConfigError, match="--static-only"):
        serving_options(values | {"horizon": "static:tuned"})
    write_calibration(tmp_path / NAME, TUNED)
    policy = serving_options(values | {"horizon": "static:tuned"}).parse_horizon("static:tuned")
    assert policy(UPDATES, CHUNK, HorizonContext("lever-pull-v3", 3)).length == 10


@pytest.mark.parametrize("name", ["calibrated", "static:tuned"])
def test_the_demo_asks_for_a_calibration_before_it_starts_anything(tmp_path, name):
    with pytest.raises(ConfigError, match="kairos calibrate"):
        check_horizon(name, str(tmp_path))
    write_calibration(tmp_path / NAME, TUNED)
    check_horizon(name, str(tmp_path))


ANOTHER = EngineDescription(
    policy_id="flow_mlp-9999", policy_type="flow_mlp", state_dim=39, images={}, action_dim=4,
    chunk_size=50, steps=10, instructions=None, device="cpu", dtype="float32", max_batch=4,
    warmup=((1, 0.1), (4, 0.13)),
)  # fmt: skip


def test_a_server_refuses_an_engine_whose_policy_was_not_calibrated_where_that_is_its_default():
    options = ServingOptions(parse_scheduling("fifo"), "calibrated", calibration=CALIBRATION)
    dispatcher = Dispatcher(options)
    dispatcher.add_engine("edge", "edge")
    with pytest.raises(ConfigError, match="flow_mlp-1234"):
        dispatcher.engine_ready(0, "edge", ANOTHER, warmup_profile(ANOTHER))


def test_a_calibration_of_another_policy_concerns_only_who_asks_for_it():
    """A folder that was copied with its calibration, and trained on."""
    options = ServingOptions(parse_scheduling("fifo"), "static:5", calibration=CALIBRATION)
    dispatcher = Dispatcher(options)
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", ANOTHER, warmup_profile(ANOTHER))
    assert "flow_mlp-1234" in options.unfit_calibration(ANOTHER)
    asked = HorizonPolicies(options)
    refused = asked.of("calibrated", "", ANOTHER)
    assert isinstance(refused, Refusal)
    assert "flow_mlp-1234" in refused.reason
    assert not isinstance(asked.of("static:7", "", ANOTHER), Refusal)
    mine = replace(ANOTHER, policy_id="flow_mlp-1234")
    assert not options.unfit_calibration(mine)
    assert not isinstance(asked.of("calibrated", "", mine), Refusal)


def test_by_default_a_calibrated_policy_gets_its_plans_and_any_other_one_tail_agreement():
    values = {spec.name: spec.default for spec in SERVING_PARAMETERS}
    assert values["horizon"] == "auto"
    mine = replace(ANOTHER, policy_id="flow_mlp-1234")
    calibrated = ServingOptions(parse_scheduling("fifo"), "auto", calibration=CALIBRATION)
    assert calibrated.horizon_of("", "", mine) == "calibrated"
    assert calibrated.horizon_of("auto", "", mine) == "calibrated", "a request may name it, too"
    assert calibrated.horizon_of("static:7", "", mine) == "static:7"
    without = ServingOptions(parse_scheduling("fifo"), "auto")
    assert without.horizon_of("", "", mine) == "tail_agreement:t=0.8,h_min=5"
    assert isinstance(parse_horizon("auto", CALIBRATION.policies()), Calibrated)
    assert isinstance(parse_horizon("auto"), TailAgreement)


def test_by_default_a_calibration_of_another_policy_is_passed_over():
    options = ServingOptions(parse_scheduling("fifo"), "auto", calibration=CALIBRATION)
    dispatcher = Dispatcher(options)
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", ANOTHER, warmup_profile(ANOTHER))
    assert options.horizon_of("", "", ANOTHER) == "tail_agreement:t=0.8,h_min=5"


def test_static_slack_is_the_longest_that_lost_at_most_one_of_64_tuning_episodes():
    successes = {
        "lever-pull-v3": {"5": 63, "10": 64, "20": 63, "50": 60},
        "reach-v3": {"5": 64, "10": 64, "20": 64, "50": 64},
        "all": {"5": 127, "10": 128, "20": 127, "50": 124},
    }
    how = {"episodes": 64, "successes": successes}
    counted = replace(TUNED, static=replace(TUNED.static, how=how))
    policy = parse_horizon("static:slack", counted.policies())

    def answer(task):
        horizon = policy(UPDATES, CHUNK, HorizonContext(task, 2))
        return horizon.length, horizon.reason

    assert answer("lever-pull-v3") == (20, "static 20, at most 2% below the best")
    assert answer("reach-v3") == (50, "static 50, at most 2% below the best")
    assert answer("open the box")[0] == 20
    read = HorizonCalibration.from_dict(json.loads(json.dumps(counted.to_dict())))
    assert parse_horizon("static:slack", read.policies())(
        UPDATES, CHUNK, HorizonContext("lever-pull-v3", 2)
    ).length == 20  # fmt: skip


@pytest.mark.parametrize("calibration", [CALIBRATION, TUNED])
def test_static_slack_needs_the_counts_of_the_tuning(calibration):
    with pytest.raises(ConfigError, match="'static:slack' needs static horizons tuned"):
        parse_horizon("static:slack", calibration.policies())


def test_only_the_horizon_of_static_may_be_tuned():
    with pytest.raises(ConfigError):
        parse_horizon("static:k=tuned", TUNED.policies())
    assert parse_horizon("static:h=tuned", TUNED.policies()) is not None
