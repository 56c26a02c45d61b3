"""Asking early: when the loop does it, what its request says, and when the new chunk takes over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Actions, Answer, Refetch, Refusal
from kairos_ros.core.execution.early_request import Surprise
from kairos_ros.core.execution.effects import Act, Finished, Send
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.task import Task
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS, motion_watch
from kairos_ros.robot.guard import GuardLimits, Workspace
from kairos_ros.robot.motion_watch import MotionWatch, watched_joints

PERIOD = 33_000_000
LEAD = 3
CONFIG = LoopConfig("arm_1", "now", 1, PERIOD, 0, 20 * PERIOD, 80 * PERIOD)
SETTLE = 5
PUSHED = Surprise(8.5, "elbow")


class Bench:
    """A loop whose actions say which round they are of, and their index in its chunk."""

    def __init__(self, **task):
        latency = LatencyEstimate(network_ns=0, engine_ns=LEAD * PERIOD)
        self.loop = Loop(CONFIG, latency)
        self.now, self.sent, self.done, self.result = 0, [], [], None
        self.loop.start(Task("1", "reach", **task), 0)
        self.tick()

    def note(self, effects):
        for effect in effects:
            match effect:
                case Send(request):
                    self.sent.append(request)
                case Act(action):
                    self.done.append(divmod(int(action[0]), 1000))
                case Finished(result):
                    self.result = result

    def tick(self, times=1):
        for _ in range(times):
            self.note(self.loop.tick(self.now, lambda action: action))
            self.now += PERIOD

    def answer(self, horizon=30, body=None):
        asked = self.sent[-1].id
        chunk = 1000 * asked.round + np.arange(horizon, dtype=np.float32)[:, None]
        actions = Actions(chunk, np.ones(horizon, np.float32), server_ns=10**15)
        self.note(self.loop.receive(Answer(asked, body or actions), self.now))

    def surprise(self):
        return self.loop.surprised(PUSHED, SETTLE)


def settled(**task):
    bench = Bench(**task)
    bench.answer()
    bench.tick(10)
    return bench


def test_a_surprise_asks_now_and_the_request_says_so_how_much_and_which_joint():
    bench = settled()
    assert len(bench.sent) == 1
    assert bench.surprise()
    bench.tick()
    asked = bench.sent[-1]
    assert (asked.id.round, asked.id.attempt) == (2, 0)
    told = asked.execution
    assert (told.surprised, told.surprise, told.surprise_joint) == (True, 8.5, "elbow")
    assert not bench.sent[0].execution.surprised
    assert told.remaining == 20  # the running chunk is not given up yet


def test_the_running_chunk_goes_on_for_the_lead_that_was_told_and_then_the_new_one_takes_over():
    bench = settled()
    bench.surprise()
    bench.tick()
    assert bench.sent[-1].committed[:, 0].tolist() == [1010, 1011, 1012]
    bench.answer()  # sooner than expected
    bench.tick(6)
    assert bench.done[10:] == [(1, 10), (1, 11), (1, 12), (2, 3), (2, 4), (2, 5), (2, 6)]


def test_a_late_chunk_takes_over_at_once_and_skips_what_was_executed_meanwhile():
    bench = settled()
    bench.surprise()
    bench.tick(8)
    bench.answer()
    bench.tick(2)
    assert bench.done[10:] == [*((1, i) for i in range(10, 18)), (2, 8), (2, 9)]
    assert not bench.loop.execution(bench.now).surprised  # it took over


def test_without_an_answer_the_running_chunk_is_executed_to_its_end_and_then_the_arm_holds():
    bench = settled()
    bench.surprise()
    bench.tick(30)
    assert bench.done == [(1, i) for i in range(30)]
    assert bench.loop.execution(bench.now).holding
    assert len(bench.sent) == 3  # it was repeated in silence
    assert bench.sent[-1].execution.surprised


def test_a_repeated_or_refetched_request_tells_anew_what_is_executed_until_its_chunk():
    bench = settled()
    bench.surprise()
    bench.tick(2)
    bench.answer(body=Refetch())
    again = bench.sent[-1]
    assert (again.id.round, again.id.attempt) == (2, 1)
    assert again.committed[:, 0].tolist() == [1012, 1013, 1014]
    bench.answer(body=Refusal(RefusalCode.OVERLOADED, "busy", 2 * PERIOD))
    bench.tick(4)
    assert (bench.sent[-1].id.round, bench.sent[-1].id.attempt) == (2, 2)
    assert bench.sent[-1].execution.surprised


def test_it_asks_once_until_the_new_chunk_took_over_and_settled():
    bench = settled()
    assert bench.surprise()
    assert not bench.surprise()
    bench.tick()
    assert not bench.surprise()
    bench.answer()
    assert not bench.surprise()
    bench.tick(LEAD - 1 + SETTLE)
    assert bench.done[-1] == (2, LEAD + SETTLE - 1)
    assert bench.surprise()


def test_it_does_not_ask_before_the_first_chunk_has_settled_nor_while_another_is_on_its_way():
    bench = Bench()
    assert not bench.surprise()
    bench.answer()
    bench.tick(SETTLE - 1)
    assert not bench.surprise()
    bench.tick()
    assert bench.surprise()
    bench = settled()
    bench.tick(19)  # the usual request has left
    assert len(bench.sent) == 2
    assert not bench.surprise()


def test_a_surprised_robot_keeps_to_the_period_that_its_server_told():
    bench = Bench()
    asked = bench.sent[-1].id
    chunk = np.zeros((30, 1), np.float32)
    body = Actions(chunk, np.ones(30, np.float32), request_period_ns=15 * PERIOD, server_ns=10**15)
    bench.note(bench.loop.receive(Answer(asked, body), bench.now))
    bench.tick(10)
    bench.surprise()
    bench.tick(4)
    assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[-1].execution.surprised


def test_a_stop_forgets_the_surprise_and_the_result_tells_which_rounds_were_asked_for_early():
    bench = settled(max_actions=33)
    bench.surprise()
    bench.tick()
    bench.answer()
    bench.tick(5)
    assert bench.surprise() is False  # of a chunk that has not settled
    bench.tick(40)
    result = bench.result or bench.loop.finish("canceled", bench.now).result
    assert result.round_surprise == (0.0, 8.5)
    assert len(result.round_surprise) == len(result.round_executed)
    bench = settled()
    bench.surprise()
    bench.tick()
    bench.loop.stop()
    assert not bench.loop.execution(bench.now).surprised


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(1, 20)), max_size=30))
@settings(max_examples=100)
def test_whenever_it_is_surprised_every_chunk_goes_on_where_the_arm_is(script):
    """Action i of a chunk is executed i periods after the observation it was made from."""
    bench = Bench()
    observed, script, due = {1: 0}, iter(script), [(0, 1, 10)]
    for period in range(80):
        surprised, delay, horizon = next(script, (False, 2, 10))
        if surprised:
            bench.surprise()
        known, executed = len(bench.sent), len(bench.done)
        bench.tick()
        for request in bench.sent[known:]:
            observed[request.id.round] = executed
            if request.id.attempt == 0:
                due.append((period + delay, request.id.round, horizon))
        newest = bench.sent[-1].id.round
        for when, round_, length in due:
            if when == period and round_ == newest:
                bench.answer(horizon=length)
    for position, (round_, index) in enumerate(bench.done):
        assert index == position - observed[round_]


class Always:
    """Departs by what it is told."""

    threshold, settle, wait, unusable, joint = 6.0, SETTLE, 5, 0, "elbow"

    def __init__(self, *told):
        self.told = iter(told)

    def step(self, action, state):
        return next(self.told)

    def begin(self):
        pass


def look(motion, times):
    return [motion.look(None, np.zeros(1), i * PERIOD) for i in range(times)]


def test_a_surprise_that_lasts_is_a_contact_where_that_is_wanted_and_says_why():
    lasting = (9.0,) * 20
    assert not any(look(MotionWatch(Always(*lasting)), 20))
    reasons = look(MotionWatch(Always(*lasting), 10 * PERIOD), 12)
    assert reasons[:10] == [""] * 10
    assert reasons[10] == (
        "failed: contact: elbow has not moved as its actions say for 0.33 s "
        "(surprise 9.0, threshold 6)"
    )
    interrupted = (*(9.0,) * 6, 1.0, *(9.0,) * 6)
    assert not any(look(MotionWatch(Always(*interrupted), 10 * PERIOD), 13))


def test_the_guard_knows_which_entries_of_the_state_the_actions_move():
    box = Workspace(action=[0, 1], state=[4, 5], scale=0.01, low=[0, 0], high=[1, 1])
    limits = GuardLimits(measured_by=[-1, -1, 2, -2], workspace=box)
    joints = watched_joints(limits, ("a", "b", "elbow.pos"))
    assert [(j.name, j.action, j.state, j.position) for j in joints] == [
        ("elbow.pos", 2, 2, True),
        ("state_4", 0, 4, False),
        ("state_5", 1, 5, False),
    ]


def test_a_hold_without_a_rule_and_a_rule_without_joints_are_refused_with_what_to_do():
    values = {spec.name: spec.default for spec in ROBOT_PARAMETERS}
    assert motion_watch(values, GuardLimits(), ()) is None
    with pytest.raises(ConfigError, match=r"surprise_hold_s is 0\.5, but nothing is watched"):
        motion_watch(values | {"surprise_hold_s": 0.5}, GuardLimits(), ())
    with pytest.raises(ConfigError, match=r"guard.measured_by"):
        motion_watch(values | {"surprise": "tracking"}, GuardLimits(), ())
    assert motion_watch(values | {"surprise": "tracking"}, GuardLimits(measured_by=[0]), ())


def test_the_watch_asks_when_the_surprise_is_over_and_names_its_peak_and_its_joint():
    motion = MotionWatch(Always(0.0, 8.0, 9.0, 3.0, 0.0))
    told = []
    for i in range(5):
        motion.look(None, np.zeros(1), i)
        told.append((motion.asks, motion.surprise.score, motion.surprise.joint))
    assert told == [
        (False, 0.0, "elbow"),
        (False, 8.0, "elbow"),
        (False, 9.0, "elbow"),
        (True, 9.0, "elbow"),
        (False, 0.0, "elbow"),
    ]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (float("nan"), "the surprise rule scored nan"),
        (-1.0, "the surprise rule scored -1"),
        (float("inf"), "the surprise rule scored inf"),
        (None, "the surprise rule raised TypeError"),
        ("high", "the surprise rule raised ValueError"),
    ],
)
def test_a_rule_that_fails_ends_the_task_until_the_next_reset(told, said):
    """A contact would not be noticed any more."""
    motion = MotionWatch(Always(9.0, told, 0.0))
    reasons = look(motion, 3)
    assert reasons[0] == ""
    assert reasons[1].startswith(f"failed: {said}")
    assert reasons[2] == reasons[1]
    assert not motion.asks
    motion.begin()
    assert look(motion, 1) == [""]


def test_a_rule_that_cannot_begin_ends_the_task():
    class Unfit(Always):
        def begin(self):
            raise RuntimeError("no arm")

    motion = MotionWatch(Unfit(0.0))
    motion.begin()
    assert look(motion, 1) == ["failed: the surprise rule raised RuntimeError: no arm"]
