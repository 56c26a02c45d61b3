"""Pictures of a request become the pixels that Pillow makes of them, or a coded failure."""

import io

import numpy as np
import PIL.Image
import pytest

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.policies.observation import decode_image
from kairos_ros.engine.policies.rows import Row, RowReader
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferRequest

pytestmark = pytest.mark.slow  # imports torch

HEIGHT, WIDTH = 47, 62
POLICY = EngineDescription(
    policy_id="p",
    policy_type="p",
    state_dim=2,
    images={"top": (HEIGHT, WIDTH)},
    action_dim=2,
    chunk_size=4,
    steps=1,
    instructions=None,
    device="cpu",
    dtype="float32",
    max_batch=4,
)
RGB = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def encoded(kind="JPEG", mode="RGB", **options):
    buffer = io.BytesIO()
    PIL.Image.fromarray(RGB).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def request(*pictures):
    state = np.zeros(2, np.float32)
    return [
        InferRequest("r", "s", "t", 1, 0, 0, "go", state, images={"top": picture})
        for picture in pictures
    ]


@pytest.mark.parametrize(
    "picture",
    [
        *(encoded(quality=90, subsampling=sampling) for sampling in (0, 1, 2)),
        encoded(quality=30, progressive=True),
        encoded(quality=80, optimize=True),
        encoded(mode="L"),
        encoded(mode="CMYK"),
        encoded("PNG"),
        encoded("PNG", mode="RGBA"),
        encoded("PNG", mode="P"),
    ],
)
def test_pixels_are_those_of_pillow(picture):
    (row,) = RowReader(POLICY).read(request(picture))
    assert isinstance(row, Row)
    assert np.array_equal(row.images["top"][0], decode_image(picture, (HEIGHT, WIDTH)))
    assert row.images["top"][0].flags.writeable


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_truncated_picture_fails_alone(kept):
    whole = encoded(quality=90)
    broken = whole[: int(kept * len(whole))]
    rows = RowReader(POLICY).read(request(whole, broken, whole))
    assert isinstance(rows[1], InferFailure)
    assert rows[1].code is RefusalCode.BAD_IMAGE
    assert "top" in rows[1].reason
    assert "\n" not in rows[1].reason
    assert all(isinstance(row, Row) for row in (rows[0], rows[2]))
