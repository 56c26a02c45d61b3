"""Policies of the simulated arms: what they learn from, and that the shipped ones do their task."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("mujoco")

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.evaluate_arm import evaluate_arm_command
from kairos_ros.lab.training.arm.card import write_card, write_evaluation
from kairos_ros.lab.training.arm.demonstrations import begin, record_episode, record_reach
from kairos_ros.lab.training.arm.senses import Senses
from kairos_ros.lab.training.arm.trial import try_expert, try_policy
from kairos_ros.lab.training.demonstrations import HELD_OUT_SEED
from kairos_ros.lab.training.rollout import PolicyUnderTest
from kairos_ros.lab.training.subject import METAWORLD, subject_of
from kairos_ros.lab.training.train import TrainSettings, new_policy
from kairos_ros.lab.world.driver import SimulatedDriver
from kairos_ros.lab.world.reach import done, state, state_names
from kairos_ros.robot.description.arm import ARMS, arm_called

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[3] / "models"
HELD_OUT = range(HELD_OUT_SEED, HELD_OUT_SEED + 8)


def test_replayed_demonstrations_touch_the_ball_again():
    driver = SimulatedDriver(arm_called("so101"))
    states, actions = record_episode(driver, 3)
    begin(driver, 3)
    for step, (seen, action) in enumerate(zip(states, actions, strict=True)):
        assert np.allclose(state(driver.world), seen, atol=1e-5), step
        driver.act(action.astype(np.float64), 30.0)
    assert done(driver.world)


def test_demonstrations_follow_to_the_end_of_their_episode_and_no_further():
    demos = record_reach("franka-reach", episodes=2, seed=1)
    ends = np.flatnonzero(demos.follows == 1)
    assert len(ends) == 2
    assert ends[-1] == len(demos.follows) - 1
    assert demos.state.shape == (len(demos.follows), len(state_names(arm_called("franka"))))
    assert demos.action.dtype == demos.state.dtype == np.float32


def test_an_arms_policy_reads_its_joints_and_balls_and_tells_all_joints():
    settings = TrainSettings(scenes=("bi_so101-reach",), width=16, blocks=1)
    config = new_policy(settings, "cpu").config
    assert config.robot_state_feature.shape == (12 + 6,)
    assert config.action_feature.shape == (12,)
    assert config.instructions == ["touch the ball"]


def test_tasks_of_two_bodies_are_not_learned_together():
    assert subject_of(["reach-v3", "push-v3"]) is METAWORLD
    with pytest.raises(ConfigError, match="not all done by one body"):
        subject_of(["reach-v3", "so101-reach"])
    with pytest.raises(ConfigError, match=r"unknown tasks \['fly'\].*franka-reach"):
        subject_of(["fly"])


def test_the_same_held_out_episodes_are_laid_out_for_everybody():
    arm = arm_called("so101")
    once, again = try_expert(arm, HELD_OUT), try_expert(arm, HELD_OUT)
    assert once == again
    assert once.successes == len(HELD_OUT)


@pytest.mark.parametrize("name", ARMS)
def test_the_shipped_policy_touches_held_out_balls(name):
    folder = MODELS / f"{name}_reach"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5e6
    *_, trial = try_policy(PolicyUnderTest(folder), Senses(arm_called(name), {}), HELD_OUT, 15)
    assert trial.successes >= 7, trial


def test_evaluation_says_what_it_needs(tmp_path):
    with pytest.raises(ConfigError, match="holds no policy of kairos train"):
        evaluate_arm_command("so101", policy=tmp_path)
    with pytest.raises(ConfigError, match="'10,x'; give whole numbers"):
        evaluate_arm_command("so101", policy=MODELS / "so101_reach", horizons="10,x")
    with pytest.raises(ConfigError, match="reads no cameras: --look shifted"):
        evaluate_arm_command("so101", policy=MODELS / "so101_reach", look="shifted")
    with pytest.raises(ConfigError, match="look 'dark' is unknown"):
        evaluate_arm_command("so101", policy=MODELS / "so101_reach", look="dark")


def test_a_card_says_what_was_measured(tmp_path):
    folder = shutil.copytree(MODELS / "so101_reach", tmp_path / "mine")
    arm = arm_called("so101")
    trial = try_expert(arm, HELD_OUT[:2])
    write_evaluation(folder, HELD_OUT_SEED, [trial])
    write_card(folder, arm)
    card = (folder / "README.md").read_text()
    assert "2 episodes from seed 1000000" in card
    assert f"| expert | 100 (34–100) | {trial.median_s:.1f} |" in card
    assert "kairos evaluate-arm so101 --episodes 2" in card
    training = json.loads((folder / "training.json").read_text())
    training["settings"] |= {"steps": None, "minutes": 3.0}
    (folder / "training.json").write_text(json.dumps(training))
    write_card(folder, arm)
    assert "--tasks so101-reach --minutes 3 " in (folder / "README.md").read_text()
    told = json.loads((folder / "evaluation.json").read_text())
    assert told["trials"][0]["successes"] == 2
