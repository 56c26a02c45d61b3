"""Figure and finding are made of a study's table, and say what it says."""

import math

import pandas as pd
import pytest
import yaml

from kairos_ros.lab.metrics.cells import CellResult
from kairos_ros.lab.study.definition import Study
from kairos_ros.lab.study.figure import draw_study
from kairos_ros.lab.study.finding import finding, headline
from kairos_ros.lab.study.table import mid_task_stall_s, tidy

STUDY = """
question: Does it help?
settings: {horizon: static}
differs: everything.
vary:
  load: [0.5, 1.5]
  workload: [vam-bridge, pi05-libero]
  policy:
    FIFO: {scheduling: fifo}
    ours: {scheduling: admit, refetch: true}
sizes: {full: {seeds: 2}}
figure:
  {x: load, lines: policy, columns: workload, y: [latency_mean_s, stall_fraction], baseline: [FIFO]}
claims:
  - ours: {policy: ours}
    baseline: {policy: FIFO}
    metric: [latency_mean_s]
    at: {load: worst}
    per: [workload]
    paper: {latency_mean_s: 31.8 % lower}
  - {kind: best, over: policy, reference: FIFO, at: {load: 0.5}, per: [workload]}
"""


def latency(labels, seed):
    base = 10.0 + seed
    if labels["policy"] == "ours" and labels["load"] == 1.5:
        base *= 0.5 if labels["workload"] == "vam-bridge" else 1.25
    return base


@pytest.fixture
def study():
    return Study.model_validate(yaml.safe_load(STUDY))


@pytest.fixture
def frame(study):
    from kairos_ros.lab.study.definition import combinations

    cells = combinations(study, "full")
    results = {}
    for c in cells:
        stall = 0.1 * c.cell.load if c.labels["policy"] == "FIFO" else math.nan
        metrics = {"latency_mean_s": latency(c.labels, c.cell.seed), "stall_fraction": stall}
        results[c.cell.key] = CellResult("code", 0.0, metrics)
    return tidy(cells, results)


def test_the_table_has_a_row_per_cell_and_seed_with_settings_and_metrics(frame):
    assert len(frame) == 2 * 2 * 2 * 2
    ours = frame[(frame.policy == "ours") & (frame.load == 1.5) & (frame.seed == 1)]
    assert set(ours.workload) == {"vam-bridge", "pi05-libero"}
    assert set(ours.scheduling) == {"admit"}
    assert set(ours.latency_mean_s) == {11 * 0.5, 11 * 1.25}


def test_the_mid_task_stall_in_seconds_follows_from_the_shares():
    # 20 s a task, of which the first wait took 4 s, and 6 s were held after it
    shares = {"latency_mean_s": 20.0, "stall_fraction": 0.5, "mid_task_stall_fraction": 6 / 16}
    assert mid_task_stall_s(shares) == pytest.approx(6.0)


def test_a_cell_that_has_not_run_is_no_row(study):
    assert tidy([], {}).empty


def test_the_finding_says_what_helped_what_hurt_and_what_the_paper_gives(study, frame):
    text = finding(study, frame)
    assert "Average latency of a task 50 % lower on every seed on vam-bridge; " in text
    assert "25 % higher on every seed on pi05-libero" in text
    assert "is lowest at FIFO everywhere" in text
    assert "pi05-libero (Dai et al.: 31.8 % lower)." in text
    assert "What differs from Dai et al.: everything." in text
    assert "at load 1.5" in text
    assert "| average latency of a task (s) | load 1.5, vam-bridge | 10.50 | 5.25 |" in text
    assert "50.0 % (50.0 to 50.0) | 2 | 31.8 % lower |" in text


def test_what_is_above_a_baseline_of_zero_is_said_to_be_infinitely_more(study, frame):
    frame.loc[frame.policy == "FIFO", "latency_mean_s"] = 0.0
    text = finding(study, frame)
    assert "Average latency of a task ∞ % higher on every seed everywhere" in text
    assert "| 0.00 | 5.25 | -∞ % (-∞ to -∞) |" in text
    assert "inf" not in text


def test_the_headline_spans_all_workloads_and_does_not_hide_the_bad_one(study, frame):
    assert headline(study, frame) == (
        "ours against FIFO: average latency of a task from 25 % higher to 50 % lower at load 1.5"
    )


def test_a_comparison_without_cells_says_so(study, frame):
    text = finding(study, frame[frame.policy == "FIFO"])
    assert "No cell of this comparison has run yet" in text


def test_the_figure_has_a_panel_per_metric_and_workload(study, frame, tmp_path, monkeypatch):
    from matplotlib import pyplot

    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    draw_study(tmp_path / "figure.png", study, frame, "Title", "how it was made")
    (figure,) = kept
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    panels = figure.get_axes()
    assert len(panels) == 4
    lines = {line.get_label(): line for line in panels[0].get_lines()}
    assert list(lines["ours"].get_ydata()) == [10.5, 5.25]
    assert list(lines["FIFO"].get_xdata()) == [0.5, 1.5]
    assert [panel.get_ylabel() for panel in panels[::2]] == [
        "average latency of a task (s)",
        "time without actions (%)",
    ]
    assert isinstance(frame, pd.DataFrame)


def test_a_finding_says_that_savings_of_synthetic_workloads_are_assumed(study, frame):
    assert "assumption" not in finding(study, frame)  # static horizons only
    frame.loc[frame.policy == "ours", "horizon"] = "dynamic"
    told = "is an assumption in synthetic workloads: vam-bridge 1.56, pi05-libero 1.84."
    assert told in finding(study, frame)
    swept = frame.assign(rounds_ratio=2.2)  # the study names it itself
    assert "assumption" not in finding(study, swept)


def test_a_finding_of_recorded_workloads_says_that_engines_are_assumed_and_what_accuracy_cost(
    study, frame
):
    ours = frame.policy == "ours"
    recorded = frame.assign(
        workload="recorded", success=1.0 - 0.02 * ours, rounds_per_task=6.0 - 3 * ours
    )
    recorded.loc[ours, "horizon"] = "calibrated"
    text = finding(study, recorded)
    assert "Latencies of engines are assumptions: pi05 80+35b ms, up to 8 per batch." in text
    assert "| static | 100.0 | 6.00 |" in text
    assert "| calibrated | 98.0 | 3.00 |" in text
