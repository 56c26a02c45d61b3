"""Edge only, cloud only, or both: a fleet on one edge engine, with a cloud engine behind a WAN.

Everything but the GPUs is real: a serving node with its engine worker, virtual robots over DDS that
replay tasks with camera images, `kairos worker` in a network namespace of its own behind an
emulated link, with CURVE keys and TCP in between. The engines are emulated: they take as long as
assumed GPUs would (hybrid_work.py). The three fleets of a comparison run at the same time, with the
same tasks arriving at the same moments. Beside each stands the same fleet in virtual time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cloud.first_batch import Warmth, warmth
from bench.cloud.hybrid_fleet import CELL, RESULT, measured
from bench.cloud.hybrid_work import LATENCY, MODES, WORKLOAD, Cell, Mode, Wan, virtual
from bench.support.report import Result, new_figure
from bench.support.servers import ROOT
from bench.transport.link import why_not
from kairos_ros.lab.metrics.figure_style import BASELINE, FAINT_INK, OURS

LOAD = 2.4
"""As in the placement study: under the dynamic horizon 1.3 times what the edge can do."""
LOADS = (1.2, 1.8, 3.2)
BASE = Wan("100 ms, 1 Gbps")
SWEEP = (
    Wan("20 ms", 20),
    Wan("50 ms", 50),
    Wan("200 ms", 200),
    Wan("100 Mbps", mbps=100),
    Wan("10 Mbps", mbps=10),
    Wan("20 ms jitter", jitter_ms=20),
    Wan("1 % loss", loss=0.01),
    Wan("1 % loss, BBR", loss=0.01, congestion="bbr"),
)
"""One thing differs from BASE at a time."""
SEEDS, SWEEP_SEEDS = 3, 2
TASKS, QUICK_TASKS = 70, 30
LIMIT_S = 80.0
LINK_LATE_MS = 5.0
ROBOTS_LATE_MS = 15.0
"""A fleet whose link delivers its packets, or whose robots begin their control periods, later than
this (99th percentile) fell behind: the machine was too busy, and it runs again."""
ATTEMPTS = 2
REQUEST_BYTES = 76_600
"""In virtual time, as measured in real time."""
IDLE_S, QUICK_IDLE_S = 30.0, 5.0
PAPER_EDGE = (36.9, 47.7)
PAPER_CLOUD = (51.9, 67.9)
"""Percent by which the hybrid is below edge only and cloud only (Dai et al. §5.3)."""
COLOURS = {"edge": BASELINE, "cloud": "#c9c9c9", "hybrid": OURS}
LABELS = {"edge": "edge only", "cloud": "cloud only", "hybrid": "edge and cloud"}


@dataclass(frozen=True, slots=True)
class Group:
    """Fleets that run at the same time."""

    wan: Wan
    load: float
    seed: int
    modes: tuple[Mode, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """One fleet and what it measured."""

    cell: Cell
    real: dict[str, Any]
    virtual: dict[str, Any]
    held: dict[str, Any]
    """In virtual time, the cloud's GPU being held while its batch travels."""
    attempts: int
    late: bool
    """It fell behind in the last attempt, too."""

    @property
    def lost(self) -> int:
        """Requests that were never answered, or refused; tasks that nobody finished in time are
        late, not lost."""
        return int(self.real["robots"]["silences"] + self.real["refusals"])


def plan(*, quick: bool) -> list[Group]:
    """One seed of everything, then the next: what was done when it is interrupted is of use."""
    without: tuple[Mode, ...] = ("cloud", "hybrid")  # the edge knows no WAN
    if quick:
        return [Group(BASE, LOAD, 1, MODES), Group(SWEEP[2], LOAD, 1, without)]
    sweep = [wan for wan in SWEEP if not why_not() or not (wan.loss or wan.jitter_ms)]
    groups = []
    for seed in range(1, SEEDS + 1):
        groups.append(Group(BASE, LOAD, seed, MODES))
        if seed <= SWEEP_SEEDS:
            groups += [Group(wan, LOAD, seed, without) for wan in sweep]
        if seed == 1:
            groups += [Group(BASE, load, seed, MODES) for load in LOADS]
    return groups


