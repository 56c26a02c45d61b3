"""A robot that runs openpi's real client, and the process that serves it."""

import re
import sys
from pathlib import Path

import numpy as np
from asking_robot import AskingRobot
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from wire import until

MAP = """
dialect: openpi
robot: robot
control_rate_hz: 100
state: [{key: observation/state, size: 2}]
images: {front: {key: observation/image}}
action_dim: 2
"""
POLICY = "emulated:latency_ms=5+1b,chunk=10,state=2,dim=2,steps=2,images=front@24x32"
"""Its actions begin with the state that they were made from."""
CHUNK = 10
PICTURE = np.zeros((48, 64, 3), np.uint8)
ADDRESS = re.compile(r"doors: ((?:wss?|tcp)://\S+:\d+)")


def doors(run, folder: Path, *options: str, text: str = MAP, env=None):
    """Starts `kairos doors` on a free port. run: `Starter.run`."""
    path = folder / "map.yaml"
    path.write_text(text)
    program = Path(sys.prefix, "bin", "kairos")
    return run([program, "doors", path, "--listen", "127.0.0.1:0", *options], env)


def address(process) -> str:
    """Once it serves."""

    def serves() -> bool:
        assert process.process.poll() is None, process.output()
        return "doors: serves" in process.output()

    until(serves, what="for kairos doors")
    return ADDRESS.search(process.output())[1]


def observation(state: float = 0.0, **changes) -> dict:
    seen = np.array([state, 0.5])
    return {"observation/state": seen, "observation/image": PICTURE, "prompt": "pick"} | changes


def robot(where: str, name: str, first: float) -> AskingRobot:
    policy = WebsocketClientPolicy(f"{where}/{name}")

    def ask(state: float) -> np.ndarray:
        return policy.infer(observation(state))["actions"][:, 0]

    return AskingRobot(ask, policy._ws.close, first, CHUNK)
