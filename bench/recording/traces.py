"""Records traces of the demo's tasks: `python -m bench traces --tasks 200 --out traces.jsonl.gz`.

A few simulated arms on the policy that ships do the demo's tasks back to back while a recorder
writes a bag; its finished tasks become traces. Few arms leave the server idle most of the time, so
that each task goes as if it were alone: the printed share of rounds that had to queue says how far.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.console import Console

from kairos_ros.core.errors import KairosError
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.lab.demos.experiment import scenes
from kairos_ros.lab.testbed.display import LineDisplay
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.workload import Arrivals, scene_tasks
from kairos_ros.recording.extract import extract
from kairos_ros.recording.fleet_run import read_bag
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.recording.runs.trace_file import write_traces

PART_S = 30.0
"""Between two looks at how many tasks are done."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench traces", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tasks", type=int, default=200, help="finish at least so many")
    parser.add_argument("--robots", type=int, default=4, help="simulated arms at the same time")
    parser.add_argument("--horizon", default="static:5", help="horizon policy that is recorded")
    parser.add_argument("--seed", type=int, default=1, help="of the tasks, 0 to 99")
    parser.add_argument("--full-updates", action="store_true", help="every sampler step's update")
    parser.add_argument("--out", type=Path, default=Path("traces.jsonl.gz"), help="file to write")
    parser.add_argument("--sample", type=Path, help="also write a file of one trace per task")
    parser.add_argument("--bag", type=Path, help="keep the bag in this new folder")
    options = parser.parse_args()
    stay_on_this_host()
    with tempfile.TemporaryDirectory() as scratch:
        bag = options.bag or Path(scratch) / "bag"
        try:
            record(bag, Path(scratch) / "logs", options)
        except KairosError as error:
            print(error, file=sys.stderr)
            return 1
        found = extract(bag, full_updates=options.full_updates)
        queued = [r.queued_s for r in read_bag(bag).rounds if np.isfinite(r.queued_s)]
    write_traces(options.out, found.traces)
    describe(options.out, found.traces)
    print(f"left out: {dict(found.left_out) or 'nothing'}")
    print(f"{np.mean(np.array(queued) > 0.005):.1%} of {len(queued)} rounds queued for over 5 ms")
    if options.sample:
        chosen = one_per_kind(found.traces)
        write_traces(options.sample, chosen)
        describe(options.sample, chosen)
    return 0


def record(bag: Path, logs: Path, options: argparse.Namespace) -> None:
    """Records into `bag` until enough tasks have finished. Raises KairosError."""
    display = LineDisplay(Console())
    with display, FleetTestbed(options.robots, "", logs, display, bag) as testbed:
        testbed.start({"horizon": options.horizon})
        arrivals = Arrivals(scene_tasks(scenes(""), options.seed, None), poisson=False)
        done = 0
        while done < options.tasks and not testbed.stopped:
            run = testbed.run(arrivals, PART_S)
            done += sum(task.finished for task in run.tasks)
            print(f"{done} of {options.tasks} tasks", flush=True)


def describe(path: Path, traces: Iterable[Trace]) -> None:
    traces = list(traces)
    counts = Counter(trace.kind for trace in traces)
    print(
        f"{path}: {len(traces)} traces of {len(counts)} tasks, {path.stat().st_size / 1e6:.2f} MB, "
        f"{sum(t.success for t in traces)} succeeded, {sum(len(t.rounds) for t in traces)} rounds, "
        f"{np.mean([t.actions for t in traces]):.0f} actions each on average"
    )


def one_per_kind(traces: Iterable[Trace]) -> list[Trace]:
    """Of each task, the success of median length; by name."""
    kinds: dict[str, list[Trace]] = {}
    for trace in traces:
        if trace.success:
            kinds.setdefault(trace.kind, []).append(trace)
    middles = []
    for _, mine in sorted(kinds.items()):
        by_length = sorted(mine, key=lambda t: (t.actions, t.name))
        middles.append(by_length[len(by_length) // 2])
    return middles


if __name__ == "__main__":
    sys.exit(main())
