"""Which question a model gets next, and how often an objective was kept."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.vlm.attainment import AttainmentWindow
from kairos_ros.vlm.judgement_queue import (
    JudgementQueue,
    Requester,
    first_come,
    order_called,
)

MS = 1_000_000


def requester(robot, component="safety"):
    return Requester(robot, component)


def subjects(taken):
    return [one.subject for one in taken]


def test_the_earliest_deadline_goes_first_whoever_came_first():
    queue = JudgementQueue()
    queue.put(requester("a", "monitor"), "slow", now_ns=0, slo_ns=900)
    queue.put(requester("b"), "urgent", now_ns=100, slo_ns=300)
    queue.put(requester("c"), "more urgent", now_ns=150, slo_ns=100)
    assert subjects(queue.take(200, 3)) == ["more urgent", "urgent", "slow"]


def test_equal_deadlines_go_in_the_order_of_their_arrival():
    queue = JudgementQueue()
    for robot in "cab":
        queue.put(requester(robot), robot, now_ns=0, slo_ns=300)
    assert subjects(queue.take(0, 3)) == ["c", "a", "b"]


def test_the_baseline_takes_them_as_they_came():
    queue = JudgementQueue(first_come)
    queue.put(requester("a", "monitor"), "first", now_ns=0, slo_ns=900)
    queue.put(requester("b"), "second", now_ns=1, slo_ns=100)
    assert subjects(queue.take(2, 2)) == ["first", "second"]


def test_a_newer_picture_takes_the_place_of_the_one_that_waits_and_keeps_its_deadline():
    queue = JudgementQueue()
    queue.put(requester("a"), "old", now_ns=0, slo_ns=300)
    queue.put(requester("a"), "new", now_ns=250, slo_ns=300)
    (one,) = queue.take(260, 5)
    assert (one.subject, one.first_ns, one.due_ns) == ("new", 0, 300)
    assert queue.replaced == {"safety": 1}
    assert len(queue) == 0


def test_nobody_has_two_questions_with_the_model_at_once():
    queue = JudgementQueue()
    queue.put(requester("a"), 1, now_ns=0, slo_ns=100)
    (first,) = queue.take(0, 5)
    queue.put(requester("a"), 2, now_ns=10, slo_ns=100)
    queue.put(requester("b"), 3, now_ns=20, slo_ns=100)
    assert subjects(queue.take(30, 5)) == [3]
    queue.settle(first)
    assert subjects(queue.take(40, 5)) == [2]


def test_what_nobody_waits_for_any_more_is_forgotten_and_nothing_else():
    queue = JudgementQueue()
    queue.put(requester("a"), 1, now_ns=0, slo_ns=100)
    queue.put(requester("a", "monitor"), 2, now_ns=0, slo_ns=100)
    queue.put(requester("b"), 3, now_ns=0, slo_ns=100)
    queue.forget(requester("a"))
    queue.forget(requester("c"))
    assert subjects(queue.take(0, 5)) == [2, 3]


def test_an_order_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="earliest_deadline, first_come"):
        order_called("lottery")


@st.composite
def loads(draw):
    """Pictures of some robots over a second, and how long the model takes for each answer."""
    robots = draw(st.integers(1, 8))
    slo_ms = {robot: draw(st.integers(20, 400)) for robot in range(robots)}
    moment = st.tuples(st.integers(0, 1000), st.integers(0, robots - 1))
    pictures = sorted(draw(st.lists(moment, min_size=1, max_size=80)))
    return slo_ms, pictures, draw(st.integers(1, 60))


@given(loads())
def test_nobody_waits_longer_than_the_promise_however_many_newer_pictures_come(load):
    slo_ms, pictures, longest_ms = load
    queue = JudgementQueue()
    free_ns, answered = 0, dict.fromkeys(slo_ms, 0)
    bound = {
        robot: slo - min(slo_ms.values()) + (len(slo_ms) + 1) * longest_ms
        for robot, slo in slo_ms.items()
    }

    def serve(until_ns):
        nonlocal free_ns
        while len(queue) and free_ns <= until_ns:
            (one,) = queue.take(free_ns, 1)
            waited_ms = (free_ns - one.first_ns) / MS
            assert waited_ms <= bound[int(one.requester.robot)]
            assert one.subject >= answered[int(one.requester.robot)], "answers in order of pictures"
            answered[int(one.requester.robot)] = one.subject
            free_ns += longest_ms * MS
            queue.settle(one)

    for number, (at_ms, robot) in enumerate(pictures, 1):
        serve(at_ms * MS - 1)
        free_ns = max(free_ns, at_ms * MS)
        queue.put(requester(str(robot)), number, at_ms * MS, slo_ms[robot] * MS)
    serve(math.inf)
    newest = {robot: number for number, (_, robot) in enumerate(pictures, 1)}
    assert all(answered[robot] == number for robot, number in newest.items())


@given(loads())
def test_a_free_model_is_never_left_idle_while_something_waits(load):
    slo_ms, pictures, _ = load
    queue = JudgementQueue()
    with_model = []
    for number, (at_ms, robot) in enumerate(pictures):
        queue.put(requester(str(robot)), number, at_ms * MS, slo_ms[robot] * MS)
        if number % 3 == 0:
            for one in with_model:
                queue.settle(one)
            with_model = queue.take(at_ms * MS, 2)
            assert len(with_model) == 2 or len(queue) == 0


def test_attainment_counts_the_window_and_a_failure_is_never_in_time():
    window = AttainmentWindow(window_ns=1000)
    window.add(0, 9.9, in_time=False)
    window.add(1500, 0.1, in_time=True)
    window.add(1600, 0.3, in_time=True)
    window.add(1700, 0.5, in_time=False)
    window.add(1800, None, in_time=True)
    attained = window.at(2000)
    assert (attained.answers, attained.within, attained.failed) == (4, 0.5, 1)
    assert attained.p50_s == pytest.approx(0.3)
    assert window.at(9000).answers == 0
    assert math.isnan(window.at(9000).within)
