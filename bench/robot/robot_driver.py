"""What LeRobot's driver costs a robot node: `python -m bench robot_driver`.

The driver is LeRobot's own on six simulated motors behind a serial port (`kairos sim-so101`), where
the wire takes no time: at 1 Mbit/s a read of six motors is 62 bytes, 0.6 ms, and a write 26 bytes,
0.3 ms. Imports are measured in fresh processes, with torch as LeRobot imports it and without,
alternating.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.support.simulated_so101 import SimulatedArm
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.registry import make_adapter
from kairos_ros.robot.body_error import BodyError

IMPORT = """
import time
from contextlib import nullcontext
from kairos_ros.robot.adapters.lerobot.lerobot_torch import torch_deferred
megabytes = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
before, began_s = megabytes(), time.process_time()
with {how}():
    import lerobot.robots
import lerobot.robots.so_follower
print(time.process_time() - began_s, megabytes() - before)
"""
SIDES = {"as LeRobot imports it": "nullcontext", "robot node, torch deferred": "torch_deferred"}
FAULTS = {
    "pull": "cable pulled",
    "silence 3": "one motor silent",
    "garble 9999": "every reply garbled",
    "delay 100": "every reply late by 100 ms",
    "power": "power off and on",
}


def imports(runs: int) -> Table:
    """CPU seconds and resident megabytes, medians."""
    table = Table("import of the SO-101's driver", "CPU (s)", "memory (MB)")
    seen: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for _ in range(runs):
        for side, how in SIDES.items():
            command = [sys.executable, "-c", IMPORT.format(how=how)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seen[side].append([float(number) for number in said.split()])
    for side, rows in seen.items():
        cpu_s, mb = np.median(rows, axis=0)
        table.add_row(side, f"{cpu_s:.2f}", f"{mb:.0f}")
    return table


def periods(arm: SimulatedArm, count: int) -> Table:
    """One action out and the positions in: wall clock, and CPU of this thread."""
    body = make_adapter("lerobot", 30.0, {"robot": "so101_follower"} | arm.options)
    body.reset(TaskGoal("bench"))
    target = body.state().copy()
    wall_ms, cpu_ms = [], []
    for i in range(count):
        target[0] = 10 * np.sin(i / 30)
        began_ns, used_ns = time.monotonic_ns(), time.thread_time_ns()
        body.act(target)
        wall_ms.append((time.monotonic_ns() - began_ns) / 1e6)
        cpu_ms.append((time.thread_time_ns() - used_ns) / 1e6)
        time.sleep(0.005)
    body.close()
    table = Table("control period", "median (ms)", "P95 (ms)")
    for name, values in (("wall clock", wall_ms), ("CPU", cpu_ms)):
        table.add_row(name, f"{median(values):.2f}", f"{np.percentile(values, 95):.2f}")
    return table


def faults(arm: SimulatedArm, runs: int) -> Table:
    """From the fault to the error that names it, at 30 periods per second.

    A call: the longest one until then, for which the control thread does nothing else.
    """
    table = Table("fault", "reason", "task ended after, median (s)", "longest (s)", "a call (s)")
    for command, name in FAULTS.items():
        after_s, reasons, longest_s = [], set(), 0.0
        for _ in range(runs):
            arm.tell("plug", "speak 3", "garble 0", "delay 0")
            body = make_adapter("lerobot", 30.0, {"robot": "so101_follower"} | arm.options)
            body.reset(TaskGoal("bench"))
            body.hold()
            arm.tell(command)
            began_s = time.monotonic()
            try:
                while True:
                    now_s = time.monotonic()
                    body.hold()
                    longest_s = max(longest_s, time.monotonic() - now_s)
                    time.sleep(max(0.0, now_s + 1 / 30 - time.monotonic()))
            except BodyError as error:
                after_s.append(time.monotonic() - began_s)
                reasons.add(error.reason)
            body.close()
        ended = (f"{median(after_s):.2f}", f"{max(after_s):.2f}", f"{longest_s:.2f}")
        table.add_row(name, ", ".join(reasons), *ended)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench robot_driver", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=5, help="imports, and of each fault [5]")
    arguments = parser.parse_args()
    console = Console()
    console.print(imports(arguments.runs))
    with tempfile.TemporaryDirectory(prefix="kairos-driver-") as folder:
        arm = SimulatedArm(Path(folder))
        try:
            console.print(periods(arm, 600))
            console.print(faults(arm, arguments.runs))
        finally:
            arm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
