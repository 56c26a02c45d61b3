"""From what a client sent to the observation that the policy reads.

What comes in was unpacked, and is trusted no further: only its kinds are what they look like.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.fit import PolicyInterface, Size, features_of
from kairos_ros.core.wire_check import check_text, printable
from kairos_ros.document.faults import did_you_mean
from kairos_ros.doors.observation_map import ObservationMap, Picture, VectorPart
from kairos_ros.transport.picture import MOST_PX

JPEG_QUALITY = 95
MOST_KEYS = 200
MOST_NESTING = 4
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation of a client."""

    observation: Observation
    prompt: str
    unused: tuple[str, ...]
    """Keys that the map does not name."""


def sizes_of(policy: PolicyInterface, cameras: Mapping[str, Any]) -> dict[str, Size]:
    """Camera -> the size that its pictures must get; none where the policy takes any."""
    if policy.any_size:
        return {}
    found = features_of(cameras, policy.cameras)
    return {camera: policy.cameras[feature] for feature, camera in found.items()}


def seen_of(message: Mapping[Any, Any], read: ObservationMap, sizes: Mapping[str, Size]) -> Seen:
    """Raises WireError, which says what is wrong with which key. Encodes pictures: milliseconds.

    sizes: camera -> (height_px, width_px), as of `sizes_of`.
    """
    values = dict(_flat(message))
    if len(values) > MOST_KEYS:
        raise WireError(f"an observation of more than {MOST_KEYS} keys")
    state = np.concatenate([_state(values, part) for part in read.state])
    pictures = {
        camera: _jpeg(_pixels(values, camera, picture), sizes.get(camera))
        for camera, picture in read.images.items()
    }
    prompt = values.get(read.prompt, read.instruction)
    if isinstance(prompt, np.ndarray) and prompt.shape == () and prompt.dtype.kind == "U":
        prompt = prompt.item()
    if not isinstance(prompt, str):
        raise WireError(f"{read.prompt!r} is {_kind(prompt)}; it must be text")
    if not prompt:
        raise WireError(
            f"the observation has no {read.prompt!r}, and its map gives no instruction in its place"
        )
    check_text(read.prompt, prompt)
    unused = tuple(printable(key) for key in values if key not in read.keys)
    return Seen(Observation(state, pictures), prompt, unused)


def _flat(
    message: Mapping[Any, Any], before: str = "", depth: int = 1
) -> Iterator[tuple[str, Any]]:
    """Nested dictionaries as one, their keys joined by `/`."""
    for key, value in message.items():
        if not isinstance(key, str):
            raise WireError(f"a key is {_kind(key)}; keys must be text")
        if isinstance(value, Mapping):
            if depth >= MOST_NESTING:
                raise WireError(f"dictionaries nested deeper than {MOST_NESTING}")
            yield from _flat(value, f"{before}{key}/", depth + 1)
        else:
            yield f"{before}{key}", value


def _value(values: Mapping[str, Any], key: str) -> Any:
    if key not in values:
        has = ", ".join(printable(name) for name in list(values)[:20]) or "nothing"
        raise WireError(f"the observation has no {key!r}{did_you_mean(key, values)}; it has {has}")
    return values[key]


def _state(values: Mapping[str, Any], part: VectorPart) -> NDArray[np.float32]:
    value = _value(values, part.key)
    if isinstance(value, list):
        if not all(type(one) in (int, float) for one in value):
            raise WireError(f"{part.key!r} is a list of something else than numbers")
        value = np.array(value, np.float64)
    elif type(value) in (int, float):
        value = np.array([value], np.float64)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        raise WireError(f"{part.key!r} is {_kind(value)}; it must be numbers")
    if value.size != part.size or value.ndim > 2:
        raise WireError(f"{part.key!r} has shape {value.shape}; it must be [{part.size}]")
    with np.errstate(over="ignore"):
        state = value.reshape(-1).astype(np.float32)
    if not np.isfinite(state).all():
        where = int(np.flatnonzero(~np.isfinite(state))[0])
        raise WireError(f"{part.key!r}[{where}] is {state[where]}; it must be finite")
    return state


def _pixels(values: Mapping[str, Any], camera: str, picture: Picture) -> NDArray[np.uint8]:
    """uint8 [height, width, 3]."""
    value = _value(values, picture.key)
    order = picture.layout
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        raise WireError(
            f"{picture.key!r} is {_kind(value)}; it must be a picture of uint8 "
            "(openpi_client.image_tools.convert_to_uint8 makes one of floats)"
        )
    if value.ndim == 4 and value.shape[0] == 1:
        value = value[0]
    if value.ndim == 3 and order == "chw":
        value = value.transpose(1, 2, 0)
    if value.ndim != 3 or value.shape[2] != CHANNELS or 0 in value.shape:
        raise WireError(
            f"{picture.key!r} has shape {value.shape} as {' x '.join(order)}; "
            f"camera {camera} needs {CHANNELS} channels (`layout` in the map is {order})"
        )
    if value.shape[0] * value.shape[1] > MOST_PX:
        raise WireError(f"{picture.key!r} has shape {value.shape}; at most {MOST_PX} px are taken")
    return np.ascontiguousarray(value)


def _jpeg(pixels: NDArray[np.uint8], size: Size | None) -> bytes:
    """Of this size without distortion, with black bars, as openpi's `resize_with_pad`."""
    from PIL import Image

    image = Image.fromarray(pixels)
    if size is not None and size != pixels.shape[:2]:
        height, width = size
        ratio = max(image.width / width, image.height / height)
        inner = max(1, int(image.width / ratio)), max(1, int(image.height / ratio))
        framed = Image.new("RGB", (width, height))
        corner = (width - inner[0]) // 2, (height - inner[1]) // 2
        framed.paste(image.resize(inner, Image.Resampling.BILINEAR), corner)
        image = framed
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def _kind(value: Any) -> str:
    """Of a value that is none that was wanted, for people."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
