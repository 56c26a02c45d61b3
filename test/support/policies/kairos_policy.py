"""What tests of LeRobot's policy type kairos do with it, and what they send in its place."""

import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import websockets.exceptions
import websockets.sync.client
from kairos_ros.msg import ChunkRequest
from lerobot_policy_kairos.configuration_kairos import KairosConfig
from lerobot_policy_kairos.modeling_kairos import KairosPolicy

from kairos_ros.nodes import qos
from kairos_ros.transport.robot_link.messages import SUBPROTOCOL, read_error
from kairos_ros.transport.robot_link.one_frame import unpack

RATE_HZ = 50.0


def batch(*states: float, **more) -> dict:
    rows = len(states)
    return {
        "observation.state": torch.tensor([[state, 0.5] for state in states]),
        "observation.images.front": torch.zeros(rows, 3, 24, 32),
        "task": ["pick"] * rows,
    } | more


def requests_of(wire, robot: str) -> list[ChunkRequest]:
    """Those that come from now on."""
    heard: list[ChunkRequest] = []
    topic = f"/{robot}/chunk_request"
    wire.node.create_subscription(ChunkRequest, topic, heard.append, qos.EXCHANGE)
    return heard


def run(policy: KairosPolicy, steps: int, first: int = 0) -> np.ndarray:
    """The actions of so many control periods in real time; the state counts them."""
    actions = []
    for n in range(first, first + steps):
        began = time.monotonic()
        actions.append(policy.select_action(batch(float(n)))[0].numpy())
        time.sleep(max(0.0, 1 / RATE_HZ - (time.monotonic() - began)))
    return np.array(actions)


def raw(where: str, name: str):
    return websockets.sync.client.connect(
        f"{where}/{name}", subprotocols=[SUBPROTOCOL], compression=None, proxy=None
    )


def closed(connection) -> websockets.exceptions.ConnectionClosed:
    """Why the doors have closed it."""
    while True:
        try:
            connection.recv(timeout=20)
        except websockets.exceptions.ConnectionClosed as ended:
            return ended


def error_of(connection) -> str:
    while (message := unpack(connection.recv(timeout=20))).kind != "error":
        pass
    return read_error(message)


def guards(folder: Path, names: dict[str, str]) -> tuple[list[str | Path], Path]:
    """Options of doors for tokens and TLS, and the certificate. names: robot -> token."""
    cert, key, tokens = folder / "cert.pem", folder / "key.pem", folder / "tokens"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    tokens.write_text("".join(f"{robot} {token}\n" for robot, token in names.items()))
    tokens.chmod(0o600)
    return ["--tokens", tokens, "--tls-cert", cert, "--tls-key", key], cert


def configured(where: str, **options) -> KairosConfig:
    return KairosConfig(server=where, **options)
