"""The generate-execute loop: what it sends, executes and drops, for any behaviour of the server."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Actions, Answer, Refetch, Refusal, RequestId
from kairos_ros.core.execution.effects import Act, Finished, Hold, Send
from kairos_ros.core.execution.latency import WINDOW, LatencyEstimate, lead_actions
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import Task
from kairos_ros.core.server_status import ServerState, ServerStatus

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
                    self.observed[request.id.round, request.id.attempt] = self.position
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

    def answer(self, horizon=10, *, body=None, server="", **changes):
        """The answer to the newest request, and what it makes the loop do.

        body: instead of actions. changes: of what identifies the request, or of the actions.
        """
        asked = self.sent[-1].id
        answer = self.actions(asked.round, asked.attempt, horizon, server=server)
        answer = _changed(answer, **changes)
        self.note(self.loop.receive(replace(answer, body=body or answer.body), self.now))

    def actions(self, round, attempt, horizon, server=""):
        start = self.observed[round, attempt]
        chunk = np.arange(start, start + horizon, dtype=np.float32)[:, None]
        all_of_it = 10**15  # the whole round trip was the server's share: a network without delay
        body = Actions(chunk, np.ones(horizon, np.float32), server_ns=all_of_it)
        return Answer(RequestId("arm_1", "now", "1", round, attempt), body, server)


def refused(reason="", after_ns=0):
    return Refusal(RefusalCode.OVERLOADED, reason, after_ns)


def _changed(answer, **changes):
    mine = {name: value for name, value in changes.items() if name in RequestId.__slots__}
    others = {name: value for name, value in changes.items() if name not in mine}
    return replace(answer, id=replace(answer.id, **mine), body=replace(answer.body, **others))


def test_the_first_request_leaves_with_the_first_period_and_the_arm_holds_until_the_answer():
    bench = Bench()
    bench.tick(3)
    assert [(r.id.round, r.id.attempt) for r in bench.sent] == [(1, 0)]
    assert bench.motions == [None, None, None]


def test_the_next_request_leaves_when_the_buffer_lasts_just_as_long_as_the_answer_takes():
    bench = Bench(engine_ns=3 * PERIOD)
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(7)
    assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[-1].id.round == 2
    assert bench.sent[-1].execution.remaining == 3


def test_a_request_tells_which_actions_follow_before_its_chunk():
    bench = Bench(engine_ns=3 * PERIOD)
    bench.tick()
    assert bench.sent[0].committed.shape == (0, 0)
    bench.answer(horizon=10)
    bench.tick(8)
    asked = bench.sent[-1]
    committed = asked.committed[:, 0].tolist()
    assert len(committed) == asked.execution.remaining == 3
    bench.tick(2)
    assert bench.motions[-3:] == committed  # the first with the period in which it was sent
    bench.answer(body=Refetch())
    assert not len(bench.sent[-1].committed)
    bench.answer(horizon=10)
    bench.tick(8)
    bench.loop.stop()
    bench.tick(2)
    assert not len(bench.sent[-1].committed)  # what was dropped is not executed


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
    assert [r.id.round for r in bench.sent] == [1, 2, 3]


def test_a_refetch_is_answered_at_once_with_a_fresh_observation():
    bench = Bench()
    bench.tick()
    bench.answer(body=Refetch())
    assert [(r.id.round, r.id.attempt) for r in bench.sent] == [(1, 0), (1, 1)]


def test_after_a_refetch_the_chunk_of_either_observation_is_used_but_only_one():
    bench = Bench()
    bench.tick()
    bench.answer(body=Refetch())
    for attempt in (0, 1):
        bench.note(bench.loop.receive(bench.actions(1, attempt, 5), bench.now))
    bench.tick(5)
    assert bench.loop.dropped == {"repeated": 1}
    assert bench.motions[1:] == [0, 1, 2, 3, 4]


def test_a_refusal_is_retried_when_it_says_and_not_before():
    bench = Bench()
    bench.tick()
    bench.answer(body=refused("queue is full", 5 * PERIOD))
    bench.tick(5)
    assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[-1].id.attempt == 1


def test_a_repeated_refusal_changes_nothing_and_one_of_the_retry_counts_again():
    bench = Bench()
    bench.tick()
    for _ in range(2):
        bench.answer(body=refused(after_ns=5 * PERIOD))
        bench.tick()
    assert bench.loop.dropped == {"repeated": 1}
    bench.tick(4)
    bench.answer(body=refused("gone"))
    assert bench.result.refusals == 2
    assert bench.loop.silences == 0


def test_a_server_that_appears_is_asked_without_waiting_for_the_timeout():
    bench = Bench()
    bench.tick(3)
    bench.loop.ask_again(bench.now)
    bench.tick()
    assert [r.id.attempt for r in bench.sent] == [0, 1]


def test_a_server_that_appears_does_not_cut_the_retry_of_a_refusal_short():
    bench = Bench()
    bench.tick()
    bench.answer(body=refused(after_ns=5 * PERIOD))
    bench.loop.ask_again(bench.now)
    bench.tick(5)
    assert len(bench.sent) == 1


def test_any_answer_ends_the_back_off_of_a_silence():
    bench = Bench()
    bench.tick(61)  # asked at 0, 20 and 60
    bench.answer(body=Refetch())
    bench.tick(21)
    assert [r.id.attempt for r in bench.sent] == [0, 1, 2, 3, 4]


def test_a_refusal_without_retry_fails_the_task_with_its_reason():
    bench = Bench()
    bench.tick()
    bench.answer(body=refused("instruction is not served"))
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
    assert {r.id.round for r in bench.sent} == {1}


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
    assert bench.sent[-1].id.round == 2
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


def test_the_result_tells_the_jump_where_one_chunk_follows_another():
    bench = Bench()
    bench.tick()
    bench.answer(horizon=6)  # actions 0, 1, 2, ...
    bench.tick(5)
    bench.answer(actions=np.arange(10, 16, dtype=np.float32)[:, None])
    assert bench.loop.execution(bench.now).seam == 0.0
    bench.tick(3)
    last, first = bench.motions[6], bench.motions[7]
    assert bench.loop.execution(bench.now).seam == first - last > 1
    result = bench.loop.finish("succeeded", bench.now).result
    assert np.isnan(result.round_seam[0])
    assert result.round_seam[1:] == (first - last,)
    assert result.mean_step == 1.0


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
@pytest.mark.slow
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
                isinstance(answer.body, Actions)
                and (answer.id.robot, answer.id.task) == ("arm_1", "1")
                and answer.id.round == served + 1
                and np.isfinite(answer.body.actions).all()
            )
            asked = len(bench.sent)
            bench.note(bench.loop.receive(answer, bench.now))
            assert all(request.id.round == served + 1 for request in bench.sent[asked:])
            if usable:
                served += 1
                buffer_end = max(buffer_end, int(answer.body.actions[-1, 0]) + 1)
        position = bench.position
        discards = tick in refused_by_guard and position < buffer_end
        running_end = position + bench.loop.execution(bench.now).remaining
        bench.tick(approve=(lambda action: None) if discards else (lambda action: action))
        if bench.result is not None:
            break
        assert bench.sent[-1].id.round in (served, served + 1)  # one round outstanding
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
    assert sorted(bench.observed) == [(r.id.round, r.id.attempt) for r in bench.sent]
    assert sum(bench.result.round_executed) == bench.position == bench.loop.executed == 40


def _fate(bench, request, answers, tick):
    for delay, kind, horizon, back in answers:
        attempt = max(0, request.id.attempt - back)
        answer = bench.actions(request.id.round, attempt, horizon)
        match kind:
            case "refetch":
                answer = replace(answer, body=Refetch())
            case "refused":
                answer = replace(answer, body=refused(after_ns=delay * PERIOD + 1))
            case "bad":
                answer = _changed(answer, actions=answer.body.actions * np.nan)
            case "foreign":
                answer = _changed(answer, task="0", actions=answer.body.actions - 1)
        yield tick + 1 + delay, answer


# A loop that stood still, and one that knows whom it asks.


def test_after_a_pause_the_buffer_is_dropped_and_a_new_round_is_asked_for():
    bench = Bench()
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(3)
    bench.now += 8_000 * MS
    bench.tick()
    assert bench.motions[-1] is None
    assert bench.position == 3
    assert [request.id.round for request in bench.sent] == [1, 2]
    assert bench.sent[-1].execution.remaining == 0
    bench.answer(horizon=10)
    bench.tick(2)
    assert bench.motions[-2:] == [3.0, 4.0]
    assert bench.loop.pauses == 1


def test_an_action_that_a_pause_keeps_from_its_body_is_late():
    """The pause falls between the tick that chose it and the body."""
    bench = Bench()
    bench.tick()
    bench.answer(horizon=10)
    bench.tick()
    ticked = bench.now - PERIOD
    assert not bench.loop.is_late(ticked + 500 * MS)
    assert bench.loop.is_late(ticked + 501 * MS)
    assert (bench.loop.executed, bench.loop.execution(bench.now).executed) == (1, 1)
    bench.loop.was_late()
    told = bench.loop.execution(bench.now)
    assert (bench.loop.executed, told.executed, told.started) == (0, 0, False)


def test_an_answer_that_was_asked_for_before_a_pause_is_not_used_after_it():
    bench = Bench()
    bench.tick()
    bench.loop.observed(bench.now)
    bench.now += 8_000 * MS
    bench.tick()
    first = bench.actions(1, 0, 10)
    bench.note(bench.loop.receive(first, bench.now))
    bench.tick(2)
    assert bench.position == 0
    assert bench.sent[-1].id.round == 2


def test_an_answer_that_comes_during_a_pause_is_not_used_either():
    bench = Bench()
    bench.tick()
    bench.now += 8_000 * MS
    bench.answer(horizon=10)  # heard before the first period after it
    bench.tick(2)
    assert bench.position == 0
    assert bench.sent[-1].id.round == 2


def test_a_body_that_takes_long_to_look_is_not_asked_again_and_again():
    bench = Bench()
    bench.tick()
    bench.now += 560 * MS  # that is how long it looked
    bench.loop.observed(bench.now - PERIOD)
    bench.tick()
    bench.answer(horizon=10)
    bench.tick(2)
    assert len(bench.sent) == 1
    assert bench.position == 2


def test_three_periods_are_no_pause_for_a_slow_loop():
    config = replace(CONFIG, period_ns=1_000 * MS)
    loop = Loop(config, LatencyEstimate(0, 0))
    loop.start(Task("1", "reach"), 0)
    for second in range(0, 12, 3):
        loop.tick(second * 1_000 * MS, lambda action: action)
    assert loop.pauses == 0
    loop.tick(12_100 * MS, lambda action: action)
    assert loop.pauses == 1


class Served(Bench):
    """With a binding, and servers `a` and `b` of policy p."""

    def __init__(self):
        super().__init__()
        self.loop.binding = ServerBinding("arm_1")
        self.loop.binding.begin()

    def hears(self, server, state=ServerState.ACTIVE, policy="p"):
        self.loop.binding.heard(ServerStatus(server, state, policy=policy), self.now)


def test_nothing_is_asked_before_a_server_is_known_and_then_it_is_asked_by_name():
    bench = Served()
    bench.tick(5)
    assert bench.sent == []
    bench.hears("a")
    bench.tick()
    assert [request.server for request in bench.sent] == ["a"]


def test_answers_of_another_server_or_policy_are_dropped_by_these_names():
    bench = Served()
    bench.hears("a")
    bench.tick()
    bench.answer(server="b", policy="p")
    bench.answer(server="", policy="p")
    assert bench.loop.dropped == {"other_server": 2}
    bench.answer(horizon=10, server="a", policy="p")
    bench.tick(8)
    assert (bench.position, bench.sent[-1].id.round) == (8, 2)
    bench.answer(server="a", policy="q")
    assert bench.loop.dropped == {"other_server": 2, "other_policy": 1}
    bench.tick(5)
    assert bench.position == 10


def test_a_round_that_the_old_server_owes_is_asked_again_of_the_next_with_a_fresh_observation():
    bench = Served()
    bench.hears("a")
    bench.tick(2)
    bench.hears("b")
    bench.hears("a", ServerState.LEAVING)
    bench.tick()
    asked = [(request.server, request.id.round, request.id.attempt) for request in bench.sent]
    assert asked == [("a", 1, 0), ("b", 1, 1)]
    bench.note(bench.loop.receive(bench.actions(1, 0, 10, server="a"), bench.now))
    bench.tick()
    assert bench.position == 0
    bench.answer(horizon=10, server="b", policy="p")
    bench.tick()
    assert bench.position == 1


def test_a_task_whose_policy_is_served_no_more_ends_with_both_names():
    bench = Served()
    bench.hears("a")
    bench.tick()
    bench.answer(server="a", policy="p")
    bench.tick()
    bench.hears("a", ServerState.LEAVING)
    bench.hears("b", policy="q")
    bench.tick()
    assert "policy q" in bench.result.outcome
    assert "policy p" in bench.result.outcome
    assert not bench.result.success


def test_a_robot_keeps_to_the_period_that_it_was_told_and_executes_what_it_has_meanwhile():
    bench = Bench()
    bench.tick()
    bench.answer(8, request_period_ns=20 * PERIOD)
    bench.tick(19)
    assert len(bench.sent) == 1
    assert bench.motions[1:9] == [0, 1, 2, 3, 4, 5, 6, 7]
    bench.tick()  # the twentieth period after the first request begins
    assert [request.id.round for request in bench.sent] == [1, 2]
    bench.answer(8)
    bench.tick(6)
    assert len(bench.sent) == 3, "it is not limited any more"


def test_a_refetch_and_a_repeated_request_do_not_wait_for_the_period():
    bench = Bench()
    bench.tick()
    bench.answer(8, request_period_ns=20 * PERIOD)
    bench.tick(20)
    bench.answer(body=Refetch())
    assert [request.id.attempt for request in bench.sent[1:]] == [0, 1]


def test_the_period_holds_into_the_next_task():
    bench = Bench(Task("1", "reach", max_actions=3))
    bench.tick()
    bench.answer(8, request_period_ns=20 * PERIOD)
    bench.tick(4)
    assert bench.result is not None
    bench.loop.start(Task("2", "reach"), bench.now)
    bench.tick(15)
    assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[-1].id.task == "2"
