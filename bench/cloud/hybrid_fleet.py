"""One cell of the hybrid benchmark in real processes: `python -m bench.cloud.hybrid_fleet FOLDER`.

A serving node with its engine worker, virtual robots over DDS, and `kairos worker` at the far end
of an emulated link, with keys. Reads FOLDER/cell.json, leaves a run folder and result.json there.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.cloud.hybrid_work import BATCH_CAP, PATIENCE_S, ROBOTS, Cell, Wan, policy
from bench.support.process_cost import core_waits_s, with_children
from bench.transport.link import Link, why_not
from kairos_ros.core.errors import KairosError
from kairos_ros.engine.policies.saved_policy import policy_inputs
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.host.orphan import die_with_parent
from kairos_ros.lab.live_replay.experiment import robot_names, tallied
from kairos_ros.lab.live_replay.progress import ReplayProgress
from kairos_ros.lab.live_replay.server import ServerWatch
from kairos_ros.lab.live_replay.testbed import ReplayTestbed, ReplayWorkload
from kairos_ros.lab.live_replay.workload import recorded_tasks, robot_spec
from kairos_ros.recording.runs.run import FleetRun, RoundRecord
from kairos_ros.recording.runs.run_files import save_run
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

PORT = 7411
CLOUD_WITHIN_S = 60.0
CELL, RESULT = "cell.json", "result.json"


class NothingKeptError(KairosError):
    """Told to stop before there was anything to keep."""


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """Runs the cell; what it measured. Raises KairosError where something never got ready."""
    with contextlib.ExitStack() as stack:
        report = None
        parameters: dict[str, Any] = {"policy": "" if cell.mode == "cloud" else policy("edge")}
        if cell.mode != "edge":
            endpoint, keys, report = stack.enter_context(cloud(cell, folder))
            parameters |= {"engines": [f"cloud={endpoint}"], "keys": str(keys)}
        parameters |= {"max_batch": BATCH_CAP, "horizon": "static:10"}
        parameters |= {"default_deadline_s": 10 * PATIENCE_S, "max_queue": 10 * cell.tasks}
        display = ReplayProgress()
        testbed = stack.enter_context(ReplayTestbed(parameters, folder / "logs", display))
        work = workload(cell)
        testbed.wait_for_the_server()
        wait_for_engines(testbed)
        testbed.probe(work.recorded[0], work.spec)
        if report is not None:
            report()  # counts from here
        servers = with_children([os.getpid()])
        waited_s = core_waits_s(servers)
        limit = threading.Timer(cell.limit_s, lambda: setattr(testbed.interrupt, "requested", True))
        limit.daemon = True
        limit.start()
        run = testbed.run(robot_names(ROBOTS), work)
        limit.cancel()
        if testbed.failure:
            raise NothingKeptError(testbed.failure)
        linked = asdict(report()) if report is not None else None
        save_run(folder, run, {"command": "bench hybrid", **cell.written()})
        return measured(run) | {
            "robots": tallied(testbed.counts),
            "link": linked,
            "counters": testbed.watch.counters(),
            "cloud": of_the_cloud(testbed.watch),
            "waited_for_a_core": (core_waits_s(servers) - waited_s) / run.length_s,
            "load_average": os.getloadavg()[0],
        }


def workload(cell: Cell) -> ReplayWorkload:
    """The cell's tasks, as the virtual robots of a replay take them."""
    inputs = policy_inputs(policy("edge"))
    traces = cell.traces
    return ReplayWorkload(
        jobs=cell.trace_tasks(),
        tasks=cell.tasks,
        recorded=recorded_tasks(Path(), traces, inputs, cell.rules, None, [""] * len(traces)),
        index_of={trace.name: i for i, trace in enumerate(traces)},
        rules=cell.rules,
        spec=robot_spec(traces, inputs),
    )


@contextlib.contextmanager
def cloud(cell: Cell, folder: Path) -> Iterator[tuple[str, Path, Any]]:
    """A worker behind the cell's WAN: its endpoint as seen from here, keys, the link's report."""
    there, here = KeyFolder(folder / "keys_there"), KeyFolder(folder / "keys_here")
    there.trust(here.new("edge", Role.CLIENT).key)
    here.trust(there.new("cloud", Role.SERVER).key)
    with contextlib.ExitStack() as stack:
        if why_not():
            port = free_port()
            stack.enter_context(worker([], f"tcp://127.0.0.1:{port}", there, folder))
            yield stack.enter_context(proxied(cell.wan, port)), here.path, None
            return
        link = stack.enter_context(Link(cell.wan.conditions, home=True))
        link.congestion(cell.wan.congestion)
        endpoint = f"tcp://{link.addresses[1]}:{PORT}"
        stack.enter_context(worker(link.inside(1), endpoint, there, folder))
        yield endpoint, here.path, link.report


