"""openpi's own design of a policy server, around a policy of ours.

    python -m bench.support.peers.openpi_server PORT POLICY

As src/openpi/serving/websocket_policy_server.py (15a9616) has it, rebuilt from its description: an
async handler per client that calls the policy's `infer` synchronously, so that the event loop does
nothing else meanwhile; metadata first, `server_timing` in every reply, a traceback where it fails.
"""

import asyncio
import sys
import time
import traceback
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from bench.doors.doors_client import SEED
from bench.support.recomputed import Recomputed


class OwnServer:
    """One policy, one request at a time, whoever sends it."""

    def __init__(self, policy: Recomputed) -> None:
        self._policy = policy

    async def handle(self, connection: ServerConnection) -> None:
        packer = msgpack_numpy.Packer()
        await connection.send(packer.pack({"server": "as openpi's"}))
        total_s: float | None = None
        rounds = 0
        while True:
            try:
                began_s = time.monotonic()
                seen = msgpack_numpy.unpackb(await connection.recv())
                rounds += 1
                infer_s = time.monotonic()
                action = self._infer(seen, rounds)
                action["server_timing"] = {"infer_ms": (time.monotonic() - infer_s) * 1e3}
                if total_s is not None:
                    action["server_timing"]["prev_total_ms"] = total_s * 1e3
                await connection.send(packer.pack(action))
                total_s = time.monotonic() - began_s
            except ConnectionClosed:
                return
            except Exception:
                await connection.send(traceback.format_exc())
                await connection.close(CloseCode.INTERNAL_ERROR, "see the message before")
                raise

    def _infer(self, seen: dict[str, Any], rounds: int) -> dict[str, Any]:
        state = np.asarray(seen["observation/state"], np.float32)
        (chunk,) = self._policy.chunks([(state, SEED + rounds)], seen["prompt"])
        return {"actions": chunk}


async def main() -> None:
    policy = Recomputed(sys.argv[2])
    server = OwnServer(policy)
    async with serve(
        server.handle, "127.0.0.1", int(sys.argv[1]), compression=None, max_size=None
    ) as running:
        print("listens", flush=True)
        await running.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
