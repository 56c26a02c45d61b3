"""What every policy family promises once it is an engine."""

import dataclasses
import time

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.policies.vla_jepa.modeling_vla_jepa import VLAJEPAPolicy
from observations import jpeg, observation, observed, options
from tiny_policies import (
    ACTION_DIM,
    CAMERA,
    CHUNK,
    INSTRUCTIONS,
    SIZE,
    STATE_DIM,
    TINY,
    WRIST,
    save_policy,
)

from kairos_ros.core.errors import ConfigError, PolicyError, RefusalCode
from kairos_ros.engine.interface import Engine, EngineLostError
from kairos_ros.engine.policies.families import euler
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.policy_engine import load_policy_engine
from kairos_ros.engine.policies.sampler import RowDraws, row_generators, row_noise
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.transport.messages import InferResult

pytestmark = pytest.mark.slow

ROBOT_UNITS = 4.0
"""At most so many units of the robot make one of the model's (see tiny_policies.statistics)."""


def silent(_stage):
    pass


def test_an_engine_describes_its_policy(engine_of, kind):
    engine = engine_of(kind)
    described = engine.description
    assert isinstance(engine, Engine)
    assert described.policy_id.startswith(f"{described.policy_type}-")
    tiny = TINY[kind]
    assert described.images == dict.fromkeys(tiny.cameras, SIZE)
    assert (described.state_dim, described.action_dim) == (STATE_DIM, ACTION_DIM)
    assert (described.chunk_size, described.steps) == (tiny.chunk, tiny.steps)
    assert described.instructions == tiny.instructions
    assert (described.device, described.dtype) == ("cpu", tiny.dtypes[0])
    assert described.max_batch == tiny.largest_batch
    assert described.memory_mib > 100, "of this process, with torch in it"


def test_an_engine_knows_how_long_its_batches_take_and_how_large_its_actions_are(engine_of, kind):
    described = engine_of(kind).description
    warm = [batch for batch in (1, 2, 4) if batch <= TINY[kind].largest_batch]
    measured = [batch for batch, _ in described.warmup]
    assert measured
    assert measured == warm[: len(measured)], "a busy machine leaves larger ones out"
    assert all(0 < seconds < 60 for _, seconds in described.warmup)
    np.testing.assert_allclose(described.action_scale, [TINY[kind].unit] * ACTION_DIM, rtol=1e-5)


@pytest.mark.parametrize("changed", ["state", "image", "wrist", "instruction", "seed"])
def test_a_chunk_depends_on_all_that_the_robot_sends(engine_of, kind, changed):
    tiny = TINY[kind]
    if changed == "state" and not tiny.reads_state:
        pytest.skip("a policy that reads no state")
    if changed == "image" and not tiny.cameras:
        pytest.skip("a state policy")
    if changed == "wrist" and WRIST not in tiny.cameras:
        pytest.skip("a policy with one camera")
    if changed == "instruction" and not tiny.reads_text:
        pytest.skip("a policy that reads no text")
    if changed == "seed" and not tiny.draws:
        pytest.skip("a policy that draws nothing")
    images = observation(0).images
    other = {
        "state": {"state": np.ones(STATE_DIM, np.float32)},
        "image": {"images": images | {CAMERA: jpeg(np.random.default_rng(99), SIZE)}},
        "wrist": {"images": images | {WRIST: jpeg(np.random.default_rng(99), SIZE)}},
        "instruction": {"instruction": INSTRUCTIONS[1]},
        "seed": {"seed": 2**64 - 1},
    }[changed]
    a, b = engine_of(kind).infer([observation(0), observation(0, **other)])
    assert np.abs(a.chunk - b.chunk).max() > 1e-2  # batch-mates move it by less than 2e-4


def test_a_truncated_image_fails_alone(engine_of, kind):
    if not TINY[kind].cameras:
        pytest.skip("a state policy")
    images = observation(1).images
    images[CAMERA] = images[CAMERA][:-200]
    good, bad = engine_of(kind).infer([observation(0), observation(1, images=images)])
    assert isinstance(good, InferResult)
    assert bad.code is RefusalCode.BAD_IMAGE


