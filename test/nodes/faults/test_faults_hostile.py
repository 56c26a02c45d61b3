"""A stranger in the domain: names that are none, endless texts, too many robots, any message.

Every listener of the fleet is a real process. Nothing that is said ends one, blocks it, grows its
memory or its log, or costs a robot that is already here its place.
"""

import importlib
import os
import random
import re
import time
from collections import Counter

import httpx
import pytest
import rclpy
from any_message import any_message
from dashboard_process import kairos_dashboard
from kairos_ros.msg import RobotStatus
from sensor_msgs.msg import Image
from task_rules import rules
from visualization_msgs.msg import MarkerArray
from wire import Bystander, Operator, WireRobot, in_executor, until

from kairos_ros.bringup.plan import recorder, robot, serving, viz, vlm
from kairos_ros.nodes import qos
from kairos_ros.robot.supervision.rules_text import rules_text

NAMES = [
    "a b",
    "a-b",
    "",
    "a²",
    "1arm",
    "a/b",
    "a" * 240,
    "x" * 500_000,
    "arm\n[FATAL] [kairos]: forged\x1b[31m",
    "\u202egnp",
]
STATE = {"state": [0.5, 0.0, 0.0, 0.0]}
POLICY = "emulated:latency_ms=5,chunk=20,state=4,dim=4"
MOST = 12
FUZZ_S = float(os.environ.get("KAIROS_FUZZ_S", "4"))
LATCHED = ("/kairos/robot_status", "/tf_static")


def ignore(message):
    pass


def of_component(wire, node):
    return wire.reports.get(next((name for name in [*wire.reports] if name.endswith(node)), ""))


def values(wire, node):
    report = of_component(wire, node)
    return {one.key: one.value for one in report.values} if report else {}


class Stranger:
    """Says, latched, what nobody should."""

    def __init__(self, wire):
        self._wire = wire
        self._said = []

    def say(self, **status):
        publisher = self._wire.node.create_publisher(
            RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT
        )
        publisher.publish(RobotStatus(**({"session": "x"} | status)))
        self._said.append((publisher, status))

    def repeat(self):
        for publisher, status in self._said:
            publisher.publish(RobotStatus(**({"session": "x"} | status)))

    def leave(self):
        for publisher, _ in self._said:  # the executor waits for their events
            in_executor(
                self._wire.executor,
                lambda publisher=publisher: self._wire.node.destroy_publisher(publisher),
            )


@pytest.fixture(scope="module")
def stranger(wire):
    """Is there before the nodes start: what it said is latched."""
    stranger = Stranger(wire)
    for name in NAMES:
        stranger.say(robot=name)
    stranger.say(robot="arm_camera", image_keys=["top", "a b", "", "c" * 300, "x" * 20_000])
    stranger.say(robot="arm_cameras", image_keys=[f"camera_{i}" for i in range(5000)])
    stranger.say(robot="arm_text", instruction="x" * 5_000)
    stranger.say(robot="arm_task", task="x" * 5_000)
    stranger.say(robot="arm_state", state=77)
    stranger.say(robot="arm_nan", control_rate_hz=float("nan"))
    return stranger


@pytest.fixture(scope="module")
def listeners(start_for_module, stranger, wire, tmp_path_factory):
    """Every node that listens to robots, by name."""
    nodes = {
        "serving": start_for_module(
            serving(policy=POLICY, stale_after_s=0.0, max_robots=MOST, fleet_state_hz=20.0)
        ),
        "vlm": start_for_module(vlm("vlm", max_robots=MOST)),
        "planner": start_for_module(vlm("planner", max_robots=MOST)),
        "viz": start_for_module(viz(max_robots=MOST)),
        "recorder": start_for_module(recorder(tmp_path_factory.mktemp("bag") / "bag")),
    }
    wire.serving_since()
    return nodes


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory, stranger):
    """Its address."""
    with kairos_dashboard(tmp_path_factory.mktemp("dashboard")) as address:
        yield address


def all_alive(nodes):
    ended = {name: node.output()[-3000:] for name, node in nodes.items() if node.process.poll()}
    assert not ended


def test_no_announcement_ends_a_listener_and_every_refusal_is_counted(
    listeners, dashboard, stranger, wire
):
    good = WireRobot(wire, "arm_good", **STATE).join()
    refused = {"refused_robot_name": len(NAMES) - 1, "refused_camera_name": 1, "refused_status": 4}

    def counted(node):
        stranger.repeat()
        told = values(wire, node)
        return all(int(told.get(name, 0)) >= count for name, count in refused.items())

    for node in ("serving: requests", "/kairos/vlm", "/kairos/planner", "kairos: viz"):
        until(lambda node=node: counted(node), what=f"for {node} to count")
    until(lambda: int(values(wire, "/kairos/planner")["robots"]) >= 1, what="for the good robot")

    def shown():
        stranger.repeat()
        html = httpx.get(f"{dashboard}fleet", timeout=60).text
        return "arm_good" in html and "refused robot name" in html and html

    html = until(shown, what="for the dashboard")
    assert "arm_text" not in html
    assert len(html) < 200_000
    assert httpx.get(f"{dashboard}camera/arm_camera/top.jpg", timeout=60).status_code == 204
    assert good.ask(2).kind == 0
    all_alive(listeners)
    good.leave()


