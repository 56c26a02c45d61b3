"""Real-time chunking: chunks begin with what their robots have committed, row by row."""

import numpy as np
import pytest
import torch
from lerobot.configs.types import RTCAttentionSchedule
from lerobot.policies.common.flow_matching import euler_integrate
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.policies.rtc.modeling_rtc import RTCProcessor
from observations import observation, options
from tiny_policies import ACTION_DIM, CHUNK, TINY

from kairos_ros.core.errors import PolicyError, RefusalCode
from kairos_ros.core.exchange import no_actions
from kairos_ros.engine.policies.families.guidance import Committed, Steps, committed_of
from kairos_ros.engine.policies.policy_engine import load_policy_engine

pytestmark = pytest.mark.slow

GUIDED = ("flow_mlp", "pi0", "pi05", "smolvla")
STEPS = 10
ROUNDING = 1e-4
"""Of robot units: some processors round the rows of one matrix product differently."""


@pytest.fixture(scope="module")
def guided_engine(folder_of):
    loaded = {}

    def engine(kind):
        if kind not in loaded:
            with TINY[kind].loaded():
                asked = options(folder_of(kind), rtc=True, max_batch=4)
                loaded[kind] = load_policy_engine(asked, lambda _: None)
        return loaded[kind]

    return engine


@pytest.fixture(params=GUIDED)
def guided(request):
    return request.param


def field(x_t, time):
    """A velocity that depends on everything."""
    return torch.sin(3 * x_t) + x_t.flip(-1) * time[:, None, None] + x_t.mean(1, keepdim=True)


def sampled(noise, processor, *, enabled=True, **told):
    return euler_integrate(
        field, noise, STEPS, rtc_processor=processor, rtc_enabled=enabled, **told
    )


@pytest.mark.parametrize("count", [1, 4, CHUNK])
def test_guidance_is_lerobots(count):
    noise, before = torch.randn(2, 3, CHUNK, 5, generator=torch.Generator().manual_seed(1))
    config = RTCConfig(prefix_attention_schedule=RTCAttentionSchedule.ZEROS)
    told = {"prev_chunk_left_over": before, "inference_delay": count, "execution_horizon": CHUNK}
    expected = sampled(noise, RTCProcessor(config), **told)
    weights = torch.zeros(3, CHUNK, 5)
    weights[:, :count] = 1
    steps = Steps()
    steps.begin(Committed(before, weights))
    chunk = sampled(noise, steps)
    torch.testing.assert_close(chunk, expected, atol=1e-5, rtol=0)
    velocities = torch.stack(steps.take())
    torch.testing.assert_close(noise - velocities.sum(0) / STEPS, chunk, atol=1e-5, rtol=0)


def test_a_row_is_guided_by_its_own_actions_only():
    noise, before = torch.randn(2, 3, CHUNK, 5, generator=torch.Generator().manual_seed(2))
    offset, gain = torch.zeros(5), torch.ones(5)
    rows = [before[0, :3], before[1, :0], before[2, :7]]
    steps = Steps()
    steps.begin(committed_of(rows, (CHUNK, 5), offset, gain))
    together = sampled(noise, steps)
    plain = sampled(noise, None, enabled=False)
    assert torch.equal(together[1], plain[1])
    for row in (0, 2):
        assert not torch.allclose(together[row], plain[row], atol=1e-2)
        steps.begin(committed_of([rows[row]], (CHUNK, 5), offset, gain))
        alone = sampled(noise[row : row + 1], steps)
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=0)


