"""The evaluation counts right, says what it compares, and writes what a reader needs."""

import json

import pytest

pytest.importorskip("lerobot")
pytest.importorskip("metaworld")
pytest.importorskip("matplotlib")

import typer
from typer.testing import CliRunner

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.train import evaluate_command, train_command
from kairos_ros.lab.training.card import against_static
from kairos_ros.lab.training.evaluate import (
    Evaluation,
    Score,
    evaluate,
    load_evaluation,
)

pytestmark = pytest.mark.slow


def score(horizon, successes, actions, scene="reach-v3"):
    return Score(scene, horizon, episodes=10, successes=successes, rounds=10, actions=actions)


def evaluation(*scores):
    return Evaluation(first_seed=1, episodes=10, disturbance=0.0, scores=scores)


def test_the_interval_is_wilsons():
    low, high = Score("reach-v3", "static:5", 10, 9, 10, 50).interval
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    assert Score("reach-v3", "static:5", 10, 10, 10, 50).interval[1] == pytest.approx(1.0)


def test_a_policy_is_compared_with_static_at_the_horizon_it_executed():
    measured = evaluation(
        score("static:10", 10, 100), score("static:20", 6, 200), score("confidence:t=0.1", 7, 150)
    )
    assert against_static(measured, "confidence") == [pytest.approx(-10.0)]  # 70 % against 80 %


def test_the_best_static_horizon_is_the_longest_of_the_most_successful():
    measured = evaluation(
        score("static:5", 9, 50), score("static:8", 9, 80), score("static:20", 7, 200)
    )
    assert measured.best_static == "static:8"


def test_the_overall_score_pools_the_tasks():
    measured = evaluation(score("static:5", 9, 50), score("static:5", 5, 30, scene="push-v3"))
    overall = measured.overall("static:5")
    assert (overall.success, overall.mean_horizon) == (0.7, 4.0)


def test_scores_survive_the_file(tmp_path):
    measured = evaluation(score("static:5", 9, 50), score("static:8", 4, 70))
    (tmp_path / "evaluation.json").write_text(measured.to_json())
    assert load_evaluation(tmp_path / "evaluation.json") == measured


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"scenes": ["make-coffee"]}, "make-coffee"),
        ({"horizons": ["static:5", "guess:7"]}, "guess"),
        ({"horizons": ["confidence:t=0.4"]}, "static"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(tmp_path, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        evaluate(tmp_path, **options)


def test_train_and_evaluate_from_the_command_line_give_a_folder_with_a_card(tmp_path):
    app = typer.Typer()
    app.command("train")(train_command)
    app.command("evaluate")(evaluate_command)
    policy = tmp_path / "policy"
    options = ["--work", str(tmp_path), "--tasks", "reach-v3", "--demonstrations", "3"]
    options += ["--steps", "20", "--width", "32", "--device", "cpu", "--threads", "1"]

    trained = CliRunner().invoke(app, ["train", "--out", str(policy), *options])
    assert trained.exit_code == 0, trained.output
    options = ["--tasks", "reach-v3", "--episodes", "2", "--processes", "1"]
    options += ["--horizons", "static:10;static:50;confidence:t=0.4"]
    measured = CliRunner().invoke(app, ["evaluate", "--policy", str(policy), *options])
    assert measured.exit_code == 0, measured.output

    scores = json.loads((policy / "evaluation.json").read_text())["scores"]
    assert [s["horizon"] for s in scores] == ["static:10", "static:50", "confidence:t=0.4"]
    assert all(s["episodes"] == 2 and s["rounds"] >= 1 for s in scores)
    card = (policy / "README.md").read_text()
    assert "kairos train --steps 20 --demonstrations 3 --tasks reach-v3" in card
    command = "kairos evaluate --episodes 2 --tasks reach-v3 --horizons 'static:10;static:50;"
    assert command + "confidence:t=0.4'" in card
    assert "of 1 tasks reach 90 %" in card
    assert "`confidence` lies" in card
    assert (policy / "success_vs_horizon.png").stat().st_size > 5_000
