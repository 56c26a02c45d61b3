"""The serving side as a state machine: events in, answers and batches out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_engine import SMALL_ENGINE

from kairos_ros.core.calibration import HorizonCalibration, HorizonPlan
from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.scheduling import parse_scheduling
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.effects import Submit
from kairos_ros.serving.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Query,
    Refetch,
    Refusal,
)
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.profiles import warmup_profile
from kairos_ros.serving.sessions import LEASE_NS
from kairos_ros.transport.messages import InferFailure, InferResult

MS = 1_000_000
ENGINE = replace(
    SMALL_ENGINE,
    instructions=("open the door", "close it"),
    warmup=((1, 0.1), (4, 0.13)),
)


def serving(**options):
    dispatcher = Dispatcher(
        ServingOptions(
            **{"scheduling": parse_scheduling("wait_ratio"), "horizon": "static:10"} | options
        )
    )
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", ENGINE, warmup_profile(ENGINE))
    for robot in "abcdef":
        dispatcher.announce(0, Announcement(robot, f"s-{robot}", "t1"))
    return dispatcher


def ask(robot="a", round=1, **fields):
    defaults = {
        "robot": robot,
        "session": f"s-{robot}",
        "task": "t1",
        "round": round,
        "attempt": 0,
        "instruction": "open the door",
        "kind": "door",
        "state": np.zeros(3, np.float32),
    }
    return Query(**defaults | fields)


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
    assert (reply.robot, reply.session, reply.task, reply.round) == ("a", "s-a", "t1", 1)
    assert isinstance(reply.body, Actions)
    assert reply.body.actions.shape == (10, 2)
    assert (reply.body.actions == 5.0).all()
    assert reply.body.horizon_reason == "static 10 of 20"
    assert reply.body.server_s == pytest.approx(0.1)
    assert "1st of 1" in reply.body.reason


def test_the_horizon_policy_of_the_request_wins_over_the_default():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask(horizon="static:3"))
    (reply,) = done(dispatcher, MS, submit)
    assert len(reply.body.actions) == 3


def test_the_tail_of_the_previous_chunk_reaches_the_horizon_policy():
    dispatcher = serving(horizon="tail_agreement:t=0.5,h_min=2")
    (submit,) = dispatcher.request(0, ask(round=1))
    (reply,) = done(dispatcher, 100 * MS, submit, [result(1.0)])
    assert len(reply.body.actions) == 2  # nothing to compare with
    running = Execution(1, True, 0.1, 0.0, 1, 6, 30.0)
    (submit,) = dispatcher.request(200 * MS, ask(round=2, execution=running))
    (reply,) = done(dispatcher, 300 * MS, submit, [result(1.0)])
    assert len(reply.body.actions) == 14  # agrees with all that was left after index 6


def test_the_first_round_of_a_task_gets_the_first_horizon_of_its_plan():
    plan = HorizonPlan((7, 11), after=3)
    calibration = HorizonCalibration("p-1", 20, {("door",): plan}, HorizonPlan((), 1))
    dispatcher = serving(horizon="calibrated", calibration=calibration)
    lengths = []
    for round_ in (1, 2, 3):
        (submit,) = dispatcher.request(round_ * 200 * MS, ask(round=round_))
        (reply,) = done(dispatcher, round_ * 200 * MS + MS, submit, [result()])
        lengths.append(len(reply.body.actions))
    assert lengths == [7, 11, 3]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (ask("nobody"), RefusalCode.UNKNOWN_ROBOT),
        (ask(session="another"), RefusalCode.DUPLICATE_ROBOT),
        (ask(state=np.zeros(4, np.float32)), RefusalCode.BAD_STATE),
        (ask(state=np.array([0, np.nan, 0], np.float32)), RefusalCode.NOT_FINITE),
        (ask(instruction="make tea"), RefusalCode.UNKNOWN_INSTRUCTION),
        (ask(horizon="hope"), RefusalCode.BAD_HORIZON_POLICY),
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
    assert refused.retry_after_s == pytest.approx(LEASE_NS / 1e9, abs=0.1)
    ended, began = dispatcher.announce(LEASE_NS + MS, Announcement("a", "intruder", "t9"))
    assert ended.session == "s-a"
    assert began.session == "intruder"


def test_a_leaving_robot_frees_its_id_at_once():
    dispatcher = serving()
    dispatcher.announce(MS, Announcement("a", "s-a", "", leaving=True))
    _, began = dispatcher.announce(2 * MS, Announcement("a", "s-a2", ""))
    assert began.session == "s-a2"


def test_a_silent_robot_is_forgotten_with_its_requests():
    dispatcher = serving()
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    dispatcher.tick(LEASE_NS)
    assert not dispatcher.book.sessions
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
    assert [(e.robot, e.body) for e in effects if isinstance(e, Answer)][-1] == ("b", Refetch())


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
    assert reply.attempt == 0


def test_a_fresh_observation_that_comes_after_its_rounds_chunk_is_not_computed():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    dispatcher.request(MS, ask("b"))
    (refetch,) = dispatcher.tick(71 * MS)
    assert (refetch.robot, refetch.attempt) == ("b", 0)
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
    assert (reply.task, reply.round) == ("t2", 1)
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
    assert reply.attempt == 1
    assert reply.body.server_s == pytest.approx(0.13)  # of this attempt


def test_a_refusal_answers_the_newest_attempt_and_a_chunk_the_one_that_was_computed():
    failure = InferFailure(RefusalCode.BAD_IMAGE, "torn")
    for outcome, attempt in ((failure, 1), (result(), 0)):
        dispatcher = serving()
        (submit,) = dispatcher.request(0, ask("a"))
        dispatcher.request(50 * MS, ask("a", attempt=1))
        (reply,) = done(dispatcher, 100 * MS, submit, [outcome])
        assert reply.attempt == attempt


def test_a_request_that_kills_two_engines_is_refused():
    dispatcher = serving(stale_after_ns=0)
    dispatcher.request(0, ask("a"))
    dispatcher.engine_down(10 * MS, "edge", "killed")
    dispatcher.engine_ready(20 * MS, "edge", ENGINE, warmup_profile(ENGINE))
    refused = refusal(dispatcher.engine_down(30 * MS, "edge", "killed"))
    assert refused.code is RefusalCode.ENGINE_FAILED
    assert refused.retry_after_s > 0


def test_a_late_answer_of_a_batch_that_was_given_up_is_dropped():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask("a"))
    dispatcher.engine_down(10 * MS, "edge", "hung")
    assert done(dispatcher, 20 * MS, submit) == []
    assert dispatcher.counters["late_batch"] == 1


def test_a_request_past_its_deadline_is_refused_with_the_reason():
    dispatcher = serving(stale_after_ns=0)
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b", deadline_s=0.05))
    assert refusal(dispatcher.tick(60 * MS)).code is RefusalCode.DEADLINE
    dispatcher.request(61 * MS, ask("c", deadline_s=0.05))
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
    by_robot = {e.robot: e.body for e in done(dispatcher, 200 * MS, batch, [bad, result()])}
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
    ran = Execution(1, True, 0.9, 0.5, 0, 10, 30.0)  # executed 0.1..0.5 s, idle since
    (submit,) = dispatcher.request(1000 * MS, ask("a", round=2, execution=ran))
    done(dispatcher, 1100 * MS, submit)
    ran = Execution(2, True, 0.4, 0.0, 1, 9, 30.0)  # E_2 began at 1.1 s: E_1 ended 0.6 s before
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
                assert waiting.pop(effect.robot) == effect.round

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
        known = {e.query.robot for e in dispatcher.pending.values()}
        known |= {e.query.robot for e in dispatcher.in_engines()}
        assert known == set(waiting)


def test_only_the_next_batch_is_asked_for_newer_observations():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a"))
    for robot in "bcdef":
        dispatcher.request(MS, ask(robot))
    asked = [e.robot for e in dispatcher.tick(75 * MS) if isinstance(e.body, Refetch)]
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
            st.sampled_from([0.0, 0.05, 0.3]),  # deadline
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
            again = any(e.query.robot == robot for e in dispatcher.pending.values())
            rounds[robot] += not again
            query = ask(robot, rounds[robot], attempt=after if again else 0, deadline_s=deadline)
            effects = dispatcher.request(now, query)
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
