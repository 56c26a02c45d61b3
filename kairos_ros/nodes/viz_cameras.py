"""All cameras of the fleet in one picture, which rviz shows without an image transport."""

import io
import math
from array import array
from collections.abc import Mapping

from sensor_msgs.msg import Image

TILE = (240, 180)
"""Width and height of one camera's picture, in px."""


def mosaic_message(pictures: Mapping[str, bytes]) -> Image:
    """JPEG pictures by caption, in rows as wide as the mosaic is high. A broken or empty one stays
    dark, and so does a mosaic of none."""
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageOps

    columns = math.ceil(math.sqrt(len(pictures))) or 1
    rows = math.ceil(len(pictures) / columns) or 1
    whole = Pillow.new("RGB", (columns * TILE[0], rows * TILE[1]), (20, 24, 28))
    draw = ImageDraw.Draw(whole)
    for number, (caption, jpeg) in enumerate(pictures.items()):
        x, y = number % columns * TILE[0], number // columns * TILE[1]
        try:
            picture = Pillow.open(io.BytesIO(jpeg)).convert("RGB")
        except OSError:
            caption += "  (broken picture)" if jpeg else "  (no picture)"
        else:
            picture = ImageOps.contain(picture, TILE)
            whole.paste(
                picture, (x + (TILE[0] - picture.width) // 2, y + (TILE[1] - picture.height) // 2)
            )
        draw.text((x + 6, y + 4), caption, fill=(232, 237, 240), font_size=17)
    return Image(
        height=whole.height,
        width=whole.width,
        encoding="rgb8",
        step=3 * whole.width,
        data=array("B", whole.tobytes()),
    )
