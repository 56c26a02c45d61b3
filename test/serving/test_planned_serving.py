"""Routes, rates and batch sizes of a plan: who is served where, how often, and what happens when an
engine of the plan is not up."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_engine import SMALL_ENGINE

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Observation,
    Refusal,
    Request,
    RequestId,
)
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.rates import over_rate
from kairos_ros.transport.messages import InferResult

MS = 1_000_000
SECOND = 1_000_000_000
ENGINE = replace(SMALL_ENGINE, max_batch=4, warmup=((1, 0.1), (4, 0.1)))
PERIOD_NS = 500 * MS


class Served:
    """A dispatcher with two engines of one policy, whose batches take 100 ms each."""

    def __init__(self, robots="abcd", routes=None, periods=None, batches=None):
        options = ServingOptions(parse_scheduling("fifo"), "static:10", stale_after_ns=0)
        self.dispatcher = Dispatcher(options)
        self.now_ns = SECOND
        for name in ("gpu0/p", "gpu1/p"):
            self.dispatcher.add_engine(name, "edge", device=name)
            self.dispatcher.engine_ready(0, name, ENGINE, warmup_profile(ENGINE))
        for robot in robots:
            self.dispatcher.announce(0, Announcement(robot, "s", "t"))
        self.dispatcher.follow(routes or {}, periods or {}, batches or {})
        self.running: dict[str, tuple[int, Submit]] = {}
        self.served: list[tuple[int, str, str]] = []
        """When, robot, engine."""
        self.told: dict[str, int] = {}

    def take(self, effects):
        for effect in effects:
            if isinstance(effect, Submit):
                self.running[effect.engine] = self.now_ns + 100 * MS, effect
                self.served += [(self.now_ns, r.robot, effect.engine) for r in effect.requests]
            elif isinstance(effect, Answer) and isinstance(effect.body, Actions):
                self.told[effect.id.robot] = effect.body.request_period_ns

    def ask(self, robot, round_):
        asked = Request(
            RequestId(robot, "s", "t", round_, 0),
            instruction="open the door",
            execution=Execution(round=round_ - 1, period_ns=50 * MS),
            observation=Observation(np.zeros(3, np.float32)),
        )
        self.take(self.dispatcher.request(self.now_ns, asked))

    def wait(self, ns):
        """Lets time pass in steps of 5 ms; batches end when they are over."""
        until_ns = self.now_ns + ns
        while self.now_ns < until_ns:
            self.now_ns += 5 * MS
            for engine, (ends_ns, submit) in list(self.running.items()):
                if self.now_ns >= ends_ns:
                    del self.running[engine]
                    answers = [
                        InferResult(np.zeros((20, 2), np.float32), np.ones((4, 20, 2), np.float32))
                        for _ in submit.requests
                    ]
                    done = self.dispatcher.batch_done(
                        self.now_ns, engine, submit.batch, answers, 0.1
                    )
                    self.take(done)
            for robot in list(self.dispatcher.sessions):
                self.dispatcher.announce(self.now_ns, Announcement(robot, "s", "t"))
            self.take(self.dispatcher.tick(self.now_ns))


ROUTES = {"a": "gpu0/p", "b": "gpu0/p", "c": "gpu1/p", "d": "gpu1/p"}


def test_every_robot_is_served_by_the_engine_that_it_is_routed_to() -> None:
    served = Served(routes=ROUTES)
    for round_ in (1, 2, 3):
        for robot in "abcd":
            served.ask(robot, round_)
        served.wait(300 * MS)
    assert {(robot, engine) for _, robot, engine in served.served} == set(ROUTES.items())
    assert Counter(robot for _, robot, _ in served.served) == dict.fromkeys("abcd", 3)


def test_a_robot_whose_engine_is_down_is_served_by_another_of_its_policy_until_it_is_back() -> None:
    served = Served(robots="ac", routes=ROUTES)
    served.take(served.dispatcher.engine_down(served.now_ns, "gpu0/p", "it died"))
    served.ask("a", 1)
    served.wait(200 * MS)
    served.take(
        served.dispatcher.engine_ready(served.now_ns, "gpu0/p", ENGINE, warmup_profile(ENGINE))
    )
    served.ask("a", 2)
    assert [engine for _, _, engine in served.served] == ["gpu1/p", "gpu0/p"]


def test_an_engine_that_is_removed_finishes_nothing_by_another_and_loses_no_request() -> None:
    """Its batch is lost with it, here, and what was in it is served by the engine that is left."""
    served = Served(robots="ac", routes=ROUTES)
    served.ask("a", 1)
    served.dispatcher.engines["gpu0/p"].state = "ending"
    del served.running["gpu0/p"]
    served.take(served.dispatcher.remove_engine(served.now_ns, "gpu0/p"))
    assert [(robot, engine) for _, robot, engine in served.served] == [
        ("a", "gpu0/p"),
        ("a", "gpu1/p"),
    ]
    assert list(served.dispatcher.engines) == ["gpu1/p"]


def test_batches_are_no_larger_than_planned_and_grow_again_with_another_plan() -> None:
    served = Served(routes=dict.fromkeys("abcd", "gpu0/p"), batches={"gpu0/p": 2})
    slot = served.dispatcher.engines["gpu0/p"]
    assert len(slot.latency_ns) == 2

    def sizes(first):
        began = len(served.served)
        for robot in "abcd":
            served.ask(robot, first)
        served.wait(400 * MS)
        return Counter(at for at, _, _ in served.served[began:]).values()

    assert max(sizes(1)) == 2
    served.dispatcher.follow(dict.fromkeys("abcd", "gpu0/p"), {}, {"gpu0/p": 4})
    assert len(slot.latency_ns) == 4
    assert max(sizes(2)) > 2


def test_a_batch_in_flight_may_be_larger_than_the_plan_that_came_meanwhile() -> None:
    served = Served(routes=dict.fromkeys("abcd", "gpu0/p"))
    for robot in "abcd":
        served.ask(robot, 1)
    served.wait(120 * MS)
    assert len(served.running["gpu0/p"][1].requests) > 1
    served.dispatcher.follow({}, {}, {"gpu0/p": 1})
    served.wait(300 * MS)
    assert served.told.keys() == set("abcd")


def test_a_robot_is_told_its_planned_rate_with_its_first_answer() -> None:
    served = Served(routes=ROUTES, periods={"a": PERIOD_NS})
    served.ask("a", 1)
    served.ask("b", 1)
    served.wait(300 * MS)
    assert served.told == {"a": PERIOD_NS, "b": 0}


def test_one_that_asks_sooner_than_planned_waits_although_its_engine_is_idle() -> None:
    served = Served(robots="a", routes=ROUTES, periods={"a": PERIOD_NS})
    began_ns = served.now_ns
    served.ask("a", 1)
    served.wait(150 * MS)
    served.ask("a", 2)
    session = served.dispatcher.sessions["a"]
    assert "asks more often than the plan allows" in served.dispatcher.reason(session)
    assert session.asked_early == served.dispatcher.counters["asked_early"] == 1
    served.wait(600 * MS)
    assert [at - began_ns for at, _, _ in served.served] == [0, PERIOD_NS]


def test_one_request_that_seems_early_names_nobody_and_two_in_a_row_do() -> None:
    served = Served(robots="a", routes=ROUTES, periods={"a": PERIOD_NS})
    session = served.dispatcher.sessions["a"]
    served.ask("a", 1)
    served.wait(900 * MS)
    served.ask("a", 2)  # 400 ms late on the way
    served.wait(150 * MS)
    served.ask("a", 3)  # in time by the robot's clock
    assert (session.asked_early, over_rate(served.now_ns, session)) == (1, False)
    served.wait(2 * PERIOD_NS)
    served.ask("a", 4)  # in time: what was before does not count any more
    served.wait(150 * MS)
    served.ask("a", 5)
    assert (session.asked_early, over_rate(served.now_ns, session)) == (2, False)
    served.wait(PERIOD_NS)
    served.ask("a", 6)  # sooner than a period after when round 5 might have come
    assert (session.asked_early, over_rate(served.now_ns, session)) == (3, True)
    served.wait(5 * SECOND)
    assert not over_rate(served.now_ns, session)


def test_a_robot_that_gives_up_each_round_that_waits_for_its_rate_is_named_too() -> None:
    served = Served(robots="a", routes=ROUTES, periods={"a": PERIOD_NS})
    session = served.dispatcher.sessions["a"]
    served.ask("a", 1)
    served.wait(100 * MS)
    served.ask("a", 2)  # waits
    served.wait(PERIOD_NS - 180 * MS)
    served.ask("a", 3)  # in the place of round 2, about when that was due
    assert (session.asked_early, over_rate(served.now_ns, session)) == (1, False)
    served.wait(100 * MS)
    served.ask("a", 4)
    assert (session.asked_early, over_rate(served.now_ns, session)) == (2, True)


def test_one_that_keeps_to_its_planned_rate_never_waits_for_it() -> None:
    served = Served(robots="a", routes=ROUTES, periods={"a": PERIOD_NS})
    for round_ in range(1, 6):
        asked_ns = served.now_ns
        served.ask("a", round_)
        served.wait(PERIOD_NS)
        assert served.served[-1][0] == asked_ns
    assert served.dispatcher.sessions["a"].asked_early == 0


@settings(max_examples=40)
@given(
    waits=st.lists(st.integers(0, 60), min_size=5, max_size=40),
    answered=st.booleans(),
)
def test_whatever_one_does_it_is_served_no_more_often_than_planned_and_never_starves(
    waits: list[int], answered: bool
) -> None:
    """It asks for one round after the other, after its answers or without waiting for them."""
    served = Served(robots="a", routes=ROUTES, periods={"a": PERIOD_NS})
    began_ns = served.now_ns
    for round_, wait in enumerate(waits, 1):
        served.ask("a", round_)
        asked_ns = served.now_ns
        served.wait(wait * 10 * MS)
        while answered and (served.dispatcher.pending or served.running):
            served.wait(50 * MS)
    times = [at for at, _, _ in served.served]
    elapsed_ns = served.now_ns - began_ns
    # and 100 ms that the network may make a request too early
    assert len(times) <= 1 + (elapsed_ns + 100 * MS) / PERIOD_NS
    if answered:
        assert len(times) == len(waits)
    served.wait(2 * PERIOD_NS)
    assert served.served[-1][0] >= asked_ns, "its newest round was served"
    assert not served.dispatcher.pending, "nothing is left waiting for ever"


def test_robots_that_begin_together_come_to_ask_one_after_the_other() -> None:
    """Four robots on one engine keep to 1 s each."""
    served = Served(routes=dict.fromkeys("abcd", "gpu0/p"), periods=dict.fromkeys("abcd", SECOND))
    due, rounds, asked = dict.fromkeys("abcd", served.now_ns), Counter(), []
    while served.now_ns < 14 * SECOND:
        for robot in "abcd":
            if served.now_ns >= due[robot]:
                rounds[robot] += 1
                served.ask(robot, rounds[robot])
                asked.append((served.now_ns, robot))
                due[robot] = served.now_ns + 10 * SECOND  # until it is told
        served.told.clear()
        served.wait(5 * MS)
        for robot, period_ns in served.told.items():
            due[robot] = max(at for at, one in asked if one == robot) + period_ns
    assert {at for at, _ in asked[:4]} == {SECOND}
    gaps = [b - a for (a, _), (b, _) in pairwise(asked[-4:])]
    assert min(gaps) >= 165 * MS, "0.7 of the even distance, which is 250 ms, or nearly"
    assert min(rounds.values()) >= 12, "13 s at 1/s, and at most one period lost to the spreading"


def test_another_plan_changes_the_rate_with_the_next_answer() -> None:
    served = Served(robots="a", routes=ROUTES, periods={"a": PERIOD_NS})
    served.ask("a", 1)
    served.wait(PERIOD_NS)
    served.dispatcher.follow(ROUTES, {"a": 200 * MS}, {})
    served.ask("a", 2)
    served.wait(150 * MS)
    assert served.told["a"] == 200 * MS


def test_a_robot_that_is_not_in_the_plan_waits_to_be_admitted_or_is_told_why_not() -> None:
    cell = Served("abc", {"a": "gpu0/p"})
    cell.dispatcher.follow({"a": "gpu0/p"}, {}, {}, {"c": "no server has room"})
    refused = {}
    for robot in "abc":
        asked = Request(
            RequestId(robot, "s", "t", 1, 0),
            instruction="open the door",
            execution=Execution(round=0, period_ns=50 * MS),
            observation=Observation(np.zeros(3, np.float32)),
        )
        for effect in cell.dispatcher.request(cell.now_ns, asked):
            if isinstance(effect, Answer) and isinstance(effect.body, Refusal):
                refused[effect.id.robot] = effect.body
    assert refused.keys() == {"b", "c"}
    assert {one.code for one in refused.values()} == {RefusalCode.NOT_ADMITTED}
    assert refused["b"].retry_after_ns == SECOND  # it is not decided yet
    assert (refused["c"].retry_after_ns, refused["c"].reason) == (0, "no server has room")
    reasons = [cell.dispatcher.reason(cell.dispatcher.sessions[robot]) for robot in "bc"]
    assert reasons[1] == "not admitted: no server has room"
    cell.dispatcher.follow({"a": "gpu0/p", "b": "gpu1/p"}, {}, {}, {"c": "no server has room"})
    cell.ask("b", 2)
    assert cell.served[-1][1:] == ("b", "gpu1/p")