@contextlib.contextmanager
def worker(
    prefix: Sequence[str], endpoint: str, keys: KeyFolder, folder: Path, log: str = "worker.log"
) -> Iterator[None]:
    """`kairos worker` with the cloud's engine, through the command prefix of its namespace."""
    program = Path(sys.executable).with_name("kairos")
    options = ["--listen", endpoint, "--policy", f"pick={policy('cloud')}"]
    options += ["--max-batch", str(BATCH_CAP), "--keys", str(keys.path)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / log).open("wb") as out:
        process = subprocess.Popen(
            [*prefix, program, "worker", *options], stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield
    finally:
        process.kill()  # `ip netns exec` becomes the worker: there is nothing in between
        process.wait()


@contextlib.contextmanager
def proxied(wan: Wan, port: int) -> Iterator[str]:
    """The endpoint of a TCP proxy that stands in for the WAN where packets cannot be touched."""
    line = [sys.executable, "-m", "kairos_ros.lab.testbed.link_proxy", "--to", f"127.0.0.1:{port}"]
    line += ["--delay-ms", f"{wan.rtt_ms / 2:g}", "--mbps", f"{wan.mbps:g}"]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{process.stdout.readline().split()[1]}"
    finally:
        process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for_engines(testbed: ReplayTestbed) -> None:
    """Until all engines are ready, not only one. Raises KairosError."""
    until_s = time.monotonic() + CLOUD_WITHIN_S
    while True:
        state = testbed.watch.state
        if state is not None and all(e.state in ("ready", "busy") for e in state.engines):
            return
        if testbed.interrupt.requested:
            raise NothingKeptError("before the cloud was there")
        if time.monotonic() > until_s:
            raise KairosError(f"the cloud's worker was not reached in {CLOUD_WITHIN_S:.0f} s")
        testbed.watch.spin(0.1)


def of_the_cloud(watch: ServerWatch) -> dict[str, float]:
    """What the serving node estimates of the link at the end, and how many requests it sent."""
    for engine in watch.state.engines if watch.state is not None else []:
        if engine.tier == "cloud":
            names = ("rtt_s", "bandwidth_mbps", "loss", "request_bytes", "batches", "requests")
            return {name: getattr(engine, name) for name in (*names, "restarts")}
    return {}


def measured(run: FleetRun) -> dict[str, Any]:
    """Numbers of a real or simulated run. Latency: from a task's arrival to its end, a wait for a
    free robot included. A task that was ended early counts with its time so far: its latency is
    longer than that."""
    latency_s = np.array([t.ended_s - t.wanted_s for t in run.tasks] or [np.nan])
    p25, p50, p95 = np.percentile(latency_s, (25, 50, 95)).tolist()
    done = [task for task in run.tasks if task.finished]
    summary = summarise(run)
    served = [r for r in run.rounds if r.executed]
    return {
        "tasks": len(run.tasks),
        "finished": len(done),
        "mean_s": float(latency_s.mean()),
        "p25_s": p25,
        "p50_s": p50,
        "p95_s": p95,
        "mid_stall_s": float(np.mean([t.stalled_s - t.first_wait_s for t in done] or [np.nan])),
        "mid_stall_fraction": summary.mid_task_stall_fraction,
        "cloud_share": sum(r.tier == "cloud" for r in served) / max(1, len(served)),
        "rounds": len(served),
        "observations_per_round": sum(r.attempts for r in served) / max(1, len(served)),
        "refusals": summary.refusals,
        "length_s": run.length_s,
        **on_the_way(run.rounds),
    }


def on_the_way(rounds: Sequence[RoundRecord]) -> dict[str, float | None]:
    """How long answers from the cloud took besides queue and compute: the first batch there, and
    the median of all later ones."""
    there = sorted(
        (r.requested_s, r.server_s - r.queued_s - r.compute_s)
        for r in rounds
        if r.tier == "cloud" and r.horizon
    )
    ways = [way_s for _, way_s in there]
    first = ways[0] if ways else None
    later = float(np.median(ways[BATCH_CAP:])) if len(ways) > BATCH_CAP else None
    return {"first_way_s": first, "later_way_s": later}


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    die_with_parent(int(sys.argv[2]), signal.SIGTERM)
    folder = Path(sys.argv[1])
    stay_on_this_host()
    cell = Cell.read(json.loads((folder / CELL).read_text()))
    try:
        result = run_cell(cell, folder)
    except KairosError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
