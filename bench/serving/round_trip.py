"""Where the milliseconds of a round trip go: one robot, three cameras of 224 px, one small policy.

As `overhead`, our side alone, with the functions between which time passes noted in all processes
(`bench/support/stamps`). Noting them costs about 0.1 ms of the whole. Blocks alternate with those
of a relay of as many bytes through three processes that do nothing (`bench/support/relay.py`).
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.support.camera_policy import CHUNK, PLUGIN
from bench.support.client_process import ClientProcess
from bench.support.relay import relay
from bench.support.report import Result, new_figure
from bench.support.servers import ROOT, Kairos, environment
from kairos_ros.lab.metrics.figure_style import OURS

STAGES = (
    ("robot: build the message", "request<"),
    ("DDS to the serving node, which wakes up", "read>"),
    ("serving node: read the message", "schedule>"),
    ("serving node: check and schedule it", "submit>"),
    ("serving node: encode the batch and send it", "send<"),
    ("ZeroMQ to the worker, which wakes up", "worker>"),
    ("worker: read the batch", "begin>"),
    ("worker: decode the pictures", "infer>"),
    ("worker: LeRobot's preprocessor", "model>"),
    ("model", "model<"),
    ("worker: LeRobot's postprocessor, encode the chunk", "result>"),
    ("ZeroMQ to the serving node, which wakes up", "link>"),
    ("serving node: read the chunk, cut it, build the message", "publish>"),
    ("DDS to the robot, which wakes up", "answer>"),
    ("robot: read the message", "answer<"),
)
"""What takes the time until the line of this name (`bench/support/stamps`), in their order."""
FIRST = "request>"
WARM_UP = 100
BLOCK = 100
RELAYED = {"jpeg": "the three JPEGs", "raw": "their pixels"}


def run(folder: Path, *, quick: bool) -> Result:
    count = 200 if quick else 1000
    policy, stamps = folder / "policy", folder / "stamps"
    subprocess.run(
        [sys.executable, "-m", "bench.support.camera_policy", policy], check=True, cwd=ROOT
    )
    env = environment(modules=PLUGIN, KAIROS_STAMPS=str(stamps))
    env["PYTHONPATH"] = f"{ROOT / 'bench' / 'support' / 'stamps'}:{env['PYTHONPATH']}"
    logs = folder / "logs"
    with (
        Kairos(logs, env, policy=str(policy), horizon=f"static:{CHUNK}"),
        ClientProcess(
            logs / "client.log", env, "bench.serving.overhead_client", "kairos", policy
        ) as client,
        relay(logs, environment()) as idle,
    ):
        client.hear()  # connected
        client.tell(WARM_UP)
        client.hear()
        stamps.write_bytes(b"")
        requests: list[dict[str, int]] = []
        relayed_ms: dict[str, list[float]] = {kind: [] for kind in RELAYED}
        for _ in range(count // BLOCK):
            client.tell(BLOCK)
            requests += client.hear()
            for kind, took_ms in relayed_ms.items():
                idle.tell([BLOCK, kind])
                took_ms += idle.hear()
    jpeg_ms = [(one["encoded_ns"] - one["sent_ns"]) / 1e6 for one in requests]
    stages_ms = np.array(list(_round_trips(stamps.read_text())))
    if len(stages_ms) < count / 2:
        raise RuntimeError(f"only {len(stages_ms)} of {count} requests passed every stage")
    medians = [float(np.median(jpeg_ms)), *np.median(stages_ms, axis=0).tolist()]
    names = ["robot: three pictures as JPEG", *(name for name, _ in STAGES)]
    whole, model = sum(medians), medians[names.index("model")]
    rows = [[name, f"{ms:.2f}"] for name, ms in zip(names, medians, strict=True)]
    rows += [["together", f"{whole:.2f}"], ["without the model", f"{whole - model:.2f}"]]
    relay_ms = {kind: float(np.median(took_ms)) for kind, took_ms in relayed_ms.items()}
    rows += [
        [f"relay of {RELAYED[kind]} through three idle processes", f"{ms:.2f}"]
        for kind, ms in relay_ms.items()
    ]
    stages = dict(zip(names, medians, strict=True))
    data = {"stages_ms": stages, "requests": len(stages_ms), "relay_ms": relay_ms}
    return Result(
        ["stage", "ms, median"], rows, data, lambda path: _plot(path, names, medians, model)
    )


def _round_trips(lines: str) -> Iterator[list[float]]:
    """Milliseconds of every stage, for each request that passed all of them in their order."""
    stamps = sorted((int(at), name) for name, at in map(str.split, lines.splitlines()))
    passed: list[int] = []
    for at, name in stamps:
        if name == FIRST:
            passed = [at]
        elif passed and name == STAGES[len(passed) - 1][1]:
            passed.append(at)
            if len(passed) > len(STAGES):
                yield (np.diff(passed) / 1e6).tolist()
                passed = []


def _plot(path: Path, names: list[str], medians: list[float], model: float) -> None:
    title = f"{sum(medians) - model:.1f} ms besides the model"
    with new_figure(path, title, "one robot, 3 × 224 px; medians") as axes:
        starts = np.cumsum([0.0, *medians[:-1]])
        axes.barh(names, medians, left=starts, color=OURS)
        axes.invert_yaxis()
        axes.set_xlabel("ms since the robot began")
        axes.figure.subplots_adjust(left=0.5)
