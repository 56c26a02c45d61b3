"""How this package's DDS participants find others."""

import os
from importlib import metadata

from kairos_ros.host.share import share

PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
"""Fast DDS 3 (ROS 2 Kilted and later) warns of the second name, and Fast DDS 2 knows no other."""
KILTED = 9
"""Its major version of rclpy; Jazzy has 7."""


def use_fastdds_profile() -> None:
    """Fast DDS of this process and of its children reads config/fastdds.xml, unless the user named
    profiles. Without effect on other middlewares, and after the first participant."""
    profiles = share() / "config" / "fastdds.xml"
    if any(name in os.environ for name in PROFILES) or not profiles.is_file():
        return
    try:
        version = int(metadata.version("rclpy").partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):  # no ROS here, or one without versions
        return
    os.environ[PROFILES[0] if version >= KILTED else PROFILES[1]] = str(profiles)
