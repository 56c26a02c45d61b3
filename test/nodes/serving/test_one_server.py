"""One arm, one server: real serving nodes and real robot nodes, of which some should not be there.

What an arm executed is read from its body log. Served actions are the pendulum's own cos(angle), so
that nothing beyond 1 is one of them.
"""

import signal
from pathlib import Path

import pytest
from announced import AnnouncedServer
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk, ChunkRequest, ServerStatus
from lifecycle_msgs.msg import Transition
from wire import PATIENCE_S, Operator, WireRobot, in_executor, until

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.server_status import ServerState
from kairos_ros.nodes import qos
from kairos_ros.nodes.serving import announcement
from kairos_ros.nodes.serving.announcement import ServerAnnouncement
from kairos_ros.robot.body_log import read_body_log

ONE = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
OTHER = "emulated:latency_ms=1,chunk=30,state=3,dim=1"
FOREIGN = 1.75
"""An action that no server here ever answers with."""
STATE = {"state": [0.5, 0.0, 0.0]}


def pendulum(name: str, bodies: Path, **parameters) -> ProcessSpec:
    """A robot whose task never succeeds, so that it ends when its actions are used up."""
    given = {"adapter_options": ["env_id=Pendulum-v1"], "body_log": str(bodies)}
    return ProcessSpec("robot_node", "robot", name, given | parameters)


def executed(bodies: Path, robot: str) -> list[float]:
    """Every action that the robot's body was told, in all its sessions."""
    logs = [read_body_log(path) for path in bodies.glob(f"{robot}.*")]
    return [float(event.action[0]) for log in logs for event in log if event.kind == "act"]


@pytest.fixture
def serve(start, wire):
    """Starts a serving node and waits until it tells a state; returns its process and identity."""

    def begin(policy=ONE, state=ServerStatus.ACTIVE, **parameters):
        before = set(wire.servers)
        node = start(serving(policy=policy, horizon="static:10", **parameters))

        def told():
            new = [s for s in [*wire.servers.values()] if s.server not in before]
            return [s.server for s in new if s.state == state]

        return node, until(told, what=f"for a server in state {state}")[0]

    return begin


@pytest.fixture
def operator(wire):
    operators = []

    def of(robot):
        operators.append(Operator(wire, robot))
        return operators[-1]

    yield of
    for one in operators:
        one.close()


def moved(wire, robot, actions):
    until(
        lambda: wire.status_of(robot).actions_executed >= actions,
        what=f"for {robot} to execute {actions} actions",
    )


def test_a_server_tells_who_it_is_what_it_serves_and_that_it_leaves(serve, wire):
    node, server = serve("emulated:state=3,dim=2,chunk=9,images=front@48x64")
    status = wire.servers[server]
    assert (status.node, status.pid) == ("/kairos/serving", node.process.pid)
    assert status.policy.startswith("emulated")
    assert (status.state_dim, status.action_dim, status.chunk_size) == (3, 2, 9)
    sizes = zip(status.cameras, status.camera_height_px, status.camera_width_px, strict=True)
    assert list(sizes) == [("front", 48, 64)]
    until(lambda: wire.servers[server].active_for_s > 1.0, what="for the heartbeat")
    assert node.stop() == 0
    until(lambda: wire.servers[server].state == ServerStatus.LEAVING)


def test_a_second_server_with_another_policy_serves_nobody_says_so_and_takes_over_afterwards(
    start, serve, wire, operator, tmp_path
):
    first, ours = serve(ONE)
    start(pendulum("bob", tmp_path))
    heard: list[ActionChunk] = []
    wire.node.create_subscription(ActionChunk, "/bob/action_chunk", heard.append, qos.EXCHANGE)
    bob = operator("bob")
    goal = bob.give(instruction="swing", max_actions=240)
    moved(wire, "bob", 10)
    second, theirs = serve(OTHER, ServerStatus.CONFLICT)

    told = wire.servers[theirs]
    owner = f"/kairos/serving on {wire.servers[ours].host} (pid {first.process.pid})"
    assert owner in told.reason
    assert "parameter robots" in told.reason
    assert told.active_for_s == 0.0
    until(lambda: f"serves no robot: {owner}" in second.output())
    until(lambda: [s for s in wire.fleet if s.server == theirs and owner in s.reason])
    until(lambda: not [s for s in wire.fleet[-5:] if s.server == theirs and s.active])
    kept_out = "kairos serving: server that serves nobody"
    until(lambda: kept_out in wire.reports)
    assert wire.reports[kept_out].level == DiagnosticStatus.ERROR
    assert owner in wire.reports[kept_out].message
    warned = ("kairos serving: server", DiagnosticStatus.WARN)
    of_second = f"(pid {second.process.pid})"
    until(lambda: any((n, lv) == warned and of_second in text for n, lv, text in [*wire.said]))

    result = bob.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 240)
    assert {chunk.server for chunk in heard} == {ours}
    assert wire.status_of("bob").server == ours
    assert wire.servers[theirs].state == ServerStatus.CONFLICT

    assert first.stop() == 0
    until(lambda: wire.servers[theirs].state == ServerStatus.ACTIVE)
    result = bob.result(bob.give(instruction="swing", max_actions=30))
    assert (result.outcome, result.actions) == ("max_actions", 30)
    by = lambda server: {chunk.policy for chunk in [*heard] if chunk.server == server}  # noqa: E731
    policies = until(lambda: by(theirs), what="for chunks of the second server")
    assert policies == {wire.servers[theirs].policy}
    assert policies.isdisjoint(by(ours))


