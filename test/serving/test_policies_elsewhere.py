"""One worker elsewhere with several policies: a link for each, and one GPU in the estimates."""

from dataclasses import replace

import numpy as np
from small_engine import LINK, SMALL_ENGINE

from kairos_ros.core.exchange import Announcement, Observation, Request, RequestId
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferResult

MS = 1_000_000
PICK = replace(SMALL_ENGINE, policy_id="pick-1", instructions=None, warmup=((1, 0.1), (4, 0.1)))
PLACE = replace(PICK, policy_id="place-2", warmup=((1, 0.4), (4, 0.4)))


def serving(device="gpu"):
    """LINK: 100 ms there and back, and 1 ms per request for the upload."""
    options = ServingOptions(
        parse_scheduling("fifo"), "static:10", stale_after_ns=0, policies=("pick", "place")
    )
    dispatcher = Dispatcher(options)
    for name, policy in (("pick", PICK), ("place", PLACE)):
        dispatcher.add_engine(f"gpu/{name}", "cloud", policy=name, device=device)
        dispatcher.link_changed(0, f"gpu/{name}", LINK)
        dispatcher.engine_ready(0, f"gpu/{name}", policy, warmup_profile(policy))
    for robot in "abcd":
        dispatcher.announce(0, Announcement(robot, f"s-{robot}", "t1"))
    return dispatcher


def ask(dispatcher, now_ns, robot, policy):
    asked = RequestId(robot, f"s-{robot}", "t1", 1, 0)
    seen = Observation(np.zeros(SMALL_ENGINE.state_dim, np.float32))
    return submits(dispatcher.request(now_ns, Request(asked, "", observation=seen, policy=policy)))


def submits(effects):
    return [effect for effect in effects if isinstance(effect, Submit)]


def ends_ms(dispatcher):
    return {
        name: running.compute_end_ns / MS
        for name, slot in dispatcher.engines.items()
        for running in slot.flight.values()
    }


def test_a_batch_of_one_policy_is_expected_to_begin_when_that_of_the_other_has_ended():
    dispatcher = serving()
    (first,) = ask(dispatcher, 0, "a", "pick")
    assert ask(dispatcher, 0, "b", "place") == [], "it would only wait there"
    due_ns = dispatcher.wakeup_ns(0)
    assert due_ns < 151 * MS, "it is sent before the answer to the first one is here"
    (second,) = submits(dispatcher.tick(due_ns))
    assert (first.engine, second.engine) == ("gpu/pick", "gpu/place")
    assert ends_ms(dispatcher) == {"gpu/pick": 151, "gpu/place": 551}


def test_engines_of_two_devices_elsewhere_do_not_wait_for_each_other():
    dispatcher = serving(device="")
    assert ask(dispatcher, 0, "a", "pick")
    assert ask(dispatcher, 0, "b", "place")
    assert ends_ms(dispatcher) == {"gpu/pick": 151, "gpu/place": 451}


def test_what_waits_behind_another_policy_moves_up_when_that_one_is_done_early():
    dispatcher = serving()
    (first,) = ask(dispatcher, 0, "a", "pick")
    ask(dispatcher, 0, "b", "place")
    dispatcher.tick(dispatcher.wakeup_ns(0))
    chunk = InferResult(np.zeros((20, 2), np.float32), np.ones((4, 20, 2), np.float32))
    dispatcher.batch_done(180 * MS, first.engine, first.batch, [chunk], 0.08)
    assert ends_ms(dispatcher)["gpu/place"] < 551
    assert not dispatcher.engines["gpu/pick"].is_free(180 * MS), "its GPU computes for the other"
