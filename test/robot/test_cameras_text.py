"""Cameras of simulated arms, as people write them on a command line."""

import pytest

from kairos_ros.bringup.plan import plan
from kairos_ros.commands.up import no_cameras
from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.robot.parameters import adapter_options
from kairos_ros.robot.adapters.sim.metaworld_scenes import make_scene
from kairos_ros.robot.cameras.cameras_text import METAWORLD, parse_cameras

CAMERA_POLICY = "emulated:dim=4,state=39,images=top@96x128"


def test_a_camera_has_the_size_that_is_given_or_224_pixels():
    assert parse_cameras("corner2, gripperPOV:480x640,") == {
        "corner2": (224, 224),
        "gripperPOV": (480, 640),
    }
    assert parse_cameras("front", (120, 160)) == {"front": (120, 160)}
    assert parse_cameras("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("corner2:480", "'corner2:480' must read NAME"),
        ("corner2:0x640", "must read NAME"),
        ("corner2:480x640x3", "must read NAME"),
        ("corner 2", "must read NAME"),
        ("a,a:1x1", "named twice"),
    ],
)
def test_a_camera_that_makes_no_sense_is_named(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_cameras(text)


def test_every_arm_of_a_plan_has_the_cameras_beside_its_other_options():
    given = {"adapter_options": ["env_id=Pusher-v5"]}
    for spec in plan(2, robot_parameters=given, cameras="corner2,topview:48x64")[1:]:
        assert adapter_options(spec.parameters["adapter_options"]) == {
            "env_id": "Pusher-v5",
            "images": {"corner2": [224, 224], "topview": [48, 64]},
        }
    assert given == {"adapter_options": ["env_id=Pusher-v5"]}


@pytest.mark.slow  # importing MuJoCo starts a process of GLFW's
def test_the_cameras_that_people_are_told_of_are_those_of_the_scenes():
    model = make_scene("reach-v3").model
    assert {model.camera(i).name for i in range(model.ncam)} >= set(METAWORLD)


def test_a_policy_that_reads_pictures_is_missed_cameras_for():
    told = no_cameras(CAMERA_POLICY, "")
    assert "top (96x128)" in told
    assert "--cameras corner2:96x128" in told
    assert no_cameras(CAMERA_POLICY, "corner2") == ""
    assert no_cameras("", "") == ""
    assert no_cameras("lerobot/some_hub_id", "") == ""


@pytest.mark.parametrize(
    "text", [b'{"type": "act", ', b"[1]", b"\x96\xff", b'{"input_features": [3]}']
)
def test_a_policy_whose_configuration_is_garbage_is_left_to_who_loads_it(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    assert no_cameras(str(tmp_path), "") == ""
