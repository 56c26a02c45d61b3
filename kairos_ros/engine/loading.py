"""From options to an engine. Imports torch only where a policy needs it."""

from dataclasses import replace
from pathlib import Path

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.engine.emulated import PREFIX, EmulatedEngine
from kairos_ros.engine.paced import PREFIX as PACED
from kairos_ros.engine.paced import PacedEngine, parse_paced
from kairos_ros.engine.seam import Engine, EngineOptions, Progress
from kairos_ros.extras import require


def load_engine(options: EngineOptions, progress: Progress) -> Engine:
    """A loaded, verified, warm engine.

    Raises PolicyError (the policy is refused) or ConfigError (an option is wrong).
    """
    if not 1 <= options.max_batch <= 256:
        raise ConfigError(f"max_batch is {options.max_batch}; use 1 to 256")
    if options.threads < 1:
        raise ConfigError(f"threads is {options.threads}; use at least 1")
    if options.policy.startswith(PACED):
        pace = parse_paced(options.policy)
        return PacedEngine(load_engine(replace(options, policy=pace.policy), progress), pace)
    if options.policy.startswith(PREFIX):
        return EmulatedEngine(options.policy, options.max_batch)
    if options.policy.startswith(("/", ".", "~")) and not Path(options.policy).is_dir():
        # said here, because importing torch takes seconds
        raise PolicyError(f"there is no policy folder {options.policy}")
    require("torch", "lerobot")
    progress("importing torch")
    from kairos_ros.engine.policy_engine import load_policy_engine

    return load_policy_engine(options, progress)
