"""Policies of installed plugins, tapped where they report their steps as LeRobot's own do."""

from typing import Any

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.families.diffusion import DiffusionSampler
from kairos_ros.engine.policies.families.euler import EulerSampler
from kairos_ros.engine.policies.sampler import FamilyCode, Sampler


def sampler(policy: Any) -> Sampler:
    """Raises PolicyError for a policy that does not report its steps."""
    if hasattr(getattr(policy, "model", None), "rtc_processor"):
        return EulerSampler(policy)
    if hasattr(getattr(policy, "diffusion", None), "noise_scheduler"):
        return DiffusionSampler(policy)
    raise PolicyError(
        f"policies of type {policy.config.type!r} do not report their steps to "
        "model.rtc_processor, as a plugin's must (docs/engine.md)"
    )


CODE = FamilyCode(sampler)