def run(folder: Path, *, quick: bool) -> Result:
    if reason := why_not():
        print(
            f"NO NETWORK NAMESPACES HERE ({reason}): a TCP proxy stands in for the WAN. It loses "
            "no packets, has no jitter, and TCP's slow start does not see the distance."
        )
    fleets: list[Fleet] = []
    warm: list[Warmth] = []
    groups = plan(quick=quick)
    began_s = time.monotonic()
    try:
        for number, group in enumerate(groups, 1):
            fleets += _run_group(group, number, len(groups), folder, quick=quick)
            spent_s = time.monotonic() - began_s
            left_s = spent_s / number * (len(groups) - number)
            print(f"   {spent_s / 60:.0f} min so far, about {left_s / 60:.0f} to go", flush=True)
        if not why_not():
            idle_s = QUICK_IDLE_S if quick else IDLE_S
            print(f"the first batch over a new link, and after {idle_s:.0f} s idle", flush=True)
            warm = warmth(folder / "first_batch", idle_s)
    except KeyboardInterrupt:
        if not any(f.cell.mode == "hybrid" for f in fleets):
            raise
        print("\ninterrupted; what was measured until then follows", flush=True)
    return _result(fleets, warm)


def _run_group(group: Group, number: int, of: int, folder: Path, *, quick: bool) -> list[Fleet]:
    tasks = QUICK_TASKS if quick else TASKS
    cells = [Cell(mode, group.wan, group.load, tasks, group.seed, LIMIT_S) for mode in group.modes]
    name = f"{group.wan.name}, load {group.load:g}, seed {group.seed}"
    print(f"[{number}/{of}] {name}: {', '.join(group.modes)}", flush=True)
    for attempt in range(1, ATTEMPTS + 1):
        own = folder / f"{number:02}_{attempt}"
        try:
            results = _at_the_same_time([(cell, own / cell.mode) for cell in cells])
        except RuntimeError as error:
            print(f"   {error}", flush=True)
            if attempt == ATTEMPTS:
                return []
            continue
        why = [f"{cell.mode}: {text}" for cell in cells if (text := _behind(results[cell.mode]))]
        if not why:
            break
        print(f"   fell behind: {'; '.join(why)}", flush=True)
    fleets = []
    for cell in cells:
        real = results[cell.mode]
        at_least = ">" if real["finished"] < real["tasks"] else ""
        said = f"{cell.mode} {at_least}{real['mean_s']:.1f} s"
        if cell.mode != "edge":
            said += f" ({100 * real['cloud_share']:.0f} % cloud)"
        print(f"   {said}", end="", flush=True)
        piped, held = (measured(virtual(cell, REQUEST_BYTES, pipelined=p)) for p in (True, False))
        fleets.append(Fleet(cell, real, piped, held, attempt, bool(_behind(real))))
    print(f"; load average {os.getloadavg()[0]:.1f}")
    return fleets


def _at_the_same_time(cells: Sequence[tuple[Cell, Path]]) -> dict[str, dict[str, Any]]:
    """Results by mode. Raises RuntimeError with its last output when a fleet fails."""
    own = {key: value for key, value in os.environ.items() if key != "ROS_DOMAIN_ID"}
    processes = []
    try:
        for cell, folder in cells:
            folder.mkdir(parents=True)
            (folder / CELL).write_text(json.dumps(cell.written()) + "\n")
            with (folder / "fleet.log").open("wb") as log:
                line = [sys.executable, "-m", "bench.cloud.hybrid_fleet"]
                line += [str(folder), str(os.getpid())]
                processes.append(
                    subprocess.Popen(
                        line, cwd=ROOT, env=own, stdout=log, stderr=log, start_new_session=True
                    )
                )
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()
    results: dict[str, dict[str, Any]] = {}
    for (cell, folder), process in zip(cells, processes, strict=True):
        if process.returncode:
            last = (folder / "fleet.log").read_text(errors="replace").splitlines()[-15:]
            raise RuntimeError(f"the {cell.mode} fleet failed ({folder}):\n" + "\n".join(last))
        results[cell.mode] = json.loads((folder / RESULT).read_text())
    return results


def _behind(real: dict[str, Any]) -> str:
    """How the machine was too slow for this fleet to be true; empty where it was not."""
    link, late_ms = real["link"], real["robots"]["late_p99_ms"] or 0.0
    if link and link["late_p99_ms"] > LINK_LATE_MS:
        return f"the link delivered {link['late_p99_ms']:.0f} ms late"
    if late_ms > ROBOTS_LATE_MS:
        return f"robots began their control periods {late_ms:.0f} ms late"
    return ""


@dataclass(frozen=True, slots=True)
class Setting:
    """All seeds of one WAN and load."""

    wan: Wan
    load: float
    fleets: dict[Mode, list[Fleet]]
    """In order of seeds."""

    def below(self, other: Mode, source: str) -> tuple[float, float, float]:
        """Percent by which the hybrid's average latency is below another fleet's of the same seed:
        median, least, most."""
        theirs = {f.cell.seed: getattr(f, source)["mean_s"] for f in self.fleets[other]}
        percent = [
            100 * (1 - getattr(f, source)["mean_s"] / theirs[f.cell.seed])
            for f in self.fleets["hybrid"]
            if f.cell.seed in theirs
        ]
        if not percent:
            return (float("nan"),) * 3
        return float(np.median(percent)), min(percent), max(percent)

    def median(self, mode: Mode, key: str, source: str = "real") -> float:
        return float(np.median([getattr(f, source)[key] for f in self.fleets[mode]]))

    def at_least(self, mode: Mode) -> bool:
        """Whether tasks were ended before they were done, so that latencies are too short."""
        return any(f.real["finished"] < f.real["tasks"] for f in self.fleets[mode])


