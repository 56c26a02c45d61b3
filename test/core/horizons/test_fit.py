"""Which robot fits which policy, and what is said where one does not."""

from dataclasses import replace

import pytest

from kairos_ros.core.fit import (
    PolicyInterface,
    RobotInterface,
    camera_name,
    features_of,
    misfit,
)

VGA = (480, 640)
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
ROBOT = RobotInterface(6, 6, {"front": VGA, "wrist": VGA})
FIXED = PolicyInterface("act-1", 6, 6, {FRONT: VGA, WRIST: VGA})
VLA_CAMERAS = {f"observation.images.camera{i}": (256, 256) for i in (1, 2, 3)}
VLA = PolicyInterface("smolvla-1", 6, 6, VLA_CAMERAS, any_size=True, optional=True)


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        (FRONT, "front"),
        ("front", "front"),
        ("observation.image", "image"),
        ("observation.images.a.b", "a.b"),
    ],
)
def test_a_camera_is_called_what_people_call_it(feature, name):
    assert camera_name(feature) == name


def test_features_find_their_cameras_with_and_without_the_prefix():
    assert features_of(["wrist", FRONT, "top"], [FRONT, WRIST]) == {FRONT: FRONT, WRIST: "wrist"}


def test_a_feature_that_is_named_exactly_comes_first():
    assert features_of(["front", FRONT], [FRONT]) == {FRONT: FRONT}


def test_a_robot_with_the_cameras_of_the_policy_fits():
    assert misfit(ROBOT, FIXED) == ""
    assert misfit(replace(ROBOT, cameras={FRONT: None, WRIST: None, "third": VGA}), FIXED) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state_dim": 7}, "state has 7 values, policy act-1 reads 6"),
        ({"action_dim": 5}, "actions of 5 values, policy act-1 gives 6"),
        (
            {"cameras": {}},
            "no pictures, policy act-1 reads cameras front (480x640 px), wrist",
        ),
        ({"cameras": {"front": VGA}}, "give the robot a camera called wrist"),
        (
            {"cameras": {"front": VGA, "hand": VGA}},
            'write robot parameter camera_map: ["hand=wrist"]',
        ),
        (
            {"cameras": {"a": VGA, "b": VGA}},
            'camera_map: ["a=NAME", "b=NAME"] with NAME one of front, wrist',
        ),
        (
            {"cameras": {"front": (240, 320), "wrist": VGA}},
            "front gives 240x320 px, policy act-1 reads 480x640 px (height x width) and does not "
            "resize",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line_with_what_to_do(change, said):
    text = misfit(replace(ROBOT, **change), FIXED)
    assert said in text
    assert "\n" not in text


def test_a_camera_is_missed_even_where_it_is_declared_absent_if_the_policy_needs_it():
    robot = replace(ROBOT, cameras={"front": VGA}, absent=("wrist",))
    assert "camera called wrist" in misfit(robot, FIXED)


def test_a_policy_that_does_without_some_cameras_still_wants_to_be_told_which():
    robot = RobotInterface(6, 6, {"camera1": VGA, "camera2": VGA})
    assert "absent_cameras: [camera3]" in misfit(robot, VLA)
    assert misfit(replace(robot, absent=("camera3",)), VLA) == ""
    assert misfit(replace(robot, absent=("observation.images.camera3",)), VLA) == ""


def test_no_policy_does_without_all_of_its_cameras():
    blind = RobotInterface(6, 6, {}, absent=("camera1", "camera2", "camera3"))
    assert "no pictures" in misfit(blind, VLA)


def test_a_policy_that_resizes_takes_any_size():
    robot = RobotInterface(6, 6, dict.fromkeys(VLA_CAMERAS, (1080, 1920)))
    assert misfit(robot, VLA) == ""
    assert "does not resize" in misfit(robot, replace(VLA, any_size=False))
