"""Tiny policies, saved once per test session and loaded once per kind."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
# As in a worker: one thread, set before torch reads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from observations import options
from tiny_policies import save_policy, small_pi

from kairos_ros.engine.policy_engine import PolicyEngine, load_policy_engine

KINDS = ("flow_mlp", "diffusion", "ddpm", "pi0", "pi05", "smolvla")


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of the tiny policy of a kind."""
    saved: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in saved:
            saved[kind] = save_policy(kind, tmp_path_factory.mktemp(kind))
        return saved[kind]

    return folder


@pytest.fixture(scope="session")
def engine_of(folder_of) -> Callable[[str], PolicyEngine]:
    """An engine that serves the tiny policy of a kind, loaded as users load theirs."""
    loaded: dict[str, PolicyEngine] = {}

    def engine(kind: str) -> PolicyEngine:
        if kind not in loaded:
            with small_pi():
                loaded[kind] = load_policy_engine(options(folder_of(kind)), lambda _: None)
        return loaded[kind]

    return engine


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param