def settings(fleets: Iterable[Fleet]) -> list[Setting]:
    """By WAN and load, in the order in which they were first measured. What the edge alone did at
    some load counts for every WAN."""
    by: dict[tuple[Wan, float], dict[Mode, list[Fleet]]] = defaultdict(lambda: defaultdict(list))
    edges: dict[float, list[Fleet]] = defaultdict(list)
    for fleet in fleets:
        by[fleet.cell.wan, fleet.cell.load][fleet.cell.mode].append(fleet)
        if fleet.cell.mode == "edge":
            edges[fleet.cell.load].append(fleet)
    return [
        Setting(wan, load, {**own, "edge": edges[load]})
        for (wan, load), own in by.items()
        if own["hybrid"] and own["cloud"]
    ]


def _result(fleets: list[Fleet], warm: list[Warmth]) -> Result:
    every = settings(fleets)
    header = ["WAN", "load", "fleet", "mean s", "P25", "P95", "mid-task stall s", "in the cloud"]
    header += ["hybrid below", "in virtual time", "kB/request", "lost", "late batches"]
    rows = [row for setting in every for row in _rows(setting)]
    for arm in warm:
        print(
            f"{arm.congestion:5} {arm.probes} probes, {arm.batch_bytes / 1e3:.0f} kB: first batch "
            f"{arm.first_ms:.0f} ms (expected {arm.first_expected_ms:.0f}), later "
            f"{arm.later_ms:.0f} ms; after {arm.idle_s:.0f} s idle {arm.after_idle_ms:.0f} ms, "
            f"later {arm.later_again_ms:.0f} ms"
        )
    print(
        f"The GPUs are emulated: {WORKLOAD}, a batch of b takes {LATENCY['edge']} ms at the edge "
        f"and {LATENCY['cloud']} ms in the cloud. Dai et al. report {PAPER_EDGE[0]} to "
        f"{PAPER_EDGE[1]} % below edge only and {PAPER_CLOUD[0]} to {PAPER_CLOUD[1]} % below cloud "
        f"only at 100 ms."
    )
    if base := next((s for s in every if (s.wan, s.load) == (BASE, LOAD)), None):
        print(
            f"At {BASE.name} cloud only takes {base.median('cloud', 'mean_s', 'virtual'):.1f} s in "
            f"virtual time, {base.median('cloud', 'mean_s', 'held'):.1f} s with its GPU held while "
            f"batches travel; the hybrid is then {base.below('cloud', 'held')[0]:.0f} % below it."
        )
    ran_again = sum(f.attempts - 1 for f in fleets)
    print(
        f"{len(fleets)} fleets, {ran_again} ran again because the machine fell behind, "
        f"{sum(f.late for f in fleets)} of them in vain; load average of the machine "
        f"{min(f.real['load_average'] for f in fleets):.1f} to "
        f"{max(f.real['load_average'] for f in fleets):.1f}"
    )
    data = {
        "workload": WORKLOAD,
        "engines_ms": LATENCY,
        "namespaces": why_not() or "yes",
        "paper": {"below_edge": PAPER_EDGE, "below_cloud": PAPER_CLOUD},
        "ratios": [
            {
                "wan": asdict(setting.wan),
                "load": setting.load,
                **{
                    f"below_{other}_{source}": setting.below(other, source)
                    for other in ("edge", "cloud")
                    for source in ("real", "virtual", "held")
                },
            }
            for setting in every
        ],
        "fleets": [asdict(fleet) for fleet in fleets],
        "first_batch": [asdict(arm) for arm in warm],
    }
    return Result(header, rows, data, lambda path: _plot(path, every))


