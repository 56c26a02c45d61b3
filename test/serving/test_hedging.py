"""Copies to a second tier: when, how many, and that exactly one answer comes of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_remote_dispatch import (
    CLOUD,
    EDGE,
    LINK,
    MS,
    ask,
    done,
    hybrid,
    result,
    robots_of,
    submits,
)

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Actions, Announcement, Execution
from kairos_ros.core.placement.hedging import WINDOW, HedgeBudget, Route, second_route
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.lab.sim.workloads import workload
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.engines.hedging import HEDGED
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferFailure

NEAR = replace(LINK, rtt_s=0.02, min_rtt_s=0.02)  # 71 ms there, 200 at the edge
ALWAYS = 1.0
EDGE_ROUTE = Route("edge", "edge", 100, 50)


def test_a_copy_takes_the_soonest_way_of_another_tier_that_beats_a_late_answer():
    routes = Route("edge_2", "edge", 10), Route("near", "cloud", 140), Route("far", "cloud", 149)
    assert second_route(0, EDGE_ROUTE, routes) == routes[1]
    assert second_route(149, EDGE_ROUTE, routes) == routes[1]
    assert second_route(0, EDGE_ROUTE, [Route("far", "cloud", 150)]) is None


def test_no_copy_is_made_of_what_is_in_time_even_when_it_is_late():
    assert second_route(150, EDGE_ROUTE, [Route("near", "cloud", 1)]) is None


@given(
    st.sampled_from([0.004, 0.005, 0.05, 0.5, 1.0]),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=40),
)
def test_no_window_of_requests_has_more_copies_than_the_budget(share, steps):
    budget = HedgeBudget(share)
    copies = []  # number of the newest request, of each copy
    number = 0
    for requests, wanted in steps:
        budget.count(requests)
        number += requests
        copies += [number for _ in range(wanted) if budget.spend()]
    for first in range(number + 1):
        assert sum(first <= n < first + WINDOW for n in copies) <= share * WINDOW
    assert HedgeBudget(share).exists == (share * WINDOW >= 1)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_budget_that_is_no_share_is_refused(share):
    with pytest.raises(ConfigError, match="hedge_budget"):
        HedgeBudget(share)


def test_without_a_budget_nothing_is_sent_twice():
    assert len(submits(hybrid(NEAR).request(0, ask("a")))) == 1


def test_the_first_answer_wins_and_the_other_is_dropped_and_counted():
    dispatcher = hybrid(NEAR, hedge_budget=ALWAYS)
    here, there = submits(dispatcher.request(0, ask("a")))
    assert (here.engine, there.engine) == ("edge", "cloud")
    assert robots_of(here) == robots_of(there) == ["a"]
    (answer,) = done(dispatcher, 71 * MS, there)
    assert isinstance(answer.body, Actions)
    assert (answer.body.tier, answer.body.engine) == ("cloud", "cloud")
    assert "edge batch of 1 on edge; hedged on cloud (0.07 s there, 0.20" in answer.body.reason
    assert not done(dispatcher, 200 * MS, here)
    counted = {name: dispatcher.counters[name] for name in ("hedged", "hedge_won", "hedge_lost")}
    assert counted == {"hedged": 1, "hedge_won": 1, "hedge_lost": 1}
    assert dispatcher.counters["chunks"] == 1


def test_a_robot_that_has_actions_until_then_needs_no_copy():
    dispatcher = hybrid(NEAR, hedge_budget=ALWAYS)
    here, _ = submits(dispatcher.request(0, ask("a")))
    done(dispatcher, 200 * MS, here, 0.2)
    running = Execution(  # 0.5 s
        1, True, started_ago_ns=100 * MS, remaining=15, chunk_index=5, period_ns=33_333_333
    )
    assert len(submits(dispatcher.request(300 * MS, ask("a", 2, execution=running)))) == 1
    dispatcher.engine_ready(400 * MS, "cloud", CLOUD, warmup_profile(CLOUD))


def test_an_answer_that_is_overdue_is_asked_for_elsewhere_as_soon_as_that_engine_is_idle():
    far = replace(LINK, rtt_s=0.15, min_rtt_s=0.15)  # 201 ms there, 200 at the edge
    dispatcher = hybrid(far, hedge_budget=ALWAYS)
    (here,) = submits(dispatcher.request(0, ask("a")))
    (there,) = submits(dispatcher.request(0, ask("b")))
    assert (here.engine, there.engine) == ("edge", "cloud")
    assert len(done(dispatcher, 200 * MS, here, 0.2)) == 1
    wake_ns = dispatcher.wakeup_ns(200 * MS)
    assert wake_ns == (201 + 200) * MS + 1  # as late as the edge would take
    assert not dispatcher.tick(wake_ns - 1)
    (copy,) = submits(dispatcher.tick(wake_ns))
    assert (copy.engine, robots_of(copy)) == ("edge", ["b"])
    (answer,) = done(dispatcher, 601 * MS, copy, 0.2)
    assert "hedged on edge (0.20 s there, 0.00 to 0.20 s on cloud" in answer.body.reason


def test_nothing_is_sent_twice_while_requests_wait():
    far = replace(LINK, rtt_s=5.0, min_rtt_s=5.0)
    dispatcher = hybrid(far, hedge_budget=ALWAYS)
    dispatcher.request(0, ask("a"))
    dispatcher.request(0, ask("b"))
    assert list(dispatcher.pending) == ["b/s-b/t1"]
    assert not submits(dispatcher.link_changed(1 * MS, "cloud", NEAR)[1:])
    assert dispatcher.counters["hedged"] == 0


def test_a_copy_that_fails_leaves_the_answer_to_the_other():
    dispatcher = hybrid(NEAR, hedge_budget=ALWAYS)
    here, there = submits(dispatcher.request(0, ask("a")))
    failure = InferFailure(RefusalCode.ENGINE_FAILED, "out of memory")
    assert not dispatcher.batch_done(71 * MS, "cloud", there.batch, [failure], 0.05)
    (answer,) = done(dispatcher, 200 * MS, here)
    assert isinstance(answer.body, Actions)


@pytest.mark.parametrize("lost", ["edge", "cloud"])
def test_a_lost_engine_costs_a_hedged_request_nothing(lost):
    dispatcher = hybrid(NEAR, hedge_budget=ALWAYS)
    sent = {submit.engine: submit for submit in submits(dispatcher.request(0, ask("a")))}
    assert not dispatcher.engine_down(10 * MS, lost, "gone", crashed=False)
    assert not dispatcher.pending
    left = sent["cloud" if lost == "edge" else "edge"]
    (answer,) = done(dispatcher, 80 * MS, left)
    assert answer.id.robot == "a"
    assert dispatcher.counters["requeued"] == 0


def test_when_both_engines_are_lost_a_hedged_request_is_queued_again_once():
    dispatcher = hybrid(NEAR, hedge_budget=ALWAYS)
    dispatcher.request(0, ask("a"))
    for engine in ("edge", "cloud"):
        dispatcher.engine_down(10 * MS, engine, "gone", crashed=False)
    assert list(dispatcher.pending) == ["a/s-a/t1"]
    assert dispatcher.counters["requeued"] == 1


def test_a_newer_observation_after_the_answer_is_a_round_of_its_own_while_the_copy_computes():
    dispatcher = hybrid(NEAR, hedge_budget=ALWAYS)
    _, there = submits(dispatcher.request(0, ask("a")))
    done(dispatcher, 71 * MS, there)
    again = submits(dispatcher.request(80 * MS, ask("a", attempt=1)))
    assert [submit.engine for submit in again] == ["cloud"]
    assert dispatcher.counters["late_refresh"] == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "answer", "answer", "fail", "down", "tick"]),
        st.sampled_from("abcd"),
        st.sampled_from(["edge", "cloud"]),
        st.integers(0, 150),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(STEPS, st.sampled_from([0.1, ALWAYS]))
def test_a_request_is_answered_exactly_once_however_often_it_was_sent(steps, budget):
    dispatcher = hybrid(NEAR, robots="abcd", hedge_budget=budget)
    described = {"edge": EDGE, "cloud": CLOUD}
    now, rounds, waiting, flying = 0, dict.fromkeys("abcd", 0), {}, []

    def carry_out(effects):
        for effect in effects:
            if effect in submits([effect]):
                flying.append(effect)
            else:
                assert waiting.pop(effect.id.robot) == effect.id.round

    for what, robot, engine, after in steps:
        now += after * MS
        for r in "abcd":
            dispatcher.announce(now, Announcement(r, f"s-{r}", "t1"))
        mine = [submit for submit in flying if submit.engine == engine]
        if what == "ask" and robot not in waiting:
            rounds[robot] += 1
            waiting[robot] = rounds[robot]
            carry_out(dispatcher.request(now, ask(robot, rounds[robot])))
        elif what == "answer" and mine:
            flying.remove(mine[0])
            outcomes = [result() for _ in mine[0].requests]
            carry_out(dispatcher.batch_done(now, engine, mine[0].batch, outcomes, 0.05))
        elif what == "fail" and mine:
            flying.remove(mine[0])
            carry_out(dispatcher.batch_failed(now, engine, mine[0].batch, "oops", crashed=False))
        elif what == "down":
            flying[:] = [submit for submit in flying if submit.engine != engine]
            carry_out(dispatcher.engine_down(now, engine, "gone", crashed=False))
            d = described[engine]
            carry_out(dispatcher.engine_ready(now, engine, d, warmup_profile(d)))
        else:
            carry_out(dispatcher.tick(now))
        unanswered = {e.request.id.robot for e in dispatcher.pending.values()}
        unanswered |= {e.request.id.robot for e in dispatcher.in_engines()}
        assert unanswered == set(waiting)


@pytest.mark.slow
def test_a_fleet_over_a_link_that_stalls_waits_less_within_its_budget():
    work = workload("pi05-libero", tasks=40)

    def run(budget):
        engines = [
            SimEngine("edge", linear_profile("80+35b", 8, "p")),
            SimEngine("cloud", linear_profile("40+17.5b", 8, "p"), "cloud", 0.02, stall_share=0.2),
        ]
        options = ServingOptions(
            parse_scheduling("fifo"), "static:10", stale_after_ns=0, hedge_budget=budget
        )
        fleet = FleetOptions(12, Rules("replay"))
        return simulate(trace_tasks(work.traces, 1, 0.7, 40), fleet, options, engines, 1)

    def stalled(fleet_run):
        return sum(task.stalled_s for task in fleet_run.tasks)

    def hedged(fleet_run):
        rounds = [r for r in fleet_run.rounds if r.executed]
        return sum(HEDGED in r.reason for r in rounds) / len(rounds)

    off, some, free = run(0.0), run(0.1), run(1.0)
    assert hedged(off) == 0
    assert 0 < hedged(some) <= 0.12 < hedged(free)
    assert stalled(free) < stalled(off)
    assert repr(run(0.1)) == repr(some)
