"""Pictures from elsewhere, decoded only where that costs no more than a picture of its size should.

A few bytes can ask a decoder for gigabytes (a header of 2^31 x 2^31 px) or for minutes (a JPEG of
half a million progressive scans, a PNG of as many empty chunks), and each format more is a decoder
more to attack.
"""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG")
MOST_PX = 4096 * 4096
MOST_BYTES_PER_PX = 8
"""What 16 bit RGBA has uncompressed."""
FREE_BYTES = 1 << 16
"""Profiles, thumbnails and the like, beside the pixels."""
MOST_SCANS = 64
"""Of a JPEG. Encoders make about ten of a progressive one; a thumbnail inside adds its own."""
MOST_SCANNED_PX = 1 << 28
"""Pixels times scans of a JPEG: about a second of decoding."""
MOST_PARTS = 1000
"""Segments of a JPEG before its pixels, or chunks of a PNG beside those of BYTES_PER_CHUNK bytes:
Pillow walks over them in Python."""
BYTES_PER_CHUNK = 1024
_TEXTS = (b"zTXt", b"iTXt", b"iCCP")
"""Chunks of a PNG that Pillow inflates, each to a megabyte, although nobody reads them here."""
_PNG = b"\x89PNG\r\n\x1a\n"
_SCAN = b"\xff\xda"
"""Start of a scan: never part of a scan's data, where 0xff is followed by 0."""


def check_parts(encoded: bytes) -> None:
    """Looks at the structure of a JPEG or PNG, in microseconds and without Pillow.

    Raises WireError for one of more parts than an encoder makes.
    """
    if encoded.startswith(_PNG):
        most = MOST_PARTS + len(encoded) // BYTES_PER_CHUNK
        parts = _parts_of_png(encoded, most)
        if parts > most:
            raise WireError(f"PNG of more than {most} chunks in {len(encoded)} bytes")
        return
    if (scans := encoded.count(_SCAN)) > MOST_SCANS:
        raise WireError(f"JPEG of {scans} scans, at most {MOST_SCANS} are accepted")
    if _parts_of_jpeg(encoded, MOST_PARTS) > MOST_PARTS:
        raise WireError(f"JPEG of more than {MOST_PARTS} segments before its pixels")


def _parts_of_png(encoded: bytes, most: int) -> int:
    """Chunks, as far as `most` + 1."""
    at, parts = len(_PNG), 0
    while at + 12 <= len(encoded) and parts <= most:
        at += 12 + int.from_bytes(encoded[at : at + 4])
        parts += 1
    return parts


def _without_texts(encoded: bytes) -> bytes:
    """A PNG without its compressed texts and colour profile."""
    kept, at = [encoded[: len(_PNG)]], len(_PNG)
    while at < len(encoded):
        end = at + 12 + int.from_bytes(encoded[at : at + 4])
        if encoded[at + 4 : at + 8] not in _TEXTS:
            kept.append(encoded[at:end])
        at = end
    return b"".join(kept)


def _parts_of_jpeg(encoded: bytes, most: int) -> int:
    """Segments before the first scan and bytes between them, as far as `most` + 1."""
    at, parts = 0, 0
    while at + 2 <= len(encoded) and encoded[at : at + 2] != _SCAN and parts <= most:
        parts += 1
        if encoded[at] != 0xFF or encoded[at + 1] in (0x00, 0xFF):
            at += 1  # filling
        elif encoded[at + 1] == 0x01 or 0xD0 <= encoded[at + 1] <= 0xD9:
            at += 2  # a marker without a segment
        else:
            at += 2 + int.from_bytes(encoded[at + 2 : at + 4])
    return parts


def open_picture(encoded: bytes) -> "Image":
    """A JPEG or PNG of which only the header was read. Decoding it may still raise anything.

    Raises WireError for anything else, and for one that exceeds the limits above.
    """
    import PIL.Image

    check_parts(encoded)
    read = _without_texts(encoded) if encoded.startswith(_PNG) else encoded
    try:
        image = PIL.Image.open(io.BytesIO(read), formats=FORMATS)
    except PIL.UnidentifiedImageError as error:
        raise WireError(f"{len(encoded)} bytes are no picture, neither JPEG nor PNG") from error
    except Exception as error:  # fed with hostile bytes, Pillow raises whatever it likes
        raise WireError(f"{len(encoded)} bytes are no picture: {_first_line(error)}") from error
    width, height = image.size
    if width * height > MOST_PX:
        raise WireError(
            f"picture of {height} x {width} px, at most {MOST_PX} px in all are accepted"
        )
    if len(encoded) > (most := MOST_BYTES_PER_PX * width * height + FREE_BYTES):
        raise WireError(
            f"picture of {height} x {width} px in {len(encoded)} bytes, at most {most} are accepted"
        )
    if image.format != "PNG" and encoded.count(_SCAN) * width * height > MOST_SCANNED_PX:
        raise WireError(
            f"JPEG of {height} x {width} px in {encoded.count(_SCAN)} scans, at most "
            f"{MOST_SCANNED_PX} px of all scans together are accepted"
        )
    return image


def as_rgb(image: "Image") -> "Image":
    """In RGB with 8 bits a channel; raises whatever its decoder raises."""
    import PIL.Image

    if image.mode.startswith("I"):  # 16 bit grey, which Pillow would clip to white
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def picture(encoded: bytes) -> NDArray[np.uint8]:
    """uint8 [height, width, 3], RGB. Raises WireError for anything but a whole JPEG or PNG, and
    for one that exceeds the limits above."""
    image = open_picture(encoded)
    try:
        return np.array(as_rgb(image))
    except Exception as error:  # as above
        raise WireError(
            f"picture of {len(encoded)} bytes does not decode: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
