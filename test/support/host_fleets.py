"""A planned fleet for three hosts, with emulated models and CPU slots, for tests."""

import json
from functools import cache
from pathlib import Path

import yaml

from kairos_ros.core.pipeline import Component
from kairos_ros.planning.assumed import assumed_profile

CONFIG = Path(__file__).parents[2] / "config"
JUDGE = "embedded:factory_judge"


def three_hosts(
    folder: Path,
    port: int,
    *,
    swings: int = 2,
    params: Path | None = None,
    standby: bool = False,
    **cluster,
):
    """Host `a` has one slot and the arms that swing; `b` has four slots; `c` has none, and two arms
    that are watched by two replicas of a monitor. Returns the fleet file. standby: `a` has no slot,
    and `b` a second serving node."""
    data = yaml.safe_load((CONFIG / "fleets" / "emulated.yaml").read_text())
    data["server_cluster"] = {
        "num_servers": 5,
        "gpu_type": "CPU slot",
        "hosts": [
            {"name": "a", "gpus": 1},
            {"name": "b", "gpus": 4, "address": "127.0.0.1", "port": port},
            {"name": "c", "gpus": 0},
        ],
    } | cluster
    if standby:
        data["server_cluster"] |= {"num_servers": 4, "standby_server": "b"}
        data["server_cluster"]["hosts"][0]["gpus"] = 0
    del data["models"]["emulated-drive"]
    body = {"adapter_options": {"env_id": "Pendulum-v1"}, "control_rate_hz": 10}
    body["params_file"] = str(params or CONFIG / "arm.yaml")
    data["robot_fleet"] = [
        {"task": "swing", "num_robots": swings, **body},
        {"task": "drive", "num_robots": 2, "host": "c", **body},
    ]
    data["drive"]["components"] = {
        "system1": data["swing"]["components"]["system1"],
        "monitor": {
            "model": JUDGE, "prompt": "is the task done?", "slo_ms": 400, "freq_hz": 2,
            "fallback": "stop_and_resend",
        },
    }  # fmt: skip
    data["swing"] = data.pop("swing")  # planned last, and so served by host b
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    _write_profile(folder / "profiles")
    return path


def _write_profile(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "monitor.json").write_text(_profile())


@cache
def _profile() -> str:
    """Of the monitor: one slot serves one arm and not two."""
    profile = assumed_profile(
        JUDGE, [Component.MONITOR], "CPU slot", "130+60b", [4], 100.0, batching="continuous"
    )
    return json.dumps(profile.to_dict())
