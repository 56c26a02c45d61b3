"""What a robot's requests call its cameras' pictures."""

from collections.abc import Collection, Sequence

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fit import camera_name
from kairos_ros.core.wire_check import NAME_CHARS


def read_camera_map(texts: Sequence[str], cameras: Collection[str]) -> dict[str, str]:
    """`["front=camera1"]` as camera -> name in requests, for the robot's `cameras`.

    Raises ConfigError for a text without `=`, an unknown camera, and two cameras of one name.
    """
    named: dict[str, str] = {}
    for text in texts:
        camera, _, name = text.partition("=")
        if camera in named:
            raise ConfigError(f"camera_map names camera {camera!r} twice")
        if len(name) > NAME_CHARS or not name.isprintable() or " " in name:
            raise ConfigError(f"camera_map: {name!r:.120} is no name of a camera")
        if not (camera and name):
            raise ConfigError(f"camera_map: {text!r} must read 'CAMERA=NAME'")
        if camera not in cameras:
            has = ", ".join(cameras) or "none"
            raise ConfigError(f"camera_map: there is no camera {camera!r}; there is {has}")
        named[camera] = name
    owners: dict[str, str] = {}
    for camera in cameras:
        name = camera_name(named.get(camera, camera))
        if name in owners:
            raise ConfigError(
                f"cameras {owners[name]!r} and {camera!r} are both called {name!r} in requests; "
                "give one another name with camera_map"
            )
        owners[name] = camera
    return named
