"""The profile of an engine that nobody has profiled yet."""

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.profile import EngineProfile
from kairos_ros.transport.messages import EngineDescription


def warmup_profile(engine: EngineDescription) -> EngineProfile:
    """What the engine measured while it warmed up, without spread.

    Raises ConfigError where it measured nothing.
    """
    if not engine.warmup:
        raise ConfigError(
            f"engine of {engine.policy_id} measured nothing while warming up; "
            "run 'kairos profile' and give its JSON as parameter profile"
        )
    sizes, seconds = zip(*engine.warmup, strict=True)
    return EngineProfile(
        policy_id=engine.policy_id,
        machine="measured while warming up",
        device=engine.device,
        dtype=engine.dtype,
        batch_sizes=sizes,
        p50_s=seconds,
        p10_s=seconds,
        p90_s=seconds,
    )
