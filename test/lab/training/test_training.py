"""Training: consistent labels, a seeded run that survives interruption, a folder LeRobot loads."""

import numpy as np
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("metaworld")

import torch
from safetensors.torch import load_file

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import Static
from kairos_ros.lab.training.dataset import ChunkDataset
from kairos_ros.lab.training.demonstrations import (
    HELD_OUT_SEED,
    Demonstrations,
    follow_lengths,
    record_episode,
    record_scene,
)
from kairos_ros.lab.training.rollout import Chunks, PolicyUnderTest, run_episodes
from kairos_ros.lab.training.train import TrainSettings, train
from kairos_ros.robot.adapters.sim.metaworld_scenes import (
    SCENES,
    make_scene,
    policy_state,
    reset_scene,
)
from kairos_ros.robot.adapters.sim.sim import SimAdapter

pytestmark = pytest.mark.slow

SMALL = TrainSettings(
    scenes=("reach-v3",), episodes=3, minutes=None, steps=600, batch_size=64, width=64, blocks=2
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    lines = []
    train(SMALL, out=folder / "policy", work=folder, device="cpu", report=lines.append)
    return folder, lines


def test_a_chunk_is_followed_until_the_next_disturbance():
    touched = np.array([False, False, True, True, False, False, False])
    np.testing.assert_array_equal(follow_lengths(touched), [3, 2, 1, 1, 3, 2, 1])


def test_labels_replayed_from_the_start_reproduce_the_recorded_states():
    scene = "drawer-open-v3"
    env = make_scene(scene)
    seed = next(s for s in range(100) if record_episode(env, scene, s)[2][0] > 20)
    state, action, follows = record_episode(env, scene, seed)
    obs = reset_scene(env, seed)
    for t in range(follows[0]):
        np.testing.assert_array_equal(policy_state(obs), state[t])
        obs, *_ = env.step(action[t])
    assert not np.array_equal(policy_state(obs), state[follows[0]])  # the disturbance


def test_demonstrations_succeed_on_seeds_that_evaluation_never_uses():
    demos = record_scene("reach-v3", episodes=2, seed=123)
    assert demos.episodes == 2
    assert np.abs(demos.action).max() <= 1
    assert (123 * 10_007) % (HELD_OUT_SEED // 2) + demos.attempts < HELD_OUT_SEED


def test_batches_mask_what_a_disturbance_made_unforeseeable():
    steps = 60
    demos = Demonstrations(
        state=np.arange(steps, dtype=np.float32)[:, None],
        action=np.arange(steps, dtype=np.float32)[:, None],
        follows=np.arange(steps, 0, -1),
        episodes=1,
        attempts=1,
    )
    batch = ChunkDataset({"reach-v3": demos}, chunk_size=50).batch(256)
    start = batch["observation.state"][:, 0]
    assert batch["task"][0] == SCENES["reach-v3"]
    for row in range(256):
        valid = ~batch["action_is_pad"][row]
        assert valid.sum() == min(50, steps - start[row])
        wanted = start[row] + torch.arange(50)
        assert torch.equal(batch["action"][row, :, 0][valid], wanted[valid])


def test_a_run_reports_progress_and_learns(trained):
    _, lines = trained
    losses = [float(line.split("loss")[1].split()[0]) for line in lines if "loss" in line]
    assert len(losses) == 3
    assert losses[-1] < 0.8 * losses[0]


def test_an_interrupted_run_resumes_and_ends_with_the_same_weights(trained, tmp_path):
    whole, _ = trained
    (tmp_path / "demonstrations").symlink_to(whole / "demonstrations")

    lines = []
    policy = tmp_path / "policy"

    def interrupt_at_200(line):
        lines.append(line)
        if line.startswith("policy: step 200 "):
            raise KeyboardInterrupt

    def once():
        return train(SMALL, out=policy, work=tmp_path, device="cpu", report=interrupt_at_200)

    assert once().step == 200
    measured = [policy / name for name in ("horizon_calibration.json", "evaluation.json")]
    for path in measured:
        path.write_text("{}")
    assert once().step == 600
    assert not any(path.exists() for path in measured)  # of other weights
    assert not any("nan" in line for line in lines)
    ours = load_file(tmp_path / "policy" / "model.safetensors")
    theirs = load_file(whole / "policy" / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_is_not_resumed_with_other_settings(trained):
    whole, _ = trained
    other = TrainSettings(**{**{f: getattr(SMALL, f) for f in SMALL.__slots__}, "width": 32})
    with pytest.raises(ConfigError, match="other settings"):
        train(other, out=whole / "policy", work=whole, device="cpu", report=lambda _: None)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"steps": None}, "exactly one"),
        ({"minutes": 3.0}, "exactly one"),
        ({"scenes": ("make-coffee",)}, "make-coffee"),
        ({"scenes": ()}, "choose from"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, complaint):
    settings = {f: getattr(SMALL, f) for f in SMALL.__slots__}
    with pytest.raises(ConfigError, match=complaint):
        TrainSettings(**{**settings, **change})


def test_an_arms_chunk_depends_on_its_own_state_and_seed_alone(trained):
    folder, _ = trained
    policy = PolicyUnderTest(folder / "policy")
    states = np.random.default_rng(0).normal(size=(5, 39)).astype(np.float32)
    seeds = range(5)
    together = policy(states, SCENES["reach-v3"], seeds)
    alone = policy(states[2:3], SCENES["reach-v3"], seeds[2:3])
    np.testing.assert_allclose(together.actions[2], alone.actions[0], atol=1e-5)
    np.testing.assert_allclose(together.updates[:, 2], alone.updates[:, 0], atol=1e-5)


def test_episodes_count_the_rounds_and_actions_of_their_horizon(trained):
    folder, _ = trained
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + 3)
    arms = [SimAdapter() for _ in range(2)]
    results = run_episodes(PolicyUnderTest(folder / "policy"), "reach-v3", seeds, Static(25), arms)
    assert [r.seed for r in results] == list(seeds)
    assert [r.rounds for r in results] == [-(-r.actions // 25) for r in results]
    assert all(r.success or r.actions == 500 for r in results)


def test_an_arm_that_plans_while_it_moves_skips_what_it_executed_meanwhile():
    """Horizon 10, lead 2: rounds execute 8 actions, the first one too, as 2 are left to overlap."""
    asked, told = [], []

    class Policy:
        def __call__(self, states, instruction, seeds, committed):
            asked.append(states.copy())
            told.extend(
                np.round(actions[:, 0] * 50).tolist() for actions in committed if len(actions)
            )
            chunk = np.zeros((len(states), 50, 4), np.float32)
            chunk[:, :, 0] = np.arange(50) / 50  # the row tells the index
            return Chunks(np.zeros((2, len(states), 50, 4), np.float32), chunk, chunk)

    moved = []

    class Body(SimAdapter):
        def act(self, action):
            moved.append(round(float(action[0]) * 50))
            super().act(action)

        def succeeded(self):
            return len(moved) >= 24

    run_episodes(Policy(), "reach-v3", [1], Static(10), [Body()], lead=2)
    assert moved == [*range(8), 8, 9, *range(2, 8), 8, 9, *range(2, 8)]
    assert len(asked) == 3
    assert told == [[8, 9], [8, 9]]  # what is executed before each later chunk
