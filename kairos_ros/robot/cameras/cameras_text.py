"""Cameras of simulated arms as text, such as `corner2,gripperPOV:480x640`."""

import re

from kairos_ros.core.errors import ConfigError

SIZE_PX = (224, 224)
"""Height and width of a camera whose size is not given."""
METAWORLD = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
"""Cameras of Meta-World's scenes, which the simulated arms of the demo stand in."""
_CAMERA = re.compile(r"(?P<name>[A-Za-z]\w*)(:(?P<height>\d{1,4})x(?P<width>\d{1,4}))?", re.ASCII)


def parse_cameras(text: str, size_px: tuple[int, int] = SIZE_PX) -> dict[str, tuple[int, int]]:
    """Camera -> (height_px, width_px), of `NAME` or `NAME:HEIGHTxWIDTH`, separated by commas.

    size_px: (height, width) where none is given. Raises ConfigError naming the part that is wrong.
    """
    cameras: dict[str, tuple[int, int]] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        found = _CAMERA.fullmatch(part)
        size = size_px
        if found and found["height"]:
            size = int(found["height"]), int(found["width"])
        if found is None or min(size) == 0:
            raise ConfigError(
                f"camera {part!r} must read NAME or NAME:HEIGHTxWIDTH in pixels, such as "
                "corner2:480x640; several are separated by commas"
            )
        if found["name"] in cameras:
            raise ConfigError(f"camera {found['name']!r} is named twice; name it once")
        cameras[found["name"]] = size
    return cameras
