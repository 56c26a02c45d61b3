"""Virtual robots: the real loop's behaviour, by count, and recorded rounds exactly as recorded."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Actions, Answer, Refetch, Refusal
from kairos_ros.core.execution import effects as robot_effects
from kairos_ros.core.execution import loop as robot_loop
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.task import Task
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.virtual_robot import Assignment, Ended, Send, VirtualRobot
from kairos_ros.recording.runs.trace import Trace, TraceRound

MS = 1_000_000
RATE_HZ = 30.0
PERIOD = round(1e9 / RATE_HZ)


def trace(*rounds, success=True):
    """Rounds as (requested at, horizon, executed)."""
    return Trace(
        name="t",
        kind="door",
        instruction="open the door",
        seed=7,
        control_rate_hz=RATE_HZ,
        chunk_size=50,
        action_dim=1,
        policy="p",
        horizon_policy="recorded",
        success=success,
        duration_s=1.0,
        rounds=tuple(
            TraceRound(j + 1, at, at, horizon, executed)
            for j, (at, horizon, executed) in enumerate(rounds)
        ),
    )


def body(length, server_ms=0, engine_ms=0):
    actions = np.zeros((length, 1), np.float32)
    return Actions(
        actions=actions,
        confidence=np.zeros(length, np.float32),
        horizon_reason="because",
        chunk_size=50,
        compute_ns=100 * MS,
        server_ns=server_ms * MS,
        engine_latency_ns=engine_ms * MS,
        batch_size=1,
        tier="edge",
        engine="edge",
        policy="p",
        reason="only one",
    )


class Server:
    """Answers every request as a script says, after the delays that it says."""

    def __init__(self, script):
        self.script = iter(script)
        self.flying = []
        self.numbers = itertools.count()

    def ask(self, now_ns, request):
        answers = next(self.script, [(90, "actions", 9, 0, 60, 40)])
        for delay_ms, kind, length, back, server_ms, engine_ms in answers:
            attempt = max(0, request.id.attempt - back)
            given = {
                "actions": body(length, server_ms, engine_ms),
                "refetch": Refetch(),
                "refused": Refusal(RefusalCode.OVERLOADED, "full", (20 + delay_ms) * MS),
                "refused for good": Refusal(RefusalCode.TASK_ENDED, "over"),
            }[kind]
            answer = Answer(replace(request.id, attempt=attempt), given)
            self.flying.append((now_ns + delay_ms * MS + 1, next(self.numbers), answer))

    def first_ns(self, otherwise_ns):
        """When the next answer is there."""
        return min((f[0] for f in self.flying), default=otherwise_ns)

    def landed(self, until_ns):
        """Answers that are there by then, in order of arrival."""
        due = sorted(f for f in self.flying if f[0] <= until_ns)
        self.flying = [f for f in self.flying if f[0] > until_ns]
        return due


def real(script, actions, rules, start_ns):
    """The real loop, ticking; every request it sent and how the task ended."""
    config = robot_loop.LoopConfig(
        "arm", "now", 1, PERIOD, rules.margin_ns, rules.timeout_ns, rules.timeout_max_ns
    )
    estimate = LatencyEstimate(rules.initial_network_ns, rules.initial_engine_ns)
    loop = robot_loop.Loop(config, estimate)
    task = Task("1", "open the door", "door", "static:9", 7, actions)
    loop.start(task, start_ns)
    server, sent, results = Server(script), [], []

    def note(now_ns, effects):
        for effect in effects:
            if isinstance(effect, robot_effects.Send):
                sent.append((now_ns, effect.request))
                server.ask(now_ns, effect.request)
            elif isinstance(effect, robot_effects.Finished):
                results.append(effect.result)

    now_ns = start_ns
    while not results:
        while (first_ns := server.first_ns(now_ns + 1)) <= now_ns:  # it may bring another answer
            for at, _, answer in server.landed(first_ns):
                if loop.task:  # what comes after the end is nothing to compare
                    note(at, loop.receive(answer, at))
        if loop.task:
            note(now_ns, loop.tick(now_ns, lambda action: action))
        now_ns += PERIOD
    return sent, results[0], dict(loop.dropped)


def virtual(script, actions, rules, start_ns):
    robot = VirtualRobot("arm", "now", rules)
    recorded = trace((0, 9, 9), *((9, 9, 9),) * (actions // 9))
    last = replace(recorded.rounds[-1], executed=actions - recorded.actions + 9)
    recorded = replace(recorded, rounds=(*recorded.rounds[:-1], last))
    robot.start(Assignment("1", 0, recorded), start_ns)
    server, sent, ended = Server(script), [], []

    def note(effects):
        for effect in effects:
            if isinstance(effect, Send):
                sent.append((effect.sent_ns, effect.request))
                server.ask(effect.sent_ns, effect.request)
            else:
                ended.append(effect)

    while not ended:
        event_ns = robot.next_event_ns()
        soonest = server.first_ns(event_ns + 1)
        if soonest <= event_ns:
            for at, _, answer in server.landed(soonest):
                if not ended:
                    note(robot.receive(answer, at))
        else:
            note(robot.advance(event_ns))
    return sent, ended[0], dict(robot.dropped)


answers = st.lists(
    st.tuples(
        st.integers(0, 3000),  # ms until it arrives
        st.sampled_from(["actions"] * 6 + ["refetch", "refetch", "refused", "refused for good"]),
        st.integers(1, 25),  # horizon
        st.integers(0, 2),  # attempts back
        st.integers(0, 400),  # the server's share, ms
        st.integers(0, 300),  # its expected latency, ms
    ),
    max_size=3,  # none: lost
)
quick = st.lists(
    st.tuples(
        st.integers(0, 400), st.just("actions"), st.integers(1, 30), st.just(0),
        st.integers(0, 300), st.integers(0, 300),
    ),
    min_size=1, max_size=1,
)  # fmt: skip


@given(
    script=st.lists(answers, max_size=12) | st.lists(quick, max_size=30),
    actions=st.integers(1, 120),
    margin_ms=st.integers(0, 200),
    start_ns=st.integers(0, 10**12),
)
@settings(max_examples=400)
@pytest.mark.slow
def test_for_any_server_a_virtual_robot_does_what_the_real_loop_does(
    script, actions, margin_ms, start_ns
):
    rules = Rules(horizon="static:9", margin_ns=margin_ms * MS)
    sent, result, dropped = real(script, actions, rules, start_ns)
    virtually_sent, ended, virtually_dropped = virtual(script, actions, rules, start_ns)
    assert virtually_sent == sent
    assert virtually_dropped == dropped
    task = ended.task
    assert task.outcome in (result.outcome, "succeeded")
    assert (task.actions, task.round_executed) == (result.actions, result.round_executed)
    for seconds, ns in (
        (task.duration_s, result.duration_ns),
        (task.first_wait_s, result.first_wait_ns),
        (task.stalled_s, result.stalled_ns),
        *zip(task.round_latency_s, result.round_latency_ns, strict=True),
    ):
        assert seconds == pytest.approx(ns / 1e9, abs=1e-9)
    assert (task.refusals, task.dropped) == (result.refusals, result.dropped)


def live(recorded, rules, latency_ms, length=None):
    """The task against a server that answers every request after the next of these latencies."""
    robot = VirtualRobot("arm", "now", rules)
    robot.start(Assignment("1", 0, recorded), 0)
    delays, flying, sent = iter(latency_ms), [], []
    while True:
        event_ns = robot.next_event_ns()
        if flying and flying[0][0] <= event_ns:
            at, answer = flying.pop(0)
            effects = robot.receive(answer, at)
        else:
            effects = robot.advance(event_ns)
        for effect in effects:
            if isinstance(effect, Ended):
                return sent, effect
            sent.append(effect)
            horizon = int(effect.request.horizon_policy.removeprefix("static:"))
            answer = Answer(effect.request.id, body(horizon))
            flying.append((effect.sent_ns + next(delays) * MS, answer))


@given(
    shape=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=12),
    latency_ms=st.lists(st.integers(0, 1500), min_size=20, max_size=20),
)
@settings(max_examples=200)
def test_replay_executes_every_round_as_recorded_whatever_the_delay(shape, latency_ms):
    rounds, executed = [], 0
    for count, lead in shape:
        before = rounds[-1][2] if rounds else 0
        rounds.append((executed - min(lead, before), min(50, count + lead), count))
        executed += count
    recorded = trace(*rounds)
    sent, ended = live(recorded, Rules("replay"), latency_ms)
    assert [r.executed for r in ended.rounds] == [r.executed for r in recorded.rounds]
    assert [r.requested_at for r in ended.rounds] == [r.requested_at for r in recorded.rounds]
    assert [s.request.id.round for s in sent] == [r.round for r in recorded.rounds]
    assert [s.observed for s in sent] == list(recorded.rounds)
    assert ended.task.actions == recorded.actions
    for earlier, later in zip(ended.rounds, ended.rounds[1:], strict=False):
        assert later.exec_start_s >= max(earlier.exec_end_s - 1e-9, later.answered_s)


def test_under_observation_the_actions_executed_meanwhile_are_lost_from_the_round():
    recorded = trace((0, 10, 10), (10, 10, 10), (20, 10, 10))
    _, ended = live(recorded, Rules(lead=3), [100] * 9)
    assert [(r.requested_at, r.executed) for r in ended.rounds] == [
        (0, 10),
        (7, 7),
        (14, 7),
        (21, 6),
    ]
    assert ended.task.actions == 30


def test_the_horizon_at_an_index_is_that_of_the_newest_recorded_observation():
    recorded = trace((0, 10, 10), (10, 20, 20), (30, 5, 5))
    sent, ended = live(recorded, Rules(lead=0), [0] * 9)
    assert [s.request.horizon_policy for s in sent] == ["static:10", "static:20", "static:5"]
    sent, _ = live(recorded, Rules(lead=4), [0] * 9)
    assert [(s.request.horizon_policy, s.ahead) for s in sent[:3]] == [
        ("static:10", 0),
        ("static:10", 6),
        ("static:20", 2),
    ]
    # a chunk is executed from the period after its request on, at the soonest
    assert ended.task.stalled_s == pytest.approx(3 * PERIOD / 1e9)


def test_a_lead_beyond_every_horizon_asks_as_soon_as_a_chunk_begins():
    recorded = trace((0, 10, 10), (10, 10, 10))
    sent, _ = live(recorded, Rules(lead=1000), [40] * 99)
    assert [s.request.execution.chunk_index for s in sent[1:3]] == [0, 2]


def test_spans_and_rounds_tell_the_same_story():
    recorded = trace((0, 10, 10), (8, 10, 10))
    _, ended = live(recorded, Rules("replay"), [120, 500])
    holding = sum(s.end_s - s.start_s for s in ended.spans if s.activity == "holding")
    executing = sum(s.end_s - s.start_s for s in ended.spans if s.activity == "executing")
    assert holding == pytest.approx(ended.task.stalled_s)
    assert executing == pytest.approx(20 * PERIOD / 1e9)
    assert ended.task.ended_s == pytest.approx(holding + executing)
    first, second = ended.rounds
    assert first.exec_start_s == pytest.approx(4 * PERIOD / 1e9)  # 120 ms lie in the 4th period
    assert second.requested_s == pytest.approx(first.exec_start_s + 8 * PERIOD / 1e9)
    assert second.latency_s == pytest.approx(0.5)


def test_a_late_driver_loses_nothing():
    recorded = trace((0, 10, 10), (8, 10, 10))
    robot = VirtualRobot("arm", "now", Rules("replay"))
    robot.start(Assignment("1", 0, recorded), 0)
    (first,) = robot.advance(5 * PERIOD)
    answer = Answer(first.request.id, body(10))
    assert first.sent_ns == 0
    assert robot.receive(answer, 6 * PERIOD) == []
    (second,) = robot.advance(40 * PERIOD)
    assert second.sent_ns == (6 + 8) * PERIOD
    assert robot.execution(40 * PERIOD).executed == 10


def test_a_canceled_task_keeps_its_rounds():
    robot = VirtualRobot("arm", "now", Rules("replay"))
    robot.start(Assignment("1", 3, trace((0, 10, 10))), 0)
    robot.advance(0)
    (ended,) = robot.cancel(4 * PERIOD)
    assert (ended.task.outcome, ended.task.number, len(ended.rounds)) == ("canceled", 3, 1)
    assert np.isnan(ended.rounds[0].answered_s)
    assert robot.next_event_ns() is None
    robot.start(Assignment("2", 4, trace((0, 10, 10))), 5 * PERIOD)
    assert robot.task.id == "2"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"accounting": "both"}, "replay or observation"),
        ({"horizon": "hope"}, "unknown horizon policy"),
        ({"lead": -1}, "lead"),
        ({"timeout_ns": 0}, "timeout_ns"),
        ({"margin_ns": -1}, "margin_ns"),
    ],
)
def test_rules_that_make_no_sense_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        Rules(**options)
