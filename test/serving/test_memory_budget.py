"""Policies that are loaded when requests need them, within a memory budget."""

from dataclasses import replace

import numpy as np
import pytest
from small_engine import SMALL_ENGINE

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Announcement, Observation, Request, RequestId
from kairos_ros.core.placement.memory_plan import TURN_LOADS, MemoryPlan
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.batches import SlotMemory
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.engines.memory import ASKED_NS
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferResult

SECOND = 1_000_000_000
LOAD_S = 20.0
NAMES = "pick", "place", "stack"
POLICIES = {
    name: replace(
        SMALL_ENGINE,
        policy_id=f"{name}-1",
        instructions=None,
        warmup=((1, 0.1), (4, 0.13)),
        memory_mib=3000,
    )
    for name in NAMES
}
NOTHING = MemoryPlan()


class Server:
    """A server of three policies, of which two fit; the first one is loaded."""

    def __init__(self, budget_mib=6500):
        self.now_ns = 0
        self.dispatcher = Dispatcher(
            ServingOptions(
                parse_scheduling("fifo"),
                "static:10",
                stale_after_ns=0,
                policies=NAMES,
                memory_budget_mib=budget_mib,
                default_deadline_ns=1000 * SECOND,
            )
        )
        for name in NAMES:
            slot = self.dispatcher.add_engine(
                name, "edge", policy=name, device="edge", memory=SlotMemory(2000, SECOND)
            )
            slot.state = "not loaded"
        for robot in "abc":
            self.announce(robot, "t1")
        self.load("pick")

    def announce(self, robot, task):
        self.dispatcher.announce(self.now_ns, Announcement(robot, f"s-{robot}", task))

    def load(self, name, memory_mib=3000):
        described = replace(POLICIES[name], memory_mib=memory_mib)
        profile = warmup_profile(described)
        return self.dispatcher.engine_ready(self.now_ns, name, described, profile, LOAD_S)

    def ask(self, robot, policy, round=1, task="t1"):
        asked = RequestId(robot, f"s-{robot}", task, round, 0)
        seen = Observation(np.zeros(SMALL_ENGINE.state_dim, np.float32))
        request = Request(asked, "open", observation=seen, policy=policy)
        return self.dispatcher.request(self.now_ns, request)

    def later(self, seconds):
        """What is to be loaded and ended then; the robots are still there."""
        self.now_ns += round(seconds * SECOND)
        for robot, session in list(self.dispatcher.sessions.items()):
            self.announce(robot, session.announced_task)
        return self.dispatcher.memory.plan(self.now_ns)

    def loads(self, name):
        """It is loaded, as the plan wants it, in LOAD_S."""
        assert self.later(0.1) == MemoryPlan(load=name)
        self.dispatcher.engines[name].state = "loading"
        assert self.later(LOAD_S) == NOTHING
        return self.load(name)

    def answer(self, effects):
        (sent,) = (effect for effect in effects if isinstance(effect, Submit))
        shape = SMALL_ENGINE.chunk_size, 2
        chunk = InferResult(np.zeros(shape, np.float32), np.ones((4, *shape), np.float32))
        outcomes = [chunk for _ in sent.requests]
        return self.dispatcher.batch_done(self.now_ns, sent.engine, sent.batch, outcomes, 0.1)


def test_a_policy_that_is_not_loaded_is_once_a_robot_asks_for_it():
    server = Server()
    assert server.later(1) == NOTHING
    (refused,) = server.ask("a", "place")
    assert refused.body.code is RefusalCode.ENGINE_DOWN
    assert refused.body.reason == "no engine of policy place is up yet: not loaded"
    server.loads("place")
    assert server.answer(server.ask("a", "place"))[0].body.policy == "place-1"


def test_a_robot_that_gave_up_has_nothing_loaded():
    server = Server()
    server.ask("a", "place")
    assert server.later(ASKED_NS / SECOND) == NOTHING


def test_the_least_recently_used_policy_that_no_task_needs_makes_room():
    server = Server()
    server.ask("a", "place")
    server.loads("place")
    server.answer(server.ask("a", "place"))
    server.ask("b", "stack")
    assert server.later(1) == MemoryPlan(end=("pick",))
    assert server.dispatcher.engines["pick"].state == "ending"
    assert server.later(1) == NOTHING
    server.dispatcher.engine_ended(server.now_ns, "pick")
    assert server.dispatcher.engines["pick"].state == "not loaded"
    server.ask("b", "stack")
    server.loads("stack")


