"""Pictures from elsewhere are decoded within limits, or refused in a sentence."""

import io
import time
import zlib

import numpy as np
import PIL.Image
import pytest
from hostile_pictures import HOSTILE, chunk, encoded, many_scans, png

from kairos_ros.core.errors import WireError
from kairos_ros.robot.body_error import BodyError
from kairos_ros.robot.cameras.picture import as_jpeg
from kairos_ros.transport.picture import picture


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_picture_is_refused_in_a_line_before_it_costs_anything(data):
    began = time.thread_time()  # of the processor: a busy machine takes longer
    with pytest.raises(WireError) as told:
        picture(data)
    with pytest.raises(BodyError):
        as_jpeg(data, (240, 320))
    assert time.thread_time() - began < 1.0
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff\xe0" + b"x" * 500])
def test_bytes_that_are_no_picture_are_refused(data):
    with pytest.raises(WireError, match="are no picture"):
        picture(data)


def test_a_picture_of_absurd_size_is_refused_with_its_size():
    with pytest.raises(WireError, match="9000 x 8000"):
        picture(png(8000, 9000, real=True))


@pytest.mark.parametrize(
    "data",
    [
        encoded("JPEG", 640, 480),
        encoded("JPEG", 640, 480, progressive=True),
        encoded("PNG", 640, 480),
        png(640, 480, real=True),
    ],
    ids=["jpeg", "progressive", "png", "one bit"],
)
def test_what_cameras_send_is_decoded(data):
    assert picture(data).shape == (480, 640, 3)
    assert picture(data).dtype == np.uint8
    assert picture(as_jpeg(data, (240, 320))).shape == (240, 320, 3)


def test_a_few_scans_more_than_encoders_make_are_decoded():
    assert picture(many_scans(20)).shape == (64, 64, 3)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_what_a_png_says_beside_its_pixels_is_not_inflated(kind):
    head = {b"iTXt": b"a\0\1\0\0\0"}.get(kind, b"a\0\0")
    said = chunk(kind, head + zlib.compress(bytes(50_000_000)))  # Pillow would refuse as much
    whole = encoded("PNG", 640, 480)
    assert picture(whole[:33] + said + whole[33:]).shape == (480, 640, 3)


def test_grey_of_16_bits_keeps_its_shades():
    shades = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    out = io.BytesIO()
    PIL.Image.fromarray(shades).save(out, "PNG")
    seen = picture(out.getvalue())
    assert np.array_equal(seen, np.repeat((shades >> 8).astype(np.uint8)[..., None], 3, axis=2))
