"""LeRobot's features as vectors, and its errors by name. No driver is needed for either."""

import errno
import os
import termios

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapters.lerobot.lerobot_faults import reason_of
from kairos_ros.robot.adapters.lerobot.lerobot_features import read_features
from kairos_ros.robot.adapters.lerobot.lerobot_pictures import PixelWatch

OBSERVED = {"pan.pos": float, "grip.pos": float, "x.vel": float, "front": (480, 640, 3)}
ACCEPTED = {"grip.pos": float, "x.vel": float, "pan.pos": float}
PICTURE = np.zeros((480, 640, 3), np.uint8)


def test_vectors_are_in_the_robot_s_own_order():
    features = read_features(OBSERVED | {"front_depth": (480, 640, 1)}, ACCEPTED)
    seen = {"x.vel": 3, "grip.pos": 2.0, "front": PICTURE, "pan.pos": np.float64(1)}
    assert features.vector(seen).tolist() == [1.0, 2.0, 3.0]
    assert features.named(np.array([1, 2, 3])) == {"grip.pos": 1.0, "x.vel": 2.0, "pan.pos": 3.0}
    assert features.measured_by == (1, -1, 0)
    assert features.cameras == {"front": (480, 640)}


@pytest.mark.parametrize(
    ("observed", "accepted", "said"),
    [
        (OBSERVED | {"cloud": (4000,)}, ACCEPTED, "'cloud' as .4000,.; only numbers"),
        (OBSERVED, {"path": (10, 2)}, "'path' .* must be numbers"),
        ({"front": (480, 640, 3)}, ACCEPTED, "0 numbers to observe"),
    ],
)
def test_features_that_no_policy_could_have_are_refused(observed, accepted, said):
    with pytest.raises(ConfigError, match=said):
        read_features(observed, accepted)


@pytest.mark.parametrize(
    "seen",
    [
        {"pan.pos": 1.0, "grip.pos": float("nan"), "x.vel": 0.0},
        {"pan.pos": 1.0, "grip.pos": "open", "x.vel": 0.0},
        {"grip.pos": 1.0, "x.vel": 0.0},
    ],
)
def test_an_observation_that_is_none_is_not_taken_for_one(seen):
    with pytest.raises((ValueError, KeyError)):
        read_features(OBSERVED, ACCEPTED).vector(seen)


@pytest.mark.parametrize("picture", [None, PICTURE.astype(np.float32), PICTURE[..., 0]])
def test_a_picture_that_is_none_is_not_taken_for_one(picture):
    with pytest.raises(ValueError, match="front"):
        read_features(OBSERVED, ACCEPTED).check_pictures({"front": picture})


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (termios.error(errno.EIO, "Input/output error"), "cable"),
        (caused(ConnectionError("no port"), FileNotFoundError(errno.ENOENT, "gone")), "cable"),
        (ConnectionError("Failed to sync read: [TxRxResult] There is no status packet!"), "silent"),
        (ConnectionError("Failed to sync read: [TxRxResult] Incorrect status packet!"), "torn"),
        (TimeoutError("latest frame is too old"), "stale camera"),
        (RuntimeError("OpenCVCamera(0) read thread is not running."), "stale camera"),
        (ZeroDivisionError("division by zero"), "driver"),
    ],
)
def test_a_driver_s_error_is_called_by_its_reason(error, reason):
    assert reason_of(error).startswith(reason)


def test_an_answer_to_an_earlier_question_that_is_too_short_is_a_late_reply():
    sdk = pytest.importorskip("scservo_sdk")
    bus, motors = os.openpty()

    class Port(sdk.PortHandler):
        """On which the answer to an earlier question comes as soon as something is asked."""

        def writePort(self, packet):  # noqa: N802
            os.write(bus, bytes([0xFF, 0xFF, 1, 2, 0, 0xFC]))  # "written", of motor 1
            return len(packet)

        def isPacketTimeout(self):  # noqa: N802
            return False

    port = Port(os.ttyname(motors))
    assert port.openPort()
    with pytest.raises(IndexError) as raised:
        sdk.PacketHandler(0).read2ByteTxRx(port, 1, 56)
    port.closePort()
    for end in (bus, motors):
        os.close(end)
    assert reason_of(raised.value) == "late replies"
    with pytest.raises(IndexError) as elsewhere:
        [][0]
    assert reason_of(elsewhere.value) == "driver"


def test_a_camera_that_shows_the_same_pixels_for_too_long_is_frozen_and_a_noisy_one_is_not():
    watch = PixelWatch(frozen_after_s=2.0)
    noise = np.random.default_rng(1)
    for tenth in range(50):
        seen = {"still": PICTURE, "alive": noise.integers(0, 9, (480, 640, 3), np.uint8)}
        said = watch.frozen(("alive", "still"), seen, now_ns=tenth * 10**8)
        assert said == (
            "" if tenth <= 20 else f"camera still has shown the same pixels for {tenth / 10:.1f} s"
        )
    assert PixelWatch(0.0).frozen(("still",), {"still": PICTURE}, 10**18) == ""
