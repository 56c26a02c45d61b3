"""Observations of GR00T's clients, robot by robot, and the actions that they get."""

from pathlib import Path

import numpy as np
import pytest

from kairos_ros.core.errors import WireError
from kairos_ros.doors.groot.modalities import actions_of, modality_config, one_robot, rows_of
from kairos_ros.doors.observation_map import read_map

FRONT = np.arange(2 * 2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 2, 4, 6, 3)
"""Of two robots, at two times."""
JOINTS = np.arange(2 * 2 * 5, dtype=np.float32).reshape(2, 2, 5)
GRIPPER = np.arange(2 * 2, dtype=np.float32).reshape(2, 2, 1)
TASK = "annotation.human.task_description"


@pytest.fixture
def read(tmp_path: Path):
    path = tmp_path / "map.yaml"
    path.write_text(
        "dialect: groot\nrobot: arm\ncontrol_rate_hz: 30\naction_dim: 6\n"
        "state: [{key: state/single_arm, size: 5}, {key: state/gripper, size: 1}]\n"
        f"images: {{front: {{key: video/front}}}}\nprompt: language/{TASK}\n"
        "actions: [{key: single_arm, size: 5}, {key: gripper, size: 1}]\n"
    )
    return read_map(path)


def observation(**changes) -> dict:
    seen = {
        "video": {"front": FRONT},
        "state": {"single_arm": JOINTS, "gripper": GRIPPER},
        "language": {TASK: [["pick"], ["place"]]},
    }
    return {key: seen[key] | changes.get(key, {}) for key in seen}


def flat() -> dict:
    return {
        "video.front": FRONT,
        "state.single_arm": JOINTS,
        "state.gripper": GRIPPER,
        TASK: ["pick", "place"],
    }


@pytest.mark.parametrize("seen", [observation(), flat()])
def test_each_robot_gets_what_it_saw_last(read, seen):
    rows = rows_of(seen, read)
    assert rows.flat is ("video.front" in seen)
    assert len(rows.robots) == 2
    for n, row in enumerate(rows.robots):
        assert (row["video/front"] == FRONT[n, 1]).all()
        assert (row["state/single_arm"] == JOINTS[n, 1]).all()
        assert row["state/gripper"].tolist() == [2 * n + 1]
        assert row[f"language/{TASK}"] == ("pick", "place")[n]


def test_what_clients_of_n1_5_send_is_of_one_robot(read):
    sent = {key: value[0] for key, value in flat().items() if key != TASK} | {TASK: ["pick"]}
    (row,) = rows_of(one_robot(sent), read).robots
    assert (row["video/front"] == FRONT[0, 1]).all()
    assert row[f"language/{TASK}"] == "pick"


def test_keys_that_the_map_does_not_name_are_kept_without_their_values(read):
    seen = observation(state={"eef": "anything"}) | {"audio": {"mic": 7}}
    row = rows_of(seen, read).robots[1]
    assert (row["state/eef"], row["audio/mic"]) == (None, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"video": {"front": FRONT[0]}}, "'video/front' is [2, 4, 6, 3]; it must be [robots, obs"),
        ({"state": {"gripper": GRIPPER[0]}}, "'state/gripper' is [2, 1]; it must be [robots, obs"),
        ({"state": {"gripper": [0.5]}}, "'state/gripper' is list"),
        ({"state": {"gripper": GRIPPER[:1]}}, "'state/gripper' is of 1 robots, 'state/single_arm'"),
        ({"state": {"gripper": GRIPPER[:, :0]}}, "'state/gripper' is [2, 0, 1]"),
        ({"language": {TASK: [["pick"]]}}, "is of 1 robots, 'state/single_arm' of 2"),
        ({"language": {TASK: "pick"}}, "must be a list with a text per robot"),
    ],
)
def test_an_observation_that_is_not_of_its_robots_is_refused_with_its_key(read, changes, said):
    with pytest.raises(WireError) as refused:
        rows_of(observation(**changes), read)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (None, "the observation is NoneType"),
        ({7: 1}, "keys must be text"),
        ({"state": {"single_arm": JOINTS[:0]}}, "'state/single_arm' is of no robot"),
    ],
)
def test_what_is_no_observation_is_refused(read, seen, said):
    with pytest.raises(WireError) as refused:
        rows_of(seen, read)
    assert said in str(refused.value)


def test_actions_are_split_up_and_as_many_as_the_shortest_chunk_has(read):
    long = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)
    actions = actions_of([long, long[:3] + 100], read, flat=False)
    assert list(actions) == ["single_arm", "gripper"]
    assert actions["single_arm"].shape == (2, 3, 5)
    assert actions["gripper"].tolist() == [[[5], [11], [17]], [[105], [111], [117]]]
    assert list(actions_of([long], read, flat=True)) == ["action.single_arm", "action.gripper"]


def test_the_modality_config_tells_what_to_send_and_what_comes(read):
    told = modality_config(read, 16)
    keys = {kind: one["as_json"]["modality_keys"] for kind, one in told.items()}
    assert keys == {
        "video": ["front"],
        "state": ["single_arm", "gripper"],
        "action": ["single_arm", "gripper"],
        "language": [TASK],
    }
    assert told["video"]["as_json"]["delta_indices"] == [0]
    assert told["action"]["as_json"]["delta_indices"] == list(range(16))
    assert told["state"]["as_dict"] == told["state"]["as_json"]
