"""The robot node as a real process over DDS, with a real simulated arm, and its tasks."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
from action_msgs.msg import GoalStatus
from kairos_ros.msg import ActionChunk, ExecutionInfo, RobotStatus
from robot_peer import PATIENT, chunk_for
from wire import done, until

pytestmark = pytest.mark.filterwarnings("ignore:Constant:UserWarning")  # of the scripted expert


def test_an_arm_reaches_its_target_with_chunks_from_its_peer(start_robot, peer):
    robot = start_robot(*PATIENT)
    peer.answer = lambda request: [chunk_for(request, horizon_reason="all of it")]
    handle = peer.give(task_kind="reach", horizon_policy="static:10")
    answer = peer.result(handle)

    result = answer.result
    assert answer.status == GoalStatus.STATUS_SUCCEEDED
    assert result.success
    assert result.outcome == "succeeded"
    assert result.actions == sum(result.round_executed) > 10
    assert result.rounds == len(result.round_latency_s) > 1
    assert 0 < result.first_wait_s <= result.stalled_s <= result.duration_s
    assert result.refusals == result.guarded == result.dropped == 0

    asked = [r for r in peer.requests if r.attempt == 0]
    first = asked[0]
    assert (first.task_kind, first.horizon_policy, first.seed) == ("reach", "static:10", 3)
    assert (first.round, first.attempt, len(first.state)) == (1, 0, 39)
    assert [r.round for r in asked] == list(range(1, len(asked) + 1))
    second = asked[1]
    assert second.execution.round == 1
    assert 0 < second.execution.actions_remaining <= 5  # asked while round 1 was executed
    told = lambda: (s := peer.statuses[-1]) and (s.state, s.tasks_done, s.tasks_succeeded)  # noqa: E731
    until(lambda: told() == (RobotStatus.IDLE, 1, 1), what="for the status after the task")
    assert {s.state for s in peer.statuses} >= {RobotStatus.IDLE, RobotStatus.RUNNING}
    until(lambda: any(info.started for info in peer.heard[ExecutionInfo]))
    until(lambda: peer.feedback)
    assert "torch" not in Path(f"/proc/{robot.process.pid}/maps").read_text()


def test_chunks_of_others_are_dropped_counted_and_visible_and_the_task_goes_on(start_robot, peer):
    start_robot(*PATIENT)
    stray = [
        {"robot": "arm_0"},
        {"session": "before"},
        {"task": "0"},
        {"round": 0},
        {"attempt": 7},
        {"horizon": 11},
        {"kind": 9},
        {"server_s": math.nan},
    ]

    away = np.full((10, 4), -1.0)  # would drive the hand off

    def answer(request):
        strays = stray[2 * request.round - 2 : 2 * request.round]
        chunks = [chunk_for(request, away, **change) for change in strays]
        return [*chunks, chunk_for(request), chunk_for(request, away)]

    peer.answer = answer
    assert peer.result(peer.give()).result.success
    dropped = lambda: len(stray) + len(peer.requests)  # noqa: E731
    late = (0, 1)  # the good one of the last round, where the task ended before it came
    until(lambda: peer.statuses[-1].chunks_dropped - dropped() in late)
    until(lambda: int(peer.diagnostic("dropped, malformed") or 0) == 3)
    for reason in ("other_robot", "other_session", "other_task", "old_round", "never_requested"):
        assert int(peer.diagnostic(f"dropped, {reason}")) >= 1


def test_simulated_time_without_a_clock_is_a_warning_and_stops_nothing(start_robot, peer):
    robot = start_robot("use_sim_time:=true")
    peer.answer = lambda request: [chunk_for(request)]
    assert peer.result(peer.give(max_actions=30)).result.actions == 30
    heartbeats = len(peer.statuses)
    until(lambda: len(peer.statuses) > heartbeats + 2)
    until(lambda: peer.diagnostic("state"))
    until(lambda: "use_sim_time is true and nobody publishes /clock" in robot.output())


def test_a_chunk_with_nan_is_never_executed(start_robot, peer):
    start_robot("request_timeout_s:=0.2")
    poisoned = np.zeros((10, 4))
    poisoned[3, 1] = np.nan
    peer.answer = lambda request: [chunk_for(request, poisoned)]
    handle = peer.give(max_duration_s=2.0)
    goal = peer.result(handle)
    result = goal.result
    assert (result.outcome, result.ended) == ("max_duration", False)  # a simulator can tell success
    assert goal.status == GoalStatus.STATUS_ABORTED
    assert result.actions == 0
    assert result.dropped >= 1
    # one may come after the end of the task
    until(lambda: int(peer.diagnostic("dropped, not_finite") or 0) >= result.dropped)


def test_a_silent_server_makes_the_arm_hold_and_keep_asking_until_it_is_back(start_robot, peer):
    start_robot("request_timeout_s:=0.2", "diagnostics.holding_error_s:=1.0", "max_pause_s:=30.0")
    handle = peer.give()
    requests = until(lambda: len(heard := [*peer.requests]) >= 3 and heard)
    assert {r.round for r in requests} == {1}
    assert [r.attempt for r in requests] == list(range(len(requests)))
    until(lambda: any("holding for want of actions" in s.message for s in peer.diagnostics))
    until(lambda: peer.statuses[-1].state == RobotStatus.HOLDING)
    before, after = peer.requests[0].state, peer.requests[-1].state
    np.testing.assert_allclose(before[:3], after[:3], atol=0.01)  # the hand stayed

    peer.answer = lambda request: [chunk_for(request)]
    result = peer.result(handle).result
    assert result.success
    assert result.first_wait_s > 0.5


def test_a_network_that_takes_its_time_is_told(start_robot, peer):
    start_robot("diagnostics.network_warn_s:=0.3")

    def late(request):
        time.sleep(0.5)  # which the answer does not say the server needed
        return [chunk_for(request)]

    peer.answer = late
    handle = peer.give()
    until(lambda: any("the network takes " in s.message for s in [*peer.diagnostics]))
    peer.answer = lambda request: [chunk_for(request)]
    assert peer.result(handle).result.success


def test_a_server_that_comes_late_is_asked_as_soon_as_it_is_there(start_robot, peer):
    peer.go_deaf()
    start_robot("request_timeout_s:=300.0", "request_timeout_max_s:=300.0")
    peer.answer = lambda request: [chunk_for(request)]
    handle = peer.give()
    until(lambda: peer.statuses and peer.statuses[-1].state == RobotStatus.HOLDING)
    peer.listen()
    assert peer.result(handle).result.success


def test_refetches_and_refusals_are_followed(start_robot, peer):
    start_robot(*PATIENT)

    def answer(request):
        if request.round == 1 and request.attempt == 0:
            return [chunk_for(request, kind=ActionChunk.REFETCH)]
        if request.round == 2 and request.attempt == 0:
            return [chunk_for(request, kind=ActionChunk.REFUSED, retry_after_s=0.2)]
        if request.round == 3:
            refusal = {"kind": ActionChunk.REFUSED, "reason": "no such instruction"}
            return [chunk_for(request, **refusal)]
        return [chunk_for(request)]

    peer.answer = answer
    answer = peer.result(peer.give())
    asked = [(r.round, r.attempt) for r in peer.requests]
    assert asked == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert answer.status == GoalStatus.STATUS_ABORTED
    assert answer.result.outcome == "refused: no such instruction"
    assert answer.result.refusals == 2


def test_a_second_goal_is_rejected_and_the_first_can_be_canceled(start_robot, peer):
    start_robot()
    first = peer.give()
    assert first.accepted
    assert not peer.give(seed=4).accepted
    until(lambda: peer.requests)
    done(peer.within(first.cancel_goal_async))
    answer = peer.result(first)
    assert answer.status == GoalStatus.STATUS_CANCELED
    assert answer.result.outcome == "canceled"

    peer.answer = lambda request: [chunk_for(request)]
    assert peer.result(peer.give()).result.success


def test_an_impossible_goal_fails_with_the_reason_and_the_robot_stays_usable(start_robot, peer):
    start_robot()
    peer.answer = lambda request: [chunk_for(request)]
    answer = peer.result(peer.give(scene="make-coffee-v3"))
    assert answer.status == GoalStatus.STATUS_ABORTED
    assert "make-coffee-v3" in answer.result.outcome
    assert not peer.give(instruction="").accepted
    for duration_s in (math.inf, math.nan, -1.0, 1e-38, 0.001, 1e20):
        assert not peer.give(max_duration_s=duration_s).accepted
    for field in ("instruction", "task_kind", "scene", "horizon_policy"):
        assert not peer.give(**{field: "x" * 2000}).accepted
    assert peer.result(peer.give()).result.success


def test_the_guard_stops_the_arm_at_its_workspace_and_says_so(start_robot, peer):
    start_robot(
        "guard.workspace.action:=[0, 1, 2]",
        "guard.workspace.state:=[0, 1, 2]",
        "guard.workspace.scale:=0.01",
        "guard.workspace.low:=[-0.05, 0.3, 0.0]",
        "guard.workspace.high:=[0.05, 0.9, 0.5]",
    )
    sideways = np.tile([1.0, 0.0, 0.0, 0.0], (20, 1))
    peer.answer = lambda request: [chunk_for(request, sideways)]
    result = peer.result(peer.give(max_actions=60)).result
    assert result.outcome == "max_actions"
    assert result.guarded > 10
    lag = 0.04  # Meta-World's hand trails what it was told
    assert max(request.state[0] for request in peer.requests) < 0.05 + lag
