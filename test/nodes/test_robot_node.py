"""The robot node as a real process over DDS, with a real simulated arm.

Its peer here answers requests with real messages: for reach-v3 with Meta-World's scripted expert,
rolled out over a chunk, so that a task that succeeds has really succeeded.
"""

import math
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import rclpy
from action_msgs.msg import GoalStatus
from announced import AnnouncedServer
from diagnostic_msgs.msg import DiagnosticArray
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import ActionChunk, ChunkRequest, ExecutionInfo, RobotStatus
from rclpy.action import ActionClient
from wire import Spinner, in_executor, meet

from kairos_ros.bringup import plan as bringup
from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.sim.metaworld_scenes import expert

REACH = {"instruction": "move the gripper to the target", "scene": "reach-v3", "seed": 3}
PATIENCE_S = 40.0


class Peer:
    """Everything that a robot talks to: answers its requests, gives it goals, listens."""

    def __init__(self, robot: str, context: rclpy.Context) -> None:
        self.robot = robot
        self.answer = lambda request: []
        self.heard = {kind: [] for kind in (ChunkRequest, RobotStatus, ExecutionInfo)}
        self.diagnostics = []
        self.feedback = []
        self.node = rclpy.create_node("peer", context=context)
        self._chunks = self.node.create_publisher(
            ActionChunk, f"/{robot}/action_chunk", qos.EXCHANGE
        )
        self.server = AnnouncedServer(self.node)
        subscribe = self.node.create_subscription
        self.listen()
        subscribe(RobotStatus, "/kairos/robot_status", self.heard[RobotStatus].append, qos.ROSTER)
        subscribe(
            ExecutionInfo,
            f"/{robot}/execution_info",
            self.heard[ExecutionInfo].append,
            qos.TELEMETRY,
        )
        subscribe(
            DiagnosticArray,
            "/diagnostics",
            lambda array: self.diagnostics.extend(array.status),
            qos.DIAGNOSTICS,
        )
        self._client = ActionClient(self.node, ExecuteTask, f"/{robot}/execute_task")
        self._spinner = Spinner(self.node)
        self.executor = self._spinner.executor
        self.close = self._spinner.close

    def listen(self):
        self._asked = self.node.create_subscription(
            ChunkRequest, f"/{self.robot}/chunk_request", self._on_request, qos.EXCHANGE
        )

    def go_deaf(self):
        self.within(lambda: self.node.destroy_subscription(self._asked))

    def _on_request(self, request):
        self.heard[ChunkRequest].append(request)
        for chunk in self.answer(request):
            self._chunks.publish(chunk)

    def give(self, **goal):
        """Sends a goal when the robot is there; returns its handle."""
        meet(self._client, self.executor)
        return done(
            self.within(
                lambda: self._client.send_goal_async(
                    ExecuteTask.Goal(**(REACH | goal)),
                    feedback_callback=lambda message: self.feedback.append(message.feedback),
                )
            )
        )

    def within(self, act):
        """Runs `act` in the thread that spins, and returns what it returns."""
        return in_executor(self.executor, act)

    def result(self, handle):
        return done(self.within(handle.get_result_async))

    @property
    def requests(self):
        return self.heard[ChunkRequest]

    @property
    def statuses(self):
        return [s for s in self.heard[RobotStatus] if s.robot == self.robot]

    def diagnostic(self, key):
        """The newest value of `key` that the robot reported."""
        reported = (v.value for s in self.diagnostics for v in s.values if v.key == key)
        return next(iter([*reported][-1:]), None)


def done(future):
    until(future.done)
    return future.result()


def until(condition, timeout_s=PATIENCE_S):
    """Waits for `condition()` and returns its value."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def chunk_for(request, actions=None, **changes):
    """An answer to `request`, by default 10 actions of a scripted expert."""
    actions = expert_chunk(request.state) if actions is None else actions
    fields = {
        "server": request.server,
        "robot": request.robot,
        "session": request.session,
        "task": request.task,
        "round": request.round,
        "attempt": request.attempt,
        "kind": ActionChunk.ACTIONS,
        "horizon": len(actions),
        "action_dim": actions.shape[1],
        "actions": np.asarray(actions, np.float32).ravel(),
    }
    return ActionChunk(**(fields | changes))


def expert_chunk(state, horizon=10):
    """The expert's actions if the hand moved exactly as told: 1/100 m per unit."""
    now, change, goal = np.split(np.asarray(state, np.float64), [18, 36])
    obs = np.concatenate([now, now - change, goal])
    scripted = expert("reach-v3")
    chunk = []
    for _ in range(horizon):
        chunk.append(np.clip(scripted.get_action(obs), -1, 1))
        obs[:3] += chunk[-1][:3] / 100
    return np.array(chunk, np.float32)