def test_an_instruction_outside_the_closed_set_is_refused_with_the_set(engine_of):
    (refused,) = engine_of("flow_mlp").infer([observation(0, instruction="make tea")])
    assert refused.code is RefusalCode.UNKNOWN_INSTRUCTION
    assert INSTRUCTIONS[0] in refused.reason


@dataclasses.dataclass
class Untapped:
    """What LeRobot computes without us for robots 0, 1 and 2, and what the engine answers them."""

    chunks: np.ndarray
    """LeRobot's, in robot units."""
    actions: np.ndarray
    """The same, normalised."""
    noise: np.ndarray | None
    """That they begin with."""
    outcomes: list[InferResult]


@pytest.fixture
def untapped(engine_of, folder_of, kind) -> Untapped:
    engine, tiny = engine_of(kind), TINY[kind]
    if not tiny.lerobot:
        pytest.skip("LeRobot cannot be told its noise: there is nothing to equal")
    with tiny.loaded():
        loaded = load_policy(options(folder_of(kind)), silent)
    robots = [observation(number) for number in range(3)]
    actions, noises, outcomes = [], [], []
    for together in [[robot] for robot in robots] if tiny.seeded else [robots]:
        batch = loaded.preprocess(observed(engine, together))
        noise = None
        if tiny.noise_shape:
            generators = row_generators([robot.seed for robot in together])
            if tiny.uniform:
                drawn = [torch.rand(tiny.noise_shape, generator=row) for row in generators]
                noise = 2 * torch.stack(drawn) - 1
            else:
                noise = row_noise(generators, tiny.noise_shape, torch.device("cpu"))
            noises.append(noise)
        torch.manual_seed(together[0].seed)
        actions.append(tiny.lerobot(loaded.policy, batch, None if tiny.seeded else noise))
        outcomes += engine.infer(together)
    chunks = torch.cat([loaded.postprocess(rows) for rows in actions]).numpy()
    begun = torch.cat(noises).numpy() if noises else None
    return Untapped(chunks, torch.cat(actions).numpy(), begun, outcomes)


def test_the_tap_does_not_change_a_single_bit(untapped):
    assert np.array_equal([outcome.chunk for outcome in untapped.outcomes], untapped.chunks)


def test_noise_plus_all_updates_is_the_chunk(request, kind):
    if not TINY[kind].sums:
        pytest.skip("a policy without noise, or with noise at every step or of pictures")
    untapped = request.getfixturevalue("untapped")
    first = TINY[kind].first
    noise = untapped.noise[:, first : first + CHUNK, :ACTION_DIM]
    moved = np.array([outcome.updates.sum(axis=0) for outcome in untapped.outcomes])
    actions = untapped.actions[..., :ACTION_DIM]  # a postprocessor may cut padding off
    np.testing.assert_allclose(noise + moved, actions, atol=1e-5)


def test_noise_is_the_robots_and_not_the_global_generators(engine_of, kind):
    engine = engine_of(kind)
    torch.manual_seed(1)
    (first,) = engine.infer([observation(0)])
    torch.manual_seed(2)
    (second,) = engine.infer([observation(0)])
    assert np.array_equal(first.chunk, second.chunk)


def test_noise_that_is_not_one_row_per_robot_is_not_shared_out():
    with pytest.raises(PolicyError, match=r"draws noise \[1, 4\] for 2 robots"), RowDraws([1, 2]):
        torch.randn((1, 4))
    with pytest.raises(PolicyError, match="draws 3 times for 2 robots"), RowDraws([1, 2]):
        torch.multinomial(torch.ones(3, 4), 1)


def test_a_policy_that_is_saved_and_loaded_again_gives_the_same_chunk(
    engine_of, folder_of, type_kind, tmp_path
):
    with TINY[type_kind].loaded():
        loaded = load_policy(options(folder_of(type_kind)), silent)
        for part in (loaded.policy, loaded.preprocess, loaded.postprocess):
            part.save_pretrained(tmp_path)
        again = load_policy_engine(options(tmp_path, max_batch=1), silent)
    (expected,) = engine_of(type_kind).infer([observation(0)])
    (outcome,) = again.infer([observation(0)])
    assert np.array_equal(outcome.chunk, expected.chunk)
    assert np.array_equal(outcome.updates, expected.updates)


