"""From bags to a better policy: `python -m bench improve`.

1. Simulated arms do a task with a policy, served by real nodes, beside a recorder.
2. `kairos bag export --only failed` makes a dataset of the tasks that failed.
3. Three policies go on from that one with the same number of steps: on demonstrations of the task;
   on these and about as much again of the expert, from the start of new scenes; on these and what
   the expert does from the states that the failed tasks had come to.
4. All four do the same scenes, which none of them has seen.

Every part is kept in --out; the same command goes on where it was stopped.
"""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kairos_ros.core.errors import KairosError
from kairos_ros.core.horizons.policies import parse_horizon
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.host.process_pool import process_pool
from kairos_ros.lab.horizons.dominance import Outcomes, task_gap
from kairos_ros.lab.testbed.display import LineDisplay
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.workload import Arrivals, scene_tasks
from kairos_ros.lab.training.bench import arms, policy_under_test
from kairos_ros.lab.training.demonstrations import HELD_OUT_SEED, collect
from kairos_ros.lab.training.train import TrainSettings, train
from kairos_ros.recording.datasets.episode import Kind
from kairos_ros.recording.datasets.export import Choice, export
from kairos_ros.recording.runs.summary import wilson_95

POLICY = Path("models/metaworld_flow")

FIRST_SEED = HELD_OUT_SEED + 500_000
"""Of the scenes that all four do; the model card, calibration and demo use others."""
LEARNING_RATE = 1e-4


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench improve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", type=Path, default=POLICY, help="folder of the first policy")
    parser.add_argument("--task", default="lever-pull-v3", help="of Meta-World")
    parser.add_argument("--demonstrations", type=int, default=40, help="that all three learn from")
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--robots", type=int, default=4, help="simulated arms that are recorded")
    parser.add_argument("--minutes", type=float, default=4.0, help="that they work")
    parser.add_argument("--horizon", default="static:30", help="horizon policy, everywhere")
    parser.add_argument("--episodes", type=int, default=200, help="of each policy in the end")
    parser.add_argument("--seed", type=int, default=1, help="of all of it, 0 to 99")
    parser.add_argument("--processes", type=int, default=0, help="0: all cores")
    parser.add_argument("--out", type=Path, default=Path("runs/improve"), help="folder to keep")
    options = parser.parse_args()
    stay_on_this_host()
    try:
        improve(options)
    except KairosError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


def improve(options: argparse.Namespace) -> None:
    import torch

    began = time.monotonic()
    torch.set_num_threads(options.processes or os.cpu_count() or 1)
    out = options.out
    bag, failed = out / "bag", out / "failed"
    if not bag.exists():
        record(bag, out / "logs", options)
    if not failed.exists():
        only = Choice(only=frozenset({Kind.FAILED}), pictures=False)
        done = export([bag], failed, only, "kairos/failed", print, lambda share: None)
        print(f"exported {len(done.episodes)} failed tasks; left out: {dict(done.left_out)}")
    same = TrainSettings(
        scenes=(options.task,),
        episodes=options.demonstrations,
        minutes=None,
        steps=options.steps,
        batch_size=256,
        learning_rate=LEARNING_RATE,
        seed=options.seed,
        start=str(options.policy),
    )
    _train("corrected", replace(same, failed=str(failed)), options)
    _train("same", same, options)
    shown = json.loads((out / "corrected" / "training.json").read_text())
    steps = shown["demonstrations"][options.task]["steps"]
    _train("fresh", replace(same, episodes=_as_many(steps, same, options)), options)
    _report(options, _evaluate(options))
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


NAMES = {
    "first": "that was recorded",
    "same": "goes on with demonstrations",
    "fresh": "and with as much again of them",
    "corrected": "and with the expert from the states of failed tasks",
}


