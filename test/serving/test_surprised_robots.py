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

SECOND = 1_000_000_000


def ask(round_, attempt=0, **surprise):
    return Request(
        RequestId("a", "s", "t", round_, attempt),
        instruction="open the door",
        execution=Execution(round=round_ - 1, period_ns=SECOND // 30, **surprise),
        observation=Observation(np.zeros(3, np.float32)),
    )


def test_the_fleet_state_tells_who_is_surprised_by_what_and_how_often_each_round_counts_once():
    dispatcher = Dispatcher(ServingOptions(parse_scheduling("fifo"), "static:10"))
    dispatcher.add_engine("edge", "edge")
    engine = replace(SMALL_ENGINE, warmup=((1, 0.2),))
    dispatcher.engine_ready(0, "edge", engine, warmup_profile(engine))
    dispatcher.announce(0, Announcement("a", "s", "t"))

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
