"""The study of asking early: its table is computed by hand; simulated pushes are real."""

import csv

import numpy as np
import pytest

pytest.importorskip("pydantic")

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import parse_horizon
from kairos_ros.host.share import share
from kairos_ros.lab.commands.study import study_command
from kairos_ros.lab.horizons import study as horizon_study
from kairos_ros.lab.horizons import surprise_study


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "surprise.yaml"
    shipped = (share() / "config" / "studies" / "surprise.yaml").read_text()
    file.write_text(shipped.replace("pushes_m: [0.08, 0.0]", "pushes_m: [0.08]"))
    return file


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("reach-v3", "make-coffee", "make-coffee"),
        ("tracking:threshold=6", "psychic:threshold=6", "psychic"),
        ("push_periods: 5", "push_periods: 0", "push_periods"),
    ],
)
def test_a_wrong_study_file_is_refused_before_anything_runs(config, right, wrong, complaint):
    pytest.importorskip("lerobot")
    config.write_text(config.read_text().replace(right, wrong))
    with pytest.raises(ConfigError, match=complaint):
        surprise_study.run_surprise_study(config, config.parent / "out", size="quick")


@pytest.mark.slow
def test_the_table_is_of_paired_episodes_with_and_without_the_rule(config, tmp_path, monkeypatch):
    pytest.importorskip("lerobot")
    out = tmp_path / "out"
    monkeypatch.setattr(horizon_study, "run_cell", _cell)
    study_command(str(config), out, "quick")
    rows = list(csv.DictReader((out / "cells.csv").open()))
    assert [(row["policy"], row["task"]) for row in rows[:3]] == [
        ("static:tuned", "all"),
        ("static:tuned", "reach-v3"),
        ("static:tuned", "push-v3"),
    ]
    everything = {name: float(rows[0][name]) for name in list(rows[0])[3:]}
    assert everything["success_without"] == 0.5
    assert everything["success_with"] == everything["difference"] + 0.5 == 0.75
    assert (everything["rounds_without"], everything["rounds_with"]) == (4.0, 5.0)
    assert everything["surprises_per_episode"] == 1.0
    text = (out / "finding.md").read_text()
    assert "| `static:tuned` | 50.0, 75.0 | +25.0 (+0.0 to +50.0) | 4.00, 5.00 |" in text
    assert "pushed by 8 cm in 5 control periods: 2 tasks, 2 episodes each" in text
    monkeypatch.setattr(horizon_study, "run_cell", lambda key: pytest.fail("a cell ran"))
    study_command(str(config), out, "quick", plot_only=True)
    assert (out / "finding.md").read_text() == text


def _cell(key):
    """Of two episodes: with the rule, those of push-v3 succeed that failed without."""
    saved = bool(key["surprise"]) and key["task"] == "push-v3"
    return {
        "success": [1, 1] if saved else [1, 0],
        "rounds": [5, 5] if key["surprise"] else [4, 4],
        "actions": [50, 50],
        "surprises": [1, 1] if key["surprise"] else [0, 0],
    }


class Once:
    """Surprised at one step of the episode."""

    threshold, settle, wait, unusable, joint = 6.0, 5, 1, 0, "hand_x"

    def __init__(self, at):
        self.at, self.steps, self.seen = at, 0, []

    def step(self, action, state):
        self.steps += 1
        self.seen.append(state[:3])
        return 9.0 if self.steps == self.at else 0.0


@pytest.mark.slow
def test_a_pushed_hand_moves_aside_and_a_surprise_ends_the_chunk_after_the_lead():
    pytest.importorskip("lerobot")
    from kairos_ros.lab.horizons.cells import policy_folder
    from kairos_ros.lab.training.bench import arms, policy_under_test
    from kairos_ros.lab.training.events import Push, draw_push
    from kairos_ros.lab.training.rollout import run_episodes

    folder = str(policy_folder("models/metaworld_flow"))
    watches = []

    def run(push, at):
        def watch():
            watches.append(Once(at))
            return watches[-1]

        return run_episodes(
            policy_under_test(folder),
            "reach-v3",
            [77],
            parse_horizon("static:40"),
            arms(folder, "reach-v3", 1),
            lead=2,
            events={77: push} if push else None,
            watch=watch,
        )[0]

    calm, pushed = run(None, 0), run(Push(6, 5, (0.0, 0.08, 0.0)), 0)
    moved = watches[1].seen[11][1] - watches[0].seen[11][1]
    assert 0.02 < moved < 0.09
    np.testing.assert_array_equal(watches[0].seen[:6], watches[1].seen[:6])
    early = run(Push(6, 5, (0.0, 0.08, 0.0)), 9)
    assert (calm.surprises, pushed.surprises, early.surprises) == (0, 0, 1)
    first, second = early.log[:2]
    assert (first.observed_at, second.observed_at, second.begun) == (0, 9, 2)
    assert calm.success
    assert run(None, 4).log == calm.log  # the chunk has not settled by then
    assert draw_push(5, 0.08, 5) == draw_push(5, 0.08, 5) != draw_push(6, 0.08, 5)