def test_a_task_goes_on_with_the_standby_of_a_server_that_stands_still_and_of_one_that_dies(
    start, serve, wire, operator, tmp_path
):
    first, ours = serve(ONE)
    start(pendulum("bob", tmp_path, control_rate_hz=10.0, max_pause_s=30.0))
    bob = operator("bob")
    second, theirs = serve(ONE, ServerStatus.STANDBY, standby_after_s=2.5)
    assert "stands by: /kairos/serving on" in wire.servers[theirs].reason
    until(lambda: wire.servers[ours].silent_after_s == pytest.approx(2.5))
    goal = bob.give(instruction="swing", max_actions=400)
    moved(wire, "bob", 10)
    until(lambda: "kairos serving: server that stands by" in wire.reports)
    stands_by = wire.reports["kairos serving: server that stands by"]
    assert stands_by.level == DiagnosticStatus.OK
    of_second = f"(pid {second.process.pid})"
    until(lambda: of_second in wire.diagnostic("kairos serving: server", "standby"))

    first.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: wire.status_of("bob").server == theirs, what="for the standby")
    finally:
        first.process.send_signal(signal.SIGCONT)
    until(lambda: wire.servers[ours].state == ServerStatus.STANDBY)
    moved(wire, "bob", wire.status_of("bob").actions_executed + 10)
    assert wire.status_of("bob").server == theirs

    second.stop(signal.SIGKILL)
    result = bob.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 400)
    assert wire.status_of("bob").server == ours
    assert len(executed(tmp_path, "bob")) == 400
    key = "tasks continued with another server"
    until(lambda: wire.diagnostic("kairos: bob", key) == "2")


def test_a_standby_that_has_just_begun_takes_over_from_a_server_that_leaves(wire, monkeypatch):
    monkeypatch.setattr(announcement, "STANDBY_LISTENS_NS", 3_600_000_000_000)
    monkeypatch.setattr(announcement, "LISTEN_NS", 5_000_000_000)
    standby = in_executor(
        wire.executor, lambda: ServerAnnouncement(wire.node, "standby", [], standby_after_s=1.0)
    )
    standby.phase = ServerState.ACTIVE
    first = in_executor(wire.executor, lambda: AnnouncedServer(wire.node))
    until(lambda: standby.update(None) or standby.stands_by, what="for the first one to be heard")
    in_executor(wire.executor, first.leave)
    until(lambda: standby.update(None) or standby.serving, what="for the standby to serve")
    in_executor(wire.executor, standby.leave)


def test_a_standby_that_would_take_over_too_soon_ends_with_one_line(start):
    node = start(serving(policy=ONE, standby_after_s=0.2))
    assert node.process.wait(60) == 1
    assert "standby_after_s is 0.2; a standby takes over 1 to 3.5 s after" in node.output()
    assert "Traceback" not in node.output()


def test_a_task_ends_where_only_another_policy_is_left_to_serve_it(
    start, serve, wire, operator, tmp_path
):
    first, ours = serve(ONE)
    start(pendulum("bob", tmp_path, control_rate_hz=10.0))
    bob = operator("bob")
    goal = bob.give(instruction="swing", max_actions=1000)
    moved(wire, "bob", 10)
    _, theirs = serve(OTHER, ServerStatus.CONFLICT)
    policies = {server: wire.servers[server].policy for server in (ours, theirs)}
    first.stop(signal.SIGKILL)
    outcome = bob.result(goal).outcome
    assert outcome.startswith("failed: the server is now /kairos/serving")
    assert f"with policy {policies[theirs]}" in outcome
    assert outcome.endswith(f"began with policy {policies[ours]}")


