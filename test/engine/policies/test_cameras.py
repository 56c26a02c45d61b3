"""Pictures as policies that LeRobot saved read them: names, sizes, and cameras that are absent."""

import json

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature
from observations import jpeg, observation, options
from tiny_policies import CAMERA, SIZE, STATE_DIM, TINY, save_policy, small_pi

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.engine.policies.observation import decode_image
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.sampler import row_generators, row_noise
from kairos_ros.engine.policies.saved_policy import policy_inputs
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferResult

pytestmark = pytest.mark.slow

WRIST = "observation.images.wrist"
RESIZING = ("pi0", "pi05", "smolvla", "xvla")
TALL, WIDE = (60, 40), (24, 96)


def silent(_stage):
    pass


@pytest.fixture(scope="module")
def two_cameras(tmp_path_factory):
    """Loads the tiny policy of a kind with two cameras; folder and engine."""
    loaded = {}

    def load(kind):
        if kind not in loaded:
            folder = save_policy(
                kind,
                tmp_path_factory.mktemp(kind),
                input_features={
                    "observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,)),
                    CAMERA: PolicyFeature(FeatureType.VISUAL, (3, *SIZE)),
                    WRIST: PolicyFeature(FeatureType.VISUAL, (3, *SIZE)),
                },
            )
            with small_pi():
                loaded[kind] = folder, load_engine(options(folder), silent)
        return loaded[kind]

    return load


def pictures(number, top=SIZE, wrist=SIZE):
    generator = np.random.default_rng(number)
    return {CAMERA: jpeg(generator, top), WRIST: jpeg(generator, wrist)}


def lerobot_chunk(folder, engine, request):
    """What LeRobot computes for this robot alone, from its pictures as they are."""
    with small_pi():
        loaded = load_policy(options(folder), silent)
    batch = {"observation.state": torch.from_numpy(request.state[None])}
    for key, encoded in request.images.items():
        pixels = torch.from_numpy(decode_image(encoded, None)[None])
        batch[key] = (pixels.float() / 255).permute(0, 3, 1, 2).contiguous()  # as LeRobot does
    batch["task"] = [request.instruction]
    tiny = TINY[engine.description.policy_type]
    noise = row_noise(row_generators([request.seed]), tiny.noise_shape, torch.device("cpu"))
    with torch.inference_mode():
        actions = tiny.lerobot(loaded.policy, loaded.preprocess(batch), noise)
        return loaded.postprocess(actions).numpy()[0]


@pytest.mark.parametrize("kind", RESIZING)
def test_pictures_of_any_size_are_resized_as_the_policy_itself_does(two_cameras, kind):
    folder, engine = two_cameras(kind)
    assert engine.description.any_image_size
    requests = [
        observation(0, images=pictures(0, TALL, WIDE)),
        observation(1, images=pictures(1, WIDE, SIZE)),
        observation(2, images=pictures(2)),
    ]
    for request, outcome in zip(requests, engine.infer(requests), strict=True):
        expected = lerobot_chunk(folder, engine, request)
        np.testing.assert_allclose(outcome.chunk, expected, atol=2e-4)
    (alone,) = engine.infer(requests[:1])
    assert np.array_equal(alone.chunk, lerobot_chunk(folder, engine, requests[0]))


@pytest.mark.parametrize("kind", RESIZING)
def test_robots_without_a_camera_share_a_batch_with_robots_that_have_it(two_cameras, kind):
    folder, engine = two_cameras(kind)
    assert engine.description.images_optional
    both = pictures(0)
    requests = [
        observation(0, images=both),
        observation(1, images={WRIST: both[WRIST]}),
        observation(2, images=both),
        observation(3, images={}),
        observation(4, images={CAMERA: both[CAMERA]}),
    ]
    outcomes = engine.infer(requests)
    assert outcomes[3].code is RefusalCode.BAD_IMAGE
    for number in (0, 1, 2, 4):
        expected = lerobot_chunk(folder, engine, requests[number])
        np.testing.assert_allclose(outcomes[number].chunk, expected, atol=2e-4)


@pytest.mark.parametrize("kind", ["diffusion", *RESIZING])
def test_a_swapped_picture_changes_the_chunk(two_cameras, kind):
    _, engine = two_cameras(kind)
    seen = pictures(0)
    swapped = {CAMERA: seen[WRIST], WRIST: seen[CAMERA]}
    right, wrong = engine.infer([observation(0, images=seen), observation(0, images=swapped)])
    assert np.abs(right.chunk - wrong.chunk).max() > 1e-2


def test_a_policy_that_does_not_resize_takes_its_own_size_only(two_cameras):
    _, engine = two_cameras("diffusion")
    good, bad, missing = engine.infer(
        [
            observation(0, images=pictures(0)),
            observation(1, images=pictures(1, TALL)),
            observation(2, images={CAMERA: pictures(2)[CAMERA]}),
        ]
    )
    assert isinstance(good, InferResult)
    assert "60 x 40" in bad.reason
    assert "wrist is missing" in missing.reason


def test_a_picture_beyond_all_sense_is_refused_where_sizes_are_free(two_cameras):
    _, engine = two_cameras("smolvla")
    huge = pictures(1, (4000, 4000))
    good, bad = engine.infer([observation(0, images=pictures(0)), observation(1, images=huge)])
    assert isinstance(good, InferResult)
    assert "more than" in bad.reason


def test_a_saved_rename_map_names_the_cameras(two_cameras, tmp_path):
    folder, engine = two_cameras("smolvla")
    renamed = tmp_path / "policy"
    renamed.mkdir()
    for file in folder.iterdir():
        (renamed / file.name).symlink_to(file)
    saved = renamed / "policy_preprocessor.json"
    processor = json.loads(saved.read_text())
    (step,) = (
        step
        for step in processor["steps"]
        if step.get("registry_name") == "rename_observations_processor"
    )
    front, hand = "observation.images.front", "observation.images.hand"
    step["config"]["rename_map"] = {front: CAMERA, hand: WRIST}
    saved.unlink()
    saved.write_text(json.dumps(processor))

    assert policy_inputs(str(renamed)).cameras == {front: SIZE, hand: SIZE}
    engine_of_renamed = load_engine(options(renamed), silent)
    assert engine_of_renamed.description.images == {front: SIZE, hand: SIZE}
    seen = pictures(0, TALL, WIDE)
    as_named = {front: seen[CAMERA], hand: seen[WRIST]}
    (outcome,) = engine_of_renamed.infer([observation(0, images=as_named)])
    (expected,) = engine.infer([observation(0, images=seen)])
    assert np.array_equal(outcome.chunk, expected.chunk)


@pytest.mark.parametrize("kind", ["diffusion", *RESIZING])
def test_the_saved_files_alone_say_what_the_engine_describes(two_cameras, kind):
    folder, engine = two_cameras(kind)
    inputs, described = policy_inputs(str(folder)), engine.description
    assert (inputs.state_dim, inputs.action_dim) == (described.state_dim, described.action_dim)
    assert inputs.cameras == described.images
    assert inputs.any_size == described.any_image_size
    assert inputs.optional == described.images_optional


def test_a_policy_with_two_cameras_of_one_name_is_refused(tmp_path):
    camera = {"type": "VISUAL", "shape": [3, *SIZE]}
    features = {"observation.front": camera, "observation.images.front": camera}
    config = {"type": "act", "input_features": features}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="two of its cameras have one name"):
        policy_inputs(str(tmp_path))
