"""Observation maps: files, what is wrong with them, and observations read by them."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.fit import PolicyInterface
from kairos_ros.doors.observation import seen_of, sizes_of
from kairos_ros.doors.observation_map import ObservationMap, map_path, read_map

SHIPPED = sorted(path.stem for path in (Path(__file__).parents[2] / "config/doors").glob("*.yaml"))
ARM = """
dialect: openpi
robot: arm
control_rate_hz: 20
state: [{key: observation/joints, size: 2}, {key: observation/gripper, size: 1}]
images: {front: {key: images/front}}
action_dim: 3
"""


GROOT = """
dialect: groot
robot: arm
control_rate_hz: 20
state: [{key: state/joints, size: 2}, {key: state/gripper, size: 1}]
images: {front: {key: video/front}}
prompt: language/task
action_dim: 3
actions: [{key: joints, size: 2}, {key: gripper, size: 1}]
"""


def read(text: str, folder: Path) -> ObservationMap:
    path = folder / "map.yaml"
    path.write_text(text)
    return read_map(path)


@pytest.fixture
def arm(tmp_path) -> ObservationMap:
    return read(ARM, tmp_path)


def observation(**changes) -> dict:
    front = np.zeros((48, 64, 3), np.uint8)
    front[:, 32:] = 250
    return {
        "observation/joints": np.array([0.5, -0.5]),
        "observation/gripper": 1.0,
        "images": {"front": front},
        "prompt": "pick",
    } | changes


def policy(**changes) -> PolicyInterface:
    fields = {"state_dim": 3, "action_dim": 3, "cameras": {"observation.images.front": (32, 32)}}
    return PolicyInterface("act-1", **(fields | changes))


def pixels(jpeg: bytes) -> np.ndarray:
    return np.array(Image.open(BytesIO(jpeg)))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_map_that_ships_can_be_read_by_its_name(name):
    shipped = read_map(map_path(name))
    assert shipped.images
    assert shipped.action_dim
    assert name in shipped.robot


def test_those_that_ship_are_those_that_are_documented():
    assert SHIPPED == ["aloha", "droid", "groot_droid", "groot_so100", "libero", "so101"]
    with pytest.raises(ConfigError, match="aloha, droid, groot_droid, groot_so100, libero, so101"):
        map_path("frank")


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (("dialect: openpi", "dialect: openpie"), "2:10", "did you mean 'openpi'"),
        (("size: 1", "size: 0"), "5:78", "greater than or equal to 1"),
        (("images/front", "prompt"), "6:23", "'prompt' is read as prompt already"),
        (("action_dim: 3", "horizon: hunch"), "2:1", "action_dim: it is missing"),
        (("action_dim: 3", "action_dim: 3\nhorizon: hunch"), "8:10", "or write whole or server"),
        (("action_dim: 3", "action_dim: 3\nabsent_cameras: [front]"), "8:18", "among the images"),
        (("robot: arm", "robots: arm"), "3:1", "did you mean 'robot'"),
    ],
)
def test_a_mistake_in_a_map_is_told_with_its_place(tmp_path, change, place, said):
    with pytest.raises(ConfigError) as refused:
        read(ARM.replace(*change), tmp_path)
    assert f"map.yaml:{place}: " in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (("state/joints", "joints"), "5:15", "must be state/NAME"),
        (("video/front", "images/front"), "6:23", "must be video/NAME"),
        (("language/task", "language/"), "7:9", "must be language/NAME"),
        (("prompt: language/task", ""), "2:1", "'prompt' must be language/NAME"),
        (("key: video/front", "key: video/front, layout: chw"), "6:44", "clients"),
        (("size: 2}, {key: gripper", "size: 3}, {key: gripper"), "9:10", "they have 4 values"),
        (("key: gripper, size: 1}]\n", "key: joints, size: 1}]\n"), "9:41", "among them already"),
        (("actions: [{key: joints, size: 2}, {key: gripper, size: 1}]", ""), "8:13", "`actions`"),
        (("robot: arm", "robot: arm\nmetadata: {a: 1}"), "4:11", "told none"),
        (("dialect: groot", "dialect: openpi"), "9:10", "clients of this dialect get whole"),
    ],
)
def test_a_map_of_groots_clients_has_keys_as_they_send_and_get_them(tmp_path, change, place, said):
    with pytest.raises(ConfigError) as refused:
        read(GROOT.replace(*change), tmp_path)
    assert f"map.yaml:{place}: " in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"state_dim": 4}, "state has 3 values"),
        ({"action_dim": 7}, "takes actions of 3 values"),
        ({"cameras": {"wrist": (32, 32)}}, "wrist"),
        ({"keyframe_stride": 4}, "serve it to robot nodes"),
    ],
)
def test_a_map_is_checked_against_the_policy(arm, changes, said):
    told = arm.misfit(policy(**changes), chunk_size=10)
    assert said in told
    assert bool(said) == bool(told)


def test_a_client_that_executes_more_than_a_chunk_is_told(arm):
    longer = arm.model_copy(update={"executes": 20})
    assert "executes 20 actions" in longer.misfit(policy(), chunk_size=10)


def test_an_observation_becomes_state_pictures_and_instruction(arm):
    seen = seen_of(observation(), arm, sizes_of(policy(), arm.images))
    assert seen.observation.state.tolist() == [0.5, -0.5, 1.0]
    assert seen.observation.state.dtype == np.float32
    assert seen.prompt == "pick"
    front = pixels(seen.observation.images["front"])
    assert front.shape == (32, 32, 3)
    assert front[:3].max() < 20  # 48 x 64 fits into 24 x 32, with a bar above and below
    assert front[16, 4].max() < 20
    assert front[16, 28].min() > 230


def test_a_policy_that_takes_any_size_gets_the_client_s(arm):
    seen = seen_of(observation(), arm, sizes_of(policy(any_size=True), arm.images))
    assert pixels(seen.observation.images["front"]).shape == (48, 64, 3)


def test_channels_may_come_first(tmp_path):
    chw = read(ARM.replace("key: images/front", "key: images/front, layout: chw"), tmp_path)
    flipped = observation()["images"]["front"].transpose(2, 0, 1)
    seen = seen_of(observation(images={"front": flipped}), chw, {})
    assert pixels(seen.observation.images["front"]).shape == (48, 64, 3)


def test_a_map_may_give_the_instruction_of_clients_that_send_none(tmp_path):
    given = read(ARM + "instruction: fold the towel\n", tmp_path)
    silent = observation()
    del silent["prompt"]
    assert seen_of(silent, given, {}).prompt == "fold the towel"


def test_keys_that_the_map_does_not_name_are_told_and_not_used(arm):
    assert seen_of(observation(extra=1, more={"x": None}), arm, {}).unused == ("extra", "more/x")


GRAY = np.zeros((48, 64), np.uint8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"observation/joints": np.array([0.5])}, "'observation/joints' has shape (1,)"),
        ({"observation/joints": np.array([0.5, np.nan])}, "'observation/joints'[1] is nan"),
        ({"observation/joints": np.array([1e300, 0])}, "is inf"),
        ({"observation/joints": [0.5, "a"]}, "something else than numbers"),
        ({"observation/joints": None}, "is NoneType"),
        ({"observation/joints": np.array([True, False])}, "is bool [2]"),
        ({"observation/gripper": "open"}, "must be numbers"),
        ({"images": {}}, "has no 'images/front'"),
        ({"images": {"frond": GRAY}}, "did you mean 'images/frond'"),
        ({"images": {"front": GRAY}}, "has shape (48, 64)"),
        ({"images": {"front": np.zeros((3, 48, 64), np.uint8)}}, "`layout` in the map is hwc"),
        ({"images": {"front": np.zeros((48, 64, 3), np.float32)}}, "convert_to_uint8"),
        ({"images": {"front": np.zeros((0, 64, 3), np.uint8)}}, "needs 3 channels"),
        ({"images": {"front": np.zeros((4097, 4097, 3), np.uint8)}}, "at most"),
        ({"images": {"front": b"jpeg"}}, "is bytes"),
        ({"prompt": 7}, "must be text"),
        ({"prompt": ""}, "gives no instruction"),
        ({"prompt": "x" * 2000}, "at most 1000"),
        ({7: 1}, "keys must be text"),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, "nested deeper"),
        ({str(i): i for i in range(300)}, "more than 200 keys"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused_with_its_key(arm, changes, said):
    with pytest.raises(WireError) as refused:
        seen_of(observation(**{}) | changes, arm, {})
    assert said in str(refused.value)
