"""One robot that asks again as soon as it is answered: a process, told what to do on stdin.

    python -m bench.serving.overhead_client kairos|lerobot POLICY_FOLDER

For every line `COUNT` it makes that many requests, one at a time, and prints them as one JSON list
of {sent_ns, encoded_ns, received_ns, server_s}; times are of the machine's monotonic
clock. A request begins with the cameras' pixels and ends with the actions as an array.
"""

import argparse
import json
import select
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.camera import picture
from bench.support.camera_policy import ACTION_DIM, CHUNK, IMAGES, INSTRUCTION, STATE_DIM, TYPE
from bench.support.exchange import Exchange, Images
from bench.support.servers import port
from kairos_ros.core.exchange import Actions, Request, RequestId
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg

ROBOT = "bench_0"
SPEC = RobotSpec(STATE_DIM, ACTION_DIM, 30.0, IMAGES)
PICTURES = 8


def connect(kind: str, policy: Path) -> Exchange:
    if kind == "kairos":
        from bench.support.ros_exchange import RosExchange

        return RosExchange(SPEC)
    from bench.support.peers.lerobot_exchange import LeRobotExchange

    return LeRobotExchange(SPEC, policy, TYPE, CHUNK, {ROBOT: port(0)}, background=False)


class Client:
    """Requests of one robot, one after the other."""

    def __init__(self, exchange: Exchange, *, encodes: bool) -> None:
        self._exchange = exchange
        self._encodes = encodes
        self._session = exchange.open(ROBOT)
        self._round = 0
        self._views = [
            {key: picture(3 * n + i) for i, key in enumerate(IMAGES)} for n in range(PICTURES)
        ]
        self._rng = np.random.default_rng(0)

    def connected(self) -> None:
        """Waits until a request is served, whatever happens to earlier ones."""
        for _ in range(240):
            if self._ask(timeout_s=1.0) is not None:
                return
            time.sleep(0.2)
        raise RuntimeError("the server does not answer")

    def block(self, count: int) -> list[dict[str, Any]]:
        laps = [self._ask(timeout_s=10.0) for _ in range(count)]
        served = [lap for lap in laps if lap is not None]
        if len(served) < count:
            raise RuntimeError(f"{count - len(served)} of {count} requests were not served")
        return served

    def _ask(self, timeout_s: float) -> dict[str, Any] | None:
        self._round += 1
        request = Request(RequestId(ROBOT, self._session, "1", self._round, 0), INSTRUCTION)
        state = self._rng.standard_normal(STATE_DIM).astype(np.float32)
        view: Images = self._views[self._round % PICTURES]
        sent_ns = time.monotonic_ns()
        if self._encodes:
            view = {key: jpeg(pixels, IMAGES[key]) for key, pixels in view.items()}
        encoded_ns = time.monotonic_ns()
        self._exchange.send(ROBOT, request, state, view)
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0:
            for received in self._exchange.wait(left):
                answer = received.answer
                if (answer.id.round, answer.id.session) != (self._round, self._session):
                    continue
                if not isinstance(answer.body, Actions):
                    return None
                assert answer.body.actions.shape == (CHUNK, ACTION_DIM)
                return {
                    "sent_ns": sent_ns,
                    "encoded_ns": encoded_ns,
                    "received_ns": received.now_ns,
                    "server_s": answer.body.server_ns / 1e9,
                }
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("kairos", "lerobot"))
    parser.add_argument("policy", type=Path)
    arguments = parser.parse_args()
    exchange = connect(arguments.kind, arguments.policy)
    client = Client(exchange, encodes=arguments.kind == "kairos")
    client.connected()
    print(json.dumps("connected"), flush=True)
    while True:
        while not select.select([sys.stdin], [], [], 0.5)[0]:
            exchange.poll()  # an idle robot, too, says that it is alive
        if not (line := sys.stdin.readline()):
            break
        print(json.dumps(client.block(int(line))), flush=True)
    exchange.close(ROBOT)


if __name__ == "__main__":
    main()
