"""Requests that cannot be served, over DDS against a real serving node and engine worker.

Every one is answered with its code, counted, and visible in /diagnostics, and a second robot is
served without a break all the while.
"""

import io
import itertools
import math

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk, ExecutionInfo, RobotStatus
from PIL import Image
from sensor_msgs.msg import CompressedImage
from wire import Bystander, WireRobot, until

from kairos_ros.bringup.plan import serving
from kairos_ros.core.errors import RefusalCode
from kairos_ros.nodes import qos

REQUESTS = "kairos serving: requests"
STATE = [0.5, 0.0, 0.0, 0.0]


def jpeg(height: int = 48, width: int = 64) -> CompressedImage:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "JPEG")
    return CompressedImage(format="jpeg", data=file.getvalue())


OBSERVATION = {"state": STATE, "image_keys": ["top"], "images": [jpeg()]}


@pytest.fixture(scope="module")
def server(start_for_module, wire):
    node = start_for_module(
        serving(
            policy="emulated:latency_ms=5,chunk=20,state=4,dim=4,images=top@48x64",
            horizon="static:10",
            stale_after_s=0.0,
            max_message_mb=0.1,
            fleet_state_hz=20.0,
        )
    )
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def bystander(server, wire):
    bystander = Bystander(wire, "bystander", **OBSERVATION).begin()
    yield bystander
    bystander.end()


@pytest.fixture(autouse=True)
def nobody_else_is_affected(server, bystander):
    bystander.check(rounds=1)
    yield
    bystander.check()
    assert server.process.poll() is None


numbers = itertools.count(1)


@pytest.fixture
def robot(server, wire):
    robot = WireRobot(wire, f"arm_{next(numbers)}", **OBSERVATION).join()
    yield robot
    robot.leave()


def refused(wire, asker: WireRobot, code: RefusalCode, /, **request) -> ActionChunk:
    """Asks, and expects a refusal that is coded, counted and visible."""
    counter = f"refused_{code.name.lower()}"
    before = wire.counter(counter)
    answer = asker.ask(**request)
    assert (answer.kind, RefusalCode(answer.refusal)) == (ActionChunk.REFUSED, code), answer.reason
    until(lambda: wire.counter(counter) > before, what=f"for {counter} to count")
    assert wire.counter(counter) == before + 1
    warned = (REQUESTS, DiagnosticStatus.WARN)
    until(lambda: wire.diagnostic(REQUESTS, counter), what="for /diagnostics to count it")
    until(
        lambda: any(
            (n, level) == warned and code.name.lower() in text for n, level, text in [*wire.said]
        ),
        what="for /diagnostics to warn of it",
    )
    return answer


def served(asker: WireRobot, round: int, **changes) -> bool:
    return asker.ask(round, **changes).kind == ActionChunk.ACTIONS


