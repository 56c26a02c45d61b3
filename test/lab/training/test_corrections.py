"""The expert takes over in a fleet's recorded tasks, from states that the simulator repeats."""

import json
import shutil

import numpy as np
import pytest
from told_bag import Told

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy
from kairos_ros.lab.training.corrections import EVERY, FleetTask, corrections, fleet_tasks
from kairos_ros.lab.training.demonstrations import AFTER_SUCCESS
from kairos_ros.lab.training.train import TrainSettings, train
from kairos_ros.recording.datasets.export import Choice, export
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.sim import SimAdapter, metaworld_body

pytestmark = pytest.mark.slow

SCENE, SEED = "reach-v3", 7
ACTIONS = EVERY + 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A task of an arm that goes astray, with pauses: from its messages to the dataset."""
    folder = tmp_path_factory.mktemp("fleet")
    arm = SimAdapter(metaworld_body())
    arm.reset(TaskGoal("", SCENE, SEED))
    names = [f"state_{i}" for i in range(len(arm.state()))]
    told = Told(folder / "bag", state=names, action_dim=4)
    told.here()
    told.asks(1)
    for step in range(ACTIONS):
        for _ in range(3 if step in (0, 9) else 0):
            arm.hold()
            told.period(state=arm.state())
        action = np.array([0.5, -0.3, 0.2 * np.sin(step), 0.1], np.float32)
        told.period(action, 1, step, state=arm.state())
        arm.act(action)
    told.ends([ACTIONS], scene=SCENE, seed=SEED)
    arm.close()
    out = folder / "failed"
    export([told.close()], out, Choice(), "kairos/failed", print, lambda share: None)
    return out


def test_the_expert_shows_the_way_from_states_that_the_arm_had_come_to(dataset):
    (task,) = fleet_tasks(dataset)
    assert (task.scene, task.seed, len(task.action)) == (SCENE, SEED, ACTIONS)
    said = []
    shown = corrections([task], said.append)[SCENE]
    assert said == [
        "corrections: 1 of 1 tasks, 0 not repeated to their end; the expert solved 2 of 2 states"
    ]
    assert (shown.episodes, shown.attempts) == (2, 2)
    second = int(shown.follows[0])  # the whole first recovery is one target
    np.testing.assert_array_equal(shown.state[0], task.state[0])
    np.testing.assert_array_equal(shown.state[second], task.state[EVERY])
    assert shown.follows[-1] == 1
    assert min(second, len(shown.state) - second) > AFTER_SUCCESS
    assert np.abs(shown.action).max() <= 1.0


def test_a_task_that_the_simulator_does_not_repeat_is_left_there(dataset):
    (task,) = fleet_tasks(dataset)
    action = task.action.copy()
    action[3] += 0.1
    other = FleetTask(task.scene, task.seed, task.state, action, task.held)
    said = []
    shown = corrections([other], said.append)[SCENE]
    assert "1 not repeated to their end" in said[0]
    assert shown.attempts == 1


def test_a_damaged_dataset_is_refused_without_asking_anybody(dataset, tmp_path):
    def damaged(name: str, part: str, text: str | None):
        copy = tmp_path / name
        shutil.copytree(dataset, copy)
        (found,) = copy.glob(part)
        found.unlink() if text is None else found.write_text(text)
        return copy

    for name, part, text, said in [
        ("torn", "data/*/*.parquet", "torn", "is damaged .ArrowInvalid"),
        ("without", "data/*/*.parquet", None, "is damaged"),
        ("nothing", "meta/kairos_ros.json", "{}", "is damaged .KeyError 'episodes'"),
        ("no_json", "meta/kairos_ros.json", "{", "this is no JSON"),
    ]:
        with pytest.raises(ConfigError, match=said):
            fleet_tasks(damaged(name, part, text))


def test_training_goes_on_from_a_policy_with_what_the_expert_showed(dataset, tmp_path):
    shown = corrections(fleet_tasks(dataset), print)[SCENE]
    known = tmp_path / "work" / "demonstrations" / f"{SCENE}-2x-seed0.npz"
    known.parent.mkdir(parents=True)
    counts = {"counts": np.array([2, 2])}
    np.savez(known, state=shown.state, action=shown.action, follows=shown.follows, **counts)
    few = {"scenes": (SCENE,), "episodes": 2, "minutes": None, "steps": 1, "width": 16}
    train(TrainSettings(**few), out=tmp_path / "first", work=tmp_path / "work", device="cpu")
    more = TrainSettings(**few, start=str(tmp_path / "first"), failed=str(dataset), learning_rate=0)
    shutil.move(known.parent, tmp_path / "more" / "demonstrations")
    known_to = tmp_path / "more" / "demonstrations" / known.name
    train(more, out=tmp_path / "second", work=tmp_path / "more", device="cpu")
    one, two = (FlowMLPPolicy.from_pretrained(str(tmp_path / n)) for n in ("first", "second"))
    for before, after in zip(one.parameters(), two.parameters(), strict=True):
        np.testing.assert_array_equal(before.detach(), after.detach())
    told = json.loads((tmp_path / "second" / "training.json").read_text())
    assert told["demonstrations"][SCENE]["steps"] == 2 * len(shown.state)
    nowhere = TrainSettings(**few, failed=str(tmp_path))
    with pytest.raises(ConfigError, match="is no dataset of kairos bag export"):
        train(nowhere, out=tmp_path / "third", work=tmp_path / "fresh", device="cpu")
    assert not (tmp_path / "fresh" / "demonstrations").exists()  # it is said before they are made
    strange = TrainSettings(**few | {"scenes": ("push-v3",)}, start=str(tmp_path / "first"))
    np.savez(tmp_path / "more" / "demonstrations" / "push-v3-2x-seed0.npz", **np.load(known_to))
    with pytest.raises(ConfigError, match="does not know the instructions"):
        train(strange, out=tmp_path / "third", work=tmp_path / "more", device="cpu")
