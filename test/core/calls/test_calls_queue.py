"""Calls of vision-language models: who goes first, where to, and how long an obligation waits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.calls.call import Caller, caller_headers, read_caller
from kairos_ros.core.calls.dispatch import DISPATCHES, Instance, RunningCall, dispatch_called
from kairos_ros.core.calls.distributions import Distribution, ranked, wasserstein
from kairos_ros.core.calls.orders import ORDERS, order_called
from kairos_ros.core.calls.queue import MOST_PER_CALLER, CallQueue, FullError
from kairos_ros.core.calls.workflows import MOST_CALLS, QUIET_NS, CallSpan, Workflows, rebuilt
from kairos_ros.core.errors import ConfigError, WireError

S = 1_000_000_000
MS = 1_000_000
HOUR = 3_600_000 * MS


def queue(order="first_come", dispatch="round_robin", **instances):
    places = instances or {"one": 1}
    return CallQueue(
        {
            name: one if isinstance(one, Instance) else Instance(name, frozenset({"m"}), one)
            for name, one in places.items()
        },
        order_called(order),
        dispatch_called(dispatch),
    )


def caller(robot="arm_0", component="monitor", **more):
    return Caller(robot, component, **more)


def numbers(started):
    return [one.call.number for one in started]


# Order


def test_the_baseline_serves_calls_as_they_came():
    calls = queue()
    for number, slo in enumerate((9 * S, S)):
        calls.put(caller(f"arm_{number}"), "m", 10, slo, now_ns=number)
    (first,) = calls.start(10)
    assert first.call.number == 1
    assert "has waited 0.00 s" in first.reason
    assert calls.start(10) == []
    assert calls.held == "every server is busy"
    calls.answered(first.call, 20)
    assert numbers(calls.start(20)) == [2]


def test_the_earliest_deadline_goes_first_and_a_call_without_one_last():
    calls = queue("earliest_deadline", one=8)
    for robot, slo in (("a", 0), ("b", 9 * S), ("c", S)):
        calls.put(caller(robot), "m", 10, slo, now_ns=0)
    started = calls.start(0)
    assert [one.call.caller.robot for one in started] == ["c", "b", "a"]
    assert "no SLO" in started[-1].reason


def test_who_has_to_start_first_to_be_in_time_goes_first():
    """A component that takes 5 s and is due in 8 s has to start before one of 0.1 s that is due in
    4 s; one that cannot be in time any more waits, and of two such the newer one goes first."""
    calls = queue("latest_start", one=8)
    now = 0
    for component, took in (("planner", 5 * S), ("monitor", S // 10)):
        call = calls.put(caller(component=component), "m", 10, 0, now)
        calls.start(now)
        now += took
        calls.answered(call, now)
    calls.put(caller("late", "planner"), "m", 10, 4 * S, now)
    calls.put(caller("later", "planner"), "m", 10, 4 * S, now + 1)
    calls.put(caller("monitor", "monitor"), "m", 10, 4 * S, now + 2)
    calls.put(caller("planner", "planner"), "m", 10, 8 * S, now + 3)
    calls.put(caller("no SLO", "monitor"), "m", 10, 0, now + 4)
    ordered, reasons = zip(*calls.ordered(now + 5), strict=True)
    assert [one.caller.robot for one in ordered] == [
        "planner", "monitor", "no SLO", "later", "late",
    ]  # fmt: skip
    assert reasons[0] == "has to start within 3.00 s"
    assert reasons[2:4] == ("no SLO", "cannot be in time any more")


def test_an_obligation_goes_before_everything_in_every_order():
    for order in ORDERS:
        calls = queue(order)
        calls.put(caller(), "m", 1, 1, now_ns=0)
        calls.put(caller(component="safety"), "m", 9999, 900 * S, now_ns=1)
        (first,) = calls.start(2)
        assert first.call.caller.component == "safety", order


def test_urgency_is_the_share_of_the_slo_that_is_left_over_the_length():
    """Speed 1000 tokens/s, SLO 10 s each. Long (4000) came first: finishes at 4 s, 0.6 / 4000.
    Short (500): finishes at 4.5 s, 0.55 / 500."""
    calls = queue("urgency")
    calls.learned.busy(10 * S)
    calls.learned._tokens = 10_000
    calls.put(caller("long"), "m", 4000, 10 * S, now_ns=0)
    calls.put(caller("short"), "m", 500, 10 * S, now_ns=0)
    (first, why), (second, why_second) = calls.ordered(0)
    assert (first.caller.robot, second.caller.robot) == ("short", "long")
    assert "urgency 1.1/1000" in why
    assert "urgency 0.15/1000" in why_second


def test_who_is_late_anyhow_goes_last_in_the_order_of_urgency():
    calls = queue("urgency")
    calls.learned.busy(10 * S)
    calls.learned._tokens = 10_000
    calls.put(caller("late"), "m", 100, S, now_ns=0)
    calls.put(caller("in time"), "m", 4000, 100 * S, now_ns=0)
    assert [call.caller.robot for call, _ in calls.ordered(5 * S)] == ["in time", "late"]


def test_components_with_little_left_of_their_workflow_go_first_once_they_are_known():
    calls = queue("workflow", one=1)
    now = 0
    for _ in range(64):
        for component, took in (("planner", 2 * S), ("monitor", S // 10)):
            call = calls.put(caller(component=component), "m", 10, 0, now)
            calls.start(now)
            now += took
            calls.answered(call, now)
    calls.put(caller("a", "planner"), "m", 10, 0, now)
    calls.put(caller("b", "unknown"), "m", 10, 0, now)
    calls.put(caller("c", "monitor"), "m", 10, 0, now)
    calls_, reasons = zip(*calls.ordered(now), strict=True)
    assert [call.caller.robot for call in calls_] == ["c", "b", "a"]
    assert reasons[0].startswith("about 0.10 s of its workflow left")
    assert reasons[1].startswith("component not learned yet")
    assert reasons[2].startswith("about 2.00 s")


def test_within_a_component_the_older_workflow_goes_first():
    calls = queue("workflow")
    old = caller("a", "planner", workflow="1")
    call = calls.put(old, "m", 10, 0, now_ns=0)
    calls.start(0)
    calls.put(caller("b", "planner", workflow="2"), "m", 10, 0, now_ns=5)
    calls.answered(call, 10)
    calls.put(old, "m", 10, 0, now_ns=20)
    assert [call.caller.robot for call, _ in calls.ordered(30)] == ["a", "b"]


def test_unknown_orders_and_dispatches_are_refused():
    with pytest.raises(ConfigError, match="'best' is unknown; choose from latest_start"):
        order_called("best")
    with pytest.raises(ConfigError, match="'random' is unknown; choose from round_robin"):
        dispatch_called("random")


arrivals = st.lists(
    st.tuples(
        st.integers(0, 40),  # gap, 0.1 s
        st.sampled_from(["safety", "monitor", "system2", ""]),
        st.integers(0, 3),  # robot
        st.integers(1, 5000),  # tokens
        st.integers(0, 50),  # SLO, 0.1 s; 0: none
        st.integers(1, 30),  # duration, 0.1 s
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ORDERS)), st.sampled_from(sorted(DISPATCHES)),
       st.lists(st.integers(1, 3), min_size=1, max_size=3), arrivals)  # fmt: skip
def test_an_obligation_waits_no_longer_than_the_bound_and_no_call_is_lost(
    order, dispatch, places, calls
):
    """Run to the end in virtual time, with whatever else there is."""
    instances = {f"i{k}": p for k, p in enumerate(places)}
    served = queue(order, dispatch, **instances)
    now, running, durations, taken = 0, [], {}, 0
    waits = []
    todo = list(calls)
    next_arrival = todo[0][0] * 100 * MS if todo else None
    while todo or running or served.waiting:
        ends = min((end for end, _ in running), default=None)
        if next_arrival is not None and (ends is None or next_arrival <= ends):
            now = next_arrival
            _, component, robot, tokens, slo, took = todo.pop(0)
            next_arrival = now + todo[0][0] * 100 * MS if todo else None
            try:
                call = served.put(
                    caller(f"arm_{robot}", component), "m", tokens, slo * 100 * MS, now
                )
            except FullError:
                continue
            taken += 1
            durations[call.number] = took * 100 * MS
        elif ends is not None:
            now = ends
            for end, call in [one for one in running if one[0] == now]:
                running.remove((end, call))
                served.answered(call, now)
        else:
            raise AssertionError("calls wait, nothing runs, and nothing starts")
        for one in served.start(now):
            running.append((now + durations[one.call.number], one.call))
            if one.call.caller.is_obligation:
                waits.append(now - one.call.arrived_ns)
    assert sum(one.answered for one in served.served.values()) == taken
    bound = (math.ceil(MOST_PER_CALLER * 4 / sum(places)) + 1) * 3 * S
    assert all(wait <= bound for wait in waits)


def test_the_instance_with_the_fewest_calls_gets_the_next():
    calls = queue("first_come", "fewest_calls", one=8, two=8)
    for robot in "abcd":
        calls.put(caller(robot), "m", 1, 0, 0)
    started = calls.start(0)
    assert [one.instance.name for one in started] == ["one", "two", "one", "two"]
    calls.answered(started[1].call, 1)
    calls.put(caller("e"), "m", 1, 0, 1)
    (next_,) = calls.start(1)
    assert next_.instance.name == "two"
    assert "1 calls there" in next_.reason


# Refused, failed, given up


def test_one_caller_cannot_fill_the_queue():
    calls = queue()
    for _ in range(MOST_PER_CALLER):
        calls.put(caller(), "m", 1, 0, 0)
    with pytest.raises(FullError, match="8 calls of monitor of arm_0 are not answered yet"):
        calls.put(caller(), "m", 1, 0, 0)
    calls.put(caller("arm_1"), "m", 1, 0, 0)
    (first,) = calls.start(0)
    calls.answered(first.call, 1)
    calls.put(caller(), "m", 1, 0, 2)
    assert calls.served["monitor"].unanswered == 1


def test_a_call_that_nobody_waits_for_leaves_the_queue_or_frees_its_place():
    calls = queue()
    first, second = (calls.put(caller(f"arm_{i}"), "m", 1, 0, 0) for i in range(2))
    calls.start(0)
    calls.gone(second, 1)
    assert calls.waiting == []
    calls.gone(first, 2)
    assert calls.served["monitor"].unanswered == 2
    third = calls.put(caller("arm_2"), "m", 1, 0, 3)
    assert numbers(calls.start(3)) == [third.number]
    calls.gone(first, 4)  # a second time: nothing
    assert calls.running_at(third) is not None


def test_a_call_whose_instance_failed_waits_again_at_its_age():
    calls = queue("first_come", one=1, two=1)
    first = calls.put(caller("a"), "m", 1, 0, 0)
    calls.put(caller("b"), "m", 1, 0, 1)
    calls.put(caller("c"), "m", 1, 0, 2)
    started = calls.start(3)
    started[0].instance.suspended_until_ns = 10 * S
    calls.again(first, 4)
    calls.answered(started[1].call, 5)
    (next_,) = calls.start(5)
    assert next_.call is first
    assert next_.instance is started[1].instance


def test_only_instances_that_have_the_model_are_given_a_call():
    calls = queue(
        "first_come",
        one=Instance("one", frozenset({"m"}), 2),
        two=Instance("two", frozenset({"other"}), 2),
    )
    calls.put(caller(), "other", 1, 0, 0)
    (start,) = calls.start(0)
    assert start.instance.name == "two"


def test_one_of_two_places_is_kept_for_obligations():
    calls = queue(one=2)
    calls.put(caller("a"), "m", 1, 0, 0)
    calls.put(caller("b"), "m", 1, 0, 0)
    assert len(calls.start(0)) == 1
    safety = calls.put(caller("c", "safety"), "m", 1, 0, 1)
    assert numbers(calls.start(1)) == [safety.number]


def test_what_was_answered_is_counted_by_component():
    calls = queue(one=8)
    quick = calls.put(caller(), "m", 1, S, 0)
    slow = calls.put(caller("arm_1"), "m", 1, S, 0)
    calls.start(S // 2)
    calls.answered(quick, S)
    calls.answered(slow, S + 1)
    served = calls.served["monitor"]
    assert (served.answered, served.in_time, served.late) == (2, 1, 1)
    assert served.waited_ns == S


# Dispatch


def running(call, began, expected_s, tokens):
    return RunningCall(call, began, round(expected_s * S), tokens)


def test_round_robin_takes_turns_among_the_free():
    calls = queue(one=2, two=2)
    for robot in "abcd":
        calls.put(caller(robot, "safety"), "m", 1, 0, 0)
    assert [one.instance.name for one in calls.start(0)] == ["one", "two", "one", "two"]


def test_the_instance_with_the_lowest_expected_peak_gets_the_call():
    """`long` holds 1000 tokens for 10 s more, `short` 3000 that end in 0.4 s: at the worst moment
    of a call of 2 s that begins with 100 tokens and ends with 300, they hold
    long: 1000 + 300, short: at once 3000 + 100."""
    calls = queue(dispatch="lowest_peak", long=4, short=4)
    own = calls.put(caller("me"), "m", 100, 0, 0)
    other = replace(own, number=99)
    calls.instances["long"].running[1] = running(replace(other, prompt_tokens=1000), 0, 10, 0)
    calls.instances["short"].running[1] = running(replace(other, prompt_tokens=3000), 0, 0.4, 0)
    run = running(own, 0, 2, 200)
    assert calls.instances["long"].peak(run, 0) == 1300
    assert calls.instances["short"].peak(run, 0) == 3100
    (start,) = calls.start(0)
    assert start.instance.name == "long"
    assert "expected peak" in start.reason


def test_a_call_that_no_cache_has_room_for_is_held_back_until_there_is():
    calls = queue(dispatch="lowest_peak", one=Instance("one", frozenset({"m"}), 4, 1000))
    first = calls.put(caller("a"), "m", 900, 0, 0)
    calls.start(0)
    second = calls.put(caller("b"), "m", 300, 0, 1)
    assert calls.start(1) == []
    assert calls.held == "held back: no instance has the memory"
    calls.answered(first, 2)
    assert numbers(calls.start(2)) == [second.number]


def test_a_call_larger_than_every_cache_is_given_to_an_idle_instance():
    calls = queue(dispatch="lowest_peak", one=Instance("one", frozenset({"m"}), 4, 1000))
    call = calls.put(caller("a"), "m", 5000, 0, 0)
    assert numbers(calls.start(0)) == [call.number]


# What is learned


def test_wasserstein_distances_of_known_distributions():
    assert wasserstein(np.zeros(1), np.full(5, 3.0)) == pytest.approx(3.0)
    assert wasserstein(np.arange(100.0), np.arange(100.0) + 2) == pytest.approx(2.0)


def test_ranks_keep_the_order_and_the_distances_of_times():
    rank = ranked([np.full(4, 5.0), np.full(4, 1.0), np.full(4, 2.0)])
    assert rank == pytest.approx([5.0, 1.0, 2.0])
    assert ranked([]).size == 0


def test_a_distribution_converges_when_doubling_it_changes_nothing():
    steady, moving = Distribution(), Distribution()
    for i in range(16):
        steady.add(2.0 + 0.01 * (i % 2))
        moving.add(2.0**i)
        assert not (i < 15 and steady.converged)
    assert steady.converged
    assert not moving.converged
    with pytest.raises(ValueError, match="without samples"):
        _ = Distribution().mean


def test_a_workflow_is_rebuilt_with_what_ran_in_parallel_and_what_did_not():
    """a -> (b, c in parallel), then d, which a's answer led to as well."""
    spans = [
        CallSpan("a", "", 0, 10),
        CallSpan("b", "a", 12, 20),
        CallSpan("c", "a", 15, 40),
        CallSpan("d", "a", 50, 55),
    ]
    (step,) = rebuilt(spans[::-1])
    assert [[one.span.component for one in stage] for stage in step.stages] == [["b", "c"], ["d"]]
    assert step.remaining_ns() == 10 + 25 + 5


