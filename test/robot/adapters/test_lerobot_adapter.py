"""The body `lerobot`: LeRobot's own driver, unmodified, on simulated SO-101 arms."""

import base64
import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import cv2
import numpy as np
import pytest
import zmq

from bench.support.simulated_so101 import SimulatedArm
from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.world.feetech_sim import FULL_SPEED, STEPS
from kairos_ros.robot.adapter import Homing, Jointed, Limited, RobotAdapter, TaskGoal, Tolerating
from kairos_ros.robot.adapters.lerobot import lerobot_adapter, lerobot_arms, lerobot_connection
from kairos_ros.robot.adapters.lerobot.lerobot_arms import bound, limp, release, silent
from kairos_ros.robot.adapters.registry import make_adapter
from kairos_ros.robot.body_error import BodyError

pytestmark = pytest.mark.slow

GOAL = TaskGoal("pick up the cube")
PATIENT = {"max_blind_s": 10.0}
"""Options for tests in which a machine that is busy elsewhere must be no fault."""
FAULTLESS = [f"{fault} 0" for fault in ("garble", "tear", "noise", "late", "delay")]
FAULTLESS += [f"speak {motor}" for motor in range(1, 7)]
FOLDED = {1: 2047, 2: 900, 3: 3000, 4: 2850, 5: 2047, 6: 2060}


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    arm = SimulatedArm(tmp_path_factory.mktemp("arm"))
    yield arm
    arm.close()


@pytest.fixture(scope="module")
def other_arm(tmp_path_factory):
    arm = SimulatedArm(tmp_path_factory.mktemp("other"))
    yield arm
    arm.close()


@pytest.fixture
def body(arm):
    """Makes bodies of the arm, folded and without faults; closes them."""
    made = []

    def make(rate_hz=30.0, robot="so101_follower", **options):
        try:
            one = make_adapter("lerobot", rate_hz, {"robot": robot, **arm.options, **options})
        except BodyError:
            faulthandler.dump_traceback()  # seen once: a camera's thread that had not ended in 4 s
            raise
        made.append(one)
        return one

    arm.tell("plug", *FAULTLESS, *(f"place {i} {at}" for i, at in FOLDED.items()), "power")
    yield make
    for one in made:
        one.close()


def until(condition, patience_s=30.0):
    end = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def moved(body, name, value):
    """Tells one joint where to go and waits until it is there; the others stay."""
    target = body.state().copy()
    i = body.spec.state_names.index(name)
    target[i] = value
    body.act(target)

    def there():
        body.hold()
        return abs(body.state()[i] - value) < 0.5

    until(there)


def fault(act, attempts=200):
    """The BodyError that `act` ends in."""
    for _ in range(attempts):
        try:
            act()
        except BodyError as error:
            return error
        time.sleep(0.02)  # less than a control period
    raise AssertionError("nothing failed")


def test_it_is_a_robot_with_limits_and_a_state_in_the_driver_s_own_order(body, arm):
    so101 = body()
    assert isinstance(so101, RobotAdapter)
    assert isinstance(so101, Limited)
    assert isinstance(so101, Tolerating)
    assert so101.spec.state_names == tuple(f"{motor}.pos" for motor in arm.motors("position"))
    # LeRobot's degrees: 360 of them are 4095 steps; the middle of the range is 0
    assert so101.limits.maximum[0] == pytest.approx((3430 - 750) / 2 * 360 / 4095)
    assert (so101.limits.minimum[5], so101.limits.maximum[5]) == (0.0, 100.0)
    assert list(so101.limits.measured_by) == [0, 1, 2, 3, 4, 5]


def test_its_joints_are_told_in_rad_before_the_first_task_and_follow_a_hand(body, arm):
    so101 = body(**PATIENT)
    assert isinstance(so101, Jointed)
    assert so101.joint_names == tuple(arm.motors("position"))

    def pan_is_at(angle):
        found = so101.joint_positions()  # None while the motors are late
        return found is not None and found[0] == pytest.approx(angle, abs=0.01)

    for steps in (2047, 2147):
        arm.tell("power", f"place 1 {steps}")  # without torque it stays there
        until(partial(pan_is_at, (steps - 2090) * 2 * np.pi / 4095))
    so101.close()


