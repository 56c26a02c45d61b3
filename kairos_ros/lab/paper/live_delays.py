"""`kairos study live_delays`: delays of a loaded fleet in a simulated arm (Dai et al. §5.4).

A replay assumes that a robot which waits finds the world as it left it. Here it need not: recorded
tasks go through a loaded fleet in virtual time; then each is done again by a simulated arm that
waits before every round as long as a robot with this task did there, while the simulator goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import CALIBRATED, TUNED
from kairos_ros.engine.policies.calibration_file import NAME
from kairos_ros.lab.horizons.cells import horizon_policy, named_rules, policy_folder
from kairos_ros.lab.metrics.cells import Key, kept_results, run_cells, source_version
from kairos_ros.lab.metrics.figure_style import BASELINE, OTHERS, OURS
from kairos_ros.lab.paper.beside import Row, read_paper_study, write_finding, write_rows
from kairos_ros.lab.sim.recorded import recorded_traces, traces_version
from kairos_ros.lab.study.cell import DECIDES, Cell
from kairos_ros.lab.study.simulated import run_fleet
from kairos_ros.lab.training.bench import EPISODES, arms, policy_under_test
from kairos_ros.lab.training.rollout import Delay
from kairos_ros.recording.runs.run import FleetRun, RoundRecord
from kairos_ros.recording.runs.summary import wilson_95

RATE_HZ = 30.0
LEAD = 2
LOADS = (0.3, 0.6, 1.2, 1.8)
FLEET_TASKS = 150
"""Of the loaded fleet, as in Figure 12: above ρ = 1 delays grow with them."""
FLEETS: dict[str, dict[str, Any]] = {
    "FIFO": {"scheduling": "fifo", "horizon": TUNED},
    "wait ratio, refetch": {"scheduling": "wait_ratio", "horizon": TUNED, "refetch": True},
    "default": {"scheduling": "wait_ratio", "horizon": CALIBRATED, "refetch": True},
}
NETWORK_S = 0.005


def run(
    config: Path,
    out: Path,
    report: Callable[[str], None] = print,
    *,
    policy: str = "",
    size: str = "full",
    processes: int = 1,
    plot_only: bool = False,
) -> None:
    """Runs what is missing in `out`; writes table, picture and finding."""
    study = read_paper_study(config)
    folder = policy_folder(policy or study.policy)
    chosen = study.size(size, config)
    recorded = recorded_traces(folder)
    for horizon in (TUNED, CALIBRATED):
        if horizon not in recorded:
            raise ConfigError(
                f"{folder} has no traces of {horizon}; run 'kairos trace record {folder}'"
            )
    alone = {(horizon, t.kind, t.seed): t.success for horizon, of in recorded.items() for t in of}
    seeds = sorted({t.seed for t in recorded[TUNED]})[: chosen.episodes]
    rules = named_rules(folder, [], {one: (one, NAME) for one in (TUNED, CALIBRATED)})
    traces = traces_version(folder)
    keys: list[Key] = [
        {
            "policy_id": policy_under_test(str(folder)).policy_id,
            "folder": str(folder),
            "traces": traces,
            "rule": rules[of["horizon"]],
            "load": load,
            "fleet": fleet,
            "task": task,
            "seeds": seeds,
        }
        for load in LOADS
        for fleet, of in FLEETS.items()
        for task in chosen.tasks
    ]
    cells = out / "cells.jsonl"
    code = source_version((*EPISODES, *DECIDES, "lab/paper/live_delays.py"))

    def finished(left: int, key: Key, row: Mapping[str, Any]) -> None:
        report(
            f"{key['task']}, {key['fleet']}, load {key['load']}: "
            f"{sum(row['success'])} of {len(row['success'])} succeed ({left} cells left)"
        )

    results = (
        kept_results(cells, keys, code, report)
        if plot_only
        else run_cells(cells, keys, run_delayed, code=code, processes=processes, finished=finished)
    )
    rows = [
        {
            "load": key["load"],
            "fleet": key["fleet"],
            "task": key["task"],
            "seed": seed,
            "alone": int(alone[FLEETS[key["fleet"]]["horizon"], key["task"], seed]),
            "delayed": row["success"][i],
            "held_s": round(row["held_s"][i], 3),
        }
        for key, row in zip(keys, results, strict=True)
        for i, seed in enumerate(key["seeds"])
    ]
    write_rows(out, rows)
    _conclude(out, study, rows, config.stem, size, report)


def _conclude(
    out: Path,
    study: Any,
    rows: Sequence[Mapping[str, Any]],
    name: str,
    size: str,
    report: Callable[[str], None],
) -> None:
    groups = {
        (fleet, load): [r for r in rows if (r["fleet"], r["load"]) == (fleet, load)]
        for fleet in FLEETS
        for load in LOADS
    }
    first = next(iter(groups.values()))
    found = [
        Row(f"success alone, {of['horizon']}", _rate([r["alone"] for r in groups[fleet, LOADS[0]]]))
        for fleet, of in FLEETS.items()
        if fleet != "FIFO"
    ]
    differences = []
    for (fleet, load), of in groups.items():
        difference = 100 * (np.mean([r["delayed"] for r in of]) - np.mean([r["alone"] for r in of]))
        differences.append(difference)
        held = np.mean([r["held_s"] for r in of])
        lost = sum(r["alone"] > r["delayed"] for r in of)
        won = sum(r["alone"] < r["delayed"] for r in of)
        found.append(
            Row(
                f"success with delays, {fleet}, load {load:g}",
                f"{_rate([r['delayed'] for r in of])}, {difference:+.1f} points ({lost} lost, "
                f"{won} won), {held:.1f} s held per task",
            )
        )
    sentence = (
        f"{len(first)} tasks, alone and with the delays of each fleet: success changes by "
        f"{min(differences):+.1f} to {max(differences):+.1f} points."
    )
    paper = study.paper | {
        row.what: study.paper[key]
        for row in found
        if (key := row.what.split(",")[0]) in study.paper
    }
    _draw(out / "figure.png", groups, differences)
    report(
        write_finding(
            out,
            study.model_copy(update={"paper": paper}),
            sentence,
            found,
            f"kairos study {name} --size {size}",
        )
    )


def _rate(values: Sequence[int]) -> str:
    low, high = wilson_95(sum(values), len(values))
    return f"{sum(values)} of {len(values)} ({100 * low:.0f} to {100 * high:.0f} %)"


def _draw(
    path: Path, groups: Mapping[tuple[str, float], Sequence[Any]], differences: Sequence[float]
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    alone = next(iter(groups.values()))
    axes.axhline(
        100 * np.mean([r["alone"] for r in alone]), color="black", linestyle="--", label="alone"
    )
    looks = (("o", BASELINE, -0.015), ("s", OTHERS[0], 0.0), ("^", OURS, 0.015))
    for fleet, (marker, color, shift) in zip(FLEETS, looks, strict=True):
        of = [(load, rows) for (name, load), rows in groups.items() if name == fleet]
        rates = [100 * np.mean([r["delayed"] for r in rows]) for _, rows in of]
        spans = [wilson_95(sum(r["delayed"] for r in rows), len(rows)) for _, rows in of]
        axes.errorbar(
            [load + shift for load, _ in of],
            rates,
            yerr=[
                [max(0.0, rate - 100 * low) for rate, (low, _) in zip(rates, spans, strict=True)],
                [max(0.0, 100 * high - rate) for rate, (_, high) in zip(rates, spans, strict=True)],
            ],
            marker=marker,
            color=color,
            capsize=2,
            label=f"delays of {fleet}, {FLEETS[fleet]['horizon']}",
        )
    axes.set_xlabel("load ρ of the fleet whose delays are injected")
    axes.set_ylabel("success (%), 95 % intervals")
    axes.set_title(
        f"Success changes by {min(differences):+.1f} to {max(differences):+.1f} points", loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run_delayed(key: Key) -> dict[str, list[Any]]:
    """Episodes of one task with its delays in one fleet: success, and seconds held."""
    from kairos_ros.lab.training.rollout import run_episodes

    of = _delays(key["folder"], key["traces"], key["load"], key["fleet"])[key["task"]]
    delays = {seed: of[i % len(of)] for i, seed in enumerate(key["seeds"])}
    episodes = run_episodes(
        policy_under_test(key["folder"]),
        key["task"],
        key["seeds"],
        horizon_policy(key["folder"], key["rule"]),
        arms(key["folder"], key["task"], len(key["seeds"])),
        lead=LEAD,
        delays=delays,
    )
    return {
        "success": [int(episode.success) for episode in episodes],
        "held_s": [
            sum(delays[e.seed][j % len(delays[e.seed])].held for j in range(e.rounds)) / RATE_HZ
            for e in episodes
        ],
    }


@lru_cache(maxsize=len(LOADS) * len(FLEETS))
def _delays(folder: str, traces: str, load: float, fleet: str) -> dict[str, list[list[Delay]]]:
    cell = Cell(policy=folder, traces=traces, load=load, tasks=FLEET_TASKS, **FLEETS[fleet])
    return delays_of(run_fleet(cell))


def delays_of(run_: FleetRun) -> dict[str, list[list[Delay]]]:
    """Scene -> of each of its tasks, how late the chunk of each round came."""
    scenes = {(task.robot, task.task): task.scene for task in run_.tasks}
    found: dict[str, list[list[Delay]]] = {}
    ordered = sorted(run_.rounds, key=lambda r: (r.robot, r.task, r.round))
    for of, rounds in groupby(ordered, key=lambda r: (r.robot, r.task)):
        delays = []
        before_s: float | None = None
        for one in rounds:
            if not one.executed:
                continue
            waited_s = one.exec_start_s - (one.requested_s if before_s is None else before_s)
            delays.append(_delay(one, waited_s))
            before_s = one.exec_end_s
        found.setdefault(scenes[of], []).append(delays)
    return found


def _delay(one: RoundRecord, waited_s: float) -> Delay:
    held = max(0, round(waited_s * RATE_HZ))
    if one.attempts < 2 or not held:
        return Delay(held)
    return Delay(held, min(held, round((one.compute_s + NETWORK_S) * RATE_HZ)))
