"""Two fleets in one ROS domain, each in a namespace of its own, with a robot of the same name."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import ChunkRequest, FleetState, RobotStatus
from tf2_msgs.msg import TFMessage
from wire import PATIENCE_S, done, in_executor, meet, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.robot import one_robot
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.dashboard.watch import Watch
from kairos_ros.nodes import qos
from kairos_ros.nodes.clients.task_client import TaskClient
from kairos_ros.recording.events import events
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.tasks import sort_events

POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
PENDULUM = "env_id=Pendulum-v1"
SITES = FleetNames("/site_a"), FleetNames("/building/site_b")
ROBOTS = {SITES[0]: ("arm_1", "cell_1/arm_2"), SITES[1]: ("arm_1",)}
SHARED = re.compile("/(diagnostics|rosout|parameter_events|tf|tf_static)")

pytestmark = pytest.mark.slow


class Listener:
    """What one fleet says, heard by the names that the docs give."""

    def __init__(self, wire, names: FleetNames) -> None:
        self.fleet: list[FleetState] = []
        self.statuses: list[RobotStatus] = []
        subscribe = wire.node.create_subscription
        fleet_state, robot_status = names.common("fleet_state"), names.common("robot_status")
        subscribe(FleetState, fleet_state, self.fleet.append, qos.TELEMETRY)
        subscribe(RobotStatus, robot_status, self.statuses.append, qos.ROSTER)


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    return {names: tmp_path_factory.mktemp("bags") / "bag" for names in SITES}


@pytest.fixture(scope="module")
def recorders(bags):
    return {}


@pytest.fixture(scope="module")
def heard(wire, start_for_module, bags, recorders) -> dict[FleetNames, Listener]:
    """Both fleets, up and served."""
    for names in SITES:
        planned = [
            bringup.serving(policy=POLICY, horizon="static:10"),
            *(one_robot(robot, adapter_options=PENDULUM) for robot in ROBOTS[names]),
            bringup.viz(),
            bringup.recorder(bags[names]),
        ]
        for spec in planned:
            recorders[names] = start_for_module(spec, names=names)
    heard = {names: Listener(wire, names) for names in SITES}
    for names, listener in heard.items():

        def served(listener=listener, names=names) -> bool:
            newest = listener.fleet[-1] if listener.fleet else FleetState()
            return newest.active and {one.robot for one in newest.robots} == {*ROBOTS[names]}

        until(served, what=f"for {names}")
    return heard


@pytest.mark.parametrize("names", SITES, ids=lambda names: names.namespace)
def test_a_fleet_serves_the_robots_of_its_namespace_and_no_others(heard, wire, domain_id, names):
    """The other fleet's arm_1 asks at the same time, and nobody mixes the two up."""
    other = next(one for one in SITES if one != names)
    asked = {one: [] for one in SITES}
    for one in SITES:
        topic = one.robot("arm_1", "chunk_request")
        wire.node.create_subscription(ChunkRequest, topic, asked[one].append, qos.EXCHANGE)
    robot = ROBOTS[names][-1]
    with TaskClient(robot, domain_id, names) as client:
        client.find()
        goal = ExecuteTask.Goal(instruction="swing up", max_actions=60)
        result = client.send(goal, lambda feedback: None, lambda: False)
    assert (result.outcome, result.actions) == ("max_actions", 60)
    assert {status.robot for status in heard[names].statuses} == {*ROBOTS[names]}
    mine = {status.session for status in heard[names].statuses}
    theirs = {status.session for status in heard[other].statuses}
    assert not mine & theirs
    assert {one.server for one in heard[names].fleet} == {heard[names].fleet[-1].server}
    assert heard[names].fleet[-1].server != heard[other].fleet[-1].server
    assert not asked[other], "a robot of the other fleet was given the task, too"


