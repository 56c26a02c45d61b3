"""`kairos study fig10`: how alike executions of consecutive rounds are (Dai et al. Figure 10).

The scheduler estimates the execution of the coming round by the last one; this tells how well that
can do. It reads the recorded traces, every horizon policy from its own.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from kairos_ros.core.horizons.policies import TUNED
from kairos_ros.lab.horizons.cells import policy_folder
from kairos_ros.lab.paper.beside import (
    Row,
    draw_cdf,
    read_paper_study,
    share,
    write_finding,
    write_rows,
)
from kairos_ros.lab.sim.recorded import recorded_traces
from kairos_ros.recording.runs.trace import Trace

ALIKE = 0.1
APART = 1.0


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
    """Writes table, picture and finding. Raises ConfigError where no traces were recorded."""
    study = read_paper_study(config)
    study.size(size, config)
    traces = recorded_traces(policy_folder(policy or study.policy))
    changes = {name: changes_of(of) for name, of in traces.items()}
    whole = {name: changes_of(of, whole=True) for name, of in traces.items()}
    write_rows(
        out,
        [
            {"horizon_policy": name, "last_round": last, "change": round(float(change), 4)}
            for last, every in (("cut short", changes), ("left out", whole))
            for name, of in every.items()
            for change in of
        ],
    )
    dynamic = [name for name in traces if not name.startswith("static")]
    alike = [float(np.mean(changes[name] < ALIKE)) for name in dynamic]
    draw_cdf(
        out / "figure.png",
        {name: (100 * of).tolist() for name, of in changes.items() if len(of)},
        title=(
            f"{100 * min(alike):.0f} to {100 * max(alike):.0f} % of consecutive rounds differ by "
            f"less than {ALIKE:.0%} under a dynamic horizon"
        ),
        x_label="difference between the executions of two consecutive rounds (% of the first)",
        of="pairs of rounds",
        grey=[TUNED, "static:10"],
        x_limit=200,
    )
    rows = []
    for name in traces:
        rows += [
            Row(f"differ by less than 10 %, {name}", share(changes[name] < ALIKE)),
            Row(f"same, without a task's last round, {name}", share(whole[name] < ALIKE)),
            Row(f"differ by more than 100 %, {name}", share(changes[name] > APART)),
        ]
    tasks = len(next(iter(traces.values())))
    sentence = (
        f"From {tasks} tasks recorded under each of {len(traces)} horizon policies. Under the "
        f"dynamic ones, {100 * min(alike):.1f} to {100 * max(alike):.1f} % of consecutive rounds "
        "differ by less than 10 %."
    )
    paper = {
        row.what: study.paper[key] for row in rows if (key := row.what.split(",")[0]) in study.paper
    }
    study = study.model_copy(update={"paper": paper})
    report(write_finding(out, study, sentence, rows, f"kairos study {config.stem}"))


def changes_of(traces: Sequence[Trace], whole: bool = False) -> np.ndarray:
    """Float64, |next - this| / this in executed actions, of all consecutive rounds of all tasks.

    whole: without the last round of each task, which its end cuts short.
    """
    found = []
    for trace in traces:
        executed = [r.executed for r in trace.rounds if r.executed]
        found += [abs(b - a) / a for a, b in pairwise(executed[:-1] if whole else executed)]
    return np.array(found)
