"""The serving node executes more of each chunk when engines are short, and less again."""

from dataclasses import replace

import numpy as np
import pytest
from small_engine import SMALL_ENGINE

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Observation,
    Request,
    RequestId,
)
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferResult

MS = 1_000_000
SECOND = 1_000_000_000
PERIOD = 200 * MS
ENGINE = replace(SMALL_ENGINE, max_batch=1, warmup=((1, 0.2),))
"""Five rounds per second at best, 4.5 at the target."""
DOOR, PEG = ("door", "open the door"), ("peg", "insert the peg")
PLAN = HorizonPlan((), 5)
CALIBRATION = HorizonCalibration(
    ENGINE.policy_id,
    ENGINE.chunk_size,
    {DOOR: PLAN, PEG: PLAN},
    PLAN,
    {
        "ladder": [5, 10, 20],
        "lead": 0,
        "found": {"door": {"reference_rounds": 20}, "peg": {"reference_rounds": 20}},
    },
    StaticHorizons(
        {DOOR: 20, PEG: 5},
        5,
        {
            "episodes": 100,
            "successes": {
                "door": {"5": 100, "10": 100, "20": 100},
                "peg": {"5": 100, "10": 40, "20": 10},
            },
        },
    ),
)
OPTIONS = ServingOptions(
    parse_scheduling("fifo"),
    "static:5",
    stale_after_ns=0,
    load_horizon=True,
    calibration=CALIBRATION,
)


def serving(robots: str, options: ServingOptions = OPTIONS) -> Dispatcher:
    dispatcher = Dispatcher(options)
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", ENGINE, warmup_profile(ENGINE))
    for robot in robots:
        dispatcher.announce(0, Announcement(robot, "s", "t"))
    return dispatcher


def rounds(
    dispatcher: Dispatcher, kinds: dict[str, str], first: int, now_ns: int
) -> dict[str, Actions]:
    """Three rounds of each robot, at five actions per second, and its last answer."""
    got = {}
    for round_ in range(first, first + 3):
        for robot, kind in kinds.items():
            session = dispatcher.sessions[robot]
            ran = Execution(
                round=round_ - 1,
                started=round_ > 1,
                started_ago_ns=session.horizon * PERIOD,
                executed=session.horizon,
                period_ns=PERIOD,
            )
            asked = RequestId(robot, "s", "t", round_, 0)
            state = Observation(np.zeros(3, np.float32))
            request = Request(asked, "open the door", kind=kind, execution=ran, observation=state)
            (submit,) = dispatcher.request(now_ns, request)
            assert isinstance(submit, Submit)
            chunk = InferResult(np.zeros((20, 2), np.float32), np.ones((4, 20, 2), np.float32))
            now_ns += 400 * MS
            (answer,) = dispatcher.batch_done(now_ns, "edge", submit.batch, [chunk], 0.2)
            assert isinstance(answer, Answer)
            assert isinstance(answer.body, Actions)
            got[robot] = answer.body
    return got


def lengths(answers: dict[str, Actions]) -> dict[str, int]:
    return {robot: len(body.actions) for robot, body in answers.items()}


BUSY = {"a": "door", "b": "door", "c": "door", "d": "door", "e": "peg"}
"""Each asks for 1.4 rounds per second: 5 actions less those that pass until the answer. All five
ask for 6.8 of 4.5; with 10 actions for the doors it is 3.8."""


def test_horizons_are_the_policys_while_the_engine_does_what_is_asked_for() -> None:
    dispatcher, kinds = serving("ab"), {"a": "door", "b": "peg"}
    rounds(dispatcher, kinds, 1, 0)
    assert lengths(rounds(dispatcher, kinds, 4, 10 * SECOND)) == {"a": 5, "b": 5}


def test_in_overload_they_grow_where_that_costs_no_success_and_shrink_when_it_is_over() -> None:
    dispatcher = serving("abcde")
    rounds(dispatcher, BUSY, 1, 0)
    long = rounds(dispatcher, BUSY, 4, 10 * SECOND)
    assert lengths(long) == {"a": 10, "b": 10, "c": 10, "d": 10, "e": 5}
    assert long["a"].horizon_reason == "static 5 of 20; 10 for the most successes at this load"
    assert long["a"].confidence.shape == (10,)
    for robot in "bcde":
        dispatcher.announce(60 * SECOND, Announcement(robot, "s", ""))
    assert lengths(rounds(dispatcher, {"a": "door"}, 7, 60 * SECOND)) == {"a": 5}


def test_a_task_is_known_by_its_kind_or_its_instruction() -> None:
    dispatcher, kinds = serving("abcde"), BUSY | {"a": "a door of ours"}
    rounds(dispatcher, kinds, 1, 0)
    assert lengths(rounds(dispatcher, kinds, 4, 10 * SECOND))["a"] == 10


def test_it_can_be_switched_off_while_robots_are_served() -> None:
    dispatcher = serving("abcde")
    rounds(dispatcher, BUSY, 1, 0)
    dispatcher.change(replace(OPTIONS, load_horizon=False))
    assert set(lengths(rounds(dispatcher, BUSY, 4, 60 * SECOND)).values()) == {5}


def test_it_needs_a_calibration_of_the_policy_that_is_served() -> None:
    with pytest.raises(ConfigError, match="load_horizon needs a calibration"):
        replace(OPTIONS, calibration=None)
    other = replace(CALIBRATION, policy_id="other")
    with pytest.raises(ConfigError, match="calibrated for policy 'other'"):
        serving("a", replace(OPTIONS, calibration=other))