def test_a_call_belongs_to_the_newest_answer_of_its_upstream():
    spans = [CallSpan("a", "", 0, 10), CallSpan("a", "", 20, 30), CallSpan("b", "a", 35, 40),
             CallSpan("b", "missing", 41, 45)]  # fmt: skip
    first, second, third = rebuilt(spans)
    assert first.stages == []
    assert second.remaining_ns() == 15
    assert third.span.upstream == "missing"


def test_calls_of_a_workflow_teach_what_is_left_after_each():
    calls = queue(one=4)
    now = 0
    for task in range(20):
        for component, upstream in (("system2", ""), ("monitor", "system2")):
            who = caller(component=component, workflow=f"task {task}", upstream=upstream)
            call = calls.put(who, "m", 10, 0, now)
            calls.start(now)
            now += S
            calls.answered(call, now, completion_tokens=7)
        now += QUIET_NS + 1
    calls.learned.workflows.expire(now)
    workflows = calls.learned.workflows
    assert workflows.open == 0
    assert workflows.ended == {"quiet": 20}
    assert workflows.edges == {("system2", "monitor", False): 20}
    assert workflows.remaining["system2"].mean == pytest.approx(2.0)
    assert workflows.remaining["monitor"].mean == pytest.approx(1.0)
    assert workflows.tokens["monitor"].mean == 7