def test_motors_that_tell_shares_of_their_range_tell_no_joints(body):
    assert body(use_degrees=False).joint_names == ()


def test_an_action_moves_the_joint_it_is_for(body, arm):
    so101 = body(**PATIENT)
    so101.reset(GOAL)
    moved(so101, "wrist_flex.pos", 10.0)
    there = pytest.approx(2035 + 10 * 4095 / 360, abs=4)
    until(lambda: arm.motors("position")["wrist_flex"] == there)
    assert arm.motors("position")["shoulder_pan"] == pytest.approx(2047, abs=2)


def test_connecting_moves_nothing_although_the_motors_remember_another_goal(body, arm):
    arm.tell("place 1 2600", "place 3 2000")
    before = arm.motors("position")
    assert arm.motors("goal")["shoulder_pan"] == FOLDED[1]
    body()
    assert all(arm.motors("torque").values())
    assert arm.motors("position") == arm.motors("goal") == before


def test_an_arm_that_is_not_calibrated_is_refused_with_the_command_that_does_it(body, arm):
    with pytest.raises(BodyError, match="not calibrated") as refused:
        body(id="new")
    assert f"lerobot-calibrate --robot.type=so101_follower --robot.port={arm.port}" in str(
        refused.value
    )
    assert not any(arm.motors("torque").values())


def test_a_second_body_on_the_same_port_is_refused_and_disturbs_nothing(body, arm):
    first = body(**PATIENT)
    heard = arm.heard()
    with pytest.raises(BodyError, match="in use by another robot node"):
        body()
    assert arm.heard() == heard
    first.reset(GOAL)


@pytest.mark.parametrize("spoiled", ["garble 1", "tear 1", "noise 3"])
def test_a_spoiled_reply_is_counted_and_hides_no_later_one(body, arm, spoiled):
    so101 = body(**PATIENT)
    so101.reset(GOAL)
    arm.tell(spoiled)
    so101.hold()
    assert so101.tolerated or spoiled == "noise 3"  # noise may be found to be none
    moved(so101, "elbow_flex.pos", 20.0)


def test_a_late_reply_is_not_taken_for_the_next_one(body, arm):
    so101 = body(**PATIENT)
    so101.reset(GOAL)
    arm.tell("delay 90")  # LeRobot waits for about 50 ms
    until(lambda: so101.hold() or so101.tolerated["silent motor"])
    arm.tell("delay 0")
    moved(so101, "shoulder_pan.pos", 30.0)

    def rests():
        before = arm.motors("position")
        time.sleep(0.1)
        return arm.motors("position") == before

    until(rests)
    here = arm.motors("position")["shoulder_pan"]
    so101.hold()
    assert so101.state()[0] == pytest.approx((here - 2090) * 360 / 4095, abs=0.1)


def test_late_replies_about_the_torque_are_not_taken_for_positions(body, arm, monkeypatch):
    so101 = body(**PATIENT)
    late = []

    def limp_late(motors):
        arm.tell("delay 300")  # the adapter waits for about 250 ms
        try:
            return limp(motors)
        except ConnectionError as error:
            late.append(error)
            raise
        finally:
            arm.tell("delay 0")

    monkeypatch.setattr(lerobot_adapter, "limp", limp_late)
    until(lambda: so101.reset(GOAL) or late)
    assert so101.joint_positions() is not None


