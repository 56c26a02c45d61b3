"""`kairos study rate`: rate caps and load horizons in virtual time."""

from pathlib import Path

import pytest

from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.lab.metrics.study_cells import Row
from kairos_ros.lab.rates.report import RATE_STUDY, headline, verdicts
from kairos_ros.lab.rates.study import (
    cells,
    read_rate_study,
    run_cell,
    tuned_demand_hz,
)

FILE = Path(__file__).parents[3] / "config" / "studies" / "rate.yaml"
STUDY = read_rate_study(FILE)


def found(system, load, seconds=30):
    keys = cells(STUDY, "quick")
    key = next(k for k in keys if (k["system"]["name"], k["load"]) == (system, load))
    return run_cell({**key, "seconds": seconds})


def test_the_load_is_what_robots_ask_for_with_their_tuned_horizons():
    # 30 actions per s; 60 actions in rounds of 10 - 5, and 30 in rounds of 20 - 6
    static = StaticHorizons(
        {("a",): 10, ("b",): 20},
        10,
        {"episodes": 1, "successes": {name: {"10": 1, "20": 1} for name in "ab"}},
    )
    rounds = {"a": {"reference_rounds": 6}, "b": {"reference_rounds": 3}}
    how = {"ladder": [10, 20], "lead": 0, "found": rounds}
    calibration = HorizonCalibration("p", 50, {}, HorizonPlan((), 5), how, static)
    # 0.165 s and a margin of 0.03 s are 5.85 periods: 6 actions, and at most half a chunk
    assert tuned_demand_hz(calibration, 0.165) == pytest.approx(30 * (60 / 5 + 30 / 14) / 90)


@pytest.mark.slow
def test_in_overload_rate_caps_shorten_the_wait_and_load_horizons_bring_more_successes():
    plain = found("FIFO", 4)
    capped = found("rate caps alone", 4)
    ours = found("ours", 4)
    assert capped["latency_p50_s"] < 0.7 * plain["latency_p50_s"]
    assert ours["successes_per_h"] > 1.5 * plain["successes_per_h"]
    assert ours["horizon"] > 2 * plain["horizon"]
    assert ours["success"] < plain["success"]


def test_below_the_capacity_rate_caps_change_nothing():
    assert found("rate caps alone", 0.5) == found("FIFO", 0.5)


def rows(**per_h):
    return [
        Row({"system": {"name": name}, "load": load}, {"successes_per_h": value})
        for name, values in per_h.items()
        for load, value in enumerate(values, 1)
    ]


def test_ours_is_compared_with_the_best_of_the_others_at_each_load():
    of = rows(FIFO=[100, 80], fixed=[90, 100], ours=[110, 95])
    names = ["FIFO", "fixed", "ours"]
    assert list(verdicts(of, names)) == [(1, 1.1, "FIFO"), (2, 0.95, "fixed")]
    assert "5.0 % below fixed at load 2" in headline(of, names)
    assert "on or above everything" in headline(rows(FIFO=[100], ours=[99.5]), ["FIFO", "ours"])


@pytest.mark.slow
def test_the_study_writes_table_figure_and_finding(tmp_path):
    text = FILE.read_text().replace("seconds: 60, loads: [0.5, 1, 2, 4]", "seconds: 5, loads: [1]")
    file = tmp_path / "rate.yaml"
    file.write_text(text)
    told = []
    RATE_STUDY.run(file, tmp_path, told.append, size="quick")
    assert "| ours |" in (tmp_path / "finding.md").read_text()
    assert len((tmp_path / "cells.csv").read_text().splitlines()) == 1 + len(STUDY.systems)
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert told[-1].endswith("finding.md")