def _rows(setting: Setting) -> Iterable[list[str]]:
    for mode in MODES:
        own = setting.fleets[mode]
        if not own or (mode == "edge" and setting.wan != BASE):
            continue
        sign = ">" if setting.at_least(mode) else ""
        below = ["", ""] if mode == "hybrid" else [_percent(setting, mode, "real")]
        if mode != "hybrid":  # virtual time knows neither loss nor jitter
            known = not (setting.wan.loss or setting.wan.jitter_ms)
            below.append(_percent(setting, mode, "virtual") if known else "")
        sent = [f.real["cloud"].get("request_bytes", 0.0) / 1e3 for f in own]
        yield [
            setting.wan.name,
            f"{setting.load:g}",
            mode,
            *(f"{sign}{setting.median(mode, key):.1f}" for key in ("mean_s", "p25_s", "p95_s")),
            f"{setting.median(mode, 'mid_stall_s'):.2f}",
            f"{100 * setting.median(mode, 'cloud_share'):.0f} %",
            *below,
            f"{np.median(sent):.0f}" if any(sent) else "",
            f"{sum(f.lost for f in own)}",
            f"{sum(f.real['counters'].get('late_batch', 0) for f in own)}",
        ]


def _percent(setting: Setting, other: Mode, source: str) -> str:
    middle, least, most = setting.below(other, source)
    return f"{middle:.0f} % ({least:.0f} to {most:.0f})" if least < most else f"{middle:.0f} %"


def _plot(path: Path, every: list[Setting]) -> None:
    base = next((s for s in every if (s.wan, s.load) == (BASE, LOAD)), every[0])
    edge, cloud = (base.below(other, "real")[0] for other in ("edge", "cloud"))
    title = (
        f"With overflow to the cloud, tasks take {edge:.0f} % less time than at the edge alone "
        f"and {cloud:.0f} % less than in the cloud alone"
    )
    about = (
        f"{WORKLOAD}, engines emulated; median and range of seeds; "
        f"load {LOAD:g}, 100 ms and 1 Gbps where nothing else is said; crosses: virtual time"
    )
    with new_figure(path, title, about, panels=3) as (loads, trips, others):
        by_load = sorted(_of_equal_seeds([s for s in every if s.wan == BASE]), key=lambda s: s.load)
        _lines(loads, by_load, lambda s: s.load)
        loads.set(xlabel="load (of the edge, static horizon)", ylabel="average task latency (s)")
        plain = [s for s in every if s.load == LOAD and s.wan == Wan(s.wan.name, s.wan.rtt_ms)]
        _lines(trips, sorted(plain, key=lambda s: s.wan.rtt_ms), lambda s: s.wan.rtt_ms)
        trips.set(xlabel="round trip of the WAN (ms)", ylabel="average task latency (s)")
        left = [base, *(s for s in every if s.load == LOAD and s not in plain)]
        _bars(others, left)
        others.set_xlabel("average task latency (s)")
        others.figure.subplots_adjust(left=0.06, wspace=0.4)
        loads.legend(frameon=False)


def _of_equal_seeds(points: list[Setting]) -> list[Setting]:
    """Without the seeds that not all of them have: latency differs more by seed than by load."""
    seeds = set.intersection(*({f.cell.seed for f in s.fleets["hybrid"]} for s in points))
    return [
        Setting(
            s.wan,
            s.load,
            {mode: [f for f in own if f.cell.seed in seeds] for mode, own in s.fleets.items()},
        )
        for s in points
    ]


def _lines(axis: Any, points: list[Setting], x: Callable[[Setting], float]) -> None:
    for mode in MODES:
        shown = [s for s in points if s.fleets[mode]]
        at = [x(s) for s in shown]
        middle = [s.median(mode, "mean_s") for s in shown]
        spread = [_range(s, mode) for s in shown]
        axis.plot(at, middle, "o-", color=COLOURS[mode], label=LABELS[mode])
        axis.vlines(at, *zip(*spread, strict=True), color=COLOURS[mode], lw=3, alpha=0.5)
        axis.plot(at, [s.median(mode, "mean_s", "virtual") for s in shown], "x", color=FAINT_INK)
    axis.set_ylim(0, None)


def _bars(axis: Any, points: list[Setting]) -> None:
    means = [s.median(mode, "mean_s") for s in points for mode in MODES if not s.at_least(mode)]
    longest_s = 1.2 * max(means)
    for row, setting in enumerate(points):
        for offset, mode in zip((-0.27, 0, 0.27), MODES, strict=True):
            middle = setting.median(mode, "mean_s")
            axis.barh(row + offset, middle, 0.24, color=COLOURS[mode])
            axis.hlines(row + offset, *_range(setting, mode), color=FAINT_INK, lw=1)
            if setting.at_least(mode):
                text = f"over {middle:.0f} s"
                axis.text(longest_s, row + offset, text, va="center", ha="right", fontsize=7)
    axis.set_xlim(0, longest_s)
    names = ["base" if s.wan == BASE else s.wan.name for s in points]
    axis.set_yticks(range(len(points)), names)
    axis.invert_yaxis()


def _range(setting: Setting, mode: Mode) -> tuple[float, float]:
    means = [f.real["mean_s"] for f in setting.fleets[mode]]
    return min(means), max(means)