def test_replies_that_are_always_late_are_never_taken_for_news(body, arm):
    so101 = body()
    so101.reset(GOAL)
    told = so101.state().copy()
    told[0] += 40.0
    so101.act(told)
    arm.tell("delay 100")  # longer than LeRobot waits: each reply would pass for the next one's
    moves_s = time.monotonic()  # at the latest: an arm that obeys has read its goal before
    last = so101.state()[0]

    def look():
        nonlocal last
        asked_s = time.monotonic()
        so101.hold()
        at = so101.state()[0]
        if at != last:  # this program was stopped for so long that the reply was there in time
            passed = told[0] - 40.0 + (asked_s - moves_s) * FULL_SPEED * 360 / STEPS
            assert at > min(passed, told[0]) - 0.5  # an answer to an earlier question is below
        last = at

    assert fault(look).reason in ("late replies", "silent motor")


def test_a_silent_motor_ends_the_task_by_name_and_the_arm_holds(body, arm):
    so101 = body()
    for _ in range(3):  # on a busy host all other motors may be late, too
        arm.tell("speak 3")
        so101.reset(GOAL)
        arm.tell("silence 3")
        error = fault(so101.hold)
        assert error.reason == "silent motor"
        if "(id 3)" in str(error):
            break
    assert "elbow_flex (id 3)" in str(error)
    assert "hold their last goal" in str(error)
    assert all(arm.motors("torque").values())
    heard = arm.heard()
    assert fault(lambda: so101.act(np.zeros(6, np.float32)), 1).reason == "silent motor"
    assert arm.heard() == heard


def test_a_motor_whose_reply_comes_late_is_not_taken_for_the_silent_one(body, arm):
    so101 = body()
    (motors,) = so101._link.arms
    bound(motors, 1000.0)  # so that no other reply is late on a busy host
    arm.tell("silence 3", "late 1")  # the driver asks the first motor twice and hears it twice
    assert silent(motors) == ["elbow_flex (id 3)"]


def test_replies_that_are_late_while_nothing_moves_are_waited_for(body, arm):
    so101 = body(**PATIENT)
    arm.tell("delay 100")  # longer than is waited for while the arm is controlled
    so101.reset(GOAL)
    assert not so101.tolerated
    until(lambda: so101.hold() or so101.tolerated)


def test_nothing_but_spoiled_replies_ends_the_task(body, arm):
    so101 = body()
    for _ in range(3):  # on a busy host the last reply may be late instead
        arm.tell("garble 0")
        so101.reset(GOAL)
        arm.tell("garble 99999")
        reason = fault(so101.hold).reason
        if reason == "torn packets":
            break
    assert reason == "torn packets"


def test_the_torque_goes_off_after_a_fault_where_that_is_configured(body, arm, monkeypatch):
    torque_when_asked = []

    def silent_then(motors):
        torque_when_asked.extend(arm.motors("torque").values())
        return silent(motors)

    so101 = body(on_fault="torque_off")
    so101.reset(GOAL)
    monkeypatch.setattr(lerobot_connection, "silent", silent_then)  # connecting may ask, too
    arm.tell("silence 3")
    error = fault(so101.hold)
    assert "motors that hear are let go, elbow_flex did not hear it" in str(error)
    torque = arm.tell("speak 3")["motors"]
    assert not any(torque[name]["torque"] for name in torque if name != "elbow_flex")
    assert torque_when_asked
    assert not any(torque_when_asked)  # letting go does not wait for the name of the silent motor
    so101.reset(GOAL)
    assert all(arm.motors("torque").values())


def test_a_motor_whose_reply_is_spoiled_is_told_again_to_let_go(body, arm):
    so101 = body()
    so101.reset(GOAL)
    arm.tell("garble 4")
    assert release(so101._link.arms) == []
    assert not any(arm.motors("torque").values())


@pytest.fixture
def mute(body, arm):
    """An arm in a task that hears and answers nothing until `resume` is called."""
    so101 = body()
    so101.reset(GOAL)
    arm.pause()
    yield so101._link.arms
    arm.resume()