def _train(name: str, settings: TrainSettings, options: argparse.Namespace) -> None:
    folder = options.out / name
    if not (folder / "done").exists():
        work = options.out / "work" / name
        # one set of demonstrations for all that have as many
        work.mkdir(parents=True, exist_ok=True)
        shared = options.out / "work" / "demonstrations"
        shared.mkdir(exist_ok=True)
        if not (work / "demonstrations").exists():
            (work / "demonstrations").symlink_to(shared.resolve())
        print(f"-- {name}: {NAMES[name]}")
        position = train(settings, out=folder, work=work, device="cpu", processes=1)
        if position.step < options.steps:
            raise KeyboardInterrupt
        (folder / "done").touch()


def _as_many(steps: int, same: TrainSettings, options: argparse.Namespace) -> int:
    """Demonstrations that have so many steps together."""
    shared = options.out / "work" / "demonstrations"
    (own,) = collect(same.scenes, same.episodes, same.seed, shared, 1, print).values()
    return math.ceil(steps * own.episodes / len(own.state))


def record(bag: Path, logs: Path, options: argparse.Namespace) -> None:
    """The arms at work into `bag`. Raises KairosError."""
    policy = str(options.policy.resolve())
    display = LineDisplay(Console())
    with display, FleetTestbed(options.robots, policy, logs, display, bag) as testbed:
        testbed.start({"horizon": options.horizon})
        arrivals = Arrivals(scene_tasks([options.task], options.seed, None), poisson=False)
        run = testbed.run(arrivals, options.minutes * 60)
    done = [task for task in run.tasks if task.finished]
    print(f"recorded {len(done)} tasks, {sum(task.success for task in done)} succeeded")


def _evaluate(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """By policy, bool [episodes]: success in each scene."""
    seeds = range(FIRST_SEED, FIRST_SEED + options.episodes)
    parts = [seeds[at : at + 16] for at in range(0, len(seeds), 16)]
    processes = options.processes or os.cpu_count() or 1
    found: dict[str, np.ndarray] = {}
    with process_pool(processes) as pool:
        for name in NAMES:
            file = options.out / f"{name}_{options.episodes}.npy"
            if not file.exists():
                folder = str(options.policy if name == "first" else options.out / name)
                jobs = [pool.submit(_run, folder, options.task, p, options.horizon) for p in parts]
                np.save(file, np.array([success for job in jobs for success in job.result()]))
            found[name] = np.load(file)
            print(f"evaluated {name}: {found[name].sum()} of {len(seeds)}", flush=True)
    return found


def _run(folder: str, task: str, seeds: range, horizon: str) -> list[bool]:
    from kairos_ros.lab.training.rollout import run_episodes

    bodies = arms(folder, task)
    results = run_episodes(policy_under_test(folder), task, seeds, parse_horizon(horizon), bodies)
    return [result.success for result in results]


def _report(options: argparse.Namespace, success: dict[str, np.ndarray]) -> None:
    nothing = np.zeros((1, options.episodes), np.int64)
    outcomes = {name: Outcomes(found[None], nothing, nothing) for name, found in success.items()}
    table = Table("policy", "success % (95 %)", "points more than the first (95 %)")
    document: dict[str, Any] = {
        "options": {k: str(v) for k, v in vars(options).items()},
        "policies": {},
    }
    for name, about in NAMES.items():
        count = int(success[name].sum())
        low, high = wilson_95(count, options.episodes)
        row: dict[str, Any] = {
            "successes": count,
            "episodes": options.episodes,
            "success_95": [low, high],
        }
        text = ""
        for other in ("first", "fresh"):
            gap, (least, most) = task_gap(outcomes[name], outcomes[other], 0)
            row[f"points_more_than_{other}"] = [100 * x for x in (gap, least, most)]
        if name != "first":
            text = "{:+.1f} ({:+.1f} to {:+.1f})".format(*row["points_more_than_first"])
        rate = f"{100 * count / options.episodes:.1f} ({100 * low:.1f} to {100 * high:.1f})"
        table.add_row(f"{name}: {about}", rate, text)
        document["policies"][name] = row
    Console().print(table)
    ours = document["policies"]["corrected"]["points_more_than_fresh"]
    print("corrected against fresh: {:+.1f} points ({:+.1f} to {:+.1f})".format(*ours))
    (options.out / "result.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
