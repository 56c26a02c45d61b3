"""The generate-execute loop: what it sends, executes and drops, for any behaviour of the server."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.robot.exchange import Answer, AnswerKind, Task
from kairos_ros.robot.latency import WINDOW, LatencyEstimate, lead_actions
from kairos_ros.robot.loop import Act, Finished, Hold, Loop, LoopConfig, Send

PERIOD = 33_000_000
MS = 1_000_000
CONFIG = LoopConfig(
    robot="arm_1",
    session="now",
    action_dim=1,
    period_ns=PERIOD,
    margin_ns=0,
    timeout_ns=20 * PERIOD,
    timeout_max_ns=80 * PERIOD,
)


class Bench:
    """A loop, its clock, and an arm that counts the actions it executed.

    The value of an action is the arm position (actions executed so far) that it was made for.
    """

    def __init__(self, task=None, *, engine_ns=3 * PERIOD):
        self.loop = Loop(CONFIG, LatencyEstimate(network_ns=0, engine_ns=engine_ns))
        self.now = 0
        self.position = 0
        self.sent = []
        self.observed = {}
        self.motions = []
        self.result = None
        self.loop.start(task or Task("1", "reach"), self.now)

    def note(self, effects):
        for effect in effects:
            match effect:
                case Send(request):
                    self.sent.append(request)
                    self.observed[request.round, request.attempt] = self.position
                case Finished(result):
                    self.result = result
                case Act(action):
                    self.position += 1
                    self.motions.append(float(action[0]))
                case Hold():
                    self.motions.append(None)

    def tick(self, times=1, approve=lambda action: action):
        for _ in range(times):
            self.note(self.loop.tick(self.now, approve))
            self.now += PERIOD

    def answer(self, horizon=10, **changes):
        """The answer to the newest request, and what it makes the loop do."""
        request = self.sent[-1]
        answer = self.actions(request.round, request.attempt, horizon)
        self.note(self.loop.receive(_changed(answer, **changes), self.now))

    def actions(self, round, attempt, horizon):
        start = self.observed[round, attempt]
        chunk = np.arange(start, start + horizon, dtype=np.float32)[:, None]
        all_of_it = 10**15  # the whole round trip was the server's share: a network without delay
        kind = AnswerKind.ACTIONS
        return Answer("arm_1", "now", "1", round, attempt, kind, chunk, server_ns=all_of_it)


def _changed(answer, **changes):
    fields = {name: getattr(answer, name) for name in Answer.__slots__}
    return Answer(**(fields | changes))


def test_the_first_request_leaves_with_the_first_period_and_the_arm_holds_until_the_answer():
    bench = Bench()
    bench.tick(3)
    assert [(r.round, r.attempt) for r in bench.sent] == [(1, 0)]
    assert bench.motions == [None, None, None]


def test_the_next_request_leaves_when_the_buffer_lasts_just_as_long_as_the_answer_takes():
    bench = Bench(engine_ns=3 * PERIOD)
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(7)
    assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[-1].round == 2
    assert bench.sent[-1].execution.remaining == 3


def test_actions_executed_since_the_observation_are_skipped_and_nothing_is_left_out():
    bench = Bench()
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(9)
    bench.answer(horizon=10)
    bench.tick(8)
    assert bench.motions[1:] == list(range(17))


def test_an_observation_does_not_age_while_the_arm_holds():
    bench = Bench()
    bench.tick(12)
    bench.answer(horizon=4)
    bench.tick()
    assert bench.motions[-1] == 0


def test_a_chunk_of_which_nothing_is_left_is_dropped_and_the_next_round_is_requested():
    bench = Bench()
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(8)
    bench.answer(horizon=3)
    assert bench.loop.dropped == {"too_late": 1}
    bench.tick(3)
    assert [r.round for r in bench.sent] == [1, 2, 3]


def test_a_refetch_is_answered_at_once_with_a_fresh_observation():
    bench = Bench()
    bench.tick()
    bench.answer(kind=AnswerKind.REFETCH)
    assert [(r.round, r.attempt) for r in bench.sent] == [(1, 0), (1, 1)]


def test_after_a_refetch_the_chunk_of_either_observation_is_used_but_only_one():
    bench = Bench()
    bench.tick()
    bench.answer(kind=AnswerKind.REFETCH)
    for attempt in (0, 1):
        bench.note(bench.loop.receive(bench.actions(1, attempt, 5), bench.now))
    bench.tick(5)
    assert bench.loop.dropped == {"repeated": 1}
    assert bench.motions[1:] == [0, 1, 2, 3, 4]


def test_a_refusal_is_retried_when_it_says_and_not_before():
    bench = Bench()
    bench.tick()
    bench.answer(kind=AnswerKind.REFUSED, retry_after_ns=5 * PERIOD, reason="queue is full")
    bench.tick(5)
    assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[-1].attempt == 1


def test_a_repeated_refusal_changes_nothing_and_one_of_the_retry_counts_again():
    bench = Bench()
    bench.tick()
    for _ in range(2):
        bench.answer(kind=AnswerKind.REFUSED, retry_after_ns=5 * PERIOD)
        bench.tick()
    assert bench.loop.dropped == {"repeated": 1}
    bench.tick(4)
    bench.answer(kind=AnswerKind.REFUSED, reason="gone")
    assert bench.result.refusals == 2
    assert bench.loop.silences == 0


def test_a_server_that_appears_is_asked_without_waiting_for_the_timeout():
    bench = Bench()
    bench.tick(3)
    bench.loop.ask_again(bench.now)
    bench.tick()
    assert [r.attempt for r in bench.sent] == [0, 1]


def test_a_server_that_appears_does_not_cut_the_retry_of_a_refusal_short():
    bench = Bench()
    bench.tick()
    bench.answer(kind=AnswerKind.REFUSED, retry_after_ns=5 * PERIOD)
    bench.loop.ask_again(bench.now)
    bench.tick(5)
    assert len(bench.sent) == 1


def test_any_answer_ends_the_back_off_of_a_silence():
    bench = Bench()
    bench.tick(61)  # asked at 0, 20 and 60
    bench.answer(kind=AnswerKind.REFETCH)
    bench.tick(21)
    assert [r.attempt for r in bench.sent] == [0, 1, 2, 3, 4]


def test_a_refusal_without_retry_fails_the_task_with_its_reason():
    bench = Bench()
    bench.tick()
    bench.answer(kind=AnswerKind.REFUSED, reason="instruction is not served")
    assert bench.result.outcome == "refused: instruction is not served"
    assert not bench.result.success


def test_a_silent_server_is_asked_again_ever_more_rarely_while_the_arm_holds():
    bench = Bench()
    asked = []
    for tick in range(400):
        before = len(bench.sent)
        bench.tick()
        asked += [tick] * (len(bench.sent) - before)
    assert asked == [0, 20, 60, 140, 220, 300, 380]
    assert set(bench.motions) == {None}
    assert {r.round for r in bench.sent} == {1}


def test_a_task_ends_after_its_actions_and_asks_for_no_more_than_it_needs():
    bench = Bench(Task("1", "reach", max_actions=10))
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(11)
    assert bench.result.outcome == "max_actions"
    assert bench.result.actions == 10
    assert len(bench.sent) == 1


def test_a_task_ends_after_its_duration_also_when_the_server_is_silent():
    bench = Bench(Task("1", "reach", max_duration_ns=10 * PERIOD))
    bench.tick(11)
    assert bench.result.outcome == "max_duration"
    assert bench.result.stalled_ns == bench.result.duration_ns == 10 * PERIOD


def test_an_action_the_guard_refuses_discards_the_rest_of_its_chunk():
    bench = Bench()
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(2)
    bench.tick(approve=lambda action: None)
    bench.tick()
    assert bench.motions[1:] == [0, 1, None, None]
    assert bench.sent[-1].round == 2
    bench.answer(horizon=5)
    bench.tick()
    assert bench.motions[-1] == 2


def test_the_result_tells_where_the_time_went():
    bench = Bench()
    bench.tick(3)
    bench.answer(horizon=4)  # arrives as the 4th period begins
    bench.tick(7)
    bench.answer(horizon=6)
    bench.tick(2)
    result = bench.loop.finish("succeeded", bench.now).result
    assert result.success
    assert result.first_wait_ns == 3 * PERIOD
    assert result.stalled_ns == (3 + 3) * PERIOD
    assert result.actions == 6
    assert result.round_executed == (4, 2)
    assert result.round_latency_ns == (3 * PERIOD, 5 * PERIOD)
    assert result.mean_horizon == 3
    assert result.duration_ns == 11 * PERIOD


def test_execution_tells_when_the_round_began_and_ended():
    bench = Bench()
    bench.tick()
    bench.answer(horizon=4)
    bench.tick(6)
    told = bench.loop.execution(bench.now)
    assert (told.round, told.executed, told.remaining, told.chunk_index) == (1, 4, 0, 4)
    assert told.started_ago_ns == 6 * PERIOD
    assert told.ended_ago_ns == 2 * PERIOD
    assert told.holding


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"robot": "arm_2"}, "other_robot"),
        ({"session": "before"}, "other_session"),
        ({"task": "0"}, "other_task"),
        ({"round": 0}, "old_round"),
        ({"round": 2}, "never_requested"),
        ({"attempt": 1}, "never_requested"),
        ({"actions": None}, "malformed"),
        ({"actions": np.zeros((4, 2), np.float32)}, "malformed"),
        ({"actions": np.zeros((0, 1), np.float32)}, "malformed"),
        ({"actions": np.full((4, 1), np.nan, np.float32)}, "not_finite"),
    ],
)
def test_a_chunk_that_does_not_belong_here_is_dropped_counted_and_never_executed(change, reason):
    bench = Bench()
    bench.tick()
    bench.answer(**change)
    bench.tick(5)
    assert bench.loop.dropped == {reason: 1}
    assert set(bench.motions) == {None}


def test_a_chunk_after_the_task_is_dropped():
    bench = Bench()
    bench.tick()
    bench.note([bench.loop.finish("canceled", bench.now)])
    bench.answer()
    bench.tick(3)
    assert bench.loop.dropped == {"no_task": 1}
    assert set(bench.motions) == {None}


def test_a_latency_spike_is_ignored_at_first_and_several_are_forgotten():
    estimate = LatencyEstimate(network_ns=50 * MS, engine_ns=100 * MS)
    for _ in range(WINDOW):
        estimate.measured(round_trip_ns=90 * MS, server_ns=80 * MS, engine_ns=70 * MS)
    estimate.measured(round_trip_ns=5000 * MS, server_ns=80 * MS, engine_ns=0)
    assert estimate.expected_ns == 80 * MS
    for _ in range(WINDOW // 2):
        estimate.measured(round_trip_ns=5000 * MS, server_ns=80 * MS, engine_ns=0)
    assert estimate.expected_ns > 4000 * MS
    for _ in range(WINDOW):
        estimate.measured(round_trip_ns=90 * MS, server_ns=80 * MS, engine_ns=0)
    assert estimate.expected_ns == 80 * MS


def test_the_lead_is_rounded_up_and_never_more_than_half_a_chunk():
    assert lead_actions(99 * MS, 0, 33 * MS, horizon=50) == 3
    assert lead_actions(99 * MS, 1 * MS, 33 * MS, horizon=50) == 4
    assert lead_actions(500 * MS, 0, 33 * MS, horizon=10) == 5


fates = st.lists(
    st.tuples(
        st.integers(0, 60),  # periods until it arrives
        st.sampled_from(["actions", "actions", "actions", "refetch", "refused", "bad", "foreign"]),
        st.integers(1, 12),  # horizon
        st.integers(0, 3),  # attempts back
    ),
    max_size=3,  # none: lost; several: duplicated, or contradicting each other
)


@given(script=st.lists(fates, max_size=40), refused_by_guard=st.sets(st.integers(0, 60)))
@settings(max_examples=300)
def test_for_any_server_the_arm_executes_each_position_once_in_order_and_else_holds(
    script, refused_by_guard
):
    bench = Bench(Task("1", "reach", max_actions=40))
    script = iter(script)
    arriving = []  # (tick, answer)
    buffer_end = 0  # model: first position for which no usable action has arrived
    served = 0  # model: newest round that was answered by actions
    for tick in range(20_000):
        due = [answer for when, answer in arriving if when <= tick]
        arriving = [(when, answer) for when, answer in arriving if when > tick]
        sent = len(bench.sent)
        for answer in due:
            usable = (
                answer.kind is AnswerKind.ACTIONS
                and (answer.robot, answer.task) == ("arm_1", "1")
                and answer.round == served + 1
                and np.isfinite(answer.actions).all()
            )
            bench.note(bench.loop.receive(answer, bench.now))
            assert all(request.round == served + 1 for request in bench.sent[sent:])
            if usable:
                served += 1
                buffer_end = max(buffer_end, int(answer.actions[-1, 0]) + 1)
        position = bench.position
        discards = tick in refused_by_guard and position < buffer_end
        running_end = position + bench.loop.execution(bench.now).remaining
        bench.tick(approve=(lambda action: None) if discards else (lambda action: action))
        if bench.result is not None:
            break
        assert bench.sent[-1].round in (served, served + 1)  # one round outstanding
        if discards:  # the guard discards the running chunk; one that waits to follow it stays
            assert bench.motions[-1] is None
            if running_end in (position, buffer_end):
                buffer_end = position
        elif position < buffer_end:
            assert bench.motions[-1] == position
        else:
            assert bench.motions[-1] is None
        for request in bench.sent[sent:]:
            arriving += _fate(bench, request, next(script, [(1, "actions", 9, 0)]), tick)
    assert bench.result is not None
    assert bench.result.outcome == "max_actions"
    assert sorted(bench.observed) == [(r.round, r.attempt) for r in bench.sent]
    assert sum(bench.result.round_executed) == bench.position == bench.loop.executed == 40


def _fate(bench, request, answers, tick):
    for delay, kind, horizon, back in answers:
        attempt = max(0, request.attempt - back)
        answer = bench.actions(request.round, attempt, horizon)
        match kind:
            case "refetch":
                answer = _changed(answer, kind=AnswerKind.REFETCH)
            case "refused":
                answer = _changed(
                    answer, kind=AnswerKind.REFUSED, retry_after_ns=delay * PERIOD + 1
                )
            case "bad":
                answer = _changed(answer, actions=answer.actions * np.nan)
            case "foreign":
                answer = _changed(answer, task="0", actions=answer.actions - 1)
        yield tick + 1 + delay, answer