pytestmark = pytest.mark.filterwarnings("ignore:Constant:UserWarning")  # of the scripted expert


@pytest.fixture
def context(domain_id):
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    yield context
    rclpy.shutdown(context=context)


@pytest.fixture
def peer(context, request):
    peer = Peer(f"arm_{abs(hash(request.node.name)) % 10**6}", context)
    yield peer
    peer.close()


@pytest.fixture
def start_robot(start_node, peer):
    def start(*parameters):
        settings = [word for p in parameters for word in ("-p", p)]
        shipped = bringup.share() / "config" / "robot.yaml"
        named = ("-r", f"__ns:=/{peer.robot}", "--params-file", str(shipped))
        return start_node("robot_node", *named, *settings)

    return start


def test_an_arm_reaches_its_target_with_chunks_from_its_peer(start_robot, peer):
    robot = start_robot()
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
    assert result.refusals == result.guarded == 0
    # on a busy machine an answer may come after the robot has asked once more
    assert result.dropped <= sum(r.attempt > 0 for r in peer.requests)

    asked = [r for r in peer.requests if r.attempt == 0]
    first = asked[0]
    assert (first.task_kind, first.horizon_policy, first.seed) == ("reach", "static:10", 3)
    assert (first.round, first.attempt, len(first.state)) == (1, 0, 39)
    assert [r.round for r in asked] == list(range(1, len(asked) + 1))
    second = asked[1]
    assert second.execution.round == 1
    assert 0 < second.execution.actions_remaining <= 5  # asked while round 1 was executed
    until(lambda: peer.statuses[-1].state == RobotStatus.IDLE)
    assert (peer.statuses[-1].tasks_done, peer.statuses[-1].tasks_succeeded) == (1, 1)
    assert {s.state for s in peer.statuses} >= {RobotStatus.IDLE, RobotStatus.RUNNING}
    assert any(info.started for info in peer.heard[ExecutionInfo])
    assert peer.feedback
    assert "torch" not in Path(f"/proc/{robot.process.pid}/maps").read_text()


def test_chunks_of_others_are_dropped_counted_and_visible_and_the_task_goes_on(start_robot, peer):
    start_robot()
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
    dropped = len(stray) + len(peer.requests)
    late = (0, 1)  # the good one of the last round, where the task ended before it came
    until(lambda: peer.statuses[-1].chunks_dropped - dropped in late)
    until(lambda: int(peer.diagnostic("dropped, malformed") or 0) == 3)
    for reason in ("other_robot", "other_session", "other_task", "old_round", "never_requested"):
        assert int(peer.diagnostic(f"dropped, {reason}")) >= 1


def test_simulated_time_without_a_clock_is_a_warning_and_stops_nothing(start_robot, peer):
    robot = start_robot("use_sim_time:=true")
    peer.answer = lambda request: [chunk_for(request)]
    assert peer.result(peer.give(max_actions=30)).result.actions == 30
    heartbeats = len(peer.statuses)
    until(lambda: len(peer.statuses) > heartbeats + 2)
    assert peer.diagnostic("state")
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
    until(lambda: int(peer.diagnostic("dropped, not_finite") or 0) == result.dropped)


def test_a_silent_server_makes_the_arm_hold_and_keep_asking_until_it_is_back(start_robot, peer):
    start_robot("request_timeout_s:=0.2", "diagnostics.holding_error_s:=1.0")
    handle = peer.give()
    until(lambda: len(peer.requests) >= 3)
    assert {r.round for r in peer.requests} == {1}
    assert [r.attempt for r in peer.requests] == list(range(len(peer.requests)))
    until(lambda: any("holding for want of actions" in s.message for s in peer.diagnostics))
    assert peer.statuses[-1].state == RobotStatus.HOLDING
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
    until(lambda: any("the network takes 0." in s.message for s in peer.diagnostics))
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
    start_robot()

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


