"""Robots with clients of other policy servers, a thread each: they ask, execute, and ask again.

    python -m bench.doors.doors_client STATE_DIM

For every line `[DIALECT, URL, ROBOTS, SECONDS]` that many robots connect, ask for SECONDS, and
leave. It prints one JSON list of [robot, round, latency_ms, first action] per chunk, and the
errors. openpi's client is the real one, GR00T's is written from its wire.
"""

import json
import sys
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from bench.support.peers.groot_client import GrootClient

INSTRUCTION = "open the drawer"
EXECUTE_S = 0.25
"""Between a chunk and the next request: five actions at 20 Hz, as openpi's LIBERO client."""
SEED = 1_000_003
"""A robot's first task has seed 1: its round n is computed with noise of seed SEED + n."""


def state_of(robot: int, round_: int, dim: int) -> NDArray[np.float32]:
    """What this robot sees in this round, and no other one does."""
    generator = np.random.default_rng([robot, round_])
    return generator.standard_normal(dim).astype(np.float32)


class OpenpiPolicy:
    """What it is for its server."""

    def __init__(self, url: str, robot: int) -> None:
        self._policy = WebsocketClientPolicy(f"{url}/bench_{robot}")

    def first_action(self, seen: NDArray[np.float32], round_: int) -> NDArray[np.float32]:
        reply = self._policy.infer({"observation/state": seen, "prompt": INSTRUCTION})
        first: NDArray[np.float32] = reply["actions"][0]
        return first

    def close(self) -> None:
        self._policy._ws.close()


class GrootPolicy:
    """What it is for its server. The options hold the seed, which only the server of its own design
    needs: it does not know whose request it has."""

    def __init__(self, url: str, robot: int) -> None:
        self._client = GrootClient(url)
        self.close = self._client.close

    def first_action(self, seen: NDArray[np.float32], round_: int) -> NDArray[np.float32]:
        observation = {
            "state": {"all": seen[None, None]},
            "language": {"task": [[INSTRUCTION]]},
        }
        actions, _ = self._client.get_action(observation, {"seed": SEED + round_})
        first: NDArray[np.float32] = actions["all"][0, 0]
        return first


CLIENTS: dict[str, type[OpenpiPolicy | GrootPolicy]] = {
    "openpi": OpenpiPolicy,
    "groot": GrootPolicy,
}


class Robot:
    """One thread."""

    def __init__(self, dialect: str, url: str, robot: int, dim: int) -> None:
        self._robot, self._dim = robot, dim
        self.end_s = 0.0
        self.chunks: list[list[Any]] = []
        self.error = ""
        self._policy = CLIENTS[dialect](url, robot)
        self.thread = threading.Thread(target=self._live)

    def _live(self) -> None:
        time.sleep(np.random.default_rng(self._robot).uniform(0, EXECUTE_S))
        round_ = 0
        try:
            while time.monotonic() < self.end_s:
                round_ += 1
                seen = state_of(self._robot, round_, self._dim)
                sent_s = time.monotonic()
                first = self._policy.first_action(seen, round_).tolist()
                latency_ms = (time.monotonic() - sent_s) * 1e3
                self.chunks.append([self._robot, round_, latency_ms, first])
                time.sleep(EXECUTE_S)
        except Exception as error:
            self.error = f"robot {self._robot} round {round_}: {type(error).__name__}: {error}"
        self._policy.close()


def run(dialect: str, url: str, robots: int, seconds: float, dim: int) -> dict[str, Any]:
    living = [Robot(dialect, url, robot, dim) for robot in range(robots)]
    end_s = time.monotonic() + seconds
    for robot in living:
        robot.end_s = end_s
        robot.thread.start()
    for robot in living:
        robot.thread.join()
    chunks = [chunk for robot in living for chunk in robot.chunks]
    return {"chunks": chunks, "errors": [robot.error for robot in living if robot.error]}


def main() -> None:
    dim = int(sys.argv[1])
    for line in sys.stdin:
        dialect, url, robots, seconds = json.loads(line)
        print(json.dumps(run(dialect, url, robots, seconds, dim)), flush=True)


if __name__ == "__main__":
    main()
