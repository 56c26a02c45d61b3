"""The packages that bags need, which a robot's host does not have to have."""

from importlib.util import find_spec

from kairos_ros.core.errors import ConfigError


def require_bags() -> None:
    """Raises ConfigError where the extra `eval` is not installed."""
    missing = [name for name in ("rosbags", "mcap") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"bags need {' and '.join(missing)}; pip install rosbags mcap mcap-ros2-support"
        )
