"""Tiny policies, saved once per test session and loaded once per kind."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
# As in a worker: one thread, set before torch reads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from observations import options
from tiny_policies import TINY, save_policy

from kairos_ros.engine.interface import Engine
from kairos_ros.engine.worker.loading import load_engine

KINDS = tuple(TINY)
ONE_OF_EACH_TYPE = tuple({tiny.type: kind for kind, tiny in reversed(TINY.items())}.values())
EMULATED = "emulated:chunk=12,dim=3,steps=6,state=5,images=observation.images.top@32x48"


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
def engine_of(folder_of) -> Callable[[str], Engine]:
    """An engine that serves the tiny policy of a kind, loaded as users load theirs."""
    loaded: dict[str, Engine] = {}

    def engine(kind: str) -> Engine:
        if kind not in loaded:
            if kind == "emulated":
                loaded[kind] = load_engine(options(EMULATED), lambda _: None)
            else:
                with TINY[kind].loaded():
                    loaded[kind] = load_engine(options(folder_of(kind)), lambda _: None)
        return loaded[kind]

    return engine


@pytest.fixture(params=(*KINDS, "emulated"))
def any_kind(request) -> str:
    """For what every engine promises."""
    return request.param


@pytest.fixture(params=ONE_OF_EACH_TYPE)
def type_kind(request) -> str:
    """For what the types promise, however they draw their chunks."""
    return request.param


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    """For what every policy family promises."""
    return request.param
