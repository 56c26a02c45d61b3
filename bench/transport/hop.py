"""What the network hop costs: 500 KB (three images) to an engine that takes no time, and back.

Ours is the real worker process on loopback, with and without keys; the time it says it computed is
subtracted. The peer is LeRobot's PolicyServer with its own transport code, its answer ready. Both
send the same number of bytes of image, both end with the actions as an array. One request at a
time, blocks alternate between the sides.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from bench.support.camera_policy import CHUNK
from bench.support.report import Result, new_figure
from bench.support.servers import LOADED_WITHIN_S, environment
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.message_codec import infer_message, read_result, read_status
from kairos_ros.transport.messages import InferRequest, InferResult
from kairos_ros.transport.sockets import CurveClient, connect_dealer

DIM = 7
PIXELS = (236, 236, 3)
CAMERAS = ("top", "left", "right")
"""501,264 bytes in all; ours sends as many as images that are encoded already."""
BLOCK = 100
PAUSE_S = 0.005
"""Between requests: one robot, not a flood."""
WARM_UP = 50
TARGET_MS = 1.5
FIRST_PORT = 18_180
SIDES = {
    "curve": "ZeroMQ, CURVE",
    "plain": "ZeroMQ, no keys",
    "lerobot": "LeRobot gRPC",
    "upload": "LeRobot gRPC, observation only",
}

Ask = Callable[[], dict[str, float]]
"""One request: seconds by side."""


def run(folder: Path, *, quick: bool) -> Result:
    blocks = 3 if quick else 15
    logs = folder / "logs"
    logs.mkdir(parents=True)
    times: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    with (
        _worker(folder, FIRST_PORT, keyed=True) as curve,
        _worker(folder, FIRST_PORT + 1, keyed=False) as plain,
        _lerobot(logs, FIRST_PORT + 2) as lerobot,
    ):
        for ask in (curve, plain, lerobot):
            for _ in range(WARM_UP):
                ask()
        for _ in range(blocks):
            for ask in (curve, plain, lerobot):
                block = [_paced(ask) for _ in range(BLOCK)]
                for side in block[0]:
                    times[side].append([1e3 * one[side] for one in block])
    return _result(times)


def _paced(ask: Ask) -> dict[str, float]:
    time.sleep(PAUSE_S)
    return ask()


@contextlib.contextmanager
def _worker(folder: Path, port: int, *, keyed: bool) -> Iterator[Ask]:
    endpoint, name = f"tcp://127.0.0.1:{port}", "curve" if keyed else "plain"
    keys = KeyFolder(folder / "keys")
    security: CurveClient | Insecure = Insecure.LOOPBACK
    if keyed:
        server = keys.new("cloud", Role.SERVER)
        client = keys.new("edge", Role.CLIENT)
        keys.trust(client.key)
        security = CurveClient(client, server.key)
    policy = f"emulated:latency_ms=0,chunk={CHUNK},dim={DIM},state={DIM}"
    command = [sys.executable, "-m", "kairos_ros.engine.worker", "--listen", endpoint]
    command += ["--policy", policy, "--keys", str(keys.path)]
    with (
        _process([*command, *([] if keyed else ["--insecure-loopback"])], folder / "logs", name),
        zmq.Context() as context,
        connect_dealer(context, endpoint, security=security) as dealer,
    ):
        images = {camera: pixels.tobytes() for camera, pixels in _images().items()}
        state, batch, inbox = np.zeros(DIM, np.float32), 0, Inbox(dealer)

        def exchange(message: Message) -> Message:
            dealer.send_multipart(encode(message), copy=False)
            if not dealer.poll(round(1e3 * LOADED_WITHIN_S)):
                raise RuntimeError(f"no answer of {name}: see {folder / 'logs'}")
            return decode(inbox.receive())

        def ask() -> dict[str, float]:
            nonlocal batch
            batch += 1
            start = time.perf_counter()
            request = InferRequest("arm", "s", "t", batch, 0, 1, "go", state, images)
            result = read_result(exchange(infer_message(batch, [request])))
            spent = time.perf_counter() - start
            (outcome,) = result.outcomes
            if result.batch != batch or not isinstance(outcome, InferResult):
                raise RuntimeError(f"{name} answered {outcome}")
            return {name: spent - result.compute_s}

        while read_status(exchange(Message("ping"))).state == "loading":
            time.sleep(0.05)
        yield ask


@contextlib.contextmanager
def _lerobot(logs: Path, port: int) -> Iterator[Ask]:
    import grpc
    from lerobot.async_inference.helpers import TimedObservation
    from lerobot.transport import services_pb2, services_pb2_grpc
    from lerobot.transport.utils import grpc_channel_options, send_bytes_in_chunks

    command = [sys.executable, "-m", "bench.transport.hop_server", str(port)]
    with (
        _process(command, logs, "lerobot"),
        grpc.insecure_channel(f"127.0.0.1:{port}", grpc_channel_options()) as channel,
    ):
        grpc.channel_ready_future(channel).result(LOADED_WITHIN_S)
        stub = services_pb2_grpc.AsyncInferenceStub(channel)
        stub.Ready(services_pb2.Empty())
        raw: dict[str, Any] = {f"joint_{i}": 0.0 for i in range(DIM)}
        raw |= _images() | {"task": "go"}
        step = 0

        def ask() -> dict[str, float]:
            nonlocal step
            step += 1
            # RobotClient, too, has this call waiting when it sends an observation.
            answer = stub.GetActions.future(services_pb2.Empty())
            start = time.perf_counter()
            observation = TimedObservation(time.time(), step, observation=raw, must_go=True)
            data = pickle.dumps(observation)
            stub.SendObservations(send_bytes_in_chunks(data, services_pb2.Observation))
            sent = time.perf_counter()
            timed = pickle.loads(answer.result(LOADED_WITHIN_S).data)  # of our own server
            actions = np.stack([action.get_action().numpy() for action in timed])
            spent = time.perf_counter() - start
            if timed[0].get_timestep() != step or actions.shape != (CHUNK, DIM):
                raise RuntimeError(f"LeRobot answered step {timed[0].get_timestep()}, not {step}")
            return {"lerobot": spent, "upload": sent - start}

        yield ask


def _images() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {camera: rng.integers(0, 256, PIXELS, np.uint8) for camera in CAMERAS}


@contextlib.contextmanager
def _process(command: list[str], logs: Path, name: str) -> Iterator[None]:
    with (logs / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=logs,
            env=os.environ | environment(),
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _result(times: dict[str, list[list[float]]]) -> Result:
    """Median over blocks of each block's quantile: other work spoils single blocks only."""
    quantile = {
        side: {q: float(np.median(np.percentile(blocks, q, axis=1))) for q in (50, 90, 99)}
        for side, blocks in times.items()
    }
    curve = quantile["curve"][50]
    rows = [
        [
            name,
            *(f"{ms:.2f}" for ms in quantile[side].values()),
            f"{quantile[side][50] / curve:.2f}",
        ]
        for side, name in SIDES.items()
    ]
    data = {
        "quantiles_ms": quantile,
        "curve_p50_ms": curve,
        "target_ms": TARGET_MS,
        "lerobot_over_curve_p50": quantile["lerobot"][50] / curve,
        "times_ms": times,
    }
    header = ["500 KB, ms", "p50", "p90", "p99", "p50 / CURVE's"]
    return Result(header, rows, data, lambda path: _plot(path, times, quantile))


def _plot(
    path: Path, times: dict[str, list[list[float]]], quantile: dict[str, dict[int, float]]
) -> None:
    curve, lerobot = quantile["curve"][50], quantile["lerobot"][50]
    title = f"An encrypted hop costs {curve:.1f} ms per 500 KB, LeRobot's gRPC {lerobot:.1f} ms"
    about = "loopback, one request at a time, engine time subtracted; dotted: median of blocks"
    styles = {"lerobot": (BASELINE, "-"), "plain": (OURS, "--"), "curve": (OURS, "-")}
    with new_figure(path, title, about) as axes:
        for side, (colour, line) in styles.items():
            values = np.sort(np.concatenate(times[side]))
            share = np.arange(1, len(values) + 1) / len(values)
            axes.plot(values, share, color=colour, ls=line, label=SIDES[side])
            axes.axvline(quantile[side][50], color=colour, ls=":", lw=0.8)
        axes.set_xlim(0, 1.5 * quantile["lerobot"][90])
        axes.set_xlabel("round trip minus engine time (ms)")
        axes.set_ylabel("share of requests")
        axes.legend(frameon=False, loc="lower right")
