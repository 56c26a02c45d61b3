"""What a serving node tells of robots that ask early, because they do not move as expected."""

from collections import Counter
from dataclasses import replace

import numpy as np
from small_engine import SMALL_ENGINE

from kairos_ros.core.exchange import Announcement, Execution, Observation, Request, RequestId
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.nodes.messages.fleet import fleet_state
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferResult

SECOND = 1_000_000_000


def serving(horizon, **options):
    dispatcher = Dispatcher(ServingOptions(parse_scheduling("fifo"), horizon, **options))
    dispatcher.add_engine("edge", "edge")
    engine = replace(SMALL_ENGINE, warmup=((1, 0.2),))
    dispatcher.engine_ready(0, "edge", engine, warmup_profile(engine))
    dispatcher.announce(0, Announcement("a", "s", "t"))
    return dispatcher


def ask(round_, attempt=0, task="t", **surprise):
    return Request(
        RequestId("a", "s", task, round_, attempt),
        instruction="open the door",
        execution=Execution(round=round_ - 1, period_ns=SECOND // 30, **surprise),
        observation=Observation(np.zeros(3, np.float32)),
    )


def test_the_fleet_state_tells_who_is_surprised_by_what_and_how_often_each_round_counts_once():
    dispatcher = serving("static:10")

    def told(now_s):
        (robot,) = fleet_state(now_s * SECOND, dispatcher, Counter()).robots
        return robot.surprised, robot.surprise, robot.surprise_joint, robot.surprises

    dispatcher.request(SECOND, ask(1, surprise=3.0, surprise_joint="wrist"))
    assert told(1) == (False, 0.0, "", 0)  # not so much that it asks early
    early = {"surprised": True, "surprise": 7.5, "surprise_joint": "elbow"}
    dispatcher.request(2 * SECOND, ask(2, **early))
    dispatcher.request(3 * SECOND, ask(2, attempt=1, **early))
    assert told(3) == (True, 7.5, "elbow", 1)
    dispatcher.request(4 * SECOND, ask(3))
    assert told(4) == (False, 0.0, "", 1)
    dispatcher.request(5 * SECOND, ask(4, **early))
    assert told(5) == (True, 7.5, "elbow", 2)
    assert dispatcher.counters["surprised"] == 2


def horizons(dispatcher, asked):
    """Of rounds that are asked for and answered in turn, with the reasons."""
    chunk = np.zeros((SMALL_ENGINE.chunk_size, SMALL_ENGINE.action_dim), np.float32)
    for number, request in enumerate(asked, start=1):
        (submit,) = dispatcher.request(number * SECOND, request)
        result = InferResult(chunk, np.ones((2, *chunk.shape), np.float32))
        (answer,) = dispatcher.batch_done(number * SECOND + 1, "edge", submit.batch, [result], 0.1)
        assert len(answer.body.actions) == len(answer.body.confidence)
        yield len(answer.body.actions), answer.body.horizon_reason


def test_a_chunk_that_a_surprised_arm_asked_for_is_short():
    asked = [ask(1), ask(2, surprised=True), ask(3), ask(4, surprised=True), ask(1, task="another")]
    long, short = (20, "static 20 of 20"), (8, "static 20 of 20; 8 after a surprise")
    limited = serving("static:20", surprised_horizon=8)
    assert [*horizons(limited, asked)] == [long, short, long, short, long]
    assert {*horizons(serving("static:5"), asked)} == {(5, "static 5 of 20")}
    assert {*horizons(serving("static:20", surprised_horizon=0), asked)} == {long}
