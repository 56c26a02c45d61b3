"""How long a new node is deaf: until it has found the publishers of a node that runs already.

With Fast DDS as it comes, whose participants repeat their announcement every 3 s, and with
config/fastdds.xml, which the package's programs use: each second. Several pairs of processes at
once, each in a ROS domain of its own, both sides together, so that the machine is as busy for one
as for the other. A node that is found late had its first announcement, or the answer to it, lost.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from std_msgs.msg import String

from bench.support.report import Result, new_figure
from bench.support.servers import ROOT, environment
from kairos_ros.host.discovery import PROFILES, use_fastdds_profile
from kairos_ros.host.domain import claim_domain
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

SIDES = {"default": "Fast DDS as it comes", "kairos": "config/fastdds.xml"}
TOPICS = ("one", "two")
PAIRS = 2
"""Of each side."""
LATE_S = 0.5
GIVEN_UP_S = 10.0


def run(folder: Path, *, quick: bool) -> Result:
    folder.mkdir(parents=True)
    times = 8 if quick else 40
    running = [
        (
            side,
            _start("join", str(times), side=side, at=at),
            _start("stay", side=side, at=at),
        )
        for side in SIDES
        for at in (claim_domain() for _ in range(PAIRS))
    ]
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        for side, joins, _ in running:
            said, _ = joins.communicate(timeout=60.0 + times * (GIVEN_UP_S + 1.0))
            found[side] += json.loads(said)
    finally:
        for _, joins, stays in running:
            joins.kill()
            stays.kill()
            joins.wait()
            stays.wait()
    return _result(found)


def _start(*arguments: str, side: str, at: int) -> "subprocess.Popen[str]":
    env = os.environ | environment(ROS_DOMAIN_ID=str(at))
    for name in PROFILES:
        env.pop(name, None)
    command = [sys.executable, "-m", "bench.transport.discovery", side, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True)


def stay() -> None:
    """The node that runs already."""
    rclpy.init()
    node = rclpy.create_node("stays")
    for topic in TOPICS:
        node.create_publisher(String, topic, 1)
    rclpy.spin(node)


def join(times: int) -> list[float]:
    """Seconds that each of so many new participants needs, one after the other."""
    taken = [_joined() for _ in range(times + 1)]
    return taken[1:]  # the first waits until the other process has begun


def _joined() -> float:
    context = rclpy.Context()
    rclpy.init(context=context)
    began = time.monotonic()
    node = rclpy.create_node("joins", context=context)
    readers = [node.create_subscription(String, topic, lambda _: None, 1) for topic in TOPICS]
    while time.monotonic() < began + GIVEN_UP_S:
        if all(reader.get_publisher_count() for reader in readers):
            break
        time.sleep(0.005)
    taken = time.monotonic() - began
    node.destroy_node()
    rclpy.shutdown(context=context)
    time.sleep(np.random.default_rng().uniform(0.0, 1.0))  # at any moment between announcements
    return taken


def _result(found: dict[str, list[float]]) -> Result:
    rows, data = [], []
    for side, label in SIDES.items():
        s = np.array(found[side])
        p50, p90 = np.percentile(s, [50, 90])
        late = float((s > LATE_S).mean())
        row: dict[str, Any] = {"side": side, "joined": len(s), "p50_s": p50, "p90_s": p90}
        data.append(row | {"longest_s": s.max(), "late": late})
        cells = [f"{value:.2f} s" for value in (p50, p90, s.max())]
        rows.append([label, str(len(s)), *cells, f"{100 * late:.0f} %"])

    def plot(path: Path) -> None:
        about = f"{len(found['kairos'])} new nodes each, {2 * PAIRS} pairs of processes at once"
        with new_figure(path, "Until a new node hears the others", about) as axis:
            for side, color in (("default", BASELINE), ("kairos", OURS)):
                s = np.sort(found[side])
                axis.plot(
                    s, 100 * np.arange(1, len(s) + 1) / len(s), color=color, label=SIDES[side]
                )
            axis.set(xlabel="s", ylabel="% of nodes", ylim=(0, 101))
            axis.legend(frameon=False)

    header = ["announcements", "nodes", "P50", "P90", "longest", f"later than {LATE_S} s"]
    return Result(header, rows, {"points": data, "s": found}, plot)


if __name__ == "__main__":
    if sys.argv[1] == "kairos":
        use_fastdds_profile()
    if sys.argv[2] == "stay":
        stay()
    else:
        print(json.dumps(join(int(sys.argv[3]))))
