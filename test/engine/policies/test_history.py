"""Policies that read several observations get them as LeRobot's own queues would give them."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from observations import jpeg, observation, observed, options
from tiny_policies import CAMERA, SIZE, STATE_DIM, TINY, WRIST

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Observation
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.sampler import row_generators, row_noise
from kairos_ros.engine.policies.saved_policy import policy_inputs
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferResult

pytestmark = pytest.mark.slow

EMULATED = "emulated:chunk=12,dim=3,steps=6,state=5,images=observation.images.top@32x48"
PERIODS = 15
READ_MOTION = [
    kind for kind, tiny in TINY.items() if tiny.type in ("diffusion", "multi_task_dit", "vqbet")
]
SEED = 5


def seen(period):
    """What a robot sees in a control period."""
    generator = np.random.default_rng(100 + period)
    images = {CAMERA: jpeg(generator, SIZE), WRIST: jpeg(generator, SIZE)}
    return Observation(generator.uniform(-2, 2, STATE_DIM).astype(np.float32), images)


@pytest.fixture(scope="module")
def several_emulated():
    return load_engine(options(f"{EMULATED},observations=2"), lambda _: None)


def asked(history, **changes):
    *earlier, now = history
    newest = {"state": now.state, "images": now.images, "seed": SEED}
    return observation(0, earlier=tuple(earlier), **newest | changes)


def lerobots_chunks(engine, kind, folder) -> Iterator[tuple[int, np.ndarray]]:
    """Period and chunk, whenever LeRobot's `select_action`, called in every control period with
    what is seen in it, computes one."""
    tiny = TINY[kind]
    with tiny.loaded():
        loaded = load_policy(options(folder), lambda _: None)
    policy = loaded.policy
    policy.reset()
    noise = {}
    if not tiny.seeded:
        generators = row_generators([SEED])
        noise["noise"] = row_noise(generators, tiny.noise_shape, torch.device("cpu"))
    for period in range(PERIODS):
        now = observation(0, state=seen(period).state, images=seen(period).images)
        batch = observed(engine, [now])
        alone = {k: v[:, -1] if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        computes = not policy._queues["action"]
        torch.manual_seed(SEED)
        first = policy.select_action(loaded.preprocess(alone), **noise)
        if computes:
            chunk = torch.stack([first, *policy._queues["action"]], dim=1)
            yield period, loaded.postprocess(chunk).numpy()[0]


@pytest.mark.parametrize("kind", READ_MOTION)
def test_chunks_are_those_of_lerobots_own_queues_bit_for_bit(engine_of, folder_of, kind):
    engine = engine_of(kind)
    reads = engine.description.observations
    assert reads == 2
    compared = 0
    for period, chunk in lerobots_chunks(engine, kind, folder_of(kind)):
        history = [seen(max(0, p)) for p in range(period - reads + 1, period + 1)]
        (served,) = engine.infer([asked(history)])
        assert np.array_equal(served.chunk, chunk)
        compared += 1
    assert compared > 1  # the first one sees one observation, repeated
    (still,) = engine.infer([asked([seen(period)])])
    assert np.abs(still.chunk - chunk).max() > 1e-3


def test_what_is_known_before_loading_is_what_the_engine_reads(engine_of, folder_of, kind):
    assert policy_inputs(str(folder_of(kind))).observations == (
        engine_of(kind).description.observations
    )


def test_a_request_with_fewer_observations_has_its_oldest_repeated(engine_of):
    engine = engine_of("diffusion")
    short, full = engine.infer([asked([seen(0)]), asked([seen(0), seen(0)])])
    np.testing.assert_allclose(short.chunk, full.chunk, atol=2e-4)


@pytest.mark.parametrize("kind", ["diffusion", "emulated"])
@pytest.mark.parametrize(
    ("earlier", "code"),
    [
        (Observation(np.zeros(STATE_DIM + 1, np.float32), seen(0).images), "BAD_STATE"),
        (Observation(np.full(STATE_DIM, np.nan, np.float32), seen(0).images), "NOT_FINITE"),
        (Observation(seen(0).state, {}), "BAD_IMAGE"),
        (Observation(seen(0).state, dict.fromkeys((CAMERA, WRIST), b"torn")), "BAD_IMAGE"),
    ],
    ids=["shape", "NaN", "without pictures", "torn"],
)
def test_a_wrong_earlier_observation_fails_alone(engine_of, several_emulated, kind, earlier, code):
    engine = several_emulated if kind == "emulated" else engine_of(kind)
    good, bad = engine.infer([asked([seen(0), seen(1)]), asked([earlier, seen(1)])])
    assert isinstance(good, InferResult)
    assert bad.code is RefusalCode[code]


def test_more_observations_than_are_read_are_refused(engine_of, any_kind):
    engine = engine_of(any_kind)
    many = [seen(0)] * (engine.description.observations + 1)
    good, bad = engine.infer([observation(0), asked(many)])
    assert isinstance(good, InferResult)
    assert bad.code is RefusalCode.MALFORMED
    assert f"{len(many)} observations" in bad.reason


def test_actions_of_an_emulated_policy_tell_which_observations_it_was_given(several_emulated):
    (served,) = several_emulated.infer([asked([seen(0), seen(1)])])
    assert (served.chunk[:, 0] == seen(1).state[0]).all()
    assert (served.chunk[:, 2] == seen(0).state[0]).all()