def test_what_a_robot_commits_is_read_in_its_units():
    offset, gain = torch.tensor([1.0, 0.5, 3.0]), torch.tensor([2.0, -4.0, 0.0])
    given = torch.tensor([[3.0, -3.5, 9.0], [1.0, 0.5, 9.0]])
    committed = committed_of([given, given[:0]], (4, 3), offset, gain)
    assert committed.actions[0, :2].tolist() == [[1, 1, 0], [0, 0, 0]]  # the last has no gain
    assert committed.weights[0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert not committed.weights[1].any()
    assert committed_of([given[:0]], (4, 3), offset, gain) is None


def before(engine, number, count):
    """The first actions of another chunk: what a robot might be executing."""
    (outcome,) = engine.infer([observation(number, seed=99)])
    return np.ascontiguousarray(outcome.chunk[:count])


def test_a_chunk_begins_with_what_its_robot_executes(guided_engine, guided, caplog):
    engine = guided_engine(guided)
    planned = before(engine, 0, 5)
    asked = [observation(0), observation(0, committed=planned), observation(1)]
    free, bound, other = engine.infer(asked)
    assert np.abs(free.chunk[:5] - planned).max() > 0.1
    apart = np.linalg.norm(free.chunk[:5] - planned), np.linalg.norm(bound.chunk[:5] - planned)
    assert apart[1] < 0.25 * apart[0]
    assert not np.array_equal(free.chunk[5:], bound.chunk[5:])  # the rest follows
    (alone,) = engine.infer([observation(1)])
    np.testing.assert_allclose(other.chunk, alone.chunk, atol=2e-4)
    assert "trying rows alone" not in caplog.text  # one pass, whatever each has committed


def test_rows_without_anything_committed_have_no_width_either():
    rows = [no_actions(), np.ones((2, 3), np.float32)]
    committed = committed_of([*map(torch.from_numpy, rows)], (4, 3), torch.zeros(3), torch.ones(3))
    assert committed.weights.sum(dim=(1, 2)).tolist() == [0, 6]
    assert committed.actions.sum(dim=(1, 2)).tolist() == [0, 6]


def test_without_anything_committed_a_chunk_is_as_without_guidance(
    guided_engine, engine_of, guided
):
    asked = [observation(number) for number in range(3)]
    for a, b in zip(
        guided_engine(guided).infer(asked), engine_of(guided).infer(asked), strict=True
    ):
        assert np.array_equal(a.chunk, b.chunk)
        assert np.array_equal(a.updates, b.updates)


def test_an_engine_without_rtc_leaves_out_what_is_committed(engine_of):
    engine = engine_of("flow_mlp")
    free, told = engine.infer([observation(0), observation(0, committed=before(engine, 0, 5))])
    np.testing.assert_allclose(free.chunk, told.chunk, atol=ROUNDING)


def test_more_is_committed_than_a_chunk_has(guided_engine):
    engine = guided_engine("flow_mlp")
    long = np.repeat(before(engine, 0, CHUNK), 3, axis=0)
    first, second = engine.infer(
        [observation(0, committed=long), observation(0, committed=long[:CHUNK])]
    )
    np.testing.assert_allclose(first.chunk, second.chunk, atol=ROUNDING)


def test_updates_still_sum_up_under_guidance(guided_engine, guided):
    """The last update leads to the chunk: U is what the guided sampler did."""
    engine = guided_engine(guided)
    planned = before(engine, 0, 5)
    free, bound = engine.infer([observation(0), observation(0, committed=planned)])
    gain = np.array(TINY[guided].unit, np.float32)
    moved = (bound.chunk - free.chunk) / gain
    summed = bound.updates.sum(axis=0) - free.updates.sum(axis=0)
    np.testing.assert_allclose(moved, summed, atol=1e-4)


@pytest.mark.parametrize(
    ("planned", "code"),
    [
        (np.zeros((3, ACTION_DIM + 1), np.float32), RefusalCode.BAD_STATE),
        (np.full((3, ACTION_DIM), np.nan, np.float32), RefusalCode.NOT_FINITE),
    ],
    ids=["wrong size", "not finite"],
)
def test_a_bad_commitment_fails_alone(guided_engine, planned, code):
    good, bad = guided_engine("flow_mlp").infer([observation(0), observation(1, committed=planned)])
    assert good.chunk.shape == (CHUNK, ACTION_DIM)
    assert bad.code is code


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_a_family_that_cannot_be_guided_refuses_rtc(folder_of, kind):
    with pytest.raises(PolicyError, match=r"rtc: policies of type .* cannot be guided"):
        load_policy_engine(options(folder_of(kind), rtc=True), lambda _: None)
