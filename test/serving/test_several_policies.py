"""Several policies on one server: one schedule, and batches of one policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_engine import SMALL_ENGINE

from kairos_ros.core.conformance import check_scheduling_policy
from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Observation,
    Refetch,
    Request,
    RequestId,
)
from kairos_ros.core.fit import RobotInterface
from kairos_ros.core.placement.overflow import Capacity, EngineCapacity, Placement, place
from kairos_ros.core.placement.policy_placement import place_policies
from kairos_ros.core.scheduling.decision import Decision
from kairos_ros.core.scheduling.policies import BUILTIN, parse_scheduling
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import ServerTime, warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import InferResult

MS = 1_000_000
PICK = replace(SMALL_ENGINE, policy_id="pick-1", instructions=None, warmup=((1, 0.1), (4, 0.13)))
PLACE = replace(PICK, policy_id="place-2", warmup=((1, 0.4), (2, 0.5)), chunk_size=30)
ROBOTS = "abcdefgh"


def serving(engines=("pick", "place"), **options):
    """A server of two policies on one device."""
    dispatcher = Dispatcher(
        ServingOptions(
            **{
                "scheduling": parse_scheduling("fifo"),
                "horizon_policy": "static:10",
                "stale_after_ns": 0,
                "policies": ("pick", "place"),
            }
            | options
        )
    )
    for name in engines:
        dispatcher.add_engine(f"edge/{name}", "edge", policy=name, device="edge")
    for name, policy in (("pick", PICK), ("place", PLACE)):
        if name in engines:
            dispatcher.engine_ready(0, f"edge/{name}", policy, warmup_profile(policy))
    for robot in ROBOTS:
        dispatcher.announce(0, Announcement(robot, f"s-{robot}", "t1"))
    return dispatcher


def ask(robot, policy="", round=1, task="t1", attempt=0, **fields):
    asked = RequestId(robot, f"s-{robot}", task, round, attempt)
    seen = Observation(np.zeros(PICK.state_dim, np.float32))
    return Request(asked, "open the door", observation=seen, policy=policy, **fields)


def done(dispatcher, now_ns, sent):
    chunk_size = PICK.chunk_size if sent.engine.endswith("pick") else PLACE.chunk_size
    chunk = np.zeros((chunk_size, 2), np.float32)
    outcomes = [InferResult(chunk, np.ones((4, chunk_size, 2), np.float32)) for _ in sent.requests]
    return dispatcher.batch_done(now_ns, sent.engine, sent.batch, outcomes, 0.1)


def sent(effects):
    return [(e.engine, [r.robot for r in e.requests]) for e in effects if isinstance(e, Submit)]


def refusal_of(effects):
    (answer,) = effects
    return answer.body


def test_a_batch_holds_one_policy_and_the_most_urgent_request_says_which():
    dispatcher = serving()
    (first,) = dispatcher.request(0, ask("a", "pick"))
    for i, policy in enumerate(("place", "pick", "pick", "place")):
        assert dispatcher.request((i + 1) * MS, ask("bcde"[i], policy)) == []
    effects = done(dispatcher, 100 * MS, first)
    assert sent(effects) == [("edge/place", ["b", "e"])]
    reason = dispatcher.reason(dispatcher.sessions["c"])
    assert reason.endswith("waits: edge full, a batch of policy place goes first")
    (second,) = [e for e in effects if isinstance(e, Submit)]
    assert sent(done(dispatcher, 600 * MS, second)) == [("edge/pick", ["c", "d"])]


def test_engines_of_one_device_compute_one_batch_at_a_time():
    dispatcher = serving()
    assert sent(dispatcher.request(0, ask("a", "pick"))) == [("edge/pick", ["a"])]
    assert dispatcher.request(MS, ask("b", "place")) == []
    assert dispatcher.engines["edge/place"].capacity(MS).residual_ns == 99 * MS


def test_engines_of_two_devices_compute_two_policies_at_once():
    dispatcher = serving(engines=("pick",))
    dispatcher.add_engine("far", "cloud", policy="place")
    dispatcher.engine_ready(0, "far", PLACE, warmup_profile(PLACE))
    assert sent(dispatcher.request(0, ask("a", "pick"))) == [("edge/pick", ["a"])]
    assert sent(dispatcher.request(0, ask("b", "place"))) == [("far", ["b"])]


def test_a_batch_of_another_device_does_not_make_an_observation_stale_that_was_fetched_again():
    dispatcher = serving(engines=("pick",), stale_after_ns=50 * MS)
    dispatcher.add_engine("far", "cloud", policy="place")
    dispatcher.engine_ready(0, "far", PLACE, warmup_profile(PLACE))
    (first,) = dispatcher.request(0, ask("a", "pick"))
    dispatcher.request(MS, ask("b", "pick"))
    (refetch,) = dispatcher.tick(80 * MS)
    assert (refetch.id.robot, refetch.body) == ("b", Refetch())
    dispatcher.request(85 * MS, ask("b", "pick", attempt=1))
    assert sent(dispatcher.request(90 * MS, ask("c", "place"))) == [("far", ["c"])]
    effects = done(dispatcher, 400 * MS, first)
    assert sent(effects) == [("edge/pick", ["b"])]
    assert not any(isinstance(e, Answer) and isinstance(e.body, Refetch) for e in effects)


def test_a_request_without_a_policy_gets_the_first_one_and_the_answer_says_which():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask("a"))
    (answer,) = done(dispatcher, 100 * MS, submit)
    assert isinstance(answer.body, Actions)
    assert answer.body.policy == "pick-1"


def test_a_policy_that_is_not_served_is_refused_with_those_that_are():
    refused = refusal_of(serving().request(0, ask("a", "stack")))
    assert refused.code is RefusalCode.UNKNOWN_POLICY
    assert refused.retry_after_ns == 0
    assert refused.reason == (
        "policy 'stack' is not served here; this server serves pick (pick-1), place (place-2)"
    )


def test_a_policy_is_not_unknown_while_another_one_is_still_loading():
    dispatcher = serving(engines=("pick",))
    refused = refusal_of(dispatcher.request(0, ask("a", "place-2")))
    assert refused.code is RefusalCode.ENGINE_DOWN
    assert refused.reason == "policy 'place-2' is not served; place is not up yet"
    assert refused.retry_after_ns
    refused = refusal_of(dispatcher.request(0, ask("b", "place")))
    assert (refused.code, refused.reason) == (
        RefusalCode.ENGINE_DOWN,
        "no engine of policy place is up yet: there is none",
    )


def test_a_policy_without_an_engine_does_not_hold_up_another_one():
    dispatcher = serving()
    dispatcher.engine_down(0, "edge/place", "it crashed")
    assert dispatcher.request(0, ask("a", "place", deadline_ns=50 * MS)) == []
    assert sent(dispatcher.request(MS, ask("b", "pick"))) == [("edge/pick", ["b"])]
    late = refusal_of(dispatcher.tick(60 * MS))
    assert late.code is RefusalCode.ENGINE_DOWN
    assert "no engine of policy place is up" in late.reason


def test_what_does_not_fit_a_robot_is_judged_by_the_policy_that_it_asks_for():
    wide = replace(PLACE, action_dim=7)
    dispatcher = serving(engines=("pick",))
    dispatcher.add_engine("edge/place", "edge", policy="place", device="edge")
    dispatcher.engine_ready(0, "edge/place", wide, warmup_profile(wide))
    body = RobotInterface(PICK.state_dim, PICK.action_dim)
    for robot, policy in (("a", ""), ("b", "place")):
        told = Announcement(robot, f"s-{robot}", "t1", interface=body, policy=policy)
        dispatcher.announce(0, told)
    assert dispatcher.sessions["a"].misfit == ""
    assert "policy place-2 gives 7" in dispatcher.sessions["b"].misfit


def test_engines_of_one_name_must_serve_the_same_weights():
    dispatcher = serving()
    dispatcher.add_engine("far", "cloud", policy="pick")
    with pytest.raises(ConfigError, match="'far' serves place-2, but 'edge/pick' serves pick-1"):
        dispatcher.engine_ready(0, "far", PLACE, warmup_profile(PLACE))


def test_after_a_swap_new_tasks_get_the_new_policy_and_running_ones_keep_theirs():
    dispatcher = serving()
    (submit,) = dispatcher.request(0, ask("a", "pick"))
    done(dispatcher, 100 * MS, submit)
    dispatcher.policies.swap({"pick": "place"})
    (submit,) = dispatcher.request(200 * MS, ask("a", "pick", round=2))
    assert submit.engine == "edge/pick"
    done(dispatcher, 300 * MS, submit)
    (submit,) = dispatcher.request(400 * MS, ask("a", "pick", task="t2"))
    assert submit.engine == "edge/place"
    done(dispatcher, 900 * MS, submit)
    (submit,) = dispatcher.request(1000 * MS, ask("b"))
    assert submit.engine == "edge/place", "the default is swapped, too"
    done(dispatcher, 1500 * MS, submit)
    (submit,) = dispatcher.request(1600 * MS, ask("c", "pick-1"))
    assert submit.engine == "edge/pick", "who names weights is in the middle of a task"
    done(dispatcher, 1700 * MS, submit)
    dispatcher.policies.swap({})
    (submit,) = dispatcher.request(1800 * MS, ask("d", "pick"))
    assert submit.engine == "edge/pick"


def test_a_task_whose_policy_came_up_with_other_weights_is_served_by_its_own_or_refused():
    dispatcher = serving()
    for robot in "ab":
        (submit,) = dispatcher.request(0, ask(robot, "pick"))
        done(dispatcher, 100 * MS, submit)
    dispatcher.engine_down(200 * MS, "edge/pick", "killed", retry_ns=0)
    assert dispatcher.request(300 * MS, ask("a", "pick-1", round=2)) == [], "it waits"
    retrained = replace(PICK, policy_id="pick-9")
    ready = "edge/pick", retrained, warmup_profile(retrained)
    refused = refusal_of(dispatcher.engine_ready(400 * MS, *ready))
    assert (refused.code, refused.retry_after_ns) == (RefusalCode.ENGINE_DOWN, 100 * MS)
    refused = refusal_of(dispatcher.request(500 * MS, ask("a", "pick-1", round=2)))
    assert refused.code is RefusalCode.UNKNOWN_POLICY

    dispatcher.engine_down(600 * MS, "edge/place", "killed", retry_ns=0)
    dispatcher.engine_ready(700 * MS, "edge/place", PICK, warmup_profile(PICK))
    (submit,) = dispatcher.request(800 * MS, ask("b", "pick-1", round=2))
    assert submit.engine == "edge/place", "where its weights are now"


def test_a_swap_for_a_policy_that_is_not_served_is_refused():
    with pytest.raises(ConfigError, match=r"no policy 'stack' is served here.* pick, place"):
        serving().policies.swap({"pick": "stack"})
    with pytest.raises(ConfigError, match="one policy, without a name"):
        Dispatcher(ServingOptions(parse_scheduling("fifo"), "static:10")).policies.swap({"": ""})


def test_the_time_that_a_robot_should_allow_for_counts_a_batch_of_another_policy():
    server_time, slots = ServerTime(), serving().engines
    for _ in range(100):
        server_time.note("pick", 10_000 * MS)
    full = slots["edge/pick"].latency_of(99), slots["edge/place"].latency_of(99)
    assert server_time.expected_ns(slots["edge/pick"]) == sum(full)


class Mixes:
    """A scheduling policy from elsewhere, which knows nothing of policies."""

    reading = parse_scheduling("fifo").reading

    def decide(self, now_ns, pending, tasks, capacity):
        order = np.arange(len(pending))
        placement = place(order, capacity)
        return Decision(order, placement, tasks.skipped[pending.rows], lambda i: "")


def test_no_batch_mixes_policies_even_if_the_scheduling_policy_does():
    dispatcher = serving(scheduling=Mixes())
    (first,) = dispatcher.request(0, ask("a", "pick"))
    dispatcher.request(MS, ask("b", "pick"))
    dispatcher.request(MS, ask("c", "place"))
    names = {"a": "edge/pick", "b": "edge/pick", "c": "edge/place"}
    batches = sent(done(dispatcher, 100 * MS, first))
    assert batches
    assert all(names[robot] == engine for engine, robots in batches for robot in robots)


@pytest.mark.parametrize("name", BUILTIN)
def test_scheduling_policies_keep_the_seam(name):
    check_scheduling_policy(parse_scheduling(name))


# Properties

WANTED = st.lists(st.sampled_from(["pick", "place"]), min_size=1, max_size=8)


@st.composite
def engines(draw):
    made = []
    for i in range(draw(st.integers(0, 4))):
        tier = draw(st.sampled_from(["edge", "cloud"]))
        first, more = draw(st.integers(1, 300)), draw(st.integers(0, 100))
        latency = tuple(first + more * b for b in range(draw(st.integers(1, 4))))
        free = draw(st.integers(0, len(latency)))
        policy = draw(st.sampled_from(["pick", "place"]))
        device = draw(st.sampled_from(["", "gpu"])) if tier == "edge" else ""
        network = draw(st.integers(0, 300)) if tier == "cloud" else 0
        made.append(
            EngineCapacity(
                f"{tier}{i}",
                tier,
                free,
                latency,
                draw(st.integers(0, 500)),
                network,
                policy=policy,
                device=device,
            )
        )
    return tuple(made)


def placed(placement: Placement):
    return [(b.engine, list(map(int, b.indices))) for b in placement.batches]


@settings(max_examples=200, deadline=None)
@given(WANTED, engines(), st.randoms(), st.sampled_from(["completion", "printed"]))
def test_placement_never_mixes_policies_nor_serves_the_less_urgent_first(
    wanted, made, random, comparison
):
    order = np.array(random.sample(range(len(wanted)), len(wanted)))
    rank = {int(i): place_ for place_, i in enumerate(order)}
    placement = place_policies(order, wanted, Capacity(made, comparison))
    of = {engine.engine: engine for engine in made}
    everyone = sorted(i for _, batch in placed(placement) for i in batch)
    assert sorted([*everyone, *map(int, placement.left)]) == list(range(len(wanted)))
    for engine, batch in placed(placement):
        assert {wanted[i] for i in batch} == {of[engine].policy}
        assert len(batch) <= of[engine].free
    devices = [of[engine].device or engine for engine, _ in placed(placement)]
    assert len(devices) == len(set(devices)), "a device computes one batch"
    left = [rank[int(i)] for i in placement.left]
    assert left == sorted(left)
    for p, i in enumerate(placement.left):
        assert placement.explain_left(p)
        edge = [e for e in made if e.policy == wanted[i] and e.tier == "edge" and e.free]
        for engine in edge:  # what could have served it serves somebody more urgent first
            device = engine.device or engine.engine
            (batch,) = [b for e, b in placed(placement) if (of[e].device or e) == device]
            assert rank[batch[0]] < rank[int(i)]
    in_cloud = [i for e, b in placed(placement) if of[e].tier == "cloud" for i in b]
    assert all(placement.explain_cloud(c) for c in range(len(in_cloud)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), engines(), st.randoms(), st.sampled_from(["completion", "printed"]))
def test_one_policy_is_placed_as_if_there_were_no_others(requests, made, random, comparison):
    """On devices of their own, one edge engine at most: what servers have."""
    edges = [e for e in made if e.tier == "edge"]
    own = tuple(replace(e, policy="pick", device="") for e in made if e not in edges[1:])
    order = np.array(random.sample(range(requests), requests))
    plain = place(order, Capacity(own, comparison))
    several = place_policies(order, ["pick"] * requests, Capacity(own, comparison))
    edge_batches = [b for b in placed(plain) if b[0].startswith("edge")]
    assert [b for b in placed(several) if b[0].startswith("edge")] == edge_batches
    if len(own) - len(edges[:1]) <= 1:
        assert placed(several) == placed(plain)
        assert list(several.left) == list(plain.left)


STEPS = st.lists(
    st.tuples(st.sampled_from(ROBOTS), st.sampled_from(["", "pick", "place"]), st.integers(0, 60)),
    min_size=4,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sampled_from(sorted(BUILTIN)))
def test_every_batch_has_one_policy_and_every_request_is_answered(steps, scheduling):
    dispatcher = serving(scheduling=parse_scheduling(scheduling))
    rounds, wanted, batches, answered = dict.fromkeys(ROBOTS, 0), {}, [], []
    waiting, now = set(), 0

    def carry_out(effects):
        for effect in effects:
            if isinstance(effect, Submit):
                batches.append(effect)
                names = {wanted[r.robot] for r in effect.requests}
                assert names == {effect.engine.removeprefix("edge/")}
                assert sum(bool(s.flight) for s in dispatcher.engines.values()) == 1
            else:
                assert isinstance(effect.body, Actions)
                weights = {"pick": "pick-1", "place": "place-2"}[wanted[effect.id.robot]]
                assert effect.body.policy == weights
                answered.append(effect.id)
                waiting.discard(effect.id.robot)

    for robot, policy, wait_ms in steps:
        now += wait_ms * MS
        if robot not in waiting:
            rounds[robot] += 1
            wanted.setdefault(robot, policy or "pick")  # the first request of a task decides
            waiting.add(robot)
            carry_out(dispatcher.request(now, ask(robot, policy, rounds[robot])))
        if batches and wait_ms > 20:
            carry_out(done(dispatcher, now, batches.pop(0)))
    while batches:
        now += 100 * MS
        carry_out(done(dispatcher, now, batches.pop(0)))
    assert len(answered) == sum(rounds.values())
    assert not dispatcher.pending


@pytest.mark.parametrize("scheduling", ["fifo", "wait_ratio", "wait_ratio:aging=2", "oldest_task"])
def test_nobody_starves_because_many_others_ask_for_another_policy(scheduling):
    """Six robots keep one policy busy; the two of the other one wait no longer for it."""
    dispatcher = serving(scheduling=parse_scheduling(scheduling))
    wants = {robot: "place" if robot in "gh" else "pick" for robot in ROBOTS}
    served, rounds, now = dict.fromkeys(ROBOTS, 0), dict.fromkeys(ROBOTS, 1), 0
    passed_over, longest = dict.fromkeys("gh", 0), 0
    batches = [
        e
        for robot in ROBOTS
        for e in dispatcher.request(0, ask(robot, wants[robot]))
        if isinstance(e, Submit)
    ]
    for _ in range(200):
        now += 130 * MS
        effects = done(dispatcher, now, batches.pop(0))
        for effect in [e for e in effects if not isinstance(e, Submit)]:
            robot = effect.id.robot
            served[robot] += 1
            rounds[robot] += 1
            passed_over[robot] = 0
            effects += dispatcher.request(now, ask(robot, wants[robot], rounds[robot]))
        batches += [e for e in effects if isinstance(e, Submit)]
        for robot in "gh":
            passed_over[robot] += 1
            longest = max(longest, passed_over[robot])
    assert min(served.values()) >= 20
    assert longest <= 30