def test_policies_that_tasks_need_take_turns_and_requests_wait_for_theirs():
    server = Server(budget_mib=4500)
    server.answer(server.ask("a", "pick"))
    server.ask("b", "place")
    assert server.later(TURN_LOADS * LOAD_S - 1) == NOTHING, "pick has its turn"
    server.ask("b", "place")
    plan = server.later(1)
    assert plan == MemoryPlan(end=("pick",), taking_turns=True)
    told = server.dispatcher.memory.contention(server.now_ns)
    assert told.startswith("pick (3000 MiB), place (2000 MiB) are needed at the same time")
    assert server.ask("a", "pick", round=2) == [], "it waits, and is not refused"
    server.dispatcher.engine_ended(server.now_ns, "pick")
    server.ask("b", "place")
    server.loads("place")
    assert server.later(TURN_LOADS * LOAD_S - 1) == NOTHING
    assert server.later(1) == MemoryPlan(end=("place",), taking_turns=True)


def test_what_is_under_way_when_a_policy_ends_is_answered_and_what_is_lost_is_queued_again():
    server = Server(budget_mib=3000)
    under_way = server.ask("a", "pick")
    server.later(TURN_LOADS * LOAD_S)
    server.ask("b", "place")
    assert server.later(0.1).end == ("pick",)
    assert server.ask("c", "pick") == [], "nothing is sent to a policy that ends"
    server.dispatcher.batch_failed(server.now_ns, "pick", under_way[0].batch, "it ends")
    server.dispatcher.engine_ended(server.now_ns, "pick")
    assert [entry.session.robot for entry in server.dispatcher.pending.values()] == ["c", "a"]


def test_an_engine_elsewhere_serves_meanwhile_and_what_it_serves_in_time_loads_nothing():
    server = Server(budget_mib=9000)
    server.dispatcher.add_engine("far", "cloud", policy="place")
    described = POLICIES["place"]
    server.dispatcher.engine_ready(0, "far", described, warmup_profile(described))
    effects = server.ask("a", "place")
    assert [effect.engine for effect in effects] == ["far"]
    server.later(0.5)
    server.ask("b", "place")
    assert server.later(0.5) == NOTHING, "the far engine is sooner than loading"
    assert server.later(1.5) == MemoryPlan(load="place")


def test_a_task_that_began_elsewhere_has_policies_loaded_until_its_own_is_found():
    server = Server(budget_mib=6000)
    server.ask("a", "stack-1")
    server.loads("place")
    server.ask("a", "stack-1")
    assert server.later(0.1).end == ("pick",)
    server.dispatcher.engine_ended(server.now_ns, "pick")
    server.ask("a", "stack-1")
    server.loads("stack")
    assert server.answer(server.ask("a", "stack-1"))[0].body.policy == "stack-1"


def test_a_policy_that_takes_more_than_the_budget_is_refused_by_what_its_worker_tells():
    server = Server()
    server.ask("a", "place")
    assert server.later(0.1).load == "place"
    with pytest.raises(ConfigError, match="policy place takes 7000 MiB, and memory_budget_mib is"):
        server.load("place", memory_mib=7000)


def test_a_policy_that_cannot_be_loaded_ends_its_tasks_and_is_given_to_no_others():
    server = Server()
    server.ask("a", "place")
    assert server.later(0.1) == MemoryPlan(load="place")
    server.dispatcher.engine_down(server.now_ns, "place", "weights are missing", failures=1)
    (refused,) = server.ask("a", "place")
    assert (refused.body.code, refused.body.retry_after_ns) == (RefusalCode.ENGINE_DOWN, 0)
    assert refused.body.reason == (
        "policy place cannot be loaded, restart the serving node: weights are missing"
    )
    policies = server.dispatcher.policies
    with pytest.raises(ConfigError, match="'place' cannot be given to tasks: weights are missing"):
        policies.swap({"pick": "place"})
    policies.swaps = {"pick": "place"}  # from before it was known
    policies.swap({"pick": "place", "stack": "pick"})
    assert policies.swaps == {"pick": "place", "stack": "pick"}
    (refused,) = server.ask("b", "weights that nobody has")
    assert refused.body.code is RefusalCode.ENGINE_DOWN, "stack may have them"
    server.loads("stack")
    (refused,) = server.ask("b", "weights that nobody has")
    assert refused.body.code is RefusalCode.UNKNOWN_POLICY


def test_of_a_policy_that_was_ended_while_its_worker_was_down_nobody_says_that_another_follows():
    server = Server()
    server.ask("a", "place")
    server.loads("place")
    server.dispatcher.engine_down(server.now_ns, "place", "killed", failures=1, retry_ns=SECOND)
    assert server.dispatcher.engines["place"].trouble(server.now_ns)
    server.dispatcher.engines["place"].state = "ending"
    server.dispatcher.engine_ended(server.now_ns, "place")
    assert not server.dispatcher.engines["place"].trouble(server.now_ns)


def test_without_a_budget_nothing_is_ever_decided():
    server = Server(budget_mib=0)
    server.ask("a", "place")
    assert server.later(0.1) == NOTHING
    assert server.dispatcher.memory.contention(server.now_ns) == ""
