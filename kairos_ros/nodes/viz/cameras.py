"""All cameras of the fleet in one picture, which rviz shows without an image transport."""

import math
from array import array
from collections.abc import Mapping
from itertools import islice

from sensor_msgs.msg import Image

from kairos_ros.transport.picture import picture

TILE = (240, 180)
"""Width and height of one camera's picture, in px."""
MOST_TILES = 144
"""Cameras that are shown: 19 MB of message."""
LONGEST_CAPTION = 40


def mosaic_message(pictures: Mapping[str, bytes]) -> tuple[Image, dict[str, str]]:
    """Pictures by caption, in rows as wide as the mosaic is high, and why some cannot be shown.

    A broken or empty one stays dark, and so does a mosaic of none.
    """
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageOps

    shown = dict(islice(pictures.items(), MOST_TILES))
    columns = math.ceil(math.sqrt(len(shown))) or 1
    rows = math.ceil(len(shown) / columns) or 1
    whole = Pillow.new("RGB", (columns * TILE[0], rows * TILE[1]), (20, 24, 28))
    draw = ImageDraw.Draw(whole)
    broken = {}
    for number, (caption, encoded) in enumerate(shown.items()):
        x, y = number % columns * TILE[0], number // columns * TILE[1]
        note = "" if encoded else "  (no picture)"
        if encoded:
            try:
                tile = ImageOps.contain(Pillow.fromarray(picture(encoded)), TILE)
                whole.paste(
                    tile, (x + (TILE[0] - tile.width) // 2, y + (TILE[1] - tile.height) // 2)
                )
            except Exception as error:  # one of 1 x 60000 px has no size in a tile, for example
                broken[caption], note = str(error), "  (broken picture)"
        text = caption[:LONGEST_CAPTION] + note
        draw.text((x + 6, y + 4), text, fill=(232, 237, 240), font_size=17)
    if len(pictures) > len(shown):
        broken["the rest"] = f"{len(pictures)} cameras, at most {MOST_TILES} are shown"
    message = Image(
        height=whole.height,
        width=whole.width,
        encoding="rgb8",
        step=3 * whole.width,
        data=array("B", whole.tobytes()),
    )
    return message, broken