def test_motors_that_are_all_mute_for_a_moment_let_go_when_they_answer(mute, arm, monkeypatch):
    monkeypatch.setattr(lerobot_arms, "RELEASE_S", 60.0)
    later = threading.Timer(2.5, arm.resume)
    later.start()
    assert release(mute) == []
    later.join()
    assert not any(arm.motors("torque").values())


def test_an_arm_that_stays_mute_is_not_waited_for_for_ever(mute, arm, monkeypatch):
    monkeypatch.setattr(lerobot_arms, "RELEASE_S", 0.1)
    assert len(release(mute)) == len(mute[0].bus.motors)


def test_a_mute_arm_does_not_keep_the_other_from_letting_go(mute, other_arm, body, monkeypatch):
    monkeypatch.setattr(lerobot_arms, "RELEASE_S", 60.0)
    other = body(**other_arm.options)
    other.reset(GOAL)
    other_arm.tell("silence 3")
    deaf = release((*mute, *other._link.arms))
    other_arm.tell("speak 3")
    assert deaf == [*mute[0].bus.motors, "elbow_flex"]
    assert not any(other_arm.motors("torque").values())  # it heard, but did not answer


def test_after_the_cable_was_pulled_only_a_new_task_connects_and_it_moves_nothing(body, arm):
    so101 = body()
    so101.reset(GOAL)
    far = so101.state().copy()
    far[0] = 80.0
    so101.act(far)
    arm.tell("pull")  # on its way: the motors have power and go on
    assert fault(lambda: so101.act(far)).reason == "cable"
    assert fault(lambda: so101.reset(GOAL)).reason == "cable"
    before = until(
        lambda: (at := arm.motors("position")) == arm.motors("goal") and at  # it has arrived
    )
    heard = arm.tell("plug")["packets"]
    assert fault(so101.hold).reason == "cable"
    assert arm.tell()["packets"] == heard
    so101.reset(GOAL)
    so101.hold()
    assert arm.motors("position") == arm.motors("goal") == before


def test_an_arm_that_lost_its_power_for_a_moment_is_found_limp(body, arm):
    so101 = body(max_blind_s=10.0, rate_hz=5.0)
    so101.reset(GOAL)
    arm.tell("power")
    error = fault(so101.hold)
    assert error.reason == "torque lost"
    assert "shoulder_pan" in str(error)
    so101.reset(GOAL)
    assert all(arm.motors("torque").values())


def test_a_joint_out_of_its_range_gets_no_task_until_it_is_moved_back(body, arm):
    arm.tell("place 2 3400")
    so101 = body()
    assert not any(arm.motors("torque").values())
    error = fault(lambda: so101.reset(GOAL))
    assert error.reason == "joint out of limits"
    assert "shoulder_lift is at 120.4, out of its range from -106.4 to 106.4" in str(error)
    arm.tell("place 2 2000")
    so101.reset(GOAL)
    assert arm.motors("goal")["shoulder_lift"] == arm.motors("position")["shoulder_lift"] == 2000


def test_a_joint_out_of_limits_that_a_user_set_gets_no_task_either(body):
    so101 = body(limits={"shoulder_lift.pos": [-90, 90]})
    assert (so101.limits.minimum[1], so101.limits.maximum[1]) == (-90.0, 90.0)
    error = fault(lambda: so101.reset(GOAL))
    assert "shoulder_lift.pos is at -99.3, out of its limits from -90 to 90" in str(error)


@pytest.mark.parametrize("safe_state", [{"shoulder_pan.pos": 10.0}, [10.0]])
def test_the_way_to_the_safe_state_is_no_faster_than_asked_and_ends(body, safe_state):
    so101 = body(safe_state=safe_state, safe_speed=60.0, **PATIENT)
    assert isinstance(so101, Homing)
    so101.reset(GOAL)
    start = so101.state().copy()
    steps = []
    while (action := so101.toward_safe_state()) is not None:
        steps.append(action)
        so101.act(action)
    assert np.abs(np.diff([start, *steps], axis=0)).max() <= 2.0 + 1e-4
    assert steps[-1][0] == 10.0
    assert np.array_equal(steps[-1][1:], start[1:])


