"""The mark `slow`, and what only tests with it may do: start processes, load torch, speak DDS.

`pytest --fast` (`make check`) leaves them out. A test that uses a fixture of nodes has the mark by
itself; any other that needs it says so, or fails.
"""

import gc
import re
import sys
import time
from pathlib import Path

import pytest
import rclpy
from hypothesis import settings

NODES = {"start", "start_node", "start_for_module", "starter_for_module", "wire"}
"""Fixtures that start nodes or speak DDS."""
WHOLE_MODULE = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
"""Audit events of a new process."""
MOST_CPU_S = 60.0
"""Of a test without the mark: far more than any needs, so that a slow host fails none of them."""
HOW = "mark this test with `pytest.mark.slow`"

_fast_test_runs = False


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="leave out the tests that are marked slow")


def pytest_configure(config):
    if config.getoption("--fast"):
        settings.register_profile("fast", settings.get_profile("untimed"), max_examples=20)
        settings.load_profile("fast")


def pytest_collection():
    gc.disable()


def pytest_collection_finish(session):
    """What collection made stays to the end: looking at all of it again and again takes seconds."""
    if session.config.getoption("--fast") and "torch" in sys.modules:
        raise pytest.UsageError(
            "a module of tests imports torch: `pytestmark = pytest.mark.slow` in it"
        )
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Collects what a slow module left, and excludes the rest from later collections: one of those
    in the middle of a test stops all threads of the process, for up to 3 s on a busy host."""
    yield
    last = nextitem is None or nextitem.path != item.path
    if last and item.get_closest_marker("slow"):
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config) -> bool | None:
    """Not even imported with --fast: loading torch takes seconds."""
    if not config.getoption("--fast") or collection_path.suffix != ".py":
        return None
    return bool(WHOLE_MODULE.search(collection_path.read_text())) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if NODES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    # long modules first: short ones at the end leave no worker idle
    items.sort(key=lambda item: item.path not in slow)
    if config.getoption("--fast"):
        left_out = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _watched(item))


def _watched(item):
    global _fast_test_runs
    _fast_test_runs = not item.get_closest_marker("slow")
    began = time.process_time()
    try:
        result = yield
    finally:
        fast, _fast_test_runs = _fast_test_runs, False
    used_s = time.process_time() - began
    assert not fast or used_s < MOST_CPU_S, f"took {used_s:.0f} s of processor time: {HOW}"
    return result


def _watch(event: str, args: tuple) -> None:
    if _fast_test_runs and (event in STARTS or (event == "import" and args[0] == "torch")):
        raise AssertionError(f"{event} {args[0]!r}: {HOW}")


def _init(context, *args, **kwargs):
    assert not _fast_test_runs, f"speaks DDS: {HOW}"
    return _init_context(context, *args, **kwargs)


sys.addaudithook(_watch)
_init_context, rclpy.Context.init = rclpy.Context.init, _init
