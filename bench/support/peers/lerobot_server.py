"""LeRobot's own PolicyServer at its fastest: `python -m bench.support.peers.lerobot_server PORT`.

Nothing of it is replaced. Two policy types are added to the list it accepts, it does not sleep to
keep a latency of 1/30 s, and its INFO log is off.
"""

import logging
import sys

from lerobot.async_inference import policy_server
from lerobot.async_inference.configs import PolicyServerConfig
from lerobot.utils.import_utils import register_third_party_plugins

import kairos_ros.engine.flow_mlp.configuration_flow_mlp  # noqa: F401  registers its type


def main() -> None:
    register_third_party_plugins()
    policy_server.SUPPORTED_POLICIES.extend(["flow_mlp", "camera_flow"])
    logging.getLogger().setLevel(logging.WARNING)
    config = PolicyServerConfig(host="127.0.0.1", port=int(sys.argv[1]), inference_latency=0.0)
    policy_server.serve(config)


if __name__ == "__main__":
    main()
