"""Images made smaller for a slow link."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.policies.observation import ImageError, decode_image
from kairos_ros.transport.messages import InferRequest


@dataclass(frozen=True, slots=True)
class PerCamera:
    """A number for every camera, and others for some. 0: none."""

    usual: int = 0
    others: tuple[tuple[str, int], ...] = ()
    """(policy feature name or the last part of it, number)."""

    def of(self, camera: str) -> int:
        short = camera.rpartition(".")[2]
        return next((number for name, number in self.others if name in (camera, short)), self.usual)


def read_per_camera(option: str, text: str, least: int, most: int) -> PerCamera:
    """Reads `80` or `80|wrist:60|top:90`. Raises ConfigError, naming the option."""
    usual, *others = text.split("|")
    named = [part.partition(":") for part in others]
    for value in (usual, *(value for _, _, value in named)):
        if not value.isdecimal() or not least <= int(value) <= most:
            raise ConfigError(f"{option}={text}: {value!r} is not a number from {least} to {most}")
    if not all(name for name, _, _ in named):
        raise ConfigError(f"{option}={text}: write {option}={usual}|CAMERA:{usual}")
    return PerCamera(int(usual), tuple((name, int(value)) for name, _, value in named))


@dataclass(frozen=True, slots=True)
class WanImages:
    """How images travel. By itself: as the robots sent them."""

    jpeg: PerCamera = PerCamera()
    """As JPEG of this quality, 1 to 95."""
    size: PerCamera = PerCamera()
    """With a longer side of at most so many px; the engine enlarges them again. With `jpeg`."""
    lossless: bool = False
    """PNG is compressed as well as it can be; not a pixel changes."""

    @property
    def as_sent(self) -> bool:
        """Nothing is done to them."""
        return not self.lossless and self.jpeg == PerCamera()

    def unknown(self, cameras: Mapping[str, tuple[int, int]]) -> list[str]:
        """Names that are none of these cameras'."""
        known = {name for camera in cameras for name in (camera, camera.rpartition(".")[2])}
        named = (name for name, _ in (*self.jpeg.others, *self.size.others))
        return [name for name in named if name not in known]


AS_SENT = WanImages()


def for_link(
    request: InferRequest, cameras: Mapping[str, tuple[int, int] | None], how: WanImages
) -> InferRequest:
    """The request with its images as they shall travel.

    cameras: policy feature name -> (height_px, width_px) of its image, None: of any size.

    An image that would not become smaller stays as it is, and so does what is not an image of the
    size that the policy reads: the engine refuses that by name.
    """
    if how.as_sent:
        return request
    shrunk: set[str] = set()  # in any of its observations

    def smaller(before: Mapping[str, bytes]) -> dict[str, bytes]:
        images = {}
        for camera, size in cameras.items():
            if camera not in before:
                continue
            image, quality, longest = before[camera], how.jpeg.of(camera), how.size.of(camera)
            after = (
                recompressed(image, size, quality, longest) if quality else lossless(image, size)
            )
            if len(after) < len(image) and quality and size is not None and 0 < longest < max(size):
                shrunk.add(camera)
            images[camera] = min(image, after, key=len)
        return images

    images = smaller(request.images)
    earlier = tuple(replace(seen, images=smaller(seen.images)) for seen in request.earlier)
    return replace(request, images=images, earlier=earlier, shrunk=frozenset(shrunk))


def recompressed(
    encoded: bytes, size: tuple[int, int] | None, quality: int, longest: int = 0
) -> bytes:
    """The image of (height_px, width_px), None: of any size, as JPEG, its longer side at most
    `longest` px (0: as it is); or what was given, where that is no such image."""
    import PIL.Image

    try:
        image = PIL.Image.fromarray(decode_image(encoded, size))
    except ImageError:
        return encoded
    if 0 < longest < max(image.size):
        scale = longest / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), PIL.Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def lossless(encoded: bytes, size: tuple[int, int] | None) -> bytes:
    """A PNG image of (height_px, width_px), None: of any size, with the same pixels, compressed as
    well as can be; or what was given: JPEG would only grow."""
    import PIL.Image

    if not encoded.startswith(b"\x89PNG"):
        return encoded
    try:
        pixels = decode_image(encoded, size)
    except ImageError:
        return encoded
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
