"""A robot, a node and a worker that do nothing: the bytes of a request there and of a chunk back.

    python -m bench.support.relay robot|node|worker ENDPOINT

The same three processes, topics, QoS and sizes as when a chunk is served, each with one thread, and
no message is read or made: what is left is rclpy, DDS, ZeroMQ and waking up.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import rclpy
import zmq
from kairos_ros.msg import ActionChunk, ChunkRequest
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage

from bench.support.camera import picture
from bench.support.camera_policy import ACTION_DIM, CHUNK, IMAGES
from bench.support.client_process import ClientProcess
from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg

STEPS = 10
ANSWER_BYTES = 4 * (STEPS + 1) * CHUNK * ACTION_DIM
"""A chunk and its updates, from the worker to the node."""
FOUND_S, LOST_S = 20.0, 5.0
REQUESTS, ANSWERS = "relay/chunk_request", "relay/action_chunk"


@contextmanager
def relay(logs: Path, env: Mapping[str, str]) -> Iterator[ClientProcess]:
    """The robot of three processes. Told [COUNT, "jpeg" or "raw"], it answers with a list of as
    many round trips in ms."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for role in ("worker", "node", "robot"):
            log, endpoint = logs / f"relay_{role}.log", f"ipc://{folder}/worker"
            client = ClientProcess(log, env, "bench.support.relay", role, endpoint)
            stack.enter_context(client)
        client.hear()  # connected
        yield client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("robot", "node", "worker"))
    parser.add_argument("endpoint", help="ipc:// of the worker")
    arguments = parser.parse_args()
    if arguments.role != "robot":
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    if arguments.role == "worker":
        _work(arguments.endpoint)
        return
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(f"relay_{arguments.role}")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    if arguments.role == "node":
        _pass_on(node, executor, arguments.endpoint)
    else:
        _ask(node, executor)


def _work(endpoint: str) -> None:
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(endpoint)
    answer = bytes(ANSWER_BYTES)
    while True:
        socket.recv()
        socket.send(answer)


def _pass_on(node: Node, executor: SingleThreadedExecutor, endpoint: str) -> None:
    socket = zmq.Context().socket(zmq.REQ)
    socket.connect(endpoint)
    answers = node.create_publisher(ActionChunk, ANSWERS, qos.EXCHANGE)
    answer = serialize_message(ActionChunk(actions=array("f", bytes(4 * CHUNK * ACTION_DIM))))

    def on_request(request: bytes) -> None:
        socket.send(request)
        socket.recv()
        answers.publish(answer)

    node.create_subscription(ChunkRequest, REQUESTS, on_request, qos.EXCHANGE, raw=True)
    executor.spin()


def _ask(node: Node, executor: SingleThreadedExecutor) -> None:
    requests = node.create_publisher(ChunkRequest, REQUESTS, qos.EXCHANGE)
    arrived: list[int] = []
    node.create_subscription(
        ActionChunk,
        ANSWERS,
        lambda answer: arrived.append(time.monotonic_ns()),
        qos.EXCHANGE,
        raw=True,
    )
    views = {key: picture(i) for i, key in enumerate(IMAGES)}
    encoded = {
        "jpeg": _request({key: jpeg(view, IMAGES[key]) for key, view in views.items()}),
        "raw": _request({key: view.tobytes() for key, view in views.items()}),
    }

    def round_trip_ms(request: bytes, within_s: float) -> float | None:
        arrived.clear()
        sent, until = time.monotonic_ns(), time.monotonic() + within_s
        requests.publish(request)
        while not arrived and (left := until - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left)
        return (arrived[0] - sent) / 1e6 if arrived else None

    until = time.monotonic() + FOUND_S
    while round_trip_ms(encoded["jpeg"], 0.5) is None:
        if time.monotonic() > until:
            raise RuntimeError("the relay is not found")
    print(json.dumps("connected"), flush=True)
    for line in sys.stdin:
        count, kind = json.loads(line)
        took_ms = [round_trip_ms(encoded[kind], LOST_S) for _ in range(count)]
        print(json.dumps(took_ms), flush=True)


def _request(images: Mapping[str, bytes]) -> bytes:
    """A ChunkRequest in CDR."""
    pictures = [CompressedImage(format="jpeg", data=array("B", data)) for data in images.values()]
    return serialize_message(ChunkRequest(image_keys=list(images), images=pictures))


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
