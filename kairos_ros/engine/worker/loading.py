"""From options to an engine. Imports torch only where a policy needs it."""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from kairos_ros.core.errors import ConfigError, KairosError, PolicyError
from kairos_ros.core.language.decoding import CHOICES
from kairos_ros.engine.emulated import EmulatedEngine, parse_emulated
from kairos_ros.engine.interface import Engine, EngineOptions, Progress
from kairos_ros.engine.paced import PREFIX as PACED
from kairos_ros.engine.paced import PacedEngine, parse_paced
from kairos_ros.engine.policies.policy_folder import read_policy_folder
from kairos_ros.engine.policies.policy_source import one_line
from kairos_ros.engine.policies.saved_policy import PREFIX
from kairos_ros.host.extras import require
from kairos_ros.host.garbage import imports_stay

log = logging.getLogger(__name__)

MIB = 2**20


def load_registry(
    registry: Mapping[str, EngineOptions], progress: Progress
) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines by name, and why those that are missing are refused: one bad policy is no reason
    to serve none.

    Raises PolicyError, with all reasons, where there would be no engine at all.
    """
    engines: dict[str, Engine] = {}
    refused: dict[str, str] = {}
    for name, options in registry.items():
        try:
            engines[name] = load_engine(options, progress)
        except KairosError as error:
            if name:  # else it is the worker of a serving node, which reports it
                log.error("policy %s is refused: %s", name, error)
            refused[name] = str(error)
    if not engines:
        reasons = (f"{name}: {reason}" if name else reason for name, reason in refused.items())
        raise PolicyError("; ".join(reasons))
    return engines, refused


def load_engine(options: EngineOptions, progress: Progress) -> Engine:
    """A loaded, verified, warm engine.

    Raises PolicyError (the policy is refused) or ConfigError (an option is wrong).
    """
    if not 1 <= options.max_batch <= 256:
        raise ConfigError(f"max_batch is {options.max_batch}; use 1 to 256")
    if options.threads < 1:
        raise ConfigError(f"threads is {options.threads}; use at least 1")
    if options.language_decoding not in CHOICES:
        how = options.language_decoding
        raise ConfigError(f"language_decoding is {how!r}; use one of {', '.join(CHOICES)}")
    if options.policy.startswith(PACED):
        pace = parse_paced(options.policy)
        return PacedEngine(load_engine(replace(options, policy=pace.policy), progress), pace)
    if options.policy.startswith(PREFIX):
        for name, lacks in (("rtc", "sampler"), ("compile", "sampler"), ("language_mib", "words")):
            if getattr(options, name):
                raise ConfigError(f"{name}: an emulated policy has no {lacks}; leave it out")
        engine = EmulatedEngine(options.policy, options.max_batch)
        time.sleep(parse_emulated(options.policy).load_s)
        return engine
    require("torch", "lerobot")
    with _judged(options.policy):  # refuses what it can, because importing torch takes seconds
        read_policy_folder(options)
    if options.compile:  # torch looks when it is imported
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_compiled_cache()))
    progress("importing torch")
    with imports_stay(), _metadata_read_once():
        from kairos_ros.engine.policies.policy_engine import load_policy_engine
    with _judged(options.policy):
        return load_policy_engine(options, progress)


def memory_needed(options: EngineOptions) -> int:
    """MiB that a policy is taken to need before it was ever loaded: the size of its weights file.

    Raises PolicyError or ConfigError for a policy that can be refused without loading it.
    """
    if options.policy.startswith(PACED):
        return memory_needed(replace(options, policy=parse_paced(options.policy).policy))
    if options.policy.startswith(PREFIX):
        return parse_emulated(options.policy).memory_mib
    with _judged(options.policy):
        return -(-read_policy_folder(options).weights.stat().st_size // MIB)


@contextmanager
def _judged(policy: str) -> Iterator[None]:
    """A folder comes from whoever made the policy: whatever it makes its readers raise refuses it,
    once and alone. Raises PolicyError, and what else is a KairosError."""
    try:
        yield
    except KairosError:
        raise
    except Exception as error:
        log.exception("policy %s does not load", policy)
        why = f"{type(error).__name__}: {one_line(error)}"
        raise PolicyError(f"policy {policy} does not load: {why}") from error


@contextmanager
def _metadata_read_once() -> Iterator[None]:
    """For importing transformers and diffusers: both look, when they are imported, which package
    has which module, and reading that of all that is installed takes half a second."""
    import importlib.metadata

    read = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = cache(read)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = read


def _compiled_cache() -> Path:
    """Where what torch compiled is kept for the next start."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kairos_ros" / "compiled"
