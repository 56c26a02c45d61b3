"""Claims are computed seed by seed from the table, by hand-checked numbers."""

import math

import pandas as pd
import pytest

from kairos_ros.lab.study.comparison import optima, reductions
from kairos_ros.lab.study.definition import Best, Compare


def table(rows):
    columns = ["policy", "load", "workload", "seed", "latency_mean_s", "stall_fraction"]
    return pd.DataFrame(rows, columns=columns)


FRAME = table(
    [
        ("base", 1.0, "a", 0, 10.0, 0.1), ("base", 1.0, "a", 1, 100.0, 0.1),
        ("base", 1.8, "a", 0, 20.0, 0.6), ("base", 1.8, "a", 1, 200.0, 0.4),
        ("ours", 1.0, "a", 0, 10.0, 0.0), ("ours", 1.0, "a", 1, 101.0, 0.0),
        ("ours", 1.8, "a", 0, 10.0, 0.0), ("ours", 1.8, "a", 1, 120.0, 0.9),
        ("base", 1.0, "b", 0, 10.0, 0.9), ("base", 1.8, "b", 0, 40.0, 0.5),
        ("ours", 1.0, "b", 0, 12.0, 0.0), ("ours", 1.8, "b", 0, 10.0, 0.0),
    ]
)  # fmt: skip


def compare(**changes):
    fields = {
        "ours": {"policy": "ours"},
        "baseline": {"policy": "base"},
        "at": {"load": 1.8},
        "per": ["workload"],
    }
    return Compare(**{**fields, **changes})


def test_a_reduction_is_computed_per_seed_and_then_the_median_is_taken():
    found = reductions(FRAME, compare())[0]
    assert found.by_seed == pytest.approx((0.5, 0.4))
    assert found.median == pytest.approx(0.45)
    assert (found.baseline, found.ours) == (110.0, 65.0)
    assert found.verdict == "lower"


def test_worst_is_where_the_baseline_stalls_most_workload_by_workload():
    a, b = reductions(FRAME, compare(at={"load": "worst"}))
    assert (a.at, b.at) == ({"load": 1.8}, {"load": 1.0})
    assert b.verdict == "higher"
    assert b.median == pytest.approx(-0.2)


def test_seeds_that_disagree_are_no_finding():
    a, _ = reductions(FRAME, compare(at={"load": 1.0}))
    assert a.by_seed == pytest.approx((0.0, -0.01))
    assert a.verdict == "unclear"


def test_only_seeds_that_both_sides_ran_are_compared():
    partial = FRAME[~((FRAME.policy == "ours") & (FRAME.seed == 1))]
    assert len(reductions(partial, compare())[0].by_seed) == 1
    assert reductions(FRAME[FRAME.policy == "base"], compare()) == []


def test_no_stall_to_reduce_is_no_reduction_and_a_new_one_is_a_loss():
    rows = [("base", 1.8, "a", 0, 1.0, 0.0), ("ours", 1.8, "a", 0, 1.0, 0.0)]
    stall = compare(metric=["stall_fraction"], per=[])
    assert reductions(table(rows), stall)[0].by_seed == (0.0,)
    rows[1] = ("ours", 1.8, "a", 0, 1.0, 0.1)
    found = reductions(table(rows), stall)[0]
    assert found.by_seed == (-math.inf,)
    assert found.verdict == "higher"


def test_the_best_value_has_the_lowest_median_and_is_compared_with_the_reference():
    claim = Best(kind="best", over="load", reference=1.8, at={"policy": "base"}, per=["workload"])
    a, b = optima(FRAME, claim)
    assert (a.best, a.worst) == (1.0, 1.8)
    assert a.gain.by_seed == pytest.approx((0.5, 0.5))
    assert a.loss.by_seed == (0.0, 0.0)
    assert b.gain.median == pytest.approx(0.75)
