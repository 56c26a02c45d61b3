"""What simulated robots that see cost: `python -m bench camera_robots`.

Fleets of growing size do the demo's tasks with the policy that ships for cameras: every robot
renders two pictures per request and sends them as JPEG over DDS. Cores are CPU seconds per second
of the robots' processes and of the serving node with its engine, from the first task to the last;
where other programs use the machine, processes wait for a core, which is told, too. Stalled is the
share of task time without an action after the first one.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.support.process_cost import core_waits_s, cpu_s, with_children
from kairos_ros.bringup.plan import OWN_CAMERAS, own_cameras
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.lab.demos.experiment import scenes
from kairos_ros.lab.testbed.display import LineDisplay
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.workload import Arrivals, scene_tasks
from kairos_ros.recording.runs.summary import summarise


def measure(robots: int, for_s: float, horizon: str, console: Console) -> list[str]:
    """A row of the table."""
    cameras, policy = own_cameras(OWN_CAMERAS, "")
    to = LineDisplay(console)
    with tempfile.TemporaryDirectory() as logs, to:
        testbed = FleetTestbed(robots, policy, Path(logs), to, cameras=cameras)
        with testbed:
            testbed.start({"horizon": horizon} if horizon else {})
            processes = testbed.fleet.processes
            serving = with_children([p.pid for n, p in processes.items() if "arm_" not in n])
            arms = with_children([p.pid for n, p in processes.items() if "arm_" in n])
            before = cpu_s(serving), cpu_s(arms), core_waits_s([*serving, *arms])
            began = time.monotonic()
            run = testbed.run(Arrivals(scene_tasks(scenes(policy), 1, None), poisson=False), for_s)
            took_s = time.monotonic() - began
            served_s, arms_s = cpu_s(serving) - before[0], cpu_s(arms) - before[1]
            waited_s = core_waits_s([*serving, *arms]) - before[2]
    found = summarise(run)
    used = (served_s + arms_s) / took_s
    return [
        str(robots),
        f"{arms_s / took_s / robots:.2f}",
        f"{served_s / took_s:.2f}",
        f"{used:.2f}",
        f"{waited_s / took_s:.2f}",
        f"{found.actions / took_s:.0f}",
        f"{100 * (found.mid_task_stall_fraction or 0):.0f}",
        f"{found.succeeded}/{found.tasks}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each fleet [60]")
    parser.add_argument("--robots", default="1,2,4", help="sizes of the fleets [1,2,4]")
    parser.add_argument("--horizon", default="", help="horizon policy [the server's default]")
    arguments = parser.parse_args()
    stay_on_this_host()
    console = Console()
    table = Table(
        "robots", "cores/robot", "server", "all cores", "wait for one",
        "actions/s", "stalled %", "succeeded",
        title=f"Robots that see at 30 Hz, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
    )  # fmt: skip
    for robots in map(int, arguments.robots.split(",")):
        table.add_row(*measure(robots, arguments.seconds, arguments.horizon, console))
    console.print(table)


if __name__ == "__main__":
    main()
