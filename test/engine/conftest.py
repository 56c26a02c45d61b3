"""Tiny policies, saved once per test session and loaded once per kind."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
# As in a worker: one thread, set before torch reads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from kairos_ros.engine.interface import Engine

EMULATED = "emulated:chunk=12,dim=3,steps=6,state=5,images=observation.images.top@32x48"


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of the tiny policy of a kind."""
    from tiny_policies import save_policy  # which loads torch: seconds that `--fast` spares

    saved: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in saved:
            saved[kind] = save_policy(kind, tmp_path_factory.mktemp(kind))
        return saved[kind]

    return folder


@pytest.fixture(scope="session")
def engine_of(folder_of) -> Callable[[str], Engine]:
    """An engine that serves the tiny policy of a kind, loaded as users load theirs."""
    from observations import options
    from tiny_policies import TINY

    from kairos_ros.engine.worker.loading import load_engine

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


def pytest_generate_tests(metafunc):
    """`kind`: for what every policy family promises, where the test names none. `any_kind`: for
    what every engine promises. `type_kind`: for what the types promise, however they draw."""
    named = str([mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")])
    wanted = {"kind", "any_kind", "type_kind"} & set(metafunc.fixturenames)
    wanted -= set(re.findall(r"\w+", named))
    if not wanted:
        return
    from tiny_policies import TINY

    of_each_type = {tiny.type: kind for kind, tiny in reversed(TINY.items())}
    kinds = {"kind": [*TINY], "any_kind": [*TINY, "emulated"], "type_kind": of_each_type.values()}
    for name in sorted(wanted):
        metafunc.parametrize(name, kinds[name])