def test_robots_with_prompts_of_different_lengths_are_one_pass(engine_of, kind, monkeypatch):
    engine, tiny = engine_of(kind), TINY[kind]
    if engine.description.max_batch == 1:
        pytest.skip("a policy that takes one robot at a time")
    prompts = tiny.instructions or ("go", "open the drawer", "close the drawer, then wait there")
    robots = [observation(n, instruction=prompts[n % len(prompts)]) for n in range(4)]
    alone = [engine.infer([robot])[0] for robot in robots]
    sample, batches = engine._sampler.sample, []

    def counted(batch, seeds):
        batches.append(len(seeds))
        return sample(batch, seeds)

    monkeypatch.setattr(engine._sampler, "sample", counted)
    for one, outcome in zip(alone, engine.infer(robots), strict=True):
        np.testing.assert_allclose(outcome.chunk, one.chunk, atol=5e-5 * ROBOT_UNITS)
    assert batches == [4]


def test_grippers_of_xvla_move_from_0_to_what_is_commanded_over_all_steps(tmp_path):
    """X-VLA masks them in what it reads, and a sigmoid makes 0..1 of what it predicts."""
    features = {"action": PolicyFeature(FeatureType.ACTION, (14,))}
    changes = {"action_mode": "joint", "output_features": features, "max_state_dim": 16}
    engine = load_policy_engine(options(save_policy("xvla", tmp_path, **changes)), silent)
    (outcome,) = engine.infer([observation(0)])
    grippers = outcome.chunk[:, [6, 13]]
    assert ((grippers > 0) & (grippers < 1)).all()
    updates = outcome.updates[:, :, [6, 13]]
    np.testing.assert_allclose(updates.sum(axis=0), grippers, atol=1e-5)
    assert (np.abs(updates[-1]) < 0.5 * grippers).all()
    noise = row_noise(row_generators([observation(0).seed]), (CHUNK, 14), torch.device("cpu"))
    joints = noise[0].numpy() + outcome.updates.sum(axis=0)
    np.testing.assert_allclose(joints[:, :6], outcome.chunk[:, :6], atol=1e-5)


def test_act_that_ensembles_gives_its_whole_chunk_and_forgets_it(tmp_path, engine_of):
    """Temporal ensembling blends chunks over time: an engine serves many robots, and has none."""
    changes = {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}
    engine = load_policy_engine(options(save_policy("act", tmp_path, **changes)), silent)
    first = engine.infer([observation(0), observation(1)])
    again = engine.infer([observation(0), observation(1)])
    plain = engine_of("act").infer([observation(0), observation(1)])
    for a, b, c in zip(first, again, plain, strict=True):
        assert np.array_equal(a.chunk, b.chunk)
        assert np.array_equal(a.chunk, c.chunk)  # the same weights without ensembling


def test_vla_jepa_without_its_world_model_says_in_bfloat16_what_lerobot_says_with_it(folder_of):
    engine = load_policy_engine(options(folder_of("vla_jepa"), dtype="bfloat16"), silent)
    config = PreTrainedConfig.from_pretrained(folder_of("vla_jepa"))
    config.torch_dtype = "bfloat16"
    lerobot = VLAJEPAPolicy.from_pretrained(folder_of("vla_jepa"), config=config).eval()
    assert lerobot.model.video_predictor is not None
    robot = observation(0)
    batch = engine._loaded.preprocess(observed(engine, [robot]))
    torch.manual_seed(robot.seed)
    chunk = engine._loaded.postprocess(lerobot.predict_action_chunk(batch))
    assert np.array_equal(engine.infer([robot])[0].chunk, chunk[0].numpy())


def test_tokens_of_pi0_fast_that_are_no_actions_are_not_taken_for_actions_of_zero(engine_of):
    decode = engine_of("pi0_fast")._sampler._policy.decode_actions_with_fast
    shape = {"time_horizon": CHUNK, "action_dim": ACTION_DIM}
    action = torch.tensor([0, 259])
    assert np.isfinite(decode([action], **shape)).all()
    for other in ([], [0, -1], [260]):
        with pytest.raises(PolicyError, match="not valid actions"):
            decode([action, torch.tensor(other)], **shape)


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