def test_a_killed_robot_comes_back_with_a_new_session_and_its_old_chunks_are_dropped(
    start_robot, peer
):
    robot = start_robot()
    peer.give()
    old = until(lambda: peer.requests)[0]
    robot.stop(signal.SIGKILL)
    peer.requests.clear()

    start_robot()
    until(lambda: peer.statuses[-1].session != old.session)
    peer.answer = lambda request: [chunk_for(old), chunk_for(request)]
    result = peer.result(peer.give()).result
    assert result.success
    assert result.dropped == len(peer.requests)
    assert peer.requests[0].session != old.session


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_robot_that_is_stopped_says_goodbye_and_exits_cleanly(start_robot, peer, sig):
    robot = start_robot()
    handle = peer.give()
    ending = peer.within(handle.get_result_async)
    until(lambda: peer.requests)
    robot.send(sig)
    robot.send(sig)  # an impatient user
    assert robot.stop(sig) == 0
    assert done(ending).result.outcome == "failed: the robot node was stopped"
    until(lambda: peer.statuses[-1].state == RobotStatus.LEAVING)
    assert "Traceback" not in robot.output()


BROKEN_BODY = """
from kairos_ros.core.errors import KairosError
from kairos_ros.robot.adapters.sim.sim import SimAdapter

class Broken(SimAdapter):
    def __init__(self, control_rate_hz):
        super().__init__(control_rate_hz=control_rate_hz)
        self.acts = 0

    def act(self, action):
        self.acts += 1
        if self.acts == 5:
            raise KairosError("the motor of joint 2 is too hot")
        if self.acts == 30:
            raise RuntimeError("a bug")
        super().act(action)
"""


@pytest.fixture
def start_with_body(start_node, peer, tmp_path):
    def start(code):
        """With the body `Broken` of an installed package."""
        (tmp_path / "broken.py").write_text(code)
        info = tmp_path / "broken-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        named = "[kairos_ros.robot_adapters]\nbroken=broken:Broken\n"
        (info / "entry_points.txt").write_text(named)
        settings = ("-r", f"__ns:=/{peer.robot}", "-p", "adapter:=broken")
        return start_node("robot_node", *settings, env={"PYTHONPATH": str(tmp_path)})

    return start


def test_a_body_that_fails_ends_its_task_and_one_with_a_bug_ends_the_node(start_with_body, peer):
    robot = start_with_body(BROKEN_BODY)
    peer.answer = lambda request: [chunk_for(request)]

    result = peer.result(peer.give()).result
    assert result.outcome == "failed: the motor of joint 2 is too hot"
    until(lambda: any("joint 2" in status.message for status in peer.diagnostics))

    peer.give()
    assert robot.process.wait(PATIENCE_S) == 1
    assert "a bug" in robot.output()
    until(lambda: peer.statuses[-1].state == RobotStatus.LEAVING)


BROKEN_BEGINNING = """
from kairos_ros.nodes.robot import tasks
from kairos_ros.robot.adapters.sim.sim import SimAdapter

class Broken(SimAdapter):
    def __init__(self, control_rate_hz):
        super().__init__(control_rate_hz=control_rate_hz)
        told = tasks.started_message

        def fails_once(*what):
            tasks.started_message = told
            raise OverflowError("a bug")

        tasks.started_message = fails_once
"""


def test_a_goal_that_a_bug_ends_does_not_stand_in_the_way_of_the_next_one(start_with_body, peer):
    start_with_body(BROKEN_BEGINNING)
    peer.answer = lambda request: [chunk_for(request)]
    assert peer.result(peer.give()).status == GoalStatus.STATUS_ABORTED
    assert peer.result(peer.give()).result.success


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("adapter:=teleport", "there are sim"),
        ("adapter_options:=['speed=3']", "unexpected keyword argument 'speed'"),
        ("guard.minimum:=[0.0, 1.0]", "the robot has 4 action dimensions"),
        ("control_rate_hz:=0.1", "goes from 1.0 to 1000.0"),
        ("guard.minimun:=[0.0]", "did you mean 'guard.minimum'"),
    ],
)
def test_a_wrong_configuration_ends_the_start_with_one_line(start_robot, parameter, said):
    robot = start_robot(parameter)
    assert robot.process.wait(PATIENCE_S) == 1
    assert said in robot.output()
    assert "Traceback" not in robot.output()


def test_a_robot_whose_namespace_is_no_robot_name_does_not_start(start_node):
    for remap in ([], ["-r", "__ns:=/kairos"]):
        robot = start_node("robot_node", *remap)
        assert robot.process.wait(PATIENCE_S) == 1
        assert "named by its namespace" in robot.output()
