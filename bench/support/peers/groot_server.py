"""The design of Isaac-GR00T's policy server, around a policy of ours.

    python -m bench.support.peers.groot_server PORT POLICY

As gr00t/policy/server_client.py has it, rebuilt from a description of its wire: one REP socket, and
one request after another, whoever sends it. The seed comes in the options of the request.
"""

import sys
from typing import Any

import zmq

from bench.support.peers.groot_client import packed, unpacked
from bench.support.recomputed import Recomputed


class OwnServer:
    """One policy, one request at a time."""

    def __init__(self, policy: Recomputed) -> None:
        self._policy = policy

    def get_action(self, observation: dict[str, Any], options: dict[str, Any]) -> Any:
        state = observation["state"]["all"][0, -1]
        (prompt,) = observation["language"]["task"][0]
        (chunk,) = self._policy.chunks([(state, options["seed"])], prompt)
        return {"all": chunk[None]}, {}

    def serve(self, port: int) -> None:
        socket = zmq.Context().socket(zmq.REP)
        socket.bind(f"tcp://127.0.0.1:{port}")
        print("listens", flush=True)
        while True:
            request = unpacked(socket.recv())
            try:
                answer = self.get_action(**request["data"])
            except Exception as error:
                answer = {"error": str(error)}
            socket.send(packed(answer))


if __name__ == "__main__":
    OwnServer(Recomputed(sys.argv[2])).serve(int(sys.argv[1]))
