"""What a fleet is now: the same from live messages and from a bag of them."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from kairos_ros.msg import (
    ActionChunk,
    EngineState,
    ExecutionInfo,
    FleetState,
    PipelineEvent,
    RobotState,
    RobotStatus,
    SafetyVerdict,
)
from rclpy.serialization import serialize_message

from kairos_ros.core.errors import WireError
from kairos_ros.core.robot_state import RobotState as State
from kairos_ros.nodes.bounded import read
from kairos_ros.nodes.messages.telemetry import event_of
from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.events import events
from kairos_ros.recording.metadata import Topic
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.writer import BagWriter
from kairos_ros.telemetry.decode import DECODE
from kairos_ros.telemetry.decode_fleet import fleet_reported
from kairos_ros.telemetry.fleet_view import FleetView

WHO = {"robot": "arm_1", "session": "s", "task": "1"}
STATUS = RobotStatus(
    **WHO, state=RobotStatus.RUNNING, round=2, buffered=15, control_rate_hz=30.0, image_keys=["top"]
)
CHUNK = ActionChunk(**WHO, round=2, horizon=2, action_dim=2, actions=[0.1, 0.2, 0.3, 0.4])
CHUNK.confidence, CHUNK.tier = [1.0, 0.5], "cloud"
FLEET = FleetState(
    server="one",
    active=True,
    plan="cells 1a2b",
    queue_length=3,
    counter_names=["refused_bad_shape"],
    counter_values=[2],
    robots=[
        RobotState(
            robot="arm_1",
            wait_ratio=0.25,
            pending=True,
            reason="oldest of 2",
            surprised=True,
            surprise=7.5,
            surprise_joint="elbow",
            surprises=3,
        )
    ],
    engines=[EngineState(engine="edge", tier="edge", state="busy", load=0.5, max_batch=8)],
)
MODE = [KeyValue(key="mode", value="waiting_for_human")]
HEALTH = DiagnosticStatus(name="kairos: arm_1", hardware_id="arm_1", values=MODE)
HEALTH.level, HEALTH.message = DiagnosticStatus.ERROR, "waits for a human"
MESSAGES = [
    ("/kairos/robot_status", STATUS),
    ("/arm_1/action_chunk", CHUNK),
    (
        "/arm_1/execution_info",
        ExecutionInfo(
            round=2,
            started=True,
            actions_remaining=1,
            surprised=True,
            surprise=8.25,
            surprise_joint="wrist",
        ),
    ),
    ("/arm_1/safety_verdict", SafetyVerdict(**WHO, safe=True, probability=0.5)),
    ("/arm_1/pipeline_events", PipelineEvent(**WHO, after="holding", effects=["stop"])),
    ("/kairos/fleet_state", FLEET),
    ("/diagnostics", DiagnosticArray(status=[HEALTH])),
]


def live() -> FleetView:
    """Fed with what DDS hands over, a message each tenth of a second."""
    view = FleetView()
    for number, (topic, message) in enumerate(MESSAGES):
        came = read(serialize_message(message), type(message))
        view.take(event_of(came, topic, number / 10))
    return view


def test_a_view_is_the_same_live_and_from_a_bag(tmp_path):
    writer, definitions = BagWriter(tmp_path / "bag"), Definitions(installed_prefixes())
    for number, (topic, message) in enumerate(MESSAGES):
        package = type(message).__module__.partition(".")[0]
        kind = f"{package}/msg/{type(message).__name__}"
        definition = definitions.of(kind)
        channel = writer.add_topic(Topic(topic, kind, definition.rihs01), definition)
        at_ns = 10**18 + number * 10**8
        writer.write(channel, at_ns, at_ns, serialize_message(message))
    writer.close()
    recorded = FleetView()
    with Bag(tmp_path / "bag") as bag:
        for event in events(bag, tuple(DECODE)):
            recorded.take(event)
        assert not bag.left_out
    first, second = asdict(live()), asdict(recorded)
    del first["_shown"], second["_shown"]
    np.testing.assert_equal(first, second)


def test_a_view_tells_what_the_messages_said():
    view = live()
    arm = view.robots["arm_1"]
    assert (arm.status.state, arm.status.buffered_s, arm.status.cameras) == (
        State.RUNNING,
        0.5,
        ("top",),
    )
    assert (arm.mode, arm.scheduled.reason, arm.execution.remaining) == (
        "waiting_for_human",  # its diagnostics came last
        "oldest of 2",
        1,
    )
    assert (arm.execution.surprised, arm.execution.surprise, arm.execution.surprise_joint) == (
        True,
        8.25,
        "wrist",
    )
    told = arm.scheduled
    assert (told.surprised, told.surprise, told.surprise_joint, told.surprises) == (
        True,
        7.5,
        "elbow",
        3,
    )
    assert (arm.chunk.tier, arm.chunk.actions.shape) == ("cloud", (2, 2))
    assert (view.server, view.active, view.plan, view.queue, view.counters) == (
        "one",
        True,
        "cells 1a2b",
        3,
        {"refused_bad_shape": 2},
    )
    assert view.health["kairos: arm_1"].level == "error"


def test_a_robot_that_comes_back_as_another_process_begins_anew():
    view = live()
    again = RobotStatus(robot="arm_1", session="another")
    view.take(event_of(again, "/kairos/robot_status", 1.0))
    assert view.robots["arm_1"].transition is None
    assert not view.robots["arm_1"].mode
    view.forget(2.0)
    assert not view.robots


def test_what_is_said_of_another_robot_than_the_topics_is_refused():
    with pytest.raises(WireError, match="another robot"):
        event_of(CHUNK, "/arm_2/action_chunk", 0.0)


def test_a_bag_from_before_servers_had_several_policies_is_read_as_ever():
    later = ("policy", "surprise")
    named = [f for f in RobotState.get_fields_and_field_types() if not f.startswith(later)]
    older = SimpleNamespace(**{name: getattr(FLEET.robots[0], name) for name in named})
    body = SimpleNamespace(
        **{n: getattr(FLEET, n) for n in FleetState.get_fields_and_field_types()}
    )
    body.robots = [older]
    (robot,) = fleet_reported(body, "", 1.0).robots
    assert (robot.robot, robot.wait_ratio, robot.policy, robot.policy_name) == (
        "arm_1",
        0.25,
        "",
        "",
    )
    assert (robot.surprised, robot.surprise, robot.surprises) == (False, 0.0, 0)