def test_the_next_batch_is_copied_to_the_device_before_it_is_its_turn(engine_of, monkeypatch):
    engine, requests = engine_of("act"), [observation(0), observation(1)]
    expected = engine.infer(requests)
    prepared = engine.prepare(requests)
    monkeypatch.setattr(engine, "_copied", None)
    for outcome, same in zip(prepared(), expected, strict=True):
        assert np.array_equal(outcome.chunk, same.chunk)


def test_a_batch_that_cannot_be_copied_ahead_is_copied_when_it_is_its_turn(engine_of, monkeypatch):
    engine, requests = engine_of("act"), [observation(0), observation(1)]
    expected, copied, full = engine.infer(requests), engine._copied, [True]

    def copy(rows):
        if full and full.pop():
            raise torch.OutOfMemoryError("no room beside the running batch")
        return copied(rows)

    monkeypatch.setattr(engine, "_copied", copy)
    for outcome, same in zip(engine.infer(requests), expected, strict=True):
        assert np.array_equal(outcome.chunk, same.chunk)
    assert not full


def test_a_lost_device_is_not_blamed_on_an_observation(folder_of, monkeypatch):
    engine = load_policy_engine(options(folder_of("flow_mlp")), silent)

    def lost(*_args, **_kwargs):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(engine._sampler, "sample", lost)
    with pytest.raises(EngineLostError, match="device-side assert"):
        engine.infer([observation(0)])


def test_bfloat16_is_used_when_asked_for(folder_of, engine_of, kind):
    if len(TINY[kind].dtypes) < 2:
        pytest.skip("a policy that computes in one dtype")
    with TINY[kind].loaded():
        asked = options(folder_of(kind), dtype="bfloat16", max_batch=2)
        engine = load_policy_engine(asked, silent)
    assert engine.description.dtype == "bfloat16"
    if TINY[kind].writes:
        pytest.skip("a policy that writes tokens, the same ones or quite others")
    (rough,) = engine.infer([observation(0)])
    (exact,) = engine_of(kind).infer([observation(0)])
    assert not np.array_equal(rough.chunk, exact.chunk)
    error = np.linalg.norm(rough.chunk - exact.chunk) / np.linalg.norm(exact.chunk)
    assert error < 0.25  # random weights; another sample would be about 1 away


@pytest.mark.parametrize("kind", [kind for kind in TINY if len(TINY[kind].dtypes) < 2])
def test_a_dtype_that_a_policy_does_not_compute_in_is_refused_with_the_one_that_it_does(
    folder_of, kind
):
    (only,) = TINY[kind].dtypes
    (other,) = {"float32", "bfloat16"} - {only}
    with TINY[kind].loaded(), pytest.raises((PolicyError, ConfigError), match=f"{other}.*{only}"):
        load_policy_engine(options(folder_of(kind), dtype=other), silent)


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


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [(lambda rows: 0.4 * rows**2, [1, 2]), (lambda rows: 0.3, [1, 2, 4, 8, 16])],
)
def test_batches_that_bring_nothing_are_not_warmed_up(folder_of, monkeypatch, seconds, sizes):
    """A policy that takes longer per robot in a batch would be warmed up for minutes."""
    code = euler.CODE

    def slow(policy):
        sampler = code.sampler(policy)
        sample = sampler.sample

        def slept(batch, seeds):
            time.sleep(seconds(len(seeds)))
            return sample(batch, seeds)

        sampler.sample = slept
        return sampler

    monkeypatch.setattr(euler, "CODE", dataclasses.replace(code, sampler=slow))
    start = time.monotonic()
    engine = load_policy_engine(options(folder_of("flow_mlp"), max_batch=16), silent)
    assert time.monotonic() - start < 20
    assert [batch for batch, _ in engine.description.warmup] == sizes
    assert warmup_profile(engine.description).saturation_batch == (1 if sizes == [1, 2] else 16)
    assert engine.description.max_batch == 16


def test_progress_is_reported(folder_of):
    stages = []
    load_policy_engine(options(folder_of("flow_mlp")), stages.append)
    assert "verifying weights" in stages
    assert "warming up: batch 4 of 4" in stages
