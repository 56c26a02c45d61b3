"""`kairos study fig3`: each task's best static horizon (Dai et al. Figure 3).

It reads what `kairos calibrate` counted, on seeds that it used for nothing else.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.policies.calibration_file import NAME, read_calibration
from kairos_ros.engine.policies.policy_source import may_hold
from kairos_ros.lab.horizons.cells import policy_folder
from kairos_ros.lab.paper.beside import (
    Row,
    draw_cdf,
    read_paper_study,
    share,
    write_finding,
    write_rows,
)

LONG = 40
SHORT = 10


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
    """Writes table, picture and finding. Raises ConfigError where horizons were not calibrated."""
    study = read_paper_study(config)
    folder = policy_folder(policy or study.policy)
    study.size(size, config)
    if not (folder / NAME).is_file():
        raise ConfigError(f"{folder} holds no {NAME}; run 'kairos calibrate {folder}'")
    calibration = read_calibration(folder / NAME)
    if not may_hold(folder, calibration.policy_id):
        raise ConfigError(
            f"{folder / NAME} is of policy {calibration.policy_id}, and the folder holds another "
            f"one; run 'kairos calibrate {folder}'"
        )
    static = calibration.static
    if static is None:
        raise ConfigError(
            f"{folder / NAME} has no static:tuned; run 'kairos calibrate {folder} --static-only'"
        )
    counts = static.how["successes"]
    rows = [
        {"task": names[0], "best_horizon": best, "horizon": int(h), "successes": ok}
        for names, best in static.tasks.items()
        for h, ok in counts[names[0]].items()
    ]
    best = np.array(list(static.tasks.values()))
    write_rows(out, rows)
    draw_cdf(
        out / "figure.png",
        {folder.name: best.tolist()},
        title=f"Best static horizon per task: {best.min()} to {best.max()} actions",
        x_label="largest static horizon at the highest accuracy (actions)",
        of="tasks",
    )
    slack = [_slack(counts[names[0]]) for names in static.tasks]
    sentence = (
        f"Over {len(best)} tasks the best static horizon of a task is {best.min()} to {best.max()} "
        f"actions, {best.mean():.1f} on average; one horizon for all of them would be "
        f"{static.general}. It was chosen on {static.how['episodes']} scenes per horizon "
        f"(from {static.how['static_seed']} up)."
    )
    found = [
        Row(f"tasks that bear {LONG} actions or more", share(best >= LONG)),
        Row(f"tasks that need less than {SHORT}", share(best < SHORT)),
        Row("shortest best horizon", str(best.min())),
        Row(
            "mean, if one more failure than the best were allowed",
            f"{np.mean(slack):.1f} instead of {best.mean():.1f}",
        ),
    ]
    report(write_finding(out, study, sentence, found, f"kairos study {config.stem}"))


def _slack(counts: dict[str, int]) -> int:
    """The largest horizon with at most one success less than the best: how firm the choice is."""
    most = max(counts.values())
    return max(int(h) for h, ok in counts.items() if ok >= most - 1)
