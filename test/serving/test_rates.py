"""Robots are told how often they may ask, and one that does not keep to it is served last."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_engine import SMALL_ENGINE

from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Observation,
    Request,
    RequestId,
)
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Effect, Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferResult

MS = 1_000_000
SECOND = 1_000_000_000
PERIOD = 50 * MS
ENGINE = replace(SMALL_ENGINE, max_batch=1, warmup=((1, 0.2),))
"""Five rounds per second at best, 4.5 at the target."""


def serving(rate_control: bool = True, scheduling: str = "fifo") -> Dispatcher:
    options = ServingOptions(
        parse_scheduling(scheduling), "static:10", stale_after_ns=0, rate_control=rate_control
    )
    dispatcher = Dispatcher(options)
    dispatcher.add_engine("edge", "edge")
    dispatcher.engine_ready(0, "edge", ENGINE, warmup_profile(ENGINE))
    for robot in "abc":
        dispatcher.announce(0, Announcement(robot, "s", "t"))
    return dispatcher


def ask(robot: str, round_: int, executed: int = 10) -> Request:
    """executed: actions of the round before."""
    execution = Execution(
        round=round_ - 1,
        started=round_ > 1,
        started_ago_ns=executed * PERIOD,
        executed=executed,
        period_ns=PERIOD,
    )
    return Request(
        RequestId(robot, "s", "t", round_, 0),
        instruction="open the door",
        kind="door",
        execution=execution,
        observation=Observation(np.zeros(3, np.float32)),
    )


def asked_for(effects: Sequence[Effect]) -> list[str]:
    return [r.robot for e in effects if isinstance(e, Submit) for r in e.requests]


def serve(dispatcher: Dispatcher, now_ns: int, effects: Sequence[Effect]) -> tuple[Any, ...]:
    """Answers the batch among `effects`: the actions that go back, and what follows."""
    (submit,) = (e for e in effects if isinstance(e, Submit))
    answers = [InferResult(np.zeros((20, 2), np.float32), np.ones((4, 20, 2), np.float32))]
    then = dispatcher.batch_done(now_ns, "edge", submit.batch, answers, 0.2)
    (answer,) = (e for e in then if isinstance(e, Answer))
    assert isinstance(answer.body, Actions)
    return answer.body, [e for e in then if e is not answer]


def one_round(dispatcher: Dispatcher, now_ns: int, robot: str, round_: int, executed: int) -> int:
    """Asks and is answered 200 ms later; the period that the robot is told."""
    effects = dispatcher.request(now_ns, ask(robot, round_, executed))
    body, _ = serve(dispatcher, now_ns + 200 * MS, effects)
    return int(body.request_period_ns)


def three_greedy_robots(dispatcher: Dispatcher) -> dict[str, int]:
    """Each executes 200 ms per round, so together they ask for 15 rounds per second of 5."""
    told, now_ns = {}, SECOND
    for round_ in (1, 2, 3):
        for robot in "abc":
            told[robot] = one_round(dispatcher, now_ns, robot, round_, executed=4)
            now_ns += SECOND
    return told


def test_robots_that_ask_for_more_than_the_engine_does_are_told_fair_periods() -> None:
    told = three_greedy_robots(serving())
    # 4.5 rounds per second for three of them: one in 667 ms
    assert [ns / MS for ns in told.values()] == pytest.approx([666.7] * 3, abs=0.1)


def test_a_standby_engine_counts_only_while_it_serves() -> None:
    dispatcher = serving()
    dispatcher.add_engine("spare", "edge", standby=True)
    dispatcher.engine_ready(0, "spare", ENGINE, warmup_profile(ENGINE))
    told = three_greedy_robots(dispatcher)
    assert [ns / MS for ns in told.values()] == pytest.approx([666.7] * 3, abs=0.1)


def test_robots_are_not_limited_while_the_engine_does_all_they_ask_for() -> None:
    dispatcher, now_ns = serving(), SECOND
    for round_ in (1, 2, 3):
        for robot in "abc":  # a second each: 3 rounds per second of 5
            assert one_round(dispatcher, now_ns, robot, round_, executed=20) == 0
            now_ns += SECOND


def test_without_rate_control_nobody_is_told_anything() -> None:
    assert set(three_greedy_robots(serving(rate_control=False)).values()) == {0}


def test_a_robot_whose_task_has_ended_takes_nothing_from_the_others() -> None:
    dispatcher = serving()
    three_greedy_robots(dispatcher)
    dispatcher.announce(20 * SECOND, Announcement("c", "s", ""))
    told = one_round(dispatcher, 21 * SECOND, "a", 4, executed=4)
    assert told / MS == pytest.approx(1000 / 2.25, abs=0.1)


@pytest.mark.parametrize("scheduling", ["fifo", "wait_ratio", "least_service", "admit"])
def test_one_that_asks_too_soon_comes_after_all_that_keep_to_it(scheduling: str) -> None:
    dispatcher = serving(scheduling=scheduling)
    three_greedy_robots(dispatcher)
    now_ns = 30 * SECOND
    first = dispatcher.request(now_ns, ask("a", 4))
    body, _ = serve(dispatcher, now_ns + 200 * MS, first)
    assert body.request_period_ns > 0
    busy = dispatcher.request(now_ns + 210 * MS, ask("b", 4))
    dispatcher.request(now_ns + 220 * MS, ask("a", 5))  # 220 ms after its last one
    dispatcher.request(now_ns + 230 * MS, ask("c", 4))
    _, then = serve(dispatcher, now_ns + 410 * MS, busy)
    assert asked_for(then) == ["c"]
    assert "more often than it may" in dispatcher.reason(dispatcher.sessions["a"])
    assert dispatcher.sessions["a"].asked_early == dispatcher.counters["asked_early"] == 1
    assert not dispatcher.sessions["c"].asked_early


def test_its_request_is_an_ordinary_one_when_the_time_that_it_was_told_is_over() -> None:
    dispatcher = serving()
    three_greedy_robots(dispatcher)
    now_ns = 30 * SECOND
    period_ns = one_round(dispatcher, now_ns, "a", 4, executed=4)
    busy = dispatcher.request(now_ns + 210 * MS, ask("b", 4))
    dispatcher.request(now_ns + 220 * MS, ask("a", 5))
    dispatcher.request(now_ns + 230 * MS, ask("c", 4))
    _, then = serve(dispatcher, now_ns + period_ns, busy)
    assert asked_for(then) == ["a"], "it came before c, and may ask by now"


def test_an_idle_engine_serves_also_one_that_asks_too_soon() -> None:
    dispatcher = serving()
    three_greedy_robots(dispatcher)
    one_round(dispatcher, 30 * SECOND, "a", 4, executed=4)
    assert asked_for(dispatcher.request(30 * SECOND + 220 * MS, ask("a", 5))) == ["a"]


def test_a_request_that_the_network_delivered_faster_than_the_last_is_not_too_soon() -> None:
    dispatcher = serving()
    three_greedy_robots(dispatcher)
    period_ns = one_round(dispatcher, 30 * SECOND, "a", 4, executed=4)
    dispatcher.request(30 * SECOND + period_ns - 90 * MS, ask("a", 5))
    assert dispatcher.counters["asked_early"] == 0


def test_rate_control_can_be_switched_off_while_robots_are_served() -> None:
    dispatcher = serving()
    three_greedy_robots(dispatcher)
    dispatcher.change(replace(dispatcher.options, rate_control=False))
    assert one_round(dispatcher, 30 * SECOND, "a", 4, executed=4) == 0
