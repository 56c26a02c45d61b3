"""Events of a bag sorted into tasks, rounds and traces: hand-made events, hand-computed results."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kairos_ros.core.robot_state import RobotState
from kairos_ros.lab.metrics.slo import Slo, attainment, system1_invocations
from kairos_ros.recording.extract import traces_of
from kairos_ros.recording.fleet_run import fleet_run
from kairos_ros.recording.runs.run import CANCELED, LOST
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace_file import read_traces, write_traces
from kairos_ros.recording.tasks import sort_events
from kairos_ros.telemetry.events import (
    ChunkAnswered,
    ChunkComputed,
    ChunkRequested,
    Event,
    RobotReported,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)

KEY = TaskKey("arm_1", "session-one", "1")
GOAL = TaskStartReported(1.0, KEY, "lift", "lift the cup", "cup", 7, "static:4", 10.0)


def asked(
    number: int, at_s: float, attempt: int = 0, key: TaskKey = KEY, **execution
) -> ChunkRequested:
    """A request; `executing`, `executed`, `remaining`, `started_s`, `ended_s` of the execution."""
    doing = {"server": "", "executing": 0, "executed": 0, "remaining": 0, "started_s": math.nan}
    doing |= {"ended_s": math.nan} | execution
    return ChunkRequested(
        at_s=at_s,
        key=key,
        round=number,
        attempt=attempt,
        kind="lift",
        instruction="lift the cup",
        seed=7,
        horizon_policy="",
        state=np.full(2, number, np.float32),
        control_rate_hz=10.0,
        **doing,
    )


def answered(
    number: int, at_s: float, attempt: int = 0, refused: bool = False, key=KEY, **changes
) -> ChunkAnswered:
    fields = {
        "at_s": at_s,
        "key": key,
        "round": number,
        "attempt": attempt,
        "refused": refused,
        "reason": "queue is full" if refused else "1st of 1",
        "horizon": 0 if refused else 4,
        "chunk_size": 0 if refused else 8,
        "action_dim": 0 if refused else 2,
        "horizon_reason": "static 4 of 8",
        "queued_s": 0.0,
        "compute_s": 0.05,
        "server_s": 0.06,
        "batch_size": 1,
        "tier": "edge",
        "engine": "edge",
        "actions": None,
        "confidence": np.zeros(0),
        "policy": "p-1",
        "server": "",
    }
    return ChunkAnswered(**(fields | changes))


def updates(number: int, attempt: int = 0) -> ChunkComputed:
    chunk = np.full((8, 2), number, np.float32)
    return ChunkComputed(1.0, KEY, number, attempt, "static:4", chunk, None, np.ones((3, 8)), None)


ENDED = TaskEndReported(
    at_s=3.0,
    key=KEY,
    goal=GOAL,
    first_request_s=1.1,
    success=True,
    outcome="succeeded",
    duration_s=1.4,
    actions=7,
    stalled_s=0.2,
    first_wait_s=0.2,
    refusals=0,
    dropped=0,
    guarded=0,
    round_latency_s=(0.1, 0.15),
    round_executed=(4, 3),
    round_started_s=(0.2, 0.6),
    round_ended_s=(0.61, 0.9),
    round_seam=(float("nan"), 0.5),
    mean_step=0.25,
    round_surprise=(0.0, 7.5),
)
TASK: list[Event] = [
    GOAL,
    asked(1, 1.1),
    answered(1, 1.2),
    updates(1),
    asked(2, 1.5, executing=1, executed=2, remaining=2, started_s=1.3),
    asked(2, 1.55, 1, executing=1, executed=3, remaining=1, started_s=1.3),
    answered(2, 1.66, 1),
    updates(2, 1),
    asked(3, 1.9, executing=2, executed=2, remaining=1, started_s=1.7),
    ENDED,
]


def run_of(events, length_s: float = 10.0):
    return fleet_run(sort_events(events), length_s)


def test_a_finished_task_has_the_rounds_that_the_robot_tells():
    run = run_of(TASK)
    (task,) = run.tasks
    assert (task.number, task.scene, task.seed, task.given_s, task.ended_s) == (
        7,
        "cup",
        7,
        1.0,
        3.0,
    )
    assert (task.actions, task.round_executed) == (7, (4, 3))
    assert (task.round_seam, task.mean_step) == (ENDED.round_seam, 0.25)
    assert task.round_surprise == (0.0, 7.5)
    assert summarise(run).surprises == 1
    assert task.policy == "p-1"
    first, second, third = run.rounds
    assert (first.requested_at, first.observed_at, first.executed) == (0, 0, 4)
    assert (second.attempts, second.requested_at, second.observed_at) == (2, 2, 3)
    assert second.latency_s == pytest.approx(0.15)
    assert (second.exec_start_s, second.exec_end_s) == pytest.approx((1.7, 2.0))
    assert first.exec_end_s == pytest.approx(1.7)  # not 1.71: the next round had begun by then
    assert (third.requested_at, third.horizon, third.executed) == (6, 0, 0)
    assert math.isnan(third.answered_s)
    assert math.isnan(third.exec_start_s)


def test_a_finished_task_is_a_trace_with_its_chunks():
    found = traces_of(sort_events(TASK), full_updates=True)
    (trace,) = found.traces
    assert (trace.kind, trace.seed, trace.success, trace.policy) == ("lift", 7, True, "p-1")
    assert [(r.requested_at, r.observed_at, r.horizon, r.executed) for r in trace.rounds] == [
        (0, 0, 4, 4),
        (2, 3, 4, 3),
    ]
    assert [r.chunk[0, 0] for r in trace.rounds] == [1, 2]
    assert trace.rounds[1].state.tolist() == [2, 2]
    assert not found.left_out
    assert found.without_chunks == 0


def test_the_chunk_of_another_attempt_is_not_the_rounds_chunk():
    events = [updates(2, 0) if isinstance(e, ChunkComputed) and e.round == 2 else e for e in TASK]
    found = traces_of(sort_events(events), full_updates=True)
    assert found.traces[0].rounds[1].chunk is None
    assert found.without_chunks == 1


def test_without_updates_traces_have_no_chunks():
    bare = [event for event in TASK if not isinstance(event, ChunkComputed)]
    found = traces_of(sort_events(bare), full_updates=True)
    assert found.without_chunks == len(found.traces) == 1
    assert found.traces[0].horizon_policy == "static:4"


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (lambda e: isinstance(e, TaskEndReported), "its end is not in the bag"),
        (lambda e: isinstance(e, ChunkRequested) and e.round == 1, "a request or an answer"),
        (lambda e: isinstance(e, ChunkAnswered) and e.round == 2, "a request or an answer"),
        (lambda e: isinstance(e, ChunkRequested) and e.attempt == 1, "a request or an answer"),
    ],
)
def test_an_incomplete_task_is_left_out_of_traces_and_counted(missing, reason):
    found = traces_of(sort_events(e for e in TASK if not missing(e)), full_updates=True)
    assert not found.traces
    (left_out,) = found.left_out
    assert reason in left_out


def test_a_task_of_a_policy_that_keeps_a_state_is_no_trace():
    events = [
        replace(e, chunk_size=7) if isinstance(e, ChunkAnswered) and e.round == 1 else e
        for e in TASK
    ]
    (left_out,) = traces_of(sort_events(events), full_updates=True).left_out
    assert "its policy keeps a state of every task" in left_out


@pytest.mark.parametrize("outcome", ["canceled", "failed: the body broke", "refused: no"])
def test_a_task_that_broke_off_is_no_trace(outcome):
    events = [*TASK[:-1], replace(ENDED, outcome=outcome)]
    found = traces_of(sort_events(events), full_updates=True)
    assert found.left_out == {outcome.partition(":")[0]: 1}


@pytest.mark.parametrize("told_s", [math.nan, 0.2])  # 0.2: as bags were written before
def test_a_round_that_was_given_up_was_not_answered(told_s):
    """Supervised, each stopped by a verdict 0.2 s after its request, while the server hung."""
    ended = replace(ENDED, actions=0, round_latency_s=(told_s,) * 3, round_executed=(0, 0, 0))
    none = (math.nan,) * 3
    ended = replace(ended, round_started_s=none, round_ended_s=none)
    run = run_of([GOAL, asked(1, 1.1), asked(2, 1.3), asked(3, 1.5), replace(ended, at_s=1.7)])
    assert all(math.isnan(record.latency_s) for record in run.rounds)
    invocations = system1_invocations(run)
    assert [i.waited_s for i in invocations] == pytest.approx([0.2] * 3)
    in_half_a_second = attainment(Slo("system1", 0.5), invocations)
    assert (in_half_a_second.invocations, in_half_a_second.met) == (0, 0)
    assert attainment(Slo("system1", 0.1), invocations).missing == 3


def test_an_answer_that_came_after_the_robot_gave_up_is_none_and_its_trace_has_no_latency(tmp_path):
    ended = replace(ENDED, round_latency_s=(0.1, math.nan), round_executed=(4, 0))
    ended = replace(ended, round_started_s=(0.2, math.nan), round_ended_s=(0.61, math.nan))
    events = [*TASK[:-2], ended]
    assert math.isnan(run_of(events).rounds[1].latency_s)
    found = traces_of(sort_events(events), full_updates=True)
    write_traces(tmp_path / "t.jsonl", found.traces)
    (trace,) = read_traces(tmp_path / "t.jsonl")
    assert [(r.executed, r.latency_s) for r in trace.rounds] == [(4, 0.1), (0, None)]
    assert "NaN" not in (tmp_path / "t.jsonl").read_text()


def test_a_task_without_its_end_is_told_by_later_requests():
    ended = asked(3, 2.1, executing=2, executed=4, started_s=1.7, ended_s=2.05)
    run = run_of([*TASK[:-2], ended])
    assert run.tasks[0].outcome == CANCELED
    assert run.tasks[0].ended_s == 10.0
    first, second, third = run.rounds
    assert (first.executed, second.executed) == (4, 4)
    assert (second.exec_start_s, second.exec_end_s) == (1.7, 2.05)
    assert first.latency_s == pytest.approx(0.1)
    assert third.requested_at == 8


def test_a_task_is_lost_when_its_robot_leaves_or_comes_back_as_another():
    left = RobotReported(4.0, "arm_1", "session-one", RobotState.LEAVING)
    again = RobotReported(5.0, "arm_1", "session-two", RobotState.IDLE)
    for status in (left, again):
        (task,) = run_of([*TASK[:3], status]).tasks
        assert (task.outcome, task.ended_s) == (LOST, status.at_s)
    (task,) = run_of([*TASK[:3], RobotReported(5.0, "arm_2", "session-two", RobotState.IDLE)]).tasks
    assert task.outcome == CANCELED


def test_tasks_of_two_sessions_with_the_same_id_are_two():
    other = TaskKey("arm_1", "session-two", "1")
    again = [replace(GOAL, key=other, at_s=6.0, seed=8), asked(1, 6.1, key=other)]
    run = run_of([*TASK, *again])
    assert [(t.number, t.task) for t in run.tasks] == [
        (7, "session-one/1"),
        (8, "session-two/1"),
    ]


def test_tasks_that_share_a_seed_are_numbered_as_they_came():
    other = TaskKey("arm_2", "session-two", "1")
    run = run_of([*TASK, replace(GOAL, key=other, at_s=0.5)])
    assert [(t.number, t.robot) for t in run.tasks] == [(0, "arm_2"), (1, "arm_1")]


def test_a_recorder_that_came_late_still_has_the_result():
    run = run_of([ENDED])
    assert run.tasks[0].given_s == pytest.approx(1.1)
    assert run.rounds == ()
    answer_only = run_of([answered(3, 0.2)])
    assert answer_only.tasks == answer_only.rounds == ()


def test_a_refused_round_says_why_and_a_later_chunk_replaces_the_refusal():
    refused = run_of([GOAL, asked(1, 1.1), answered(1, 1.2, refused=True)]).rounds[0]
    assert (refused.horizon, refused.reason) == (0, "queue is full")
    assert math.isnan(refused.answered_s)
    events = [GOAL, asked(1, 1.1), answered(1, 1.2, refused=True)]
    served = run_of([*events, asked(1, 1.4, 1), answered(1, 1.6, 1)]).rounds[0]
    assert (served.horizon, served.attempts) == (4, 2)
    assert served.latency_s == pytest.approx(0.5)


def test_what_another_server_answers_is_not_the_rounds_answer():
    own, other = {"server": "a"}, {"server": "b"}
    rounds = run_of(
        [
            GOAL,
            answered(1, 1.15, horizon=9, **other),
            asked(1, 1.1, **own),
            answered(1, 1.2, **own),
            asked(2, 1.5, **own),
            answered(2, 1.6, **other),
        ]
    ).rounds
    assert rounds[0].horizon == 4
    assert math.isnan(rounds[1].answered_s)


def test_spans_and_robots_are_those_of_the_statuses():
    statuses = [
        RobotReported(0.0, "arm_10", "a", RobotState.IDLE),
        RobotReported(1.0, "arm_2", "b", RobotState.IDLE),
        RobotReported(2.0, "arm_10", "a", RobotState.RUNNING),
        RobotReported(3.0, "arm_10", "a", RobotState.RUNNING),
    ]
    run = run_of(statuses, 5.0)
    assert run.robots == ("arm_2", "arm_10")
    assert [(s.robot, s.start_s, s.end_s, s.activity) for s in run.spans] == [
        ("arm_10", 0.0, 2.0, "idle"),
        ("arm_10", 2.0, 5.0, "executing"),
        ("arm_2", 1.0, 5.0, "idle"),
    ]


def test_the_time_that_counts_lasts_while_tasks_are_given_or_every_robot_works():
    def task(robot, given_s, ended_s):
        key = TaskKey(robot, "s", str(given_s))
        goal = replace(GOAL, at_s=given_s, key=key)
        return [goal, replace(ENDED, at_s=ended_s, key=key, goal=goal, first_request_s=given_s)]

    def open_s(*tasks):
        return fleet_run(sort_events([event for one in tasks for event in one]), 100.0).open_s

    assert open_s(task("a", 1.0, 40.0), task("b", 2.0, 50.0)) == ((1.0, 40.0),)
    assert open_s(task("a", 1.0, 10.0), task("a", 12.0, 20.0), task("b", 15.0, 90.0)) == (
        (1.0, 20.0),
    )
    assert open_s(task("a", 1.0, 10.0), task("b", 15.0, 90.0)) == ((1.0, 15.0),)
    assert open_s(task("a", 1.0, 10.0)) == ((1.0, 10.0),)
    assert open_s() == ((0.0, 100.0),)
