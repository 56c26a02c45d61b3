"""Images made smaller for a slow link."""

import io

from kairos_ros.engine.observation import ImageError, decode_image


def recompressed(encoded: bytes, size: tuple[int, int], quality: int) -> bytes:
    """The image as JPEG of `quality` (1 to 95), or as it was where that is no smaller.

    What is not an image of (height_px, width_px) stays as it is: the engine refuses it by name.
    """
    import PIL.Image

    try:
        pixels = decode_image(encoded, size)
    except ImageError:
        return encoded
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    smaller = buffer.getvalue()
    return smaller if len(smaller) < len(encoded) else encoded
