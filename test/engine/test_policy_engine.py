"""What every policy family promises once it is an engine."""

import dataclasses

import numpy as np
import pytest
import torch
from observations import jpeg, observation, options
from tiny_policies import ACTION_DIM, CAMERA, INSTRUCTIONS, SIZE, STATE_DIM, small_pi

from kairos_ros.core.errors import ConfigError, PolicyError, RefusalCode
from kairos_ros.engine.noise import row_generators, row_noise
from kairos_ros.engine.policy import load_policy
from kairos_ros.engine.policy_engine import load_policy_engine
from kairos_ros.engine.seam import Engine, EngineLostError
from kairos_ros.transport.messages import InferResult

CHUNK, STEPS = 12, 6
ROBOT_UNITS = 4.0
"""At most so many units of the robot make one of the model's (see tiny_policies.statistics)."""


def silent(_stage):
    pass


def test_an_engine_describes_its_policy(engine_of, kind):
    engine = engine_of(kind)
    described = engine.description
    assert isinstance(engine, Engine)
    assert described.policy_id.startswith(f"{described.policy_type}-")
    assert described.images == ({} if kind == "flow_mlp" else {CAMERA: SIZE})
    assert (described.state_dim, described.action_dim) == (STATE_DIM, ACTION_DIM)
    assert (described.chunk_size, described.steps) == (CHUNK, STEPS)
    assert described.instructions == (tuple(INSTRUCTIONS) if kind == "flow_mlp" else None)
    assert (described.device, described.dtype, described.max_batch) == ("cpu", "float32", 4)


def test_an_engine_knows_how_long_its_batches_take_and_how_large_its_actions_are(engine_of, kind):
    described = engine_of(kind).description
    assert [batch for batch, _ in described.warmup] == [1, 2, 4]
    assert all(0 < seconds < 60 for _, seconds in described.warmup)
    unit = ROBOT_UNITS if kind in ("diffusion", "ddpm", "pi05") else ROBOT_UNITS / 2
    np.testing.assert_allclose(described.action_scale, [unit] * ACTION_DIM, rtol=1e-5)


@pytest.mark.parametrize("changed", ["state", "image", "instruction", "seed"])
def test_a_chunk_depends_on_all_that_the_robot_sends(engine_of, kind, changed):
    if changed == "image" and kind == "flow_mlp":
        pytest.skip("a state policy")
    if changed == "instruction" and kind in ("diffusion", "ddpm"):
        pytest.skip("a policy that reads no text")
    other = {
        "state": {"state": np.ones(STATE_DIM, np.float32)},
        "image": {"images": {CAMERA: jpeg(np.random.default_rng(99), SIZE)}},
        "instruction": {"instruction": INSTRUCTIONS[1]},
        "seed": {"seed": 2**64 - 1},
    }[changed]
    a, b = engine_of(kind).infer([observation(0), observation(0, **other)])
    assert np.abs(a.chunk - b.chunk).max() > 1e-2  # batch-mates move it by less than 2e-4


def test_a_truncated_image_fails_alone(engine_of, kind):
    if kind == "flow_mlp":
        pytest.skip("a state policy")
    whole = observation(1).images[CAMERA]
    good, bad = engine_of(kind).infer(
        [observation(0), observation(1, images={CAMERA: whole[:-200]})]
    )
    assert isinstance(good, InferResult)
    assert bad.code is RefusalCode.BAD_IMAGE


def test_an_instruction_outside_the_closed_set_is_refused_with_the_set(engine_of):
    (refused,) = engine_of("flow_mlp").infer([observation(0, instruction="make tea")])
    assert refused.code is RefusalCode.UNKNOWN_INSTRUCTION
    assert INSTRUCTIONS[0] in refused.reason


def untapped(engine_of, folder_of, kind, numbers):
    """What LeRobot computes for these robots without us: normalised actions and their noise."""
    engine = engine_of(kind)
    with small_pi():
        loaded = load_policy(options(folder_of(kind)), silent)
    rows = [engine._prepare(observation(number)) for number in numbers]
    batch = loaded.preprocess(engine._batch(rows))
    if kind == "diffusion":
        for key in ("observation.state", CAMERA):
            batch[key] = torch.stack([batch[key]] * 2, dim=1)
    shape = engine._sampler._noise_shape
    seeds = [row.request.seed for row in rows]
    noise = row_noise(row_generators(seeds), shape, torch.device("cpu"))
    return loaded, loaded.policy.predict_action_chunk(batch, noise=noise), noise


