"""A robot that runs openpi's real client, and the process that serves it."""

import itertools
import re
import sys
import threading
from pathlib import Path

import numpy as np
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
ADDRESS = re.compile(r"doors: (wss?://\S+:\d+)")


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


class Robot:
    """Asks for chunk after chunk in a thread of its own, each from a state that no other has."""

    def __init__(self, where: str, name: str, first: float) -> None:
        self.policy = WebsocketClientPolicy(f"{where}/{name}")
        self.served = 0
        self.harm: list[str] = []
        """What went wrong so far."""
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def begin(self) -> "Robot":
        self._thread.start()
        return self

    def check(self, rounds: int = 5) -> None:
        """It was served its own chunks all the time, and still is, for some more rounds."""
        goal = self.served + rounds
        until(lambda: self.harm or self.served >= goal, what="for a robot to be served")
        assert not self.harm, self.harm

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.policy._ws.close()

    def _live(self) -> None:
        for n in itertools.count():
            if self._stop.wait(0.02):
                return
            state = self._first + n / 1024
            try:
                actions = self.policy.infer(observation(state))["actions"]
            except Exception as error:
                self.harm.append(f"{type(error).__name__}: {error}")
                return
            if actions.shape != (CHUNK, 2) or set(actions[:, 0].tolist()) != {np.float32(state)}:
                self.harm.append(f"asked from {state} and got {actions[:, 0]}")
            self.served += 1