def test_two_robots_with_one_workflow_id_do_not_share_a_workflow():
    workflows = Workflows()
    assert workflows.began_ns(caller("a", workflow="1"), 10) == 10
    assert workflows.began_ns(caller("b", workflow="1"), 20) == 20
    assert workflows.began_ns(caller("a", workflow="1"), 30) == 10


def test_a_workflow_that_never_ends_is_learned_from_in_parts_and_memory_is_bounded():
    calls = queue(one=4)
    now = 0
    for _ in range(3 * MOST_CALLS):
        call = calls.put(caller(workflow="for ever", upstream="monitor"), "m", 1, 0, now)
        calls.start(now)
        now += 10 * MS
        calls.answered(call, now)
    workflows = calls.learned.workflows
    assert workflows.ended == {"long": 3}
    assert workflows.remaining["monitor"].count == 3 * MOST_CALLS
    for i in range(3000):
        workflows.began_ns(caller(workflow=str(i)), now + i)
    assert workflows.open <= 1024
    assert len({workflows.known(f"component {i}") for i in range(1000)}) <= 65


# Headers


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=30),
       st.integers(1, 3_600_000))  # fmt: skip
def test_what_headers_say_is_read_back(text, slo_ms):
    who = Caller(text, "safety", task=text, workflow=text, upstream="")
    headers = caller_headers(who, slo_ms * MS)
    assert all(value.isascii() for value in headers.values())
    assert read_caller(headers) == (who, slo_ms * MS)


@pytest.mark.parametrize(
    ("slo_ns", "said_ns"), [(1, 1000), (499, 1000), (1_000_400, 1_000_000), (9 * HOUR, HOUR)]
)
def test_objectives_that_are_tiny_or_huge_can_be_read_back(slo_ns, said_ns):
    assert read_caller(caller_headers(Caller(), slo_ns)) == (Caller(), said_ns)


def test_calls_without_headers_are_calls_of_nobody():
    assert read_caller({"accept": "*/*"}) == (Caller(), 0)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"x-kairos-slo-ms": "nan"}, "say how many milliseconds"),
        ({"x-kairos-slo-ms": "-5"}, "say how many milliseconds"),
        ({"x-kairos-slo-ms": "soon"}, "say how many milliseconds"),
        ({"x-kairos-robot": "r" * 200}, "at most 128 bytes"),
        ({"x-kairos-robot": "%00"}, "printable"),
        ({"x-kairos-robot": "%zz"}, "begins no byte"),
        ({"x-kairos-robot": "%ff"}, "not UTF-8"),
    ],
)
def test_invalid_headers_are_refused_with_what_is_wrong(headers, says):
    with pytest.raises(WireError, match=says):
        read_caller(headers)
