"""Cameras beside simulated servos: what they would see of the arm, for LeRobot's `zmq` cameras.

A process of its own renders, so that the servos answer in time.
"""

import base64
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from types import SimpleNamespace
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.orphan import die_with_parent
from kairos_ros.lab.world.feetech_sim import HIGH, LOW, STEPS, Servo
from kairos_ros.robot.adapters.sim.sim_cameras import MujocoCameras, jpeg, render_off_screen
from kairos_ros.robot.description.arm import arm_called

SIZE = (480, 640)
"""(height_px, width_px)."""
RATE_HZ = 15.0
ARM = "so101"


def parse_cameras(texts: Sequence[str]) -> dict[str, int]:
    """`["front=5601"]` as camera -> TCP port. Raises ConfigError."""
    views = arm_called(ARM).views
    ports: dict[str, int] = {}
    for text in texts:
        name, _, port = text.partition("=")
        if name not in views:
            raise ConfigError(f"camera {text!r}: write NAME=PORT, NAME one of {', '.join(views)}")
        if not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ConfigError(f"camera {text!r}: the port is a number from 1 to 65535")
        ports[name] = int(port)
    if len(set(ports.values())) < len(texts):
        raise ConfigError(f"cameras {', '.join(texts)}: give every camera a port of its own")
    return ports


def lerobot_options(ports: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """What LeRobot's option `cameras` says to have these cameras."""
    kind = {"type": "zmq", "server_address": "127.0.0.1", "camera_name": "view"}
    size = {"height": SIZE[0], "width": SIZE[1], "fps": round(RATE_HZ), "timeout_ms": 10_000}
    return {name: {**kind, "port": port, **size} for name, port in ports.items()}


def joint_positions(servos: Sequence[Servo]) -> list[float]:
    """Of the described arm, in rad, where these servos are: the middle of a range is 0, and a
    gripper opens with its range."""
    arm = arm_called(ARM)
    positions = []
    for servo, name in zip(servos, arm.joints, strict=True):
        low, high = servo.peek(LOW), servo.peek(HIGH)
        if name == arm.hands[0].gripper:
            share = (servo.position - low) / max(1, high - low)
            hand = arm.hands[0]
            positions.append(hand.closed + share * (hand.opened - hand.closed))
        else:
            positions.append((servo.position - (low + high) / 2) * math.tau / STEPS)
    return positions


class ServoCameras:
    """Publishes what the cameras see on `tcp://127.0.0.1:PORT`, until closed. A context manager."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        """ports: as of `parse_cameras`; empty: no cameras, no process."""
        context = multiprocessing.get_context("spawn")
        joints = len(arm_called(ARM).joints)
        self._positions: SynchronizedArray[float] = context.Array("d", joints)
        arguments = (dict(ports), self._positions, os.getpid())
        self._process = context.Process(target=_render, args=arguments) if ports else None

    def __enter__(self) -> "ServoCameras":
        if self._process is not None:
            self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join()

    def show(self, servos: Sequence[Servo]) -> None:
        """The servos are there now."""
        if self._process is not None:
            self._positions[:] = joint_positions(servos)


def _render(ports: Mapping[str, int], positions: "SynchronizedArray[float]", parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    die_with_parent(parent, signal.SIGTERM)
    render_off_screen()
    import zmq

    from kairos_ros.lab.world.world import ArmWorld

    world = ArmWorld(arm_called(ARM))
    cameras = MujocoCameras(SimpleNamespace(unwrapped=world), dict.fromkeys(ports, SIZE))
    sockets: dict[str, zmq.Socket] = {}
    for name, port in ports.items():
        sockets[name] = zmq.Context.instance().socket(zmq.PUB)
        sockets[name].setsockopt(zmq.SNDHWM, 2)
        sockets[name].bind(f"tcp://127.0.0.1:{port}")
    while True:
        due_s = time.monotonic() + 1 / RATE_HZ
        world.place(np.array(positions[:]))
        for name, socket in sockets.items():
            # LeRobot's image server encodes RGB as if it were OpenCV's BGR; its camera decodes so
            encoded = jpeg(np.ascontiguousarray(cameras.frame(name)[..., ::-1]), SIZE)
            picture = base64.b64encode(encoded).decode()
            socket.send_string(json.dumps({"images": {"view": picture}}))
        time.sleep(max(0.0, due_s - time.monotonic()))
