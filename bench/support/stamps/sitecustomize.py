"""Notes when the functions named in POINTS are called and return, in every process of a benchmark.

With this folder on PYTHONPATH and KAIROS_STAMPS set, each call appends a line `NAME> NANOSECONDS`
and each return `NAME< NANOSECONDS` to that file, by the machine's monotonic clock. A line costs a
few microseconds.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

POINTS: dict[str, dict[str, str]] = {
    "bench.support.ros_exchange": {"request_message": "request", "answer_of": "answer"},
    "kairos_ros.nodes.bounded": {"read": "read"},
    "kairos_ros.serving.dispatcher": {"Dispatcher.request": "schedule"},
    "kairos_ros.engine.client.engine_link": {
        "EngineLink.submit": "submit",
        "EngineLink._send": "send",
        "EngineLink._on": "link",
    },
    "kairos_ros.nodes.serving.engines": {"ServingEngines._handle": "handle"},
    "kairos_ros.nodes.robot.topics": {"RobotTopics.publish": "publish"},
    "kairos_ros.engine.worker.link": {
        "WorkerLink._on": "worker",
        "WorkerLink.begin": "begin",
        "WorkerLink._send": "result",
    },
    "kairos_ros.engine.policies.policy_engine": {
        "PolicyEngine._infer": "infer",
        "PolicyEngine._sample": "model",
    },
}
"""Module -> function -> what its lines are called."""


class Finder(importlib.abc.MetaPathFinder):
    """Wraps the functions of a module when it is imported."""

    def __init__(self, file: int) -> None:
        self._file = file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = (
            importlib.machinery.PathFinder.find_spec(fullname, path) if fullname in POINTS else None
        )
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for point, name in POINTS[fullname].items():
                    owner, _, attribute = point.rpartition(".")
                    holder = getattr(module, owner) if owner else module
                    noted = self._noted(getattr(holder, attribute), name.encode())
                    setattr(holder, attribute, noted)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
        return spec

    def _noted(self, function: Callable[..., Any], name: bytes) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            os.write(self._file, b"%s> %d\n" % (name, time.monotonic_ns()))
            try:
                return function(*args, **kwargs)
            finally:
                os.write(self._file, b"%s< %d\n" % (name, time.monotonic_ns()))

        return noted


if path := os.environ.get("KAIROS_STAMPS"):
    sys.meta_path.insert(0, Finder(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)))
