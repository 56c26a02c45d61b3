"""LeRobot's PolicyServer around a model that takes no time, on the port that is its argument.

Its transport, pickling and queue are untouched; only the prediction is an answer that is ready.
"""

import logging
import sys
from typing import Any

import torch
from lerobot.async_inference import policy_server
from lerobot.async_inference.configs import PolicyServerConfig

from bench.support.camera_policy import CHUNK
from bench.transport.hop import DIM


class ReadyServer(policy_server.PolicyServer):
    """Answers every observation with the same chunk of CHUNK actions."""

    def _predict_action_chunk(self, observation_t: Any) -> list[Any]:
        chunk = list(torch.full((CHUNK, DIM), 0.25))
        return self._time_action_chunk(
            observation_t.get_timestamp(), chunk, observation_t.get_timestep()
        )


def main() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    ReadyServer.logger.setLevel(logging.WARNING)
    policy_server.PolicyServer = ReadyServer
    config = PolicyServerConfig(host="127.0.0.1", port=int(sys.argv[1]), inference_latency=0.0)
    policy_server.serve(config)


if __name__ == "__main__":
    main()