def test_commands_say_which_fleet_they_mean(heard, domain_id):
    def kairos(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [Path(sys.executable).with_name("kairos"), *arguments]
        line += ["--domain", str(domain_id)]
        return subprocess.run(line, capture_output=True, text=True, timeout=60)

    done = kairos("task", "cancel", "cell_1/arm_2", "--namespace", "site_a")
    assert done.stdout == "cell_1/arm_2 does no task\n", done.stderr
    done = kairos("task", "cancel", "site_a/cell_1/arm_2")
    assert done.stdout == "site_a/cell_1/arm_2 does no task\n", done.stderr
    swing = ("swing", "--max-duration", "9", "--horizon", "static:5")  # a line every 2 s
    done = kairos("task", "send", "/site_a/cell_1/arm_2", *swing)
    assert "site_a/cell_1/arm_2 moves: round" in done.stdout, done.stderr
    assert "no serving node" not in done.stdout
    done = kairos("policy", "swap", "a=b", "--namespace", "/building/site_b/")
    assert "/building/site_b/kairos/serving: " in done.stderr
    done = kairos("task", "cancel", "arm_1", "--namespace", "kairos")
    assert "must be ROS names separated by /" in done.stderr


def test_every_topic_is_in_a_fleets_namespace_or_one_that_ros_shares(heard, wire):
    def ours(topic: str) -> bool:
        return topic.startswith(("/site_a/", "/building/site_b/")) or bool(SHARED.fullmatch(topic))

    by_us = {wire.node.get_name()}
    for topic, _ in wire.node.get_topic_names_and_types():
        publishers = {one.node_name for one in wire.node.get_publishers_info_by_topic(topic)}
        assert ours(topic) or publishers <= by_us, f"{topic} of {publishers}"


def test_statuses_of_both_fleets_can_be_told_apart_on_diagnostics(heard, wire):
    names = ("site_a/kairos: arm_1", "building/site_b/kairos: arm_1", "site_a/kairos: cell_1/arm_2")
    until(lambda: wire.reports.keys() >= {*names}, what="for all robots")
    assert "kairos: arm_1" not in wire.reports


@pytest.mark.parametrize("names", SITES, ids=lambda names: names.namespace)
def test_the_dashboard_of_a_namespace_shows_its_fleet_only(heard, monkeypatch, domain_id, names):
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain_id))
    with Watch(names) as watch:
        until(lambda: watch.read(lambda view: {*view.robots}) == {*ROBOTS[names]})
        until(lambda: watch.read(lambda view: "kairos: arm_1" in view.health))
        until(lambda: watch.read(lambda view: view.server) == heard[names].fleet[-1].server)
        health = watch.read(lambda view: {*view.health})
        assert not {name for name in health if "site_" in name and "kairos: " in name}


def test_the_frames_of_a_fleet_are_below_its_namespace(heard, wire):
    placed: set[tuple[str, str]] = set()

    def hear(message: TFMessage) -> None:
        placed.update((one.header.frame_id, one.child_frame_id) for one in message.transforms)

    wire.node.create_subscription(TFMessage, "/tf_static", hear, qos.ROSTER)
    wanted = {
        ("site_a/fleet", "site_a/arm_1/base"),
        ("site_a/fleet", "site_a/cell_1/arm_2/base"),
        ("building/site_b/fleet", "building/site_b/arm_1/base"),
    }
    until(lambda: placed >= wanted, what=f"for {wanted - placed}")
    assert placed == wanted


def test_the_bag_of_a_fleet_holds_that_fleet(heard, wire, bags, recorders):
    """Last: it ends the recorders."""
    for names in SITES:
        action = names.robot(ROBOTS[names][-1], "execute_task")
        client = wire.action_client(action)
        meet(client, wire.executor)
        goal = ExecuteTask.Goal(instruction="swing up", max_actions=30)
        send = lambda client=client, goal=goal: client.send_goal_async(goal)  # noqa: E731
        handle = done(in_executor(wire.executor, send))
        result = done(in_executor(wire.executor, handle.get_result_async)).result
        assert (result.outcome, result.actions) == ("max_actions", 30)
    for names in SITES:
        recorders[names].send(signal.SIGINT)
        assert recorders[names].process.wait(PATIENCE_S) == 0
        with Bag(bags[names]) as bag:
            assert bag.names == names
            topics = {one.name for one in bag.topics if not SHARED.fullmatch(one.name)}
            assert all(topic.startswith(f"{names.namespace}/") for topic in topics)
            tasks = sort_events(events(bag)).tasks
            assert not bag.left_out
        assert {task.key.robot for task in tasks} == {ROBOTS[names][-1]}
        assert all(task.rounds for task in tasks)
