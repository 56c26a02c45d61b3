"""LeRobot policy type `kairos`: asks a serving node of a fleet for its actions.

LeRobot imports this package by itself (`register_third_party_plugins`), which registers the type.
"""

from lerobot_policy_kairos.configuration_kairos import KairosConfig

__all__ = ["KairosConfig"]