# The main function of lerobot-calibrate. LeRobot waits 50 ms for a motor to answer, and a busy
# machine may let the simulated arm wait longer: here it waits 5 s.
PATIENT_CALIBRATE = """
import faulthandler
import signal

from lerobot.motors.feetech import feetech
from lerobot.scripts.lerobot_calibrate import main

def wait_5_s(port, _):
    port.packet_start_time, port.packet_timeout = port.getCurrentTime(), 5000.0

feetech.patch_setPacketTimeout = wait_5_s
faulthandler.register(signal.SIGUSR1)
main()
"""


def calibrate_as_a_person(arm, options, said):
    """Runs LeRobot's command, turns the joints when it asks for that, and returns its exit code."""
    named = [f"--robot.{name}={value}" for name, value in options.items()]
    with said.open("wb") as log:
        calibrate = subprocess.Popen(
            [sys.executable, "-c", PATIENT_CALIBRATE, "--robot.type=so101_follower", *named],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            bufsize=0,
        )

    def ended():
        return calibrate.poll() is not None

    def confirm():
        with contextlib.suppress(BrokenPipeError):  # it ended by itself
            calibrate.stdin.write(b"\n")

    try:
        until(lambda: ended() or "middle of its range" in said.read_text(), 120.0)
        confirm()
        until(lambda: ended() or "| " in said.read_text(), 120.0)
        for place in (1000, 3000, 2047):
            printed = len(said.read_text())
            arm.tell(*(f"place {motor} {place}" for motor in FOLDED))
            read = re.compile(rf"gripper +\| +\d+ \| +{place} \|")  # minimum, position, maximum
            until(lambda read=read, at=printed: ended() or read.search(said.read_text()[at:]), 60.0)
        confirm()
        until(ended, 120.0)
        return calibrate.returncode
    except AssertionError:
        calibrate.send_signal(signal.SIGUSR1)  # says where it is
        time.sleep(1.0)
        print(said.read_text()[-5000:])
        raise
    finally:
        calibrate.kill()
        calibrate.wait()
        calibrate.stdin.close()


def test_lerobot_s_own_command_calibrates_the_arm_and_it_is_served_as_that_says(tmp_path):
    arm = SimulatedArm(tmp_path)
    options = arm.options | {"id": "new"}
    said = tmp_path / "said"
    try:
        assert calibrate_as_a_person(arm, options, said) == 0, said.read_text()
        so101 = make_adapter("lerobot", 30.0, {"robot": "so101_follower"} | options | PATIENT)
        so101.reset(GOAL)
        assert so101.limits.maximum[0] == pytest.approx(1000 * 360 / 4095)
        so101.close()
    finally:
        arm.close()