def test_two_servers_share_the_robots_by_name_and_a_third_that_overlaps_is_kept_out(
    start, serve, wire, operator, tmp_path
):
    servers = {side: serve(ONE, robots=[f"{side}_*"])[1] for side in ("left", "right")}
    _, third = serve(ONE, ServerStatus.CONFLICT, robots=["*_1"])
    assert wire.servers[third].active_for_s == 0.0
    for side in servers:
        start(pendulum(f"{side}_1", tmp_path))
    goals = {
        side: (one := operator(f"{side}_1"), one.give(instruction="swing", max_actions=40))
        for side in servers
    }
    for side, (one, goal) in goals.items():
        assert one.result(goal).outcome == "max_actions"
        assert wire.status_of(f"{side}_1").server == servers[side]
    assert {wire.servers[s].state for s in servers.values()} == {ServerStatus.ACTIVE}
    seen = {s.server: {r.robot for r in s.robots} for s in wire.fleet if s.robots}
    assert seen[servers["left"]] == {"left_1"}
    assert seen[servers["right"]] == {"right_1"}


def test_a_pattern_that_matches_no_robot_ends_the_start_with_one_line(start):
    node = start(serving(policy=ONE, robots=["left-*"]))
    assert node.process.wait(60) == 1
    assert "'left-*' matches no robot" in node.output()
    assert "Traceback" not in node.output()


def test_a_request_for_another_server_is_not_answered_and_counted(serve, wire):
    serve(ONE)
    robot = WireRobot(wire, "probe", **STATE).join()
    robot.requests.publish(robot.request(2, server="somebody else"))
    until(lambda: wire.counter("for_another_server") == 1)
    assert robot.ask(3).round == 3
    assert not [answer for answer in robot.answers if answer.round == 2]
    robot.leave()


def test_what_a_rogue_publisher_sends_is_never_executed_and_its_node_is_named(
    start, serve, wire, operator, tmp_path
):
    """It answers every request faster than the server does, to the letter."""
    _, ours = serve("emulated:latency_ms=60,chunk=20,state=3,dim=1")
    start(pendulum("bob", tmp_path))
    rogue = wire.node.create_publisher(ActionChunk, "/bob/action_chunk", qos.EXCHANGE)
    sent = []

    def answer(request: ChunkRequest) -> None:
        for server in ("", "f00d"):
            echo = {n: getattr(request, n) for n in ("robot", "session", "task", "round")}
            sent.append(server)
            rogue.publish(
                ActionChunk(
                    **echo,
                    server=server,
                    attempt=request.attempt,
                    kind=ActionChunk.ACTIONS,
                    horizon=10,
                    action_dim=1,
                    actions=[FOREIGN] * 10,
                )
            )

    asked = wire.node.create_subscription(ChunkRequest, "/bob/chunk_request", answer, qos.EXCHANGE)
    try:
        bob = operator("bob")
        goal = bob.give(instruction="swing", max_actions=150)
        report = "kairos: bob"
        until(lambda: "/onlooker on action_chunk" in wire.diagnostic(report, "strange publishers"))
        assert wire.reports[report].level == DiagnosticStatus.WARN
        result = bob.result(goal)
        assert (result.outcome, result.actions) == ("max_actions", 150)
        assert len(sent) > 20
        assert max(executed(tmp_path, "bob")) <= 1.0
        until(lambda: int(wire.diagnostic(report, "dropped, other_server") or 0) >= len(sent) - 2)
        assert "f00d: " in wire.diagnostic(report, "answers of other servers")
        assert wire.status_of("bob").server == ours
    finally:
        in_executor(wire.executor, lambda: wire.node.destroy_subscription(asked))
        in_executor(wire.executor, lambda: wire.node.destroy_publisher(rogue))
    until(lambda: not wire.diagnostic("kairos: bob", "strange publishers"), what="for it to go")


def test_a_robot_that_knows_no_server_asks_nobody_and_says_so(start, wire, operator, tmp_path):
    start(pendulum("bob", tmp_path))
    requests = []
    asked = wire.node.create_subscription(
        ChunkRequest, "/bob/chunk_request", requests.append, qos.EXCHANGE
    )
    bob = operator("bob")
    goal = bob.give(instruction="swing", max_actions=5)
    until(lambda: any("waits for a server" in text for _, _, text in [*wire.said]))
    assert not requests
    server = AnnouncedServer(wire.node)
    try:
        request = until(lambda: requests, what="for a request")[0]
        assert request.server == server.server
    finally:
        server.leave()
        in_executor(wire.executor, lambda: wire.node.destroy_subscription(asked))
    assert goal is not None


def test_a_lifecycle_shutdown_ends_the_process_cleanly_and_says_so(serve, wire):
    node, server = serve(ONE)
    assert wire.transition(Transition.TRANSITION_ACTIVE_SHUTDOWN)
    assert node.process.wait(PATIENCE_S) == 0
    assert "finalized: this process ends" in node.output()
    assert "Traceback" not in node.output()
    until(lambda: wire.servers[server].state == ServerStatus.LEAVING)


def test_one_that_was_never_configured_can_be_shut_down_as_well(serve, wire):
    node, _ = serve(ONE, ServerStatus.INACTIVE, autostart=False)
    assert wire.transition(Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)
    assert node.process.wait(PATIENCE_S) == 0
