"""`kairos evaluate --scenes` against `lerobot-eval`: one policy, the same seeds, the same end."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("lerobot")
pytest.importorskip("metaworld")
pytest.importorskip("matplotlib")

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.lab.commands.train import evaluate_command
from kairos_ros.lab.scenes import arms as scene_arms
from kairos_ros.lab.scenes.arms import SceneArms, SceneView
from kairos_ros.lab.scenes.evaluate import Cell, rows
from kairos_ros.lab.scenes.trial import horizons_of
from kairos_ros.lab.training.evaluate import Evaluation, Score
from kairos_ros.robot.adapters.lerobot.lerobot_scenes import SUITES, scenes_of

pytestmark = pytest.mark.slow

TWIN = Path(__file__).parents[2] / "support" / "policies" / "lerobot_twin.py"


def test_the_fleets_loop_and_lerobots_execute_the_same_actions_to_the_same_end(tmp_path):
    done = subprocess.run(
        [sys.executable, TWIN, tmp_path], capture_output=True, text=True, cwd=TWIN.parents[3]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    ours, theirs = told["ours"], told["theirs"]

    assert {seed: success for seed, (success, _) in theirs.items()} == {"3": True, "4": False}
    for seed, (success, actions) in theirs.items():
        assert ours[seed][0] == success
        assert len(ours[seed][1]) == len(actions)
        np.testing.assert_allclose(ours[seed][1], actions, atol=1e-4)
    assert np.ptp(ours["4"][1], axis=0).max() > 0.01, "it acts on what it sees"


def test_arms_of_another_process_go_where_they_are_told_and_one_that_hangs_is_told(monkeypatch):
    ahead = np.array([[0.0, 1.0, 0.0, 0.0]] * 3, np.float32)
    view = SceneView(("observation.state",), (), max_actions=5)
    with SceneArms("metaworld/reach-v3", view, processes=1, per_process=1) as arms:
        assert arms.about.instruction == "Reach a goal position"
        begun = arms.go({0: 3}, {})[0]
        stood = arms.go({}, {0: ahead})[0]
        assert (begun.executed, stood.executed, stood.over) == (0, 3, False)
        assert stood.looks[-1].state[1] > begun.looks[-1].state[1] + 0.001
        ended = arms.go({}, {0: ahead})[0]
        assert (ended.executed, ended.over, ended.success) == (2, True, False)

        monkeypatch.setattr(scene_arms, "ANSWERS_WITHIN_S", 0.5)
        monkeypatch.setattr(scene_arms, "ENDS_WITHIN_S", 0.1)
        (simulator,) = multiprocessing.active_children()
        os.kill(simulator.pid, signal.SIGSTOP)
        with pytest.raises(KairosError, match=r"reach-v3 has not answered for 0\.5 s"):
            arms.go({0: 4}, {})
    assert not simulator.is_alive()


def test_horizons_may_be_separated_by_commas_though_their_options_are_too():
    assert horizons_of("static:10,confidence:t=0.4,h_min=5; static:20,calibrated") == (
        "static:10",
        "confidence:t=0.4,h_min=5",
        "static:20",
        "calibrated",
    )


def test_the_table_ends_with_the_largest_best_static_horizon_of_every_scene():
    def score(scene, h, successes):
        return Score(scene, f"static:{h}", 10, successes, 10, 10 * h)

    scores = (
        score("a", 10, 9), score("a", 20, 9), score("a", 30, 5),
        score("b", 10, 8), score("b", 20, 7), score("b", 30, 7),
    )  # fmt: skip
    *each, best = rows(Evaluation(1000, 10, 0.0, scores))
    assert [row[:2] for row in each] == [
        ("static:10", "85.0%"),
        ("static:20", "80.0%"),
        ("static:30", "60.0%"),
    ]
    assert (best[1], best[3]) == ("85.0%", "15.0")  # a at 20, b at 10


def test_suites_are_lists_of_scenes_and_what_is_not_known_is_told(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert len(scenes_of("metaworld")) == 50
    assert len(scenes_of("metaworld_very_hard")) == 5
    assert scenes_of("metaworld/reach-v3") == ["metaworld/reach-v3"]
    with pytest.raises(ConfigError, match="known are metaworld"):
        scenes_of("robotwin")
    with pytest.raises(ConfigError, match="has no task 'fly-v3'"):
        scenes_of("metaworld/fly-v3")
    assert {"libero_spatial", "libero_10", "aloha", "pusht"} <= set(SUITES)


def test_the_command_says_what_is_wrong_before_it_loads_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    app = typer.Typer()
    app.command()(evaluate_command)
    asked = ["--policy", str(tmp_path), "--scenes", "metaworld/reach-v3"]
    for more, says in (
        (["--horizons", "confidence:t=0.4"], "at least one static horizon"),
        (["--horizons", "stable:10"], "stable"),
        (["--rename", "observation.image"], "KEY=VALUE"),
        (["--scenes", "libero"], "not known"),
    ):
        found = CliRunner().invoke(app, [*asked, *more])
        assert isinstance(found.exception, ConfigError)
        assert says in str(found.exception)


def test_a_stopped_evaluation_goes_on_from_its_cells_and_no_other_evaluation_does(tmp_path):
    from kairos_ros.lab.scenes.evaluate import CELLS, _read

    common = {"episodes": 10, "policy": "act-1"}
    cell = {"score": {f: getattr(S, f) for f in Score.__slots__}, "seeds": [1001, 1003]}
    (tmp_path / CELLS).write_text(json.dumps(common | cell) + '\n{"episodes": 10, "sco')
    assert _read(tmp_path / CELLS, common) == {("a", "static:5"): Cell(S, (1001, 1003))}
    with pytest.raises(ConfigError, match="policy differ"):
        _read(tmp_path / CELLS, common | {"policy": "act-2"})


S = Score("a", "static:5", 10, 2, 20, 100)