@pytest.mark.parametrize(("on_stop", "torque"), [("hold", True), ("torque_off", False)])
def test_at_the_end_the_arm_holds_or_lets_go_as_configured(body, arm, on_stop, torque):
    body(on_stop=on_stop).close()
    assert set(arm.motors("torque").values()) == {torque}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"robot": "so101_folower"}, r"no robot 'so101_folower' \(did you mean 'so101_follower'\?"),
        ({"prt": "x"}, r"`prt` are not valid .*; prt \(did you mean 'port'\?\)"),
        ({"cammeras": {}}, r"cammeras \(did you mean 'cameras'\?\)"),
        ({"calibration_dirr": "/x"}, r"calibration_dirr \(did you mean 'calibration_dir'\?\)"),
        ({"max_speeed": 3}, r"max_speeed \(did you mean 'max_speed'\?\)"),
        ({"voltage": 12}, "`voltage` are not valid .*; there are port, .*on_fault"),
        (
            {"cameras": {"top": {"type": "opencv", "index_or_paht": 0}}},
            r"`cameras.top`.*index_or_paht \(did you mean 'index_or_path'\?\)",
        ),
        ({"on_fault": "panic"}, "on_fault is 'panic', not hold or torque_off"),
        ({"limits": {"elbow.pos": [0, 1]}}, "limits names 'elbow.pos'; this robot has shoulder_"),
        ({"limits": {"gripper.pos": [9, 1]}}, "gripper.pos are .9, 1., not .low, high."),
        ({"safe_state": {"gripper.pos": 130}}, "gripper.pos is 130, out of its limits from 0.0 to"),
        ({"safe_state": [0] * 7}, "safe_state has 7 values, the robot 6 action dimensions"),
        ({"safe_state": "home"}, "safe_state is 'home'; write .NAME: VALUE."),
        ({"max_speed": 0}, "max_speed is 0; it must be above 0"),
        ({"disable_torque_on_disconnect": True}, "give on_stop=hold or torque_off"),
        ({"cameras": {"top": {"type": "opencw"}}}, "no camera 'opencw'"),
        ({"cameras": {"top": {"type": "opencv", "index_or_path": 0}}}, "Specifying 'width'"),
        ({"port": "/dev/nothing"}, "port /dev/nothing cannot be opened: No such file"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_the_reason(body, options, said):
    with pytest.raises((ConfigError, BodyError), match=said):
        body(**options)


class PictureServer:
    """A camera of LeRobot's kind `zmq`: 50 pictures a second, from `late_s` after somebody
    subscribes, until it freezes."""

    def __init__(self, late_s=0.0):
        socket = zmq.Context.instance().socket(zmq.XPUB)  # hears of subscriptions
        self.port = socket.bind_to_random_port("tcp://127.0.0.1")
        self._frozen = threading.Event()
        picture = np.full((48, 64, 3), (255, 0, 0), np.uint8)  # blue, in OpenCV's order
        encoded = base64.b64encode(cv2.imencode(".jpg", picture)[1].tobytes()).decode()

        def run():
            while not socket.poll(20) and not self._frozen.is_set():
                pass
            self._frozen.wait(late_s)
            while not self._frozen.wait(0.02):
                socket.send_string(json.dumps({"images": {"top": encoded}}))
            socket.close(0)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def options(self):
        """Of LeRobot's camera."""
        camera = {"type": "zmq", "server_address": "127.0.0.1", "port": self.port, "fps": 30}
        return camera | {"camera_name": "top", "width": 64, "height": 48}

    def freeze(self):
        self._frozen.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("stops", "options", "reason", "said"),
    [
        (True, {"max_image_age_s": 3.0}, "stale camera", "top has given no picture for"),
        (
            False,
            {"frozen_after_s": 3.0, "max_image_age_s": 60.0},
            "frozen camera",
            "top has shown the same pixels for",
        ),
    ],
)
def test_a_camera_without_news_ends_the_task_by_name(body, stops, options, reason, said):
    server = PictureServer()
    try:
        options = options | PATIENT
        so101 = body(cameras={"top": server.options}, image_keys={"top": "front"}, **options)
        so101.reset(GOAL)
        assert dict(so101.spec.images) == {"front": (48, 64)}
        picture = np.frombuffer(so101.observe().images["front"], np.uint8)
        assert cv2.imdecode(picture, cv2.IMREAD_COLOR).shape == (48, 64, 3)
        if stops:
            server.freeze()

        error = fault(so101.hold, 500)
    finally:
        server.freeze()
    assert error.reason == reason
    assert said in str(error)


def test_of_two_cameras_the_one_that_is_stale_is_named(body):
    goes_on, stops = PictureServer(), PictureServer()
    try:
        cameras = {"goes_on": goes_on.options, "stops": stops.options}
        so101 = body(cameras=cameras, max_image_age_s=3.0, **PATIENT)
        so101.reset(GOAL)
        stops.freeze()
        error = fault(so101.hold, 500)
    finally:
        goes_on.freeze()
        stops.freeze()
    assert "camera stops has given no picture for" in str(error)