NOT_A_NUMBER = [*STATE[:2], math.nan, 0.0]
BAD = {
    "a state of the wrong length": (RefusalCode.BAD_STATE, {"state": STATE[:3]}, "reads 4"),
    "no state at all": (RefusalCode.BAD_STATE, {"state": []}, "0 values"),
    "NaN": (RefusalCode.NOT_FINITE, {"state": NOT_A_NUMBER}, "state[2]"),
    "infinity": (RefusalCode.NOT_FINITE, {"state": [math.inf, 0, 0, 0]}, "state[0]"),
    "an image of the wrong size": (RefusalCode.BAD_IMAGE, {"images": [jpeg(64, 48)]}, "64 x 48"),
    "an image that does not decode": (
        RefusalCode.BAD_IMAGE,
        {"images": [CompressedImage(format="jpeg", data=b"\xff\xd8 not a JPEG")]},
        "neither JPEG nor PNG",
    ),
    "no image": (RefusalCode.BAD_IMAGE, {"images": [], "image_keys": []}, "'top' is missing"),
    "another image": (RefusalCode.BAD_IMAGE, {"image_keys": ["side"]}, "'top' is missing"),
    "an oversized image": (
        RefusalCode.TOO_LARGE,
        {"images": [CompressedImage(format="jpeg", data=bytes(jpeg().data) + bytes(100_000))]},
        "at most 100000",
    ),
    "an endless instruction": (RefusalCode.TOO_LARGE, {"instruction": "pick " * 1000}, "5000"),
    "an endless camera name": (
        RefusalCode.TOO_LARGE,
        {"image_keys": ["top" * 2000]},
        "image_keys of 6000 bytes",
    ),
    "an endless horizon policy": (
        RefusalCode.TOO_LARGE,
        {"horizon_policy": "x" * 2000},
        "2000 bytes",
    ),
    "an endless message": (
        RefusalCode.TOO_LARGE,
        {"instruction": "pick " * 100_000},
        "at most 120000 are accepted",
    ),
    "thousands of pictures": (
        RefusalCode.TOO_LARGE,
        {"image_keys": ["x"] * 3000, "images": [CompressedImage()] * 3000},
        "elements in its lists",
    ),
    "an unknown horizon policy": (
        RefusalCode.BAD_HORIZON_POLICY,
        {"horizon_policy": "hunch:t=0.4"},
        "hunch",
    ),
    "two images for one camera": (
        RefusalCode.MALFORMED,
        {"image_keys": ["top", "observation.images.top"], "images": [jpeg(), jpeg()]},
        "two images for one camera",
    ),
    "two names for one image": (RefusalCode.MALFORMED, {"image_keys": ["top", "top"]}, "2 image"),
    "a deadline in the past": (RefusalCode.MALFORMED, {"deadline_s": -1.0}, "deadline_s"),
    "an observation of no age": (RefusalCode.MALFORMED, {"observed_ago_s": math.nan}, "nan"),
    "an observation older than the universe": (
        RefusalCode.MALFORMED,
        {"observed_ago_s": 1e30},
        "observed_ago_s",
    ),
    "a control rate that overflows": (
        RefusalCode.MALFORMED,
        {"execution": ExecutionInfo(started=True, round=1, control_rate_hz=1e-38)},
        "control_rate_hz",
    ),
    "a round from the future in execution": (
        RefusalCode.MALFORMED,
        {"execution": ExecutionInfo(started=True, round=9, control_rate_hz=30.0)},
        "while executing round 9",
    ),
    "round zero": (RefusalCode.MALFORMED, {"round": 0}, "rounds count from 1"),
    "no task": (RefusalCode.MALFORMED, {"task": ""}, "task must be named"),
    "the name of another robot": (
        RefusalCode.UNKNOWN_ROBOT,
        {"robot": "bystander"},
        "asks on the topic of",
    ),
    "the name of a robot that nobody knows": (
        RefusalCode.UNKNOWN_ROBOT,
        {"robot": "ghost"},
        "asks on the topic of",
    ),
    "another session than the robot's": (
        RefusalCode.DUPLICATE_ROBOT,
        {"session": "someone else"},
        "give this robot another name",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused_by_code_counted_and_visible(wire, robot, what):
    code, changes, said = BAD[what]
    answer = refused(wire, robot, code, **{"round": 2} | changes)
    assert said in answer.reason
    assert len(answer.actions) == 0
    assert served(robot, 3)


def test_an_old_round_is_refused(wire, robot):
    assert served(robot, 5)
    refused(wire, robot, RefusalCode.OLD_ROUND, round=4)
    assert served(robot, 6)


def test_a_repeated_round_is_refused_and_a_newer_attempt_of_it_is_served(wire, robot):
    assert served(robot, 2, attempt=1)
    refused(wire, robot, RefusalCode.REPEATED_ROUND, round=2, attempt=1)
    refused(wire, robot, RefusalCode.REPEATED_ROUND, round=2, attempt=0)
    assert served(robot, 2, attempt=2)


def test_a_request_after_the_end_of_its_task_is_refused(wire, robot):
    assert served(robot, 2)
    robot.task = "2"
    robot.announce()
    assert served(robot, 1)
    refused(wire, robot, RefusalCode.TASK_ENDED, round=3, task="1")
    assert served(robot, 2)


def test_extra_images_are_ignored(robot):
    extra = {"image_keys": ["top", *map(str, range(1000))], "images": [jpeg()]}
    extra["images"] += [CompressedImage(data=b"?")] * 1000
    assert served(robot, 2, **extra)


def test_a_message_that_is_no_request_at_all_is_dropped(wire, robot):
    header = b"\x00\x01\x00\x00"  # little-endian CDR
    for garbage in (b"", header, header + b"\xff" * 64, header + b"\x05\x00\x00\x00arm"):
        robot.requests.publish(header + garbage)
    assert served(robot, 2)


@pytest.mark.parametrize(
    "name", ["1arm", "ärm", "arm 1", "a-b", "a²", "", "a" * 240, "a\n[INFO] x"]
)
def test_a_robot_whose_id_is_no_ros_name_is_ignored_and_counted(wire, name):
    before = wire.counter("refused_robot_name")
    status = wire.node.create_publisher(RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT)
    until(status.get_subscription_count)
    status.publish(RobotStatus(robot=name, session="x"))
    until(lambda: wire.counter("refused_robot_name") > before)


def test_a_robot_that_never_announced_itself_is_not_listened_to(wire):
    ghost = WireRobot(wire, "ghost", **OBSERVATION)
    ghost.requests.publish(ghost.request(1))
    assert ghost.requests.get_subscription_count() == 0
    ghost.join()  # the same robot, once it has said who it is
    assert served(ghost, 2)
    ghost.leave()


def test_a_robot_that_falls_silent_is_forgotten_and_may_come_back(wire, robot):
    before = wire.counter("robot_lost")
    robot.fall_silent()
    until(lambda: wire.counter("robot_lost") > before)
    until(lambda: robot.requests.get_subscription_count() == 0)
    robot.answers.clear()
    robot.task = "2"
    assert served(robot.join(), 2)
