"""Images on their way over a slow link: smaller, and still what the policy reads."""

import io
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Observation
from kairos_ros.engine.client.wan_image import (
    AS_SENT,
    PerCamera,
    WanImages,
    for_link,
    read_per_camera,
)
from kairos_ros.engine.emulated import EmulatedEngine
from kairos_ros.engine.policies.observation import ImageError, decode_image
from kairos_ros.transport.messages import InferFailure, InferRequest, InferResult

SIZE = (96, 128)
TOP, WRIST = "observation.images.top", "observation.images.wrist"
CAMERAS = {TOP: SIZE, WRIST: SIZE}


def scene():
    """uint8 [96, 128, 3]: smooth, with some noise, as cameras see it."""
    down, right = np.mgrid[0:96, 0:128]
    plain = np.stack([2 * down, right, 128 + 40 * np.sin(right / 9)], axis=-1)
    return np.clip(plain + np.random.default_rng(1).normal(0, 4, plain.shape), 0, 255).astype("u1")


def encoded(pixels, kind, **options):
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def request(image, **changes):
    fields = {
        **{"robot": "arm_1", "session": "s1", "task": "t1", "round": 1, "attempt": 0, "seed": 1},
        **{"instruction": "", "state": np.zeros(7, np.float32)},
        "images": {TOP: image, WRIST: image, "not.read": image},
    }
    return InferRequest(**(fields | changes))


def size_of(data):
    width, height = PIL.Image.open(io.BytesIO(data)).size
    return height, width


def test_images_travel_as_they_were_sent_unless_something_else_is_asked_for():
    sent = request(encoded(scene(), "PNG"))
    assert for_link(sent, CAMERAS, AS_SENT) is sent


def test_each_camera_has_its_own_quality_and_size():
    how = WanImages(PerCamera(80, (("wrist", 30),)), PerCamera(0, (("wrist", 64),)))
    sent = request(encoded(scene(), "PNG"))
    got = for_link(sent, CAMERAS, how)
    assert list(got.images) == [TOP, WRIST]
    assert (size_of(got.images[TOP]), size_of(got.images[WRIST])) == (SIZE, (48, 64))
    assert got.shrunk == {WRIST}
    assert len(got.images[WRIST]) < len(got.images[TOP]) / 2 < len(sent.images[TOP]) / 4


def test_an_image_that_was_made_smaller_is_enlarged_before_the_policy_reads_it():
    how = WanImages(PerCamera(90), PerCamera(64))
    got = for_link(request(encoded(scene(), "PNG")), CAMERAS, how)
    pixels = decode_image(got.images[TOP], SIZE, TOP in got.shrunk)
    assert pixels.shape == (96, 128, 3)
    assert np.abs(pixels.astype(float) - scene()).mean() < 6
    with pytest.raises(ImageError, match="48 x 64 px"):
        decode_image(got.images[TOP], SIZE)


def test_an_engine_takes_what_was_made_smaller_on_the_way_and_nothing_else_that_is_smaller():
    engine = EmulatedEngine(f"emulated:images={TOP}@96x128", max_batch=1)
    small = request(encoded(scene()[::2, ::2], "JPEG"))
    shrunk = replace(small, shrunk=frozenset({TOP}))
    refused, taken = engine.infer([small, shrunk])
    assert isinstance(refused, InferFailure)
    assert refused.code is RefusalCode.BAD_IMAGE
    assert isinstance(taken, InferResult)
    large = request(encoded(np.zeros((200, 200, 3), "u1"), "JPEG"), shrunk=frozenset({TOP}))
    assert isinstance(engine.infer([large])[0], InferFailure)


def test_an_image_that_would_grow_stays_as_it_is():
    sent = request(encoded(scene(), "JPEG", quality=20))
    got = for_link(sent, CAMERAS, WanImages(PerCamera(95)))
    assert got.images[TOP] == sent.images[TOP]
    assert not got.shrunk


@pytest.mark.parametrize("image", [b"", b"not an image", b"\x89PNG but no more"])
@pytest.mark.parametrize("how", [WanImages(PerCamera(80), PerCamera(64)), WanImages(lossless=True)])
def test_what_is_no_image_of_the_right_size_travels_as_it_is_and_is_refused_there(image, how):
    wrong = encoded(np.zeros((10, 10, 3), "u1"), "PNG", compress_level=0)
    got = for_link(request(image, images={TOP: image, WRIST: wrong}), CAMERAS, how)
    assert (got.images, got.shrunk) == ({TOP: image, WRIST: wrong}, frozenset())


def test_lossless_changes_no_pixel_and_only_what_it_can_make_smaller():
    png, jpeg = encoded(scene(), "PNG", compress_level=1), encoded(scene(), "JPEG")
    got = for_link(request(b"", images={TOP: png, WRIST: jpeg}), CAMERAS, WanImages(lossless=True))
    assert len(got.images[TOP]) < len(png)
    assert np.array_equal(decode_image(got.images[TOP], SIZE), scene())
    assert got.images[WRIST] == jpeg


def test_a_camera_that_the_policy_does_not_have_is_named():
    how = WanImages(PerCamera(80, (("top", 60),)), PerCamera(64, (("left", 32), (WRIST, 32))))
    assert how.unknown(CAMERAS) == ["left"]


@pytest.mark.parametrize("text", ["", "0", "96", "-1", "80|", "80|top", "80|top:", "80|:80", "8e1"])
def test_numbers_that_make_no_sense_are_refused(text):
    with pytest.raises(ConfigError, match="jpeg="):
        read_per_camera("jpeg", text, 1, 95)


def test_earlier_pictures_are_made_as_small_as_the_newest():
    png, jpeg = encoded(scene(), "PNG"), encoded(scene(), "JPEG", quality=95)
    seen = Observation(np.ones(7, np.float32), {TOP: png, WRIST: jpeg, "not.read": png})
    small = WanImages(jpeg=PerCamera(40), size=PerCamera(64))
    sent = for_link(request(png, earlier=(seen,)), CAMERAS, small)
    (earlier,) = sent.earlier
    assert earlier.state.tolist() == [1.0] * 7
    assert {key: size_of(image) for key, image in earlier.images.items()} == {
        TOP: (48, 64),
        WRIST: (48, 64),
    }
    assert earlier.images[TOP] == sent.images[TOP]
    assert sent.shrunk == {TOP, WRIST}
    engine = EmulatedEngine(
        "emulated:observations=2,images=" + "|".join(f"{key}@96x128" for key in CAMERAS), 1
    )
    (answered,) = engine.infer([sent])
    assert isinstance(answered, InferResult)