def test_a_camera_whose_first_picture_is_late_is_waited_for(body):
    server = PictureServer(late_s=1.5)  # LeRobot waits 1 s
    try:
        body(cameras={"top": server.options}, **PATIENT).reset(GOAL)
    finally:
        server.freeze()


def test_a_camera_that_never_gave_a_picture_is_not_taken_for_one_that_does(body):
    goes_on, silent = PictureServer(), PictureServer()
    silent.freeze()
    try:
        with pytest.raises(BodyError, match=f"127.0.0.1:{silent.port}") as caught:
            body(cameras={"goes_on": goes_on.options, "silent": silent.options}, **PATIENT)
    finally:
        goes_on.freeze()
    assert caught.value.reason == "stale camera"
    assert "goes_on" not in str(caught.value)


def test_a_picture_that_is_read_again_does_not_become_younger(body):
    server = PictureServer()
    try:
        so101 = body(cameras={"top": server.options}, max_image_age_s=60.0, **PATIENT)
        so101.reset(GOAL)
        first_ns = so101.observe().taken_ns
        until(lambda: first_ns < so101.observe().taken_ns < time.monotonic_ns())
    finally:
        server.freeze()
    before_ns = 0

    def taken_by_five_reads():
        """When their picture was taken; None while pictures that were under way come in."""
        nonlocal before_ns
        before_ns = time.monotonic_ns()
        taken_ns = set()
        for _ in range(5):
            taken_ns.add(so101.observe().taken_ns)
            time.sleep(0.1)
        return taken_ns.pop() if len(taken_ns) == 1 else None

    assert first_ns < until(taken_by_five_reads) < before_ns
    # nor is it too old for LeRobot, whose limit is 1 s, as long as it is not for `max_image_age_s`
    until(lambda: time.monotonic_ns() - so101.observe().taken_ns > 1.5e9)


def test_two_arms_are_one_robot_and_one_cable_stops_both(body, arm, other_arm):
    arms = {
        "left_arm_config": {"port": str(arm.port)},
        "right_arm_config": {"port": str(other_arm.port)},
    }
    folder = arm.port.parent
    for side in ("left", "right"):
        (folder / f"pair_{side}.json").write_text((folder / "so101.json").read_text())
    options = {"robot": "bi_so_follower", "id": "pair", "calibration_dir": str(folder)}
    pair = make_adapter("lerobot", 30.0, options | arms | PATIENT)
    try:
        pair.reset(GOAL)
        assert pair.spec.state_names[::6] == ("left_shoulder_pan.pos", "right_shoulder_pan.pos")
        moved(pair, "right_shoulder_pan.pos", -20.0)
        other_arm.tell("pull")
        error = fault(lambda: pair.act(pair.state()))
        assert (error.reason, str(arm.port) in str(error)) == ("cable", False)
        assert str(other_arm.port) in str(error)
        other_arm.tell("plug")
        pair.reset(GOAL)
        arm.tell("pull")
        error = fault(lambda: pair.act(np.zeros(12, np.float32)))
        assert (error.reason, str(other_arm.port) in str(error)) == ("cable", False)
        assert str(arm.port) in str(error)
        heard = other_arm.heard()
        assert fault(pair.hold, 1) is error
        assert other_arm.heard() == heard
    finally:
        pair.close()


LIGHT = """
import sys
from kairos_ros.robot.adapters.lerobot import lerobot_adapter
from kairos_ros.robot.adapters.lerobot.lerobot_arms import limp
from kairos_ros.robot.adapters.registry import make_adapter
make_adapter("lerobot", 30.0, {options!r}).close()
assert "torch" not in sys.modules
from lerobot.utils import get_safe_torch_device
assert get_safe_torch_device("cpu") == sys.modules["torch"].device("cpu")
"""


def test_driving_an_arm_does_not_load_torch_before_somebody_asks_for_it(body, arm):
    code = LIGHT.format(options={"robot": "so101_follower"} | arm.options)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
