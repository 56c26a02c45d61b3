"""The tidy table of a study: one row per cell and seed."""

from collections.abc import Mapping, Sequence

import pandas as pd

from kairos_ros.evaluation.study.definition import Combination
from kairos_ros.evaluation.study.results import Result


def tidy(combinations: Sequence[Combination], results: Mapping[str, Result]) -> pd.DataFrame:
    """Labels of what is varied, every setting, every metric; cells without a result are left out.

    A label that is called as a setting is that setting's column.
    """
    rows = []
    for combination in combinations:
        result = results.get(combination.cell.key)
        if result is not None:
            settings = combination.cell.model_dump()
            rows.append({**settings, **combination.labels, **result.metrics})
    return pd.DataFrame(rows)
