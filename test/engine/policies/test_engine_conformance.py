"""What every engine promises, whatever it is (see engine.interface.Engine)."""

import time

import numpy as np
import pytest
from hostile_pictures import many_chunks, many_scans, many_segments
from observations import observation
from tiny_policies import ACTION_DIM, CAMERA, CHUNK, SIZE, STATE_DIM, STEPS, TINY, WRIST

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.interface import Engine
from kairos_ros.transport.messages import InferResult

pytestmark = pytest.mark.slow

ROBOT_UNITS = 4.0
"""At most so many units of the robot make one of the model's (see tiny_policies.statistics)."""


def test_an_engine_is_an_engine(engine_of, any_kind):
    assert isinstance(engine_of(any_kind), Engine)


def test_different_robots_share_a_forward_pass(engine_of, any_kind):
    steps = TINY[any_kind].steps if any_kind in TINY else STEPS
    outcomes = engine_of(any_kind).infer([observation(number) for number in range(4)])
    chunks = [outcome.chunk for outcome in outcomes]
    for outcome in outcomes:
        assert (outcome.chunk.shape, outcome.chunk.dtype) == ((CHUNK, ACTION_DIM), np.float32)
        assert outcome.updates.shape == (steps, CHUNK, ACTION_DIM)
    assert np.abs(np.diff(chunks, axis=0)).max() > 0.1


def test_a_chunk_does_not_depend_on_batch_mates(engine_of, any_kind):
    engine = engine_of(any_kind)
    together = engine.infer([observation(number) for number in range(4)])
    reversed_ = engine.infer([observation(number) for number in (3, 2, 1, 0)])[::-1]
    for number, (a, b) in enumerate(zip(together, reversed_, strict=True)):
        (alone,) = engine.infer([observation(number)])
        for other in (a, b):
            np.testing.assert_allclose(other.updates, alone.updates, atol=5e-5)
            np.testing.assert_allclose(other.chunk, alone.chunk, atol=5e-5 * ROBOT_UNITS)


def test_an_answer_does_not_depend_on_earlier_calls(engine_of, any_kind):
    engine = engine_of(any_kind)
    (first,) = engine.infer([observation(0)])
    engine.infer([observation(number) for number in (1, 2)])
    (again,) = engine.infer([observation(0)])
    assert np.array_equal(first.chunk, again.chunk)


def test_bad_observations_fail_alone_with_their_code(engine_of, any_kind):
    good = observation(0)
    bad = {
        RefusalCode.BAD_STATE: observation(1, state=np.zeros(STATE_DIM + 1, np.float32)),
        RefusalCode.NOT_FINITE: observation(2, state=np.full(STATE_DIM, np.inf, np.float32)),
    }
    engine = engine_of(any_kind)
    if engine.description.images:
        bad[RefusalCode.BAD_IMAGE] = observation(3, images={CAMERA: b"no image", WRIST: b""})
    first, *failed = engine.infer([good, *bad.values()])
    assert [outcome.code for outcome in failed] == list(bad)
    (alone,) = engine.infer([good])
    np.testing.assert_allclose(first.chunk, alone.chunk, atol=5e-5 * ROBOT_UNITS)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (many_scans(658_000, *SIZE[::-1]), "scans"),
        (many_chunks(500_000, *SIZE[::-1]), "chunks"),
        (many_segments(b"\xff\xfe\x00\x02" * 500_000, *SIZE[::-1]), "segments"),
    ],
    ids=["scans", "chunks", "segments"],
)
def test_a_picture_that_takes_long_to_decode_is_refused_alone_and_at_once(
    engine_of, any_kind, picture, said
):
    engine = engine_of(any_kind)
    if not engine.description.images:
        pytest.skip("a state policy")
    images = observation(1).images | {CAMERA: picture}
    began = time.process_time()
    first, bad = engine.infer([observation(0), observation(1, images=images)])
    assert time.process_time() - began < 1.0
    assert isinstance(first, InferResult)
    assert bad.code is RefusalCode.BAD_IMAGE
    assert said in bad.reason


def test_a_batch_of_bad_observations_only_is_answered(engine_of, any_kind):
    bad = observation(1, state=np.zeros(0, np.float32))
    outcomes = engine_of(any_kind).infer([bad, bad])
    assert [outcome.code for outcome in outcomes] == [RefusalCode.BAD_STATE] * 2
