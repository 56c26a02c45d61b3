"""The serving node with engines elsewhere: requests overflow to them when the edge is busy.

ros2 launch kairos_ros cloud_bridge.launch.py engines:=cloud=tcp://gpu.example.org:7411
"""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import cloud_bridge, flag
from kairos_ros.bringup.serving_arguments import ENGINE_ARGUMENTS, engine_parameters

ARGUMENTS = {
    "engines": (
        "cloud=tcp://127.0.0.1:7411,insecure_loopback",
        "NAME=tcp://HOST:PORT,option=value..., several separated by ; (docs/cloud.md)",
    ),
    "edge": ("true", "Run an engine on this host, too: true or false"),
    "policy": ("", "Policy of this host's engine; empty: the one that ships with the package"),
    **ENGINE_ARGUMENTS,
    "placement": ("", "completion or printed; empty: as in serving.yaml"),
    "keys": ("", "Folder of keys; empty: KAIROS_KEYS, else ~/.config/kairos/keys"),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    engines, edge = values.pop("engines", ""), flag("edge", values.pop("edge", "true"))
    engine = engine_parameters(values)
    return [cloud_bridge(engines, edge=edge, **values, **engine)]
