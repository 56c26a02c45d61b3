"""How many cells one judging node serves with the judge that ships, on one core.

Safety five times and monitor twice a second for every cell, over DDS, from a picture's publication
to the verdict's arrival at its robot.
"""

import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.judges.judgements import picture
from bench.support.client_process import ClientProcess
from bench.support.process_cost import cpu_s
from bench.support.report import Result, new_figure
from bench.support.servers import environment
from kairos_ros.bringup.plan import vlm
from kairos_ros.bringup.processes import Fleet
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

ROBOTS, SECONDS = (1, 2, 4, 8, 16, 32), 20.0
QUICK_ROBOTS, QUICK_SECONDS = (1, 8, 32), 6.0
CAMERA_HZ = 10.0
SLO_MS = {"safety": 300.0, "monitor": 1000.0}
FREQ_HZ = {"safety": 5.0, "monitor": 2.0}


def run(folder: Path, *, quick: bool) -> Result:
    robots = QUICK_ROBOTS if quick else ROBOTS
    seconds = QUICK_SECONDS if quick else SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    jpeg = folder / "cell.jpg"
    jpeg.write_bytes(picture())
    env = environment()
    rules = {f"{name}.slo_ms": SLO_MS[name] for name in SLO_MS}
    rules |= {f"{name}.freq_hz": FREQ_HZ[name] for name in FREQ_HZ}
    runs = []
    with (
        Fleet([vlm("vlm", **rules)], folder / "logs", env) as fleet,
        ClientProcess(folder / "cells.log", env, "bench.judges.judged_cells", jpeg) as cells,
    ):
        (node,) = fleet.processes.values()
        for count in robots:
            before, began = cpu_s([node.pid]), time.monotonic()
            cells.tell({"robots": count, "seconds": seconds, "camera_hz": CAMERA_HZ})
            told = cells.hear()
            cpu = (cpu_s([node.pid]) - before) / (time.monotonic() - began)
            one: dict[str, Any] = {"robots": count, "node_cpu": cpu, "load": os.getloadavg()[0]}
            one |= {name: _measured(told[name], name, seconds) for name in SLO_MS}
            runs.append(one)
            print(f"{count} cells: {one['safety']}", flush=True)
    header = ["cells", "safety p50 ms", "p95 ms", f"within {SLO_MS['safety']:.0f} ms %"]
    header += ["per s and cell", "overdue /min and cell", "monitor p95 ms"]
    header += [f"within {SLO_MS['monitor']:.0f} ms %", "node CPU %"]
    rows = [
        [
            str(one["robots"]),
            f"{one['safety']['p50_ms']:.0f}",
            f"{one['safety']['p95_ms']:.0f}",
            f"{100 * one['safety']['within']:.1f}",
            f"{one['safety']['per_s']:.1f}",
            f"{one['safety']['overdue_per_min']:.1f}",
            f"{one['monitor']['p95_ms']:.0f}",
            f"{100 * one['monitor']['within']:.1f}",
            f"{100 * one['node_cpu']:.0f}",
        ]
        for one in runs
    ]
    return Result(header, rows, {"runs": runs}, lambda path: _plot(path, runs))


def _measured(cells: list[list[list[float]]], name: str, seconds: float) -> dict[str, float]:
    """Latencies, how often a robot would have found its newest picture overdue, and the share of
    pictures that were answered in time: one that a newer one replaced was not."""
    latency_ms = 1e3 * np.array([heard - sent for cell in cells for sent, heard in cell])
    deadline_s = 1 / FREQ_HZ[name] + SLO_MS[name] / 1e3
    overdue = sum(
        after[1] > before[0] + deadline_s
        for cell in cells
        for before, after in itertools.pairwise(cell)
    )
    in_time = np.count_nonzero(latency_ms <= SLO_MS[name])
    p50, p95 = np.percentile(latency_ms, (50, 95)) if len(latency_ms) else (np.nan, np.nan)
    return {
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "within": min(1.0, in_time / (FREQ_HZ[name] * seconds * len(cells))),
        "per_s": len(latency_ms) / len(cells) / seconds,
        "overdue_per_min": 60 * overdue / len(cells) / seconds,
    }


def _plot(path: Path, runs: list[dict]) -> None:
    kept = [one["robots"] for one in runs if one["safety"]["within"] >= 0.99]
    most = max(kept, default=0)
    title = f"One core judges 99 % of the pictures of {most} cells in time"
    about = (
        f"embedded judge, {FREQ_HZ['safety']:.0f} verdicts and {FREQ_HZ['monitor']:.0f} reports "
        "per second and cell, picture published to answer heard"
    )
    with new_figure(path, title, about, panels=2) as (left, right):
        cells = [one["robots"] for one in runs]
        for q, style in (("p50_ms", "-"), ("p95_ms", "--")):
            name = q.removesuffix("_ms")
            values = [one["safety"][q] for one in runs]
            left.plot(cells, values, style, color=OURS, marker="o", label=f"safety {name}")
            values = [one["monitor"][q] for one in runs]
            left.plot(cells, values, style, color=BASELINE, marker="o", label=f"monitor {name}")
        left.set_ylabel("latency (ms)")
        left.set_yscale("log")
        left.legend(frameon=False, fontsize=8)
        for name, colour in (("safety", OURS), ("monitor", BASELINE)):
            shares = [100 * one[name]["within"] for one in runs]
            label = f"{name} within {SLO_MS[name]:.0f} ms"
            right.plot(cells, shares, color=colour, marker="o", label=label)
        right.set_ylabel("pictures answered in time (%)")
        right.set_ylim(0, 102)
        right.legend(frameon=False, fontsize=8, loc="lower left")
        for axis in (left, right):
            axis.set_xscale("log", base=2)
            axis.set_xticks(cells, [str(one) for one in cells])
            axis.set_xlabel("cells")
