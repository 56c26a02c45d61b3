"""The horizon study: statistics that can be computed by hand, one real run."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("pydantic")

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.study import study_command
from kairos_ros.lab.horizons import study as horizon_study
from kairos_ros.lab.horizons.dominance import (
    Outcomes,
    best_per_task,
    best_static,
    difference,
    judge,
    longest_equal,
)
from kairos_ros.lab.horizons.study import read_horizon_study, run_horizon_study


def outcomes(successes: list[int], horizon: int, episodes: int = 100) -> Outcomes:
    """Tasks of which the first `successes[i]` episodes succeed, in ten rounds each."""
    success = np.arange(episodes) < np.array(successes)[:, None]
    rounds = np.full(success.shape, 10)
    return Outcomes(success, rounds, rounds * horizon)


STATIC = {
    "static:5": outcomes([100, 100], 5),
    "static:10": outcomes([100, 98], 10),
    "static:50": outcomes([100, 50], 50),
}


def test_the_reference_is_the_longest_static_horizon_within_a_point_of_the_best():
    assert best_static(STATIC) == "static:5"
    assert longest_equal(STATIC) == "static:10"  # 99 % against 100 %


def test_the_best_static_horizon_per_task_is_the_longest_that_loses_nothing_there():
    names, together = best_per_task(STATIC)
    assert names == ["static:50", "static:5"]
    assert (together.rate, together.horizon) == (1.0, 27.5)


def test_a_rule_below_a_longer_static_horizon_is_dominated():
    verdict = judge(STATIC, "confidence", outcomes([100, 90], 8))
    assert verdict.dominated_by == "static:10"
    assert verdict.dominated > 0.99
    assert verdict.against_curve == pytest.approx(0.95 - (1.0 - 0.01 * 3 / 5))


def test_a_rule_above_the_static_curve_is_not_dominated():
    verdict = judge(STATIC, "calibrated", outcomes([100, 99], 30))
    assert (verdict.dominated_by, verdict.dominated) == ("", 0.0)
    assert (verdict.reference, verdict.ratio) == ("static:10", 3.0)
    assert verdict.gap == pytest.approx(-0.005)
    low, high = verdict.gap_95
    assert low < -0.005 < high <= 0.0
    assert verdict.against_curve_95[0] > 0


def test_a_difference_is_of_the_same_episodes_and_has_its_intervals():
    ours, other = outcomes([100, 90], 8), outcomes([100, 100], 8)
    between = difference(ours, other)
    assert (between.success, between.rounds) == (pytest.approx(-0.05), 0.0)
    low, high = between.success_95
    assert -0.1 < low < -0.05 < high < -0.01
    assert between.rounds_95 == (0.0, 0.0)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "horizon.yaml"
    file.write_text(
        "kind: horizon\nquestion: how long?\npolicy: models/metaworld_flow\nfirst_seed: 4000000\n"
        "conditions: [{name: nothing happens}]\n"
        "static: [10, 50]\npolicies: ['tail_agreement:t=1.5']\n"
        "sizes:\n  tiny: {episodes: 2, tasks: [reach-v3]}\n"
    )
    return file


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("static: [10, 50]", "static"),
        ("policies: ['tail_agreement:t=1.5']", "stattic"),
        ("sizes:\n  tiny: {episodes: 2, tasks: [reach-v3]}", "make-coffee"),
    ],
)
def test_a_wrong_study_file_is_refused(config, wrong, complaint):
    instead = {
        "static": "static: [0, 50]",
        "stattic": "policies: ['stattic:5']",
        "make-coffee": "sizes:\n  tiny: {episodes: 2, tasks: [make-coffee]}",
    }
    config.write_text(config.read_text().replace(wrong, instead[complaint]))
    with pytest.raises(ConfigError, match=complaint):
        read_horizon_study(config)


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ("{name: pushed, rules: [calibrated]}", "no rule 'calibrated'"),
        ("{name: pushed, rules: ['tail_agreement:t=1.5']}", "rules needs one of static:10"),
        ("{name: pushed, tasks: [make-coffee]}", "make-coffee"),
        ("{name: nothing happens, push_m: 0.1}", "two conditions have the name"),
        ("{name: pushed, push_m: -1}", "push_m"),
    ],
)
def test_a_wrong_condition_is_refused(config, condition, complaint):
    text = config.read_text().replace("happens}]", f"happens}}, {condition}]")
    config.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_horizon_study(config)


def test_only_a_study_with_a_surprise_rule_watches(config):
    config.write_text(config.read_text() + "watched: ['static:10']\n")
    with pytest.raises(ConfigError, match="give surprise"):
        read_horizon_study(config)


@pytest.mark.slow
def test_a_condition_has_tasks_and_rules_of_its_own(config, tmp_path, monkeypatch):
    pytest.importorskip("lerobot")
    pushed = (
        "happens}, {name: pushed, push_m: 0.08, lead: 2, tasks: [push-v3], "
        "rules: ['static:50', 'static:50 + surprise']}]"
    )
    config.write_text(
        config.read_text().replace("happens}]", pushed).replace("[reach-v3]", "[reach-v3, push-v3]")
        + "surprise: 'tracking:threshold=6'\nwatched: ['static:50']\nwarm_up_seed: 9\n"
    )
    ran = []

    def cell(key):
        ran.append(key)
        return {"success": [1, 0], "rounds": [2, 2], "actions": [40, 40]}

    monkeypatch.setattr(horizon_study, "run_cell", cell)
    nothing, pushed = run_horizon_study(config, tmp_path / "out", lambda _: None, size="tiny")
    assert (nothing.tasks, pushed.tasks) == (("reach-v3", "push-v3"), ("push-v3",))
    assert set(pushed.rules) == {"static:50", "static:50 + surprise"}
    assert len(ran) == 2 * 4 + 2, "every rule where nothing happens, two where the hand is pushed"
    of_pushed = [key for key in ran if key["push_m"]]
    assert [(key["surprise"], key["warm_up_seed"], key["lead"]) for key in of_pushed] == [
        ("", 0, 2),
        ("tracking:threshold=6", 9, 2),
    ]
    assert "## Pushed: 1 tasks, 2 episodes each" in (tmp_path / "out" / "finding.md").read_text()


@pytest.mark.slow
def test_a_knocked_object_moves():
    pytest.importorskip("metaworld")
    from kairos_ros.lab.training.bench import arms
    from kairos_ros.lab.training.events import draw_knock
    from kairos_ros.robot.adapter import TaskGoal

    [arm] = arms("models/metaworld_flow", "push-v3", 1)
    arm.reset(TaskGoal("push the puck to the target", "push-v3", 3))
    before = arm.state()[4:7]
    knock = draw_knock(3, 1.0)
    for executed in range(knock.at, knock.at + 5):
        knock.happen(arm, executed)
        arm.hold()
    assert np.linalg.norm((arm.state()[4:7] - before)[:2]) > 0.02
    assert draw_knock(3, 1.0) == knock != draw_knock(4, 1.0)


@pytest.mark.slow
def test_plot_only_draws_what_has_run_and_runs_nothing(config, tmp_path, monkeypatch):
    pytest.importorskip("lerobot")
    config.write_text(config.read_text().replace("tiny", "quick"))
    out, finished = tmp_path / "out", {"success": [1, 0], "rounds": [4, 4], "actions": [40, 40]}
    monkeypatch.setattr(horizon_study, "run_cell", lambda key: pytest.fail("a cell ran"))
    with pytest.raises(ConfigError, match=r"3 of 3 cells are not in .*cells\.jsonl"):
        study_command(str(config), out, "quick", plot_only=True)
    monkeypatch.setattr(horizon_study, "run_cell", lambda key: finished)
    study_command(str(config), out, "quick")
    (out / "cells.csv").unlink()
    monkeypatch.setattr(horizon_study, "run_cell", lambda key: pytest.fail("a cell ran"))
    monkeypatch.setattr(horizon_study, "source_version", lambda parts: "newer")
    study_command(str(config), out, "quick", plot_only=True)
    assert len((out / "cells.csv").read_text().splitlines()) == 7
    assert len((out / "cells.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_every_rule_is_held_against_the_tuned_static_horizons(config, tmp_path, monkeypatch):
    pytest.importorskip("lerobot")
    config.write_text(
        config.read_text().replace("tiny", "quick")
        + "tuned: horizon_calibration.json\ncalibrated: {calibrated: horizon_calibration.json}\n"
    )

    def cell(key):
        tuned = key["rule"].startswith("static:tuned@")
        lost = key["rule"].startswith("calibrated@")
        return {"success": [1, not lost], "rounds": [4 if tuned else 2] * 2, "actions": [40, 40]}

    monkeypatch.setattr(horizon_study, "run_cell", cell)
    study_command(str(config), tmp_path / "out", "quick")
    text = (tmp_path / "out" / "finding.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `calibrated`"))
    assert "| 20.0 | 2.00 | 50.0 | -50.0 (" in row
    assert "| -2.00 (-2.00 to -2.00) |" in row
    assert "| **`static:tuned`** | 10.0 | 4.00 | 100.0 |" in text
    assert "| reach-v3 | `static:50`: 100.0, 4.0 | 50.0, 2.0, -50.0 (" in text
    rows = csv.DictReader((tmp_path / "out" / "cells.csv").open())
    assert "static:tuned" in {row["rule"] for row in rows}


@pytest.mark.slow
def test_a_study_of_the_shipped_policy_writes_table_figure_and_finding_and_continues(
    config, tmp_path
):
    pytest.importorskip("lerobot")
    pytest.importorskip("metaworld")
    out, lines = tmp_path / "out", []
    [measured] = run_horizon_study(config, out, lines.append, size="tiny")
    assert [line.split(" (")[1] for line in lines[:3]] == [f"{n} cells left)" for n in (2, 1, 0)]
    assert measured.static["static:10"].horizon <= 10 < measured.static["static:50"].horizon <= 50
    rows = list(csv.DictReader((out / "cells.csv").open()))
    assert [(r["task"], r["rule"]) for r in rows[:2]] == [
        ("all", "static:10"),
        ("reach-v3", "static:10"),
    ]
    assert "tail_agreement:t=1.5" in (out / "finding.md").read_text()
    assert (out / "figure.png").stat().st_size > 5000
    cells = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert len(cells) == 3

    lines.clear()
    [again] = run_horizon_study(config, out, lines.append, size="tiny")
    assert len(lines) == 1  # the finding only: no cell ran
    assert np.array_equal(again.static["static:10"].actions, measured.static["static:10"].actions)