def test_nothing_that_was_said_forges_or_floods_a_log(listeners, stranger, wire):
    before = {name: len(node.output()) for name, node in listeners.items()}
    for _ in range(20):
        stranger.repeat()
        time.sleep(0.05)
    for name, node in listeners.items():
        said = node.output()
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert not re.search(r"^\[FATAL\]", said, re.M)
        assert max(map(len, said.splitlines()), default=0) < 1200, name
        assert len(said) - before[name] < 20_000, name


def test_who_is_here_stays_however_many_come(listeners, wire):
    bystander = Bystander(wire, "arm_here", **STATE).begin()
    before = wire.counter("refused_robot_beyond_limit")
    crowd = Stranger(wire)
    for number in range(60):
        crowd.say(robot=f"forged_{number}")
    for _ in range(12):
        crowd.repeat()
        time.sleep(0.25)
    until(lambda: wire.counter("refused_robot_beyond_limit") > before + 40)
    assert len(wire.fleet[-1].robots) <= MOST
    assert "arm_here" in {one.robot for one in wire.fleet[-1].robots}
    bystander.check()
    crowd.leave()
    until(lambda: len(wire.fleet[-1].robots) < MOST, what="for the silent to be dropped")
    WireRobot(wire, "arm_later", **STATE).join().leave()
    until(lambda: int(values(wire, "/kairos/vlm").get("refused_robot_beyond_limit", 0)) > 0)
    bystander.end()
    all_alive(listeners)


def test_nothing_of_a_refused_request_is_kept_or_said_again(listeners, wire):
    bystander = Bystander(wire, "arm_beside", **STATE).begin()
    asker = WireRobot(wire, "arm_large", **STATE).join()
    for number in range(3):
        answer = asker.ask(2 + number, instruction="x" * 30_000_000)
        assert "30000" in answer.reason
        bystander.check()
    answer = asker.ask(9, instruction="y" * 2000)
    assert "2000 bytes" in answer.reason
    time.sleep(0.2)
    kept = next(one for one in wire.fleet[-1].robots if one.robot == "arm_large")
    assert kept.instruction == "reach"  # of what was served
    asker.leave()
    bystander.end()


TOPICS_OF = {
    "serving": "/kairos/serving",
    "vlm": "/kairos/vlm",
    "planner": "/kairos/planner",
    "viz": "/kairos/_viz_topics",
    "recorder": "/kairos/_recorder_topics",
    "robot": "/arm_1/robot",
}
OF_ROS = ("rcl_interfaces", "type_description_interfaces")


def subscribed(wire, node):
    """(topic, type) of everything that a node listens to."""
    namespace, _, name = node.rpartition("/")
    try:
        found = wire.node.get_subscriber_names_and_types_by_node(name, namespace)
    except rclpy.node.NodeNameNonExistentError:
        return []
    return [(topic, kinds[0]) for topic, kinds in found if kinds[0].split("/")[0] not in OF_ROS]


def class_of(kind):
    package, _, short = kind.split("/")
    return getattr(importlib.import_module(f"{package}.msg"), short)


def test_no_message_at_all_ends_a_node(listeners, dashboard, start, wire):
    """Random messages on everything that anybody listens to, a real robot's topics among it."""
    listeners = listeners | {
        "robot": start(robot("arm_1", adapter="sim", camera_rate_hz=5.0, rules=rules_text(rules())))
    }
    status = wire.status_of("arm_1")
    operator = Operator(wire, "arm_1")
    operator.give(instruction="reach", scene="reach-v3")
    viewers = [
        wire.node.create_subscription(MarkerArray, f"/kairos/markers/{layer}", ignore, qos.EVENTS)
        for layer in ("fleet", "robots", "chunks", "scheduler", "safety")
    ]
    viewers.append(wire.node.create_subscription(Image, "/kairos/cameras", ignore, qos.TELEMETRY))
    heard = ("action_chunk", "safety_verdict", "plan", "chunk_request", "joint_states")
    wanted = {*(f"/arm_1/{topic}" for topic in heard), "/diagnostics"}
    known = lambda: {topic for node in TOPICS_OF.values() for topic, _ in subscribed(wire, node)}  # noqa: E731
    until(lambda: wanted <= known(), what="for who listens to be found")
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    texts = ("arm_1", "arm_1", status.session, "1", "top", "corner3", "reach", "static:5", "edge")
    publishers, sent = {}, Counter()
    end = time.monotonic() + FUZZ_S
    while time.monotonic() < end:
        for node in TOPICS_OF.values():
            for topic, kind in subscribed(wire, node):
                if (topic, kind) not in publishers:
                    profile = qos.ROSTER if topic in LATCHED else qos.EVENTS
                    publishers[topic, kind] = wire.node.create_publisher(
                        class_of(kind), topic, profile
                    )
        for (topic, kind), publisher in publishers.items():
            for _ in range(5):
                publisher.publish(any_message(rng, class_of(kind), texts))
                sent[topic] += 1
        time.sleep(0.02)
        assert httpx.get(f"{dashboard}fleet", timeout=60).status_code == 200
        all_alive(listeners)
    print(dict(sent))
    for publisher in publishers.values():  # the executor waits for their events
        in_executor(
            wire.executor, lambda publisher=publisher: wire.node.destroy_publisher(publisher)
        )
    for viewer in viewers:
        in_executor(wire.executor, lambda viewer=viewer: wire.node.destroy_subscription(viewer))
    operator.close()
    assert wanted <= sent.keys()
    assert not any("Traceback" in node.output() for node in listeners.values())
    robot_after = WireRobot(wire, "arm_after", **STATE).join()
    assert robot_after.ask(2).kind == 0
    robot_after.leave()
