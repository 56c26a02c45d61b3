"""The serving side as a state machine: events in, answers and batches out."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hostile_pictures import many_scans
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_engine import SMALL_ENGINE

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Observation,
    Refetch,
    Refusal,
    Request,
    RequestId,
)
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.horizons.policies import BUILTIN
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.sessions import LEASE_NS
from kairos_ros.transport.messages import InferFailure, InferResult

MS = 1_000_000
PERIOD = 33_333_333
STATE = np.zeros(3, np.float32)
ENGINE = replace(
    SMALL_ENGINE,
    instructions=("open the door", "close it"),
    warmup=((1, 0.1), (4, 0.13)),
)


def serving(**options):
    dispatcher = Dispatcher(
        ServingOptions(
            **{"scheduling": parse_scheduling("wait_ratio"), "horizon_policy": "static:10"}
            | options
        )
    )
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", ENGINE, warmup_profile(ENGINE))
    for robot in "abcdef":
        dispatcher.announce(0, Announcement(robot, f"s-{robot}", "t1"))
    return dispatcher


def ask(
    robot="a", round=1, *, task="t1", session="", attempt=0, state=STATE, images=None, **fields
):
    asked = RequestId(robot, session or f"s-{robot}", task, round, attempt)
    observation = Observation(state, images or {})
    defaults = {"instruction": "open the door", "kind": "door", "observation": observation}
    return Request(asked, **defaults | fields)


def result(value=0.0):
    return InferResult(np.full((20, 2), value, np.float32), np.ones((4, 20, 2), np.float32))


def done(dispatcher, now_ns, submit, outcomes=None):
    outcomes = outcomes or [result(i) for i in range(len(submit.requests))]
    return dispatcher.batch_done(now_ns, submit.engine, submit.batch, outcomes, 0.1)


def refusal(effects):
    (effect,) = effects
    assert isinstance(effect, Answer)
    assert isinstance(effect.body, Refusal)
    return effect.body


def test_an_idle_engine_is_given_a_request_at_once():
    (submit,) = serving().request(0, ask())
    assert isinstance(submit, Submit)
    assert [r.robot for r in submit.requests] == ["a"]


def test_requests_that_wait_are_served_as_one_batch_up_to_saturation():
    dispatcher = serving(stale_after_ns=0)
    (first,) = dispatcher.request(0, ask("a"))
    for robot in "bcdef":
        assert dispatcher.request(MS, ask(robot)) == []
    effects = done(dispatcher, 100 * MS, first)
    submit = next(e for e in effects if isinstance(e, Submit))
    assert [r.robot for r in submit.requests] == ["b", "c", "d", "e"]
    assert list(dispatcher.pending) == ["f/s-f/t1"]


def test_actions_go_to_the_robot_task_and_round_that_asked_and_are_trimmed():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a", seed=7))
    (reply,) = done(dispatcher, 100 * MS, first, [result(5.0)])
    assert reply.id == RequestId("a", "s-a", "t1", 1, 0)
    assert isinstance(reply.body, Actions)
    assert reply.body.actions.shape == (10, 2)
    assert (reply.body.actions == 5.0).all()
    assert reply.body.horizon_reason == "static 10 of 20"
    assert reply.body.server_ns / 1e9 == pytest.approx(0.1)
    assert "1st of 1" in reply.body.reason


def test_the_horizon_policy_of_the_request_wins_over_the_default():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask(horizon_policy="static:3"))
    (reply,) = done(dispatcher, MS, submit)
    assert len(reply.body.actions) == 3


def test_a_policy_without_steps_is_served_by_horizons_that_need_none():
    at_once = replace(ENGINE, steps=0)
    dispatcher = serving(horizon_policy="tail_agreement")
    dispatcher.engine_down(0, "edge", "another policy comes")
    dispatcher.engine_ready(0, "edge", at_once, warmup_profile(at_once))
    refused = refusal(dispatcher.request(0, ask(horizon_policy="confidence:t=0.2")))
    assert refused.code is RefusalCode.BAD_HORIZON_POLICY
    assert "p-1 makes 0; use static:H, tail_agreement or calibrated" in refused.reason
    (submit,) = dispatcher.request(MS, ask(round=2))
    chunk = InferResult(np.ones((20, 2), np.float32), np.zeros((0, 20, 2), np.float32))
    (reply,) = done(dispatcher, 100 * MS, submit, [chunk])
    assert isinstance(reply.body, Actions)


def test_an_engine_whose_policy_the_default_horizon_cannot_judge_is_refused():
    with pytest.raises(ConfigError, match="'confidence' judges by at least 2 sampler steps"):
        serving(horizon_policy="confidence").engine_ready(
            0, "edge", replace(ENGINE, steps=1), warmup_profile(ENGINE)
        )


def test_the_tail_of_the_previous_chunk_reaches_the_horizon_policy():
    dispatcher = serving(horizon_policy="tail_agreement:t=0.5,h_min=2")
    (submit,) = dispatcher.request(0, ask(round=1))
    (reply,) = done(dispatcher, 100 * MS, submit, [result(1.0)])
    assert len(reply.body.actions) == 2  # nothing to compare with
    running = Execution(
        1, True, started_ago_ns=100 * MS, remaining=1, chunk_index=6, period_ns=PERIOD
    )
    (submit,) = dispatcher.request(200 * MS, ask(round=2, execution=running))
    (reply,) = done(dispatcher, 300 * MS, submit, [result(1.0)])
    assert len(reply.body.actions) == 14  # agrees with all that was left after index 6


def test_the_first_round_of_a_task_gets_the_first_horizon_of_its_plan():
    plan = HorizonPlan((7, 11), after=3)
    calibration = HorizonCalibration("p-1", 20, {("door",): plan}, HorizonPlan((), 1))
    dispatcher = serving(horizon_policy="calibrated", calibration=calibration)
    lengths = []
    for round_ in (1, 2, 3):
        (submit,) = dispatcher.request(round_ * 200 * MS, ask(round=round_))
        (reply,) = done(dispatcher, round_ * 200 * MS + MS, submit, [result()])
        lengths.append(len(reply.body.actions))
    assert lengths == [7, 11, 3]


def test_a_request_may_ask_for_the_tuned_static_horizon_of_its_task():
    calibration = HorizonCalibration("p-1", 20, {}, HorizonPlan((), 1))
    tuned = replace(calibration, static=StaticHorizons({("open the door",): 7}, general=4))
    asked = ask(horizon_policy="static:tuned")
    dispatcher = serving(calibration=tuned)
    (submit,) = dispatcher.request(200 * MS, asked)
    (reply,) = done(dispatcher, 201 * MS, submit, [result()])
    assert len(reply.body.actions) == 7
    assert reply.body.horizon_reason == "static 7, tuned"

    (reply,) = serving(calibration=calibration).request(200 * MS, asked)
    assert reply.body.code is RefusalCode.BAD_HORIZON_POLICY
    assert "run 'kairos calibrate' (--static-only" in reply.body.reason


def test_a_horizon_plugin_that_fails_refuses_its_request_and_no_other(monkeypatch):
    def broken(updates, chunk, context):
        raise RuntimeError("out of order")

    monkeypatch.setitem(BUILTIN, "broken", lambda: broken)
    monkeypatch.setitem(BUILTIN, "unmade", lambda: 1 / 0)
    dispatcher = serving()
    (submit,) = dispatcher.request(200 * MS, ask(horizon_policy="broken"))
    (reply,) = done(dispatcher, 201 * MS, submit, [result()])
    assert reply.body.code is RefusalCode.BAD_HORIZON_POLICY
    assert reply.body.reason == "horizon policy 'broken': RuntimeError: out of order"
    (reply,) = dispatcher.request(202 * MS, ask(horizon_policy="unmade"))
    assert reply.body.code is RefusalCode.BAD_HORIZON_POLICY
    (submit,) = dispatcher.request(203 * MS, ask())
    (reply,) = done(dispatcher, 204 * MS, submit, [result()])
    assert isinstance(reply.body, Actions)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (ask("nobody"), RefusalCode.UNKNOWN_ROBOT),
        (ask(session="another"), RefusalCode.DUPLICATE_ROBOT),
        (ask(state=np.zeros(4, np.float32)), RefusalCode.BAD_STATE),
        (ask(state=np.array([0, np.nan, 0], np.float32)), RefusalCode.NOT_FINITE),
        (ask(instruction="make tea"), RefusalCode.UNKNOWN_INSTRUCTION),
        (ask(horizon_policy="hope"), RefusalCode.BAD_HORIZON_POLICY),
        (ask(images={"cam": b"x" * 9_000_000}), RefusalCode.TOO_LARGE),
        (ask(round=0), RefusalCode.MALFORMED),
        (ask(execution=Execution(round=1, started=True)), RefusalCode.MALFORMED),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_its_code_and_hurts_nobody(query, code):
    dispatcher = serving()
    assert refusal(dispatcher.request(0, query)).code is code
    assert dispatcher.counters[f"refused_{code.name.lower()}"] == 1
    assert isinstance(dispatcher.request(0, ask("b"))[0], Submit)


def test_a_picture_that_would_hold_the_engine_up_is_refused_before_a_batch_is_made():
    sees = replace(ENGINE, images={"observation.images.top": (64, 64)})
    dispatcher = Dispatcher(ServingOptions(parse_scheduling("fifo"), "static:10"))
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", sees, warmup_profile(sees))
    dispatcher.announce(0, Announcement("a", "s-a", "t1"))
    refused = refusal(dispatcher.request(0, ask(images={"top": many_scans(658_000)})))
    assert refused.code is RefusalCode.BAD_IMAGE
    assert "scans, at most" in refused.reason
    assert len(dispatcher.request(0, ask(round=2, images={"top": many_scans(10)}))) == 1


def test_rounds_only_move_forward():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask(round=5))
    done(dispatcher, 100 * MS, submit)
    assert refusal(dispatcher.request(0, ask(round=4))).code is RefusalCode.OLD_ROUND
    assert refusal(dispatcher.request(0, ask(round=5))).code is RefusalCode.REPEATED_ROUND
    assert isinstance(dispatcher.request(0, ask(round=5, attempt=1))[0], Submit)


def test_a_request_after_the_end_of_its_task_is_refused():
    dispatcher = serving()
    dispatcher.announce(MS, Announcement("a", "s-a", ""))
    assert refusal(dispatcher.request(2 * MS, ask())).code is RefusalCode.TASK_ENDED


def test_the_end_of_a_task_frees_its_queue_place_and_drops_its_result():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    dispatcher.announce(MS, Announcement("a", "s-a", ""))
    dispatcher.announce(MS, Announcement("b", "s-b", ""))
    assert done(dispatcher, 100 * MS, submit) == []
    assert dispatcher.counters["late_result"] == 1
    assert not dispatcher.pending


def test_a_robot_id_belongs_to_its_first_session_until_that_falls_silent():
    dispatcher = serving()
    assert dispatcher.announce(MS, Announcement("a", "intruder", "t9")) == (None, None)
    refused = refusal(dispatcher.request(MS, ask("a", session="intruder")))
    assert refused.code is RefusalCode.DUPLICATE_ROBOT
    assert refused.retry_after_ns == pytest.approx(LEASE_NS, abs=100 * MS)
    ended, began = dispatcher.announce(LEASE_NS + MS, Announcement("a", "intruder", "t9"))
    assert ended.session == "s-a"
    assert began.session == "intruder"


def test_a_leaving_robot_frees_its_id_at_once():
    dispatcher = serving()
    dispatcher.announce(MS, Announcement("a", "s-a", "", leaving=True))
    _, began = dispatcher.announce(2 * MS, Announcement("a", "s-a2", ""))
    assert began.session == "s-a2"


def test_a_time_in_which_nobody_could_be_heard_is_no_silence():
    dispatcher = serving()
    dispatcher.stood_still(2 * LEASE_NS)
    dispatcher.tick(2 * LEASE_NS)
    assert dispatcher.counters["robot_lost"] == 0
    dispatcher.tick(3 * LEASE_NS)
    assert dispatcher.counters["robot_lost"] == 6


def test_a_silent_robot_is_forgotten_with_its_requests():
    dispatcher = serving()
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    dispatcher.tick(LEASE_NS)
    assert not dispatcher.sessions
    assert not dispatcher.pending
    assert dispatcher.counters["robot_lost"] == 6


def test_a_stale_observation_is_fetched_again_while_the_batch_before_is_computed():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    assert dispatcher.tick(50 * MS) == []
    assert dispatcher.wakeup_ns(50 * MS) == 70 * MS
    (asked,) = dispatcher.tick(71 * MS)
    assert isinstance(asked.body, Refetch)
    fresh = ask("b", attempt=1, state=np.ones(3, np.float32))
    assert dispatcher.request(75 * MS, fresh) == []
    effects = done(dispatcher, 100 * MS, first)
    submit = next(e for e in effects if isinstance(e, Submit))
    assert [(r.robot, r.attempt, r.state[0]) for r in submit.requests] == [("b", 1, 1.0)]


def test_a_client_whose_execution_is_inferred_is_not_asked_for_a_newer_observation():
    dispatcher = serving()
    inferred = Execution(inferred=True)
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b", execution=inferred))
    assert dispatcher.tick(71 * MS) == []
    effects = done(dispatcher, 100 * MS, first)
    submit = next(e for e in effects if isinstance(e, Submit))
    assert [r.robot for r in submit.requests] == ["b"]
    told = dispatcher.reason(dispatcher.sessions["b"])
    assert told.endswith(", execution inferred from its request times")


def test_an_observation_that_was_not_fetched_in_time_is_used_as_it_is():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    dispatcher.tick(71 * MS)
    effects = done(dispatcher, 101 * MS, first)
    submit = next(e for e in effects if isinstance(e, Submit))
    assert [(r.robot, r.attempt) for r in submit.requests] == [("b", 0)]


def test_a_batch_that_runs_late_does_not_make_the_next_one_wait_for_observations_again():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    (refetch,) = dispatcher.tick(80 * MS)
    assert isinstance(refetch.body, Refetch)
    dispatcher.request(85 * MS, ask("b", attempt=1))
    submit = next(e for e in done(dispatcher, 400 * MS, first) if isinstance(e, Submit))
    assert [(r.robot, r.attempt) for r in submit.requests] == [("b", 1)]


def test_an_observation_fetched_for_a_batch_that_left_without_it_is_stale_again():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    dispatcher.request(MS, ask("c"))
    assert len(dispatcher.tick(80 * MS)) == 2
    dispatcher.request(85 * MS, ask("c", attempt=1))
    second = next(e for e in done(dispatcher, 90 * MS, first) if isinstance(e, Submit))
    assert [r.robot for r in second.requests] == ["c"]
    dispatcher.request(101 * MS, ask("b", attempt=1))
    effects = done(dispatcher, 400 * MS, second)
    assert [(e.id.robot, e.body) for e in effects if isinstance(e, Answer)][-1] == ("b", Refetch())


def test_what_was_stale_when_a_batch_left_is_fetched_for_the_one_after_it_and_once():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    dispatcher.request(60 * MS, ask("c"))
    _, refetch, second = done(dispatcher, 100 * MS, first)
    assert (refetch.id.robot, refetch.body) == ("b", Refetch())
    assert [r.robot for r in second.requests] == ["c"]
    dispatcher.request(120 * MS, ask("b", attempt=1))
    assert dispatcher.tick(171 * MS) == []
    effects = done(dispatcher, 400 * MS, second)
    submit = next(e for e in effects if isinstance(e, Submit))
    assert [(r.robot, r.attempt) for r in submit.requests] == [("b", 1)]
    assert not any(isinstance(e, Answer) and isinstance(e.body, Refetch) for e in effects)


def test_whoever_waits_for_a_newer_observation_is_passed_over_like_the_others():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    dispatcher.request(95 * MS, ask("c"))
    dispatcher.request(96 * MS, ask("d"))
    effects = done(dispatcher, 100 * MS, first)
    (submit,) = (e for e in effects if isinstance(e, Submit))
    assert [r.robot for r in submit.requests] == ["c", "d"]
    tasks = dispatcher.tasks
    assert tasks.skipped[tasks.row("b/s-b/t1")] == 1


def test_a_fresh_observation_that_comes_too_late_gets_no_second_chunk():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask("a"))
    assert dispatcher.request(50 * MS, ask("a", attempt=1)) == []
    (reply,) = done(dispatcher, 100 * MS, submit)
    assert reply.id.attempt == 0


def test_a_fresh_observation_that_comes_after_its_rounds_chunk_is_not_computed():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    (refetch,) = dispatcher.tick(71 * MS)
    assert (refetch.id.robot, refetch.id.attempt) == ("b", 0)
    # it takes longer to come than the engine needs for the batch that left without it
    second = next(e for e in done(dispatcher, 101 * MS, first) if isinstance(e, Submit))
    (chunk,) = done(dispatcher, 201 * MS, second)
    assert isinstance(chunk.body, Actions)
    assert dispatcher.request(210 * MS, ask("b", attempt=1)) == []
    assert dispatcher.counters["late_refresh"] == 1
    assert not dispatcher.pending
    # whoever heard nothing of that chunk asks again after a while, and is served
    (again,) = dispatcher.request(2000 * MS, ask("b", attempt=2))
    assert [(r.robot, r.attempt) for r in again.requests] == [("b", 2)]


def test_a_chunk_that_was_lost_on_its_way_is_computed_again():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    done(dispatcher, 100 * MS, first)
    (again,) = dispatcher.request(2000 * MS, ask("a", attempt=1))
    assert [(r.robot, r.attempt) for r in again.requests] == [("a", 1)]


def test_the_first_round_of_the_next_task_is_no_refresh_of_the_last_one_in_the_engine():
    dispatcher = serving(stale_after_ns=0)
    (old,) = dispatcher.request(0, ask("a"))
    assert dispatcher.request(50 * MS, ask("a", task="t2")) == []
    (new,) = done(dispatcher, 100 * MS, old)
    (reply,) = done(dispatcher, 200 * MS, new)
    assert (reply.id.task, reply.id.round) == ("t2", 1)
    assert isinstance(reply.body, Actions)


def test_requests_of_a_dead_engine_are_queued_again_and_travel_alone():
    dispatcher = serving(stale_after_ns=0)
    (first,) = dispatcher.request(0, ask("a"))
    for robot in "bc":
        dispatcher.request(0, ask(robot))
    effects = done(dispatcher, 100 * MS, first)
    batch = next(e for e in effects if isinstance(e, Submit))
    assert len(batch.requests) == 2
    assert dispatcher.engine_down(150 * MS, "edge", "killed") == []
    assert len(dispatcher.pending) == 2
    (retry,) = dispatcher.engine_ready(900 * MS, "edge", ENGINE, warmup_profile(ENGINE))
    assert len(retry.requests) == 1
    effects = done(dispatcher, 1000 * MS, retry)
    assert [len(e.requests) for e in effects if isinstance(e, Submit)] == [1]


@pytest.mark.parametrize("policy", ["fifo", "wait_ratio", "oldest_task", "admit"])
def test_requests_of_a_dead_engine_hold_up_neither_themselves_nor_robots_that_keep_asking(policy):
    dispatcher = serving(stale_after_ns=0, scheduling=parse_scheduling(policy))
    (first,) = dispatcher.request(0, ask("a"))
    for robot in "bcd":
        dispatcher.request(0, ask(robot))
    effects = done(dispatcher, 100 * MS, first)
    rounds = dict.fromkeys("abcdef", 1)
    for robot in "aef":
        rounds[robot] += 1
        dispatcher.request(110 * MS, ask(robot, rounds[robot]))
    dispatcher.engine_down(150 * MS, "edge", "killed")
    now_ns = 900 * MS
    effects = dispatcher.engine_ready(now_ns, "edge", ENGINE, warmup_profile(ENGINE))
    batches = []
    for _ in range(12):
        (submit,) = [effect for effect in effects if isinstance(effect, Submit)]
        batches.append("".join(sorted(request.robot for request in submit.requests)))
        now_ns += 100 * MS
        effects = done(dispatcher, now_ns, submit)
        for robot in batches[-1]:
            rounds[robot] += 1
            dispatcher.request(now_ns, ask(robot, rounds[robot]))
    assert {"b", "c", "d"} <= set(batches[:8])  # each alone, and soon
    assert sum(map(len, batches)) >= 12 + 3 * 2  # a few batches of one, no more


def test_an_engine_that_dies_is_followed_by_one_that_gets_the_newest_observation():
    dispatcher = serving()
    dispatcher.request(0, ask("a"))
    new = np.ones(3, np.float32)
    assert dispatcher.request(2000 * MS, ask("a", attempt=1, state=new)) == []
    assert dispatcher.request(2001 * MS, ask("a", attempt=2, state=np.ones(9, np.float32))) == []
    dispatcher.engine_down(2010 * MS, "edge", "hung")
    (submit,) = dispatcher.engine_ready(2030 * MS, "edge", ENGINE, warmup_profile(ENGINE))
    (request,) = submit.requests
    assert (request.attempt, request.state.tolist()) == (1, new.tolist())
    (reply,) = done(dispatcher, 2130 * MS, submit)
    assert reply.id.attempt == 1
    assert reply.body.server_ns / 1e9 == pytest.approx(0.13)  # of this attempt


def test_a_refusal_answers_the_newest_attempt_and_a_chunk_the_one_that_was_computed():
    failure = InferFailure(RefusalCode.BAD_IMAGE, "torn")
    for outcome, attempt in ((failure, 1), (result(), 0)):
        dispatcher = serving()
        (submit,) = dispatcher.request(0, ask("a"))
        dispatcher.request(50 * MS, ask("a", attempt=1))
        (reply,) = done(dispatcher, 100 * MS, submit, [outcome])
        assert reply.id.attempt == attempt


def test_a_request_that_kills_two_engines_is_refused():
    dispatcher = serving(stale_after_ns=0)
    dispatcher.request(0, ask("a"))
    dispatcher.engine_down(10 * MS, "edge", "killed")
    dispatcher.engine_ready(20 * MS, "edge", ENGINE, warmup_profile(ENGINE))
    refused = refusal(dispatcher.engine_down(30 * MS, "edge", "killed"))
    assert refused.code is RefusalCode.ENGINE_FAILED
    assert refused.retry_after_ns > 0


def test_a_late_answer_of_a_batch_that_was_given_up_is_dropped():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask("a"))
    dispatcher.engine_down(10 * MS, "edge", "hung")
    assert done(dispatcher, 20 * MS, submit) == []
    assert dispatcher.counters["late_batch"] == 1


def test_a_request_past_its_deadline_is_refused_with_the_reason():
    dispatcher = serving(stale_after_ns=0)
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b", deadline_ns=50 * MS))
    assert refusal(dispatcher.tick(60 * MS)).code is RefusalCode.DEADLINE
    dispatcher.request(61 * MS, ask("c", deadline_ns=50 * MS))
    dispatcher.engine_down(62 * MS, "edge", "killed")
    codes = {e.body.code for e in dispatcher.tick(200 * MS) if isinstance(e.body, Refusal)}
    assert codes == {RefusalCode.ENGINE_DOWN}


def test_one_bad_observation_is_refused_alone():
    dispatcher = serving(stale_after_ns=0)
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    dispatcher.request(0, ask("c"))
    effects = done(dispatcher, 100 * MS, first)
    batch = next(e for e in effects if isinstance(e, Submit))
    bad = InferFailure(RefusalCode.BAD_IMAGE, "does not decode")
    by_robot = {e.id.robot: e.body for e in done(dispatcher, 200 * MS, batch, [bad, result()])}
    assert by_robot["b"].code is RefusalCode.BAD_IMAGE
    assert isinstance(by_robot["c"], Actions)


def test_an_engine_with_another_policy_is_refused():
    dispatcher = serving()
    dispatcher.add_engine("cloud", "cloud")
    other = replace(ENGINE, policy_id="p-2")
    with pytest.raises(ConfigError, match="p-2"):
        dispatcher.engine_ready(0, "cloud", other, warmup_profile(other))


def test_waits_that_robots_report_raise_their_wait_ratio():
    dispatcher = serving(stale_after_ns=0)
    (submit,) = dispatcher.request(0, ask("a", round=1))
    done(dispatcher, 100 * MS, submit)
    ran = Execution(  # executed 0.1..0.5 s, idle since
        1, True, started_ago_ns=900 * MS, ended_ago_ns=500 * MS, chunk_index=10, period_ns=PERIOD
    )
    (submit,) = dispatcher.request(1000 * MS, ask("a", round=2, execution=ran))
    done(dispatcher, 1100 * MS, submit)
    ran = Execution(  # E_2 began at 1.1 s: E_1 ended 0.6 s before
        2, True, started_ago_ns=400 * MS, remaining=1, chunk_index=9, period_ns=PERIOD
    )
    dispatcher.request(1500 * MS, ask("a", round=3, execution=ran))
    assert float(dispatcher.tasks.wait_ratio("a/s-a/t1", 1500 * MS)) == pytest.approx(0.6 / 1.5)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "done", "down", "up", "tick", "end", "refresh"]),
        st.sampled_from("abcdef"),
        st.integers(1, 300),
    ),
    max_size=80,
)


# A newer observation for a running request while the queue is full.
FULL_QUEUE = [*(("ask", robot, 1) for robot in "dabce"), ("refresh", "d", 1)]


@settings(max_examples=150)
@example(FULL_QUEUE, "fifo")
@given(EVENTS, st.sampled_from(["fifo", "wait_ratio", "oldest_task", "admit", "least_service"]))
def test_every_request_is_answered_exactly_once_whatever_happens(events, policy):
    """A robot asks for its next round once the last is answered; engines die and return."""
    dispatcher = serving(scheduling=parse_scheduling(policy), max_queue=4)
    now, rounds, attempts = 0, dict.fromkeys("abcdef", 0), dict.fromkeys("abcdef", 0)
    waiting: dict[str, int] = {}
    batches: list[Submit] = []

    def carry_out(effects):
        for effect in effects:
            if isinstance(effect, Submit):
                batches.append(effect)
            elif not isinstance(effect.body, Refetch):
                assert waiting.pop(effect.id.robot) == effect.id.round

    for what, robot, step in events:
        now += step * MS
        for r in "abcdef":
            dispatcher.announce(now, Announcement(r, f"s-{r}", "t1"))
        if what == "ask" and robot not in waiting:
            rounds[robot] += 1
            attempts[robot] = 0
            waiting[robot] = rounds[robot]
            carry_out(dispatcher.request(now, ask(robot, rounds[robot])))
        elif what == "refresh" and robot in waiting:
            attempts[robot] += 1
            again = ask(robot, rounds[robot], attempt=attempts[robot])
            carry_out(dispatcher.request(now, again))
        elif what == "done" and batches:
            carry_out(done(dispatcher, now, batches.pop(0)))
        elif what == "down":
            batches.clear()
            carry_out(dispatcher.engine_down(now, "edge", "killed"))
        elif what == "up":
            batches.clear()
            if dispatcher.engines["edge"].state == "down":
                carry_out(dispatcher.engine_ready(now, "edge", ENGINE, warmup_profile(ENGINE)))
        else:
            carry_out(dispatcher.tick(now))
        known = {e.request.id.robot for e in dispatcher.pending.values()}
        known |= {e.request.id.robot for e in dispatcher.in_engines()}
        assert known == set(waiting)


def test_only_the_next_batch_is_asked_for_newer_observations():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    for robot in "bcdef":
        dispatcher.request(MS, ask(robot))
    asked = [e.id.robot for e in dispatcher.tick(75 * MS) if isinstance(e.body, Refetch)]
    assert asked == ["b", "c", "d", "e"]  # one batch; f would be stale again when it is its turn
    for robot in asked:
        dispatcher.request(80 * MS, ask(robot, attempt=1))
    effects = done(dispatcher, 100 * MS, first)
    (submit,) = (e for e in effects if isinstance(e, Submit))
    assert [r.robot for r in submit.requests] == asked
    assert not any(isinstance(e, Answer) and isinstance(e.body, Refetch) for e in effects)


def wakeup_by_walking(dispatcher, now_ns):
    """What `wakeup_ns` says, found by looking at every request."""
    if not dispatcher.pending:
        return None
    entries = dispatcher.pending.values()
    times = [e.deadline_ns for e in entries]
    times += [e.hold_until_ns for e in entries if e.hold_until_ns > now_ns]
    for slot in dispatcher.engines.values():
        if slot.running and not slot.running.prefetched:
            times.append(slot.prefetch_ns(now_ns))
    return min(times)


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 120),  # ms since the step before
            st.sampled_from(["ask", "ask", "ask", "done", "failed", "tick"]),
            st.sampled_from("abcdef"),
            st.sampled_from([0, 50 * MS, 300 * MS]),  # deadline
        ),
        max_size=60,
    )
)
@settings(max_examples=100)
def test_the_next_wakeup_is_that_of_a_walk_over_all_requests(steps):
    dispatcher, now, submits = serving(), 0, []
    rounds = dict.fromkeys("abcdef", 0)
    for after, what, robot, deadline in steps:
        now += after * MS
        effects = []
        if what == "ask":
            again = any(e.request.id.robot == robot for e in dispatcher.pending.values())
            rounds[robot] += not again
            asked = ask(robot, rounds[robot], attempt=after if again else 0, deadline_ns=deadline)
            effects = dispatcher.request(now, asked)
        elif what == "tick":
            effects = dispatcher.tick(now)
        elif submits:
            submit = submits.pop(0)
            if what == "done":
                effects = done(dispatcher, now, submit)
            else:
                effects = dispatcher.batch_failed(now, submit.engine, submit.batch, "oops")
        submits += [e for e in effects if isinstance(e, Submit)]
        assert dispatcher.wakeup_ns(now) == wakeup_by_walking(dispatcher, now)


MOTION = replace(ENGINE, observations=3, images={"observation.images.top": (8, 8)})
PICTURE = {"top": bytes.fromhex("ffd8ffd9")}


def moving():
    """A dispatcher whose policy reads three observations."""
    dispatcher = Dispatcher(ServingOptions(parse_scheduling("wait_ratio"), "static:10"))
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", MOTION, warmup_profile(MOTION))
    for robot in "ab":
        dispatcher.announce(0, Announcement(robot, f"s-{robot}", "t1"))
    return dispatcher


def looks(*states, images=None):
    return tuple(Observation(np.float32(state), images or PICTURE) for state in states)


def test_earlier_observations_reach_the_engine_in_their_order_by_the_policys_names():
    request = ask(images=PICTURE, earlier=looks([1, 1, 1], [2, 2, 2]))
    (submit,) = moving().request(0, request)
    (sent,) = submit.requests
    assert [one.state.tolist() for one in sent.observations] == [[1] * 3, [2] * 3, [0] * 3]
    assert all(one.images.keys() == MOTION.images.keys() for one in sent.observations)


def test_a_request_with_fewer_observations_than_are_read_is_served_and_counted():
    dispatcher = moving()
    (submit,) = dispatcher.request(0, ask(images=PICTURE, earlier=looks([1, 1, 1])))
    assert len(submit.requests[0].observations) == 2  # the engine repeats the oldest
    assert dispatcher.counters["repeated_observation"] == 1
    assert dispatcher.sessions["a"].repeated == 1


@pytest.mark.parametrize(
    ("earlier", "code", "said"),
    [
        (looks(*[[0, 0, 0]] * 3), RefusalCode.MALFORMED, "4 observations, p reads 3"),
        (
            looks([0, 0], [0, 0, 0]),
            RefusalCode.BAD_STATE,
            "state of 2 control periods earlier has 2 values, p reads 3",
        ),
        (
            looks([0, 0, 0], [0, np.nan, 0]),
            RefusalCode.NOT_FINITE,
            r"state of 1 control period earlier\[1\] is nan",
        ),
        (
            looks([0, 0, 0], images={"top": many_scans(658_000, 8, 8)}),
            RefusalCode.BAD_IMAGE,
            "image top of 1 control period earlier: .* scans",
        ),
    ],
    ids=["too many", "shape", "NaN", "picture"],
)
def test_a_wrong_earlier_observation_is_refused_to_its_robot_only(earlier, code, said):
    dispatcher = moving()
    refused = refusal(dispatcher.request(0, ask(images=PICTURE, earlier=earlier)))
    assert refused.code is code
    assert re.search(said, refused.reason)
    assert dispatcher.counters[f"refused_{code.name.lower()}"] == 1
    full = looks([0, 0, 0], [0, 0, 0])
    (submit,) = dispatcher.request(0, ask("b", images=PICTURE, earlier=full))
    assert [r.robot for r in submit.requests] == ["b"]


def test_earlier_observations_count_towards_the_largest_request():
    dispatcher = moving()
    large = {"top": bytes(3_000_000)}
    request = ask(images=large, earlier=looks([0, 0, 0], [0, 0, 0], images=large))
    assert refusal(dispatcher.request(0, request)).code is RefusalCode.TOO_LARGE


def test_options_change_while_requests_wait_and_none_is_lost():
    dispatcher = serving(horizon_policy="static:10")
    first = dispatcher.request(0, ask("a"))
    (submit,) = first
    assert dispatcher.request(1, ask("b")) == []
    dispatcher.change(
        replace(
            dispatcher.options,
            scheduling=parse_scheduling("fifo"),
            horizon_policy="static:5",
            max_queue=1,
        )
    )
    assert refusal(dispatcher.request(2, ask("c"))).code is RefusalCode.OVERLOADED
    answer, *_ = (one for one in done(dispatcher, 200 * MS, submit) if isinstance(one, Answer))
    assert isinstance(answer.body, Actions)
    assert len(answer.body.actions) == 10, "asked for before the change"
    assert [key.split("/")[0] for key in dispatcher.pending] == ["b"], "it waits for its picture"


def test_options_that_the_engines_cannot_have_change_nothing():
    dispatcher = serving()
    before = dispatcher.options
    for wrong, said in (
        ({"scheduling": parse_scheduling("wait_ratio:wait=unified")}, "counts the waits"),
        ({"horizon_policy": "static:0"}, "static"),
    ):
        with pytest.raises(ConfigError, match=said):
            dispatcher.change(replace(before, **wrong))
    assert dispatcher.options is before
