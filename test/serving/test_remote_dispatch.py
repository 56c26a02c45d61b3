"""Two engines, one behind a link: who is served where, and what a lost link costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_engine import LINK, SMALL_ENGINE

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Observation,
    Refetch,
    Request,
    RequestId,
)
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.link_estimate import LinkEstimate
from kairos_ros.transport.messages import InferResult

MS = 1_000_000
STATE = np.zeros(3, np.float32)
EDGE = replace(SMALL_ENGINE, device="edge", max_batch=2, warmup=((1, 0.2), (2, 0.25)))
CLOUD = replace(EDGE, device="cloud", max_batch=4, warmup=((1, 0.05), (4, 0.06)))


def hybrid(link=LINK, robots="abcdefghij", history_bytes=0, **options):
    edge, cloud = (replace(e, history_bytes=history_bytes) for e in (EDGE, CLOUD))
    dispatcher = Dispatcher(
        ServingOptions(
            **{
                "scheduling": parse_scheduling("fifo"),
                "horizon_policy": "static:10",
                "stale_after_ns": 0,
            }
            | options
        )
    )
    dispatcher.add_engine("edge", "edge")
    dispatcher.add_engine("cloud", "cloud")
    dispatcher.engine_ready(0, "edge", edge, warmup_profile(edge))
    dispatcher.link_changed(0, "cloud", link)
    dispatcher.engine_ready(0, "cloud", cloud, warmup_profile(cloud))
    for robot in robots:
        dispatcher.announce(0, Announcement(robot, f"s-{robot}", "t1"))
    return dispatcher


def ask(robot, round=1, *, task="t1", session="", attempt=0, state=STATE, images=None, **fields):
    asked = RequestId(robot, session or f"s-{robot}", task, round, attempt)
    observation = Observation(state, images or {})
    defaults = {"instruction": "", "kind": "", "observation": observation}
    return Request(asked, **defaults | fields)


def result(value=0.0):
    return InferResult(np.full((20, 2), value, np.float32), np.ones((4, 20, 2), np.float32))


def done(dispatcher, now_ns, submit, compute_s=0.05):
    outcomes = [result() for _ in submit.requests]
    return dispatcher.batch_done(now_ns, submit.engine, submit.batch, outcomes, compute_s)


def submits(effects):
    return [effect for effect in effects if isinstance(effect, Submit)]


def robots_of(submit):
    return [request.robot for request in submit.requests]


def test_the_edge_is_filled_first_and_what_would_wait_longer_there_overflows():
    dispatcher = hybrid()
    (first,) = submits(dispatcher.request(0, ask("a")))
    (second,) = submits(dispatcher.request(1 * MS, ask("b")))
    assert (first.engine, second.engine) == ("edge", "cloud")
    # there: 50 up + 1 transfer + 50 compute + 50 down; here: 199 of the running batch + 200
    reason = dispatcher.engines["cloud"].running.entries[0].reason
    assert "0.15 s there, 0.40 s at the edge" in reason


def test_a_robot_is_told_where_it_is_served_or_waits_and_why_from_decision_to_answer():
    dispatcher = hybrid(stale_after_ns=50 * MS)

    def why(robot):
        return dispatcher.reason(dispatcher.sessions[robot])

    dispatcher.request(0, ask("a"))
    (there,) = submits(dispatcher.request(0, ask("b")))
    dispatcher.request(1 * MS, ask("c", observed_ago_ns=200 * MS))
    assert why("a").endswith("edge batch of 1 on edge")
    assert why("b").endswith("cloud batch of 1 on cloud (0.15 s there, 0.40 s at the edge)")
    assert why("c") == ""
    dispatcher.tick(dispatcher.wakeup_ns(1 * MS))
    assert why("c") == "waits: a newer observation was asked for"
    said = why("b")
    (answer,) = done(dispatcher, 151 * MS, there)[:1]
    assert answer.body.reason == said == why("b")


def test_a_link_longer_than_the_queue_is_not_used():
    slow = replace(LINK, rtt_s=0.5, min_rtt_s=0.5)
    dispatcher = hybrid(slow)
    dispatcher.request(0, ask("a"))
    assert not submits(dispatcher.request(1 * MS, ask("b")))  # 550 there, 399 here
    session = dispatcher.sessions["b"]
    assert "edge full, cloud no sooner (0.55 s there, 0.40 s at the edge)" in (
        dispatcher.reason(session)
    )


def test_slow_uploads_count_for_every_request_of_a_batch():
    narrow = replace(LINK, bytes_per_s=1.25e6)  # 100 ms for each request
    dispatcher = hybrid(narrow)
    dispatcher.request(0, ask("a"))
    effects = dispatcher.request(0, ask("b"))  # 250 there, 400 here
    assert [submit.engine for submit in submits(effects)] == ["cloud"]
    capacity = dispatcher.engines["cloud"].capacity(0, free=True)
    assert capacity.completion_ns(1) == 50 * MS + 100 * MS + 50 * MS + 50 * MS + 50 * MS


def test_the_next_batch_is_sent_so_that_it_arrives_when_the_engine_is_done():
    dispatcher = hybrid()
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))  # computes from 51 to 101 ms
    assert not submits(dispatcher.request(1 * MS, ask("c")))
    assert not submits(dispatcher.request(2 * MS, ask("d")))
    wake_ns = dispatcher.wakeup_ns(2 * MS)
    assert wake_ns == (101 - 51 - 5) * MS  # 5 ms early, for whatever the estimate misses
    (submit,) = submits(dispatcher.tick(wake_ns))
    assert (submit.engine, robots_of(submit)) == ("cloud", ["c", "d"])  # one batch, formed late
    assert len(dispatcher.engines["cloud"].flight) == 2  # before any answer came


def test_answers_of_pipelined_batches_go_to_whom_they_belong_in_any_order():
    dispatcher = hybrid()
    dispatcher.request(0, ask("a"))
    (first,) = submits(dispatcher.request(0, ask("b")))
    dispatcher.request(1 * MS, ask("c"))
    (second,) = submits(dispatcher.tick(45 * MS))
    (early,) = done(dispatcher, 140 * MS, second)
    (late,) = done(dispatcher, 150 * MS, first)
    assert (early.id.robot, late.id.robot) == ("c", "b")
    assert all(isinstance(answer.body, Actions) for answer in (early, late))
    assert (early.body.tier, early.body.engine) == ("cloud", "cloud")


def test_nothing_more_is_sent_into_a_link_that_holds_all_it_can():
    full = replace(LINK, unconfirmed_bytes=20_000_000)  # fits 12.5 MB
    dispatcher = hybrid(full)
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    assert not submits(dispatcher.request(60 * MS, ask("c")))
    assert submits(dispatcher.link_changed(61 * MS, "cloud", LINK))


def test_a_stale_observation_is_fetched_again_before_it_is_uploaded():
    dispatcher = hybrid(stale_after_ns=50 * MS)
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    dispatcher.request(1 * MS, ask("c", observed_ago_ns=200 * MS))
    effects = dispatcher.tick(dispatcher.wakeup_ns(1 * MS))
    (refetch,) = [e for e in effects if isinstance(e, Answer)]
    assert isinstance(refetch.body, Refetch)
    assert not submits(effects)
    dispatcher.request(30 * MS, ask("c", attempt=1))
    assert [robots_of(submit) for submit in submits(dispatcher.tick(46 * MS))] == [["c"]]


def test_a_lost_link_queues_again_without_blaming_the_request_and_late_answers_are_dropped():
    dispatcher = hybrid()
    dispatcher.request(0, ask("a"))
    (lost,) = submits(dispatcher.request(0, ask("b")))
    for _ in range(5):  # more often than a request may kill engines
        assert not dispatcher.engine_down(100 * MS, "cloud", "no sign of life", crashed=False)
        assert list(dispatcher.pending) == ["b/s-b/t1"]
        (again,) = submits(dispatcher.engine_ready(110 * MS, "cloud", CLOUD, warmup_profile(CLOUD)))
        assert robots_of(again) == ["b"]
    assert not done(dispatcher, 120 * MS, lost)
    assert dispatcher.counters["late_batch"] == 1
    (answer,) = done(dispatcher, 130 * MS, again)
    assert answer.id.robot == "b"
    assert dispatcher.counters["link_down"] == 5


def test_when_the_edge_dies_the_cloud_serves_all_of_it():
    dispatcher = hybrid()
    dispatcher.request(0, ask("a"))
    (submit,) = submits(dispatcher.engine_down(10 * MS, "edge", "killed"))
    assert (submit.engine, robots_of(submit)) == ("cloud", ["a"])
    assert submits(dispatcher.request(200 * MS, ask("b")))[0].engine == "cloud"


def test_a_draining_engine_answers_and_gets_no_more():
    dispatcher = hybrid()
    dispatcher.request(0, ask("a"))
    (running,) = submits(dispatcher.request(0, ask("b")))
    dispatcher.engine_draining(1 * MS, "cloud", "the worker was told to stop")
    assert not submits(dispatcher.request(60 * MS, ask("c")))
    (answer,) = done(dispatcher, 150 * MS, running)
    assert isinstance(answer.body, Actions)


def test_a_cloud_with_another_policy_is_refused_and_counted_whichever_came_first():
    other = replace(CLOUD, policy_id="p-2")
    first = hybrid(robots="")
    with pytest.raises(ConfigError, match="'cloud' serves p-2, but 'edge' serves p-1"):
        first.engine_ready(1, "cloud", other, warmup_profile(other))
    assert first.engines["cloud"].state == "refused"
    late = Dispatcher(first.options)
    late.add_engine("edge", "edge")
    late.add_engine("cloud", "cloud")
    late.engine_ready(0, "cloud", other, warmup_profile(other))
    late.engine_ready(1, "edge", EDGE, warmup_profile(EDGE))
    assert late.engines["edge"].state == "ready"
    assert late.engines["cloud"].state == "refused"
    assert first.counters["refused_engine"] == late.counters["refused_engine"] == 1
    assert "p-1" in late.engines["cloud"].last_error
    late.announce(2, Announcement("a", "s-a", "t1"))
    assert submits(late.request(3, ask("a")))[0].engine == "edge"


def two_stateful(robots="abcdefghij"):
    """An edge and a cloud engine of a policy that keeps a state of every task."""
    dispatcher = hybrid(robots=robots)
    for name, engine in (("edge", EDGE), ("cloud", CLOUD)):
        dispatcher.engine_down(0, name, "restarted")
        restart(dispatcher, 0, name, engine)
    return dispatcher


def restart(dispatcher, now_ns, name, engine):
    keeps = replace(engine, keyframe_stride=1, max_batch=1, warmup=engine.warmup[:1])
    if name == "cloud":
        dispatcher.link_changed(now_ns, "cloud", LINK)
    dispatcher.engine_ready(now_ns, name, keeps, warmup_profile(keeps))


def further(robot, round):
    return ask(robot, round, task_actions=10 * round, executed=np.ones((3, 2), np.float32))


def test_a_task_stays_with_the_engine_that_has_its_state_while_that_engine_is_up():
    dispatcher = two_stateful()
    (at_edge,) = submits(dispatcher.request(0, ask("a")))
    (in_cloud,) = submits(dispatcher.request(0, ask("b")))
    assert (at_edge.engine, in_cloud.engine) == ("edge", "cloud")
    done(dispatcher, 160 * MS, in_cloud)
    (stays,) = submits(
        done(dispatcher, 200 * MS, at_edge, 0.2) + dispatcher.request(201 * MS, further("b", 2))
    )
    assert (stays.engine, robots_of(stays)) == ("cloud", ["b"])
    (busy,) = submits(dispatcher.request(202 * MS, ask("c")))
    assert busy.engine == "edge"
    done(dispatcher, 353 * MS, stays)
    assert not submits(dispatcher.request(354 * MS, further("a", 2))), "the cloud is free"
    (its_own,) = submits(done(dispatcher, 402 * MS, busy, 0.2))
    assert (its_own.engine, robots_of(its_own)) == ("edge", ["a"])
    dispatcher.engine_down(403 * MS, "edge", "killed")
    running = dispatcher.engines["cloud"].running
    assert running is not None, "what the dead engine had is computed where one is up"
    assert [entry.session.robot for entry in running.entries] == ["a"]


ASKED = st.tuples(st.just("ask"), st.sampled_from("abcde"))
ANSWERED = st.tuples(st.just("answer"), st.sampled_from(["edge", "cloud"]))
OTHER = st.one_of(
    st.tuples(st.sampled_from(["kill", "start"]), st.sampled_from(["edge", "cloud"])),
    st.tuples(st.just("task"), st.sampled_from("abcde")),
)


@given(st.lists(st.one_of(*[ASKED] * 5, *[ANSWERED] * 4, OTHER), min_size=20, max_size=80))
def test_no_round_is_computed_where_its_task_has_no_state_while_the_one_that_has_it_is_up(steps):
    dispatcher = two_stateful("abcde")
    tasks, rounds, holder = dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 0), {}
    flight, now_ns = {"edge": [], "cloud": []}, 0

    def carry_out(effects):
        for sent in submits(effects):
            flight[sent.engine].append(sent)
            for robot in robots_of(sent):
                has = holder.get((robot, tasks[robot]))
                up = has is not None and dispatcher.engines[has].state == "ready"
                assert sent.engine == has or not up

    for what, who in steps:
        now_ns += 7 * MS
        if what == "ask":
            rounds[who] += 1
            asked = further(who, rounds[who]) if rounds[who] > 1 else ask(who)
            number = f"t{tasks[who]}"
            carry_out(dispatcher.request(now_ns, replace(asked, id=replace(asked.id, task=number))))
        elif what == "task":
            tasks[who], rounds[who] = tasks[who] + 1, 0
            dispatcher.announce(now_ns, Announcement(who, f"s-{who}", f"t{tasks[who]}"))
        elif what == "answer" and flight[who]:
            sent = flight[who].pop(0)
            effects = done(dispatcher, now_ns, sent)
            for answer in effects:
                if isinstance(answer, Answer) and isinstance(answer.body, Actions):
                    holder[answer.id.robot, int(answer.id.task[1:])] = who
            carry_out(effects)
        elif what == "kill" and dispatcher.engines[who].state == "ready":
            flight[who].clear()
            carry_out(dispatcher.engine_down(now_ns, who, "killed"))
        elif what == "start" and dispatcher.engines[who].state != "ready":
            restart(dispatcher, now_ns, who, EDGE if who == "edge" else CLOUD)
        carry_out(dispatcher.tick(now_ns))


def stateful():
    edge = replace(EDGE, keyframe_stride=1, observations=4)
    dispatcher = Dispatcher(replace(hybrid(robots="").options, horizon_policy="static:30"))
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", edge, warmup_profile(edge))
    dispatcher.announce(0, Announcement("a", "s-a", "t1"))
    return dispatcher


def test_what_was_executed_goes_to_the_engine_and_a_shorter_chunk_is_answered():
    dispatcher = stateful()
    executed = np.ones((3, 2), np.float32)
    asked = ask("a", 2, task_actions=3, executed=executed, earlier=(Observation(STATE),))
    (submit,) = submits(dispatcher.request(0, asked))
    assert submit.requests[0].task_actions == 3
    assert np.array_equal(submit.requests[0].executed, executed)
    chunk = InferResult(np.zeros((7, 2), np.float32), np.ones((4, 7, 2), np.float32), "it is gone")
    (answer,) = dispatcher.batch_done(MS, "edge", submit.batch, [chunk], 0.05)
    assert (len(answer.body.actions), answer.body.chunk_size) == (7, 7)
    assert "the policy's state is begun anew: it is gone" in answer.body.reason
    assert dispatcher.counters["begun_anew"] == 1
    assert dispatcher.counters["repeated_observation"] == 0


def test_a_robot_that_does_not_tell_what_it_executed_is_refused():
    dispatcher = stateful()
    moved = Execution(round=1, started=True, executed=3, period_ns=33 * MS)
    (answer,) = dispatcher.request(0, ask("a", 2, execution=moved))
    assert answer.body.code is RefusalCode.MALFORMED
    assert "task_actions" in answer.body.reason


def test_a_stateful_task_goes_elsewhere_only_where_moving_its_history_pays():
    dispatcher = hybrid(history_bytes=12_500_000)  # 100 ms
    (at_edge,) = submits(dispatcher.request(0, ask("a")))
    (in_cloud,) = submits(dispatcher.request(0, ask("b")))  # a first round has no history
    done(dispatcher, 151 * MS, in_cloud)
    done(dispatcher, 200 * MS, at_edge, 0.2)
    (busy,) = submits(dispatcher.request(201 * MS, ask("c")))
    assert (busy.engine, busy.history_bytes) == ("edge", 0)
    (stays,) = submits(dispatcher.request(202 * MS, ask("b", 2)))
    assert (stays.engine, stays.history_bytes) == ("cloud", 0)
    done(dispatcher, 353 * MS, stays)
    assert not submits(dispatcher.request(360 * MS, ask("a", 2)))
    reason = dispatcher.reason(dispatcher.sessions["a"])
    assert "cloud no sooner (0.25 s there, 0.24 s at the edge)" in reason
    (new,) = submits(dispatcher.request(361 * MS, ask("d")))
    assert (new.engine, robots_of(new)) == ("cloud", ["d"])


def test_a_history_that_moves_counts_in_the_estimate_and_in_what_is_sent():
    dispatcher = hybrid(history_bytes=12_500_000)  # 100 ms
    (first,) = submits(dispatcher.request(0, ask("a")))
    done(dispatcher, 200 * MS, first, 0.2)
    dispatcher.request(201 * MS, ask("b"))
    (moved,) = submits(dispatcher.request(202 * MS, ask("a", 2)))
    assert (moved.engine, moved.history_bytes) == ("cloud", 12_500_000)
    running = dispatcher.engines["cloud"].running
    assert running.expected_end_ns == (202 + 50 + 1 + 100 + 50 + 50) * MS
    assert "(0.25 s there, 0.40 s at the edge)" in running.entries[0].reason
    done(dispatcher, 460 * MS, moved)
    (stays,) = submits(dispatcher.request(461 * MS, ask("a", 3)))
    assert (stays.engine, stays.history_bytes) == ("cloud", 0)


@pytest.mark.parametrize("claimed", [-1.0, 1e300])
def test_an_engine_that_claims_an_impossible_compute_time_harms_nobody(claimed):
    dispatcher = hybrid()
    dispatcher.request(0, ask("a"))
    (there,) = submits(dispatcher.request(0, ask("b")))
    (answer,) = done(dispatcher, 160 * MS, there, claimed)
    assert 0 <= answer.body.compute_ns <= 160 * MS


@pytest.mark.parametrize(
    ("chunk", "updates", "told"),
    [
        (np.zeros((19, 2)), np.ones((4, 19, 2)), "shape (19, 2), float32; p-1 answers (20, 2)"),
        (np.zeros((20, 3)), np.ones((4, 20, 3)), "shape (20, 3)"),
        (np.zeros((20, 2), np.float64), np.ones((4, 20, 2)), "float64"),
        (np.full((20, 2), np.nan), np.ones((4, 20, 2)), "not finite"),
        (np.zeros((20, 2)), np.full((4, 20, 2), np.inf), "not finite"),
        (np.zeros((20, 2)), np.ones((4, 10, 2)), "updates of shape (4, 10, 2)"),
        (np.zeros((20, 2)), np.ones((4, 20)), "updates of shape (4, 20)"),
    ],
)
def test_an_engine_that_answers_no_chunk_of_its_policy_is_refused_and_others_serve(
    chunk, updates, told
):
    dispatcher = hybrid()
    (first,) = submits(dispatcher.request(0, ask("a")))
    (wrong,) = submits(dispatcher.request(0, ask("b")))
    dispatcher.request(1 * MS, ask("c"))
    (waiting,) = submits(dispatcher.tick(45 * MS))
    kind = np.float64 if "float64" in told else np.float32
    outcome = InferResult(chunk.astype(kind), updates.astype(np.float32))
    assert not dispatcher.batch_done(150 * MS, "cloud", wrong.batch, [outcome], 0.05)
    cloud = dispatcher.engines["cloud"]
    assert cloud.state == "refused"
    assert told in cloud.last_error
    assert dispatcher.counters["malformed_chunk"] == 1
    assert list(dispatcher.pending) == ["b/s-b/t1", "c/s-c/t1"]
    effects = done(dispatcher, 200 * MS, first)
    (again,) = submits(effects)
    assert (again.engine, robots_of(again)) == ("edge", ["b", "c"])
    assert not done(dispatcher, 210 * MS, waiting)  # also what it answers yet
    assert dispatcher.counters["late_batch"] == 1
    dispatcher.engine_ready(300 * MS, "cloud", CLOUD, warmup_profile(CLOUD))  # found again
    assert submits(dispatcher.request(301 * MS, ask("d")))[0].engine == "cloud"


def test_a_cloud_that_claims_the_same_policy_but_answers_other_actions_is_refused():
    dispatcher = hybrid(robots="")
    other = replace(CLOUD, action_dim=3)
    with pytest.raises(ConfigError, match=r"'cloud' serves .* action_dim 3, but .* it with 2"):
        dispatcher.engine_ready(1, "cloud", other, warmup_profile(other))
    assert dispatcher.engines["cloud"].state == "refused"


def test_a_request_that_no_engine_is_up_for_says_why():
    dispatcher = hybrid()
    dispatcher.engine_down(0, "cloud", "no sign of life", crashed=False)
    dispatcher.engine_down(0, "edge", "killed")
    assert not dispatcher.request(1 * MS, ask("a", deadline_ns=500 * MS))
    (refused,) = dispatcher.tick(501 * MS)
    assert refused.body.code is RefusalCode.ENGINE_DOWN
    assert "no sign of life" in refused.body.reason


def test_bandwidth_is_the_median_so_that_one_slow_start_does_not_decide():
    estimate = LinkEstimate()
    for i in range(5):
        estimate.round_trip(float(i), 0.1)
    for seconds in (0.965, 0.105, 0.104):
        estimate.received(500_000, seconds)
    assert estimate.state().bytes_per_s == pytest.approx(500_000 / 0.005)


def test_the_shortest_round_trip_is_forgotten_when_the_route_gets_longer():
    estimate = LinkEstimate()
    estimate.round_trip(0.0, 0.02)
    for i in range(1, 40):
        estimate.round_trip(float(i), 0.2)
    state = estimate.state()
    assert state.min_rtt_s == 0.2
    assert state.rtt_s == pytest.approx(0.2, rel=0.05)
    assert state.jitter_s < 0.01


def test_loss_is_the_share_of_segments_sent_again_and_fades():
    estimate = LinkEstimate()
    estimate.segments(1000, 10)
    assert estimate.state().loss == pytest.approx(0.01)
    for _ in range(300):
        estimate.segments(100, 0)
    assert estimate.state().loss < 1e-4
    assert LinkEstimate().state().loss == 0.0


def test_a_lost_batch_is_not_queued_again_for_a_task_that_has_ended_meanwhile():
    dispatcher = hybrid()
    for robot in "abcdefghij":
        dispatcher.request(0, ask(robot))
    done, *others = [
        e for batch in dispatcher.engines["cloud"].flight.values() for e in batch.entries
    ]
    session = done.session
    dispatcher.announce(MS, Announcement(session.robot, session.session, ""))  # now it is idle
    assert done.key not in dispatcher.tasks
    dispatcher.engine_down(2 * MS, "cloud", "no sign of life", crashed=False)
    dispatcher.engine_down(2 * MS, "edge", "killed")
    assert done.key not in dispatcher.pending
    assert {entry.key for entry in others} <= dispatcher.pending.keys()