def test_the_tap_does_not_change_a_single_bit(engine_of, folder_of, kind):
    if kind == "ddpm":
        pytest.skip("LeRobot's DDPM draws from the global generator: there is nothing to equal")
    loaded, actions, _ = untapped(engine_of, folder_of, kind, range(3))
    expected = loaded.postprocess(actions).numpy()
    outcomes = engine_of(kind).infer([observation(number) for number in range(3)])
    assert np.array_equal([outcome.chunk for outcome in outcomes], expected)


def test_noise_plus_all_updates_is_the_chunk(engine_of, folder_of, kind):
    if kind == "ddpm":
        pytest.skip("as above")
    _, actions, noise = untapped(engine_of, folder_of, kind, range(3))
    first = 1 if kind == "diffusion" else 0  # of two observation steps the second is now
    noise = noise[:, first : first + CHUNK, :ACTION_DIM].numpy()
    outcomes = engine_of(kind).infer([observation(number) for number in range(3)])
    moved = np.array([outcome.updates.sum(axis=0) for outcome in outcomes])
    np.testing.assert_allclose(noise + moved, actions.numpy(), atol=1e-5)


def test_ddpm_steps_draw_from_the_row_and_not_from_the_global_generator(engine_of):
    engine = engine_of("ddpm")
    torch.manual_seed(1)
    (first,) = engine.infer([observation(0)])
    torch.manual_seed(2)
    (second,) = engine.infer([observation(0)])
    assert np.array_equal(first.chunk, second.chunk)


def test_an_observation_that_breaks_the_policy_fails_alone(engine_of):
    engine = engine_of("smolvla")
    poison = observation(1, instruction="\ud800")  # a lone surrogate: no tokenizer takes it
    good, failed = engine.infer([observation(0), poison])
    assert isinstance(good, InferResult)
    assert failed.code is RefusalCode.ENGINE_FAILED


def test_a_row_that_overflows_fails_alone(engine_of):
    huge = np.full(STATE_DIM, 3e38, np.float32)
    good, failed = engine_of("flow_mlp").infer([observation(0), observation(1, state=huge)])
    assert isinstance(good, InferResult)
    assert failed.code is RefusalCode.ENGINE_FAILED
    assert "NaN or infinity" in failed.reason


def test_a_lost_device_is_not_blamed_on_an_observation(folder_of, monkeypatch):
    engine = load_policy_engine(options(folder_of("flow_mlp")), silent)

    def lost(*_args, **_kwargs):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(engine._sampler, "sample", lost)
    with pytest.raises(EngineLostError, match="device-side assert"):
        engine.infer([observation(0)])


def test_bfloat16_is_used_when_asked_for(folder_of, engine_of, kind):
    with small_pi():
        asked = options(folder_of(kind), dtype="bfloat16", max_batch=2)
        engine = load_policy_engine(asked, silent)
    assert engine.description.dtype == "bfloat16"
    (rough,) = engine.infer([observation(0)])
    (exact,) = engine_of(kind).infer([observation(0)])
    assert not np.array_equal(rough.chunk, exact.chunk)
    error = np.linalg.norm(rough.chunk - exact.chunk) / np.linalg.norm(exact.chunk)
    assert error < 0.25  # random weights; another sample would be about 1 away


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"device": "cuda:99"}, ConfigError),
        ({"device": "gpu"}, ConfigError),
        ({"dtype": "float8"}, ConfigError),
        ({"tokenizer": "some/tokenizer"}, ConfigError),
        ({"policy": "nobody/nothing"}, PolicyError),
        ({"policy": "no such folder"}, PolicyError),
    ],
)
def test_wrong_options_are_refused(folder_of, changes, error):
    with pytest.raises(error):
        load_policy_engine(dataclasses.replace(options(folder_of("flow_mlp")), **changes), silent)


def test_a_policy_that_does_not_refine_its_actions_is_refused(folder_of):
    with pytest.raises(PolicyError, match="policies of type 'act' have no update tap"):
        load_policy_engine(options(folder_of("act")), silent)


def test_progress_is_reported(folder_of):
    stages = []
    load_policy_engine(options(folder_of("flow_mlp")), stages.append)
    assert "verifying weights" in stages
    assert "warming up: batch 4 of 4" in stages
