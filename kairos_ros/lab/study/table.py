"""The tidy table of a study: one row per cell and seed."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from kairos_ros.lab.metrics.cells import CellResult
from kairos_ros.lab.study.definition import Combination


def tidy(combinations: Sequence[Combination], results: Mapping[str, CellResult]) -> pd.DataFrame:
    """Labels of what is varied, every setting, every metric; cells without a result are left out.

    A label that is called as a setting is that setting's column.
    """
    rows = []
    for combination in combinations:
        result = results.get(combination.cell.key)
        if result is not None:
            settings = combination.cell.model_dump()
            metrics = {**result.value, "mid_task_stall_s": mid_task_stall_s(result.value)}
            rows.append({**settings, **combination.labels, **metrics})
    return pd.DataFrame(rows)


def mid_task_stall_s(metrics: Mapping[str, float]) -> float:
    """Seconds that a task was held after its first action, on average.

    From latency D, the share s of it that was held, and the share m held after the first wait F:
    m = (sD - F) / (D - F).
    """
    whole, middle, latency_s = (
        metrics.get(name, math.nan)
        for name in ("stall_fraction", "mid_task_stall_fraction", "latency_mean_s")
    )
    if not middle < 1:
        return math.nan
    first_wait_s = (whole - middle) * latency_s / (1 - middle)
    return whole * latency_s - first_wait_s
