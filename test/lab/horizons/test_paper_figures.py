"""Figures of Dai et al. from episodes: numbers that can be computed by hand, one real branch."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydantic")

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import HorizonContext
from kairos_ros.host.share import share
from kairos_ros.lab.commands.study import EPISODES, FACTORY, GATEWAY, RATE, _kind, shipped_studies
from kairos_ros.lab.horizons.traces import rounds_of
from kairos_ros.lab.paper import best_horizon, consecutive_rounds
from kairos_ros.lab.paper.beside import read_paper_study
from kairos_ros.lab.paper.borne_horizon import Once, _longest, cosine
from kairos_ros.lab.paper.consecutive_rounds import changes_of
from kairos_ros.lab.paper.live_delays import delays_of
from kairos_ros.lab.sim.recorded import recorded_traces
from kairos_ros.lab.study.cell import Cell
from kairos_ros.lab.study.simulated import run_fleet
from kairos_ros.lab.training.rollout import Arm, Delay, RoundLog, one_round, run_episodes
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

pytestmark = pytest.mark.slow

SHIPPED = Path(share() / "models" / "metaworld_flow")
STUDIES = shipped_studies()


def test_each_figure_of_the_paper_is_a_study():
    figures = {f"fig{n}" for n in (3, 4, 10, 11, 12, 13, 14, 15, 16, 17)}
    assert figures | {"live_delays", "synthetic"} <= set(STUDIES)
    kinds = {name: _kind(path) for name, path in STUDIES.items()}
    assert set(filter(None, kinds.values())) == {FACTORY, GATEWAY, RATE, *EPISODES}


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig10", "live_delays"])
def test_a_study_of_episodes_says_what_the_paper_gives_and_what_differs(name):
    study = read_paper_study(STUDIES[name])
    assert study.paper
    assert study.differs


def test_a_wrong_study_file_is_named_with_its_field(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("kind: best_horizon\nquestion: how?\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml.*policy: it is missing"):
        read_paper_study(path)


def test_the_best_horizons_are_those_of_the_calibration(tmp_path):
    told = []
    best_horizon.run(STUDIES["fig3"], tmp_path, told.append, policy=str(SHIPPED))
    assert "| tasks that bear 40 actions or more | 50.0 % of 12 | about 40 % |" in told[0]
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert (tmp_path / "cells.csv").read_text().count("\n") == 1 + 12 * 7


def test_a_policy_without_calibration_is_told_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match="kairos calibrate"):
        best_horizon.run(STUDIES["fig3"], tmp_path, policy=str(tmp_path))


def test_a_calibration_of_another_policy_is_refused(tmp_path):
    shutil.copy(SHIPPED / "horizon_calibration.json", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"is of policy flow_mlp-.* holds another one"):
        best_horizon.run(STUDIES["fig3"], tmp_path / "out", policy=str(tmp_path))


def test_consecutive_rounds_are_compared_with_and_without_the_one_that_the_end_cuts(tmp_path):
    some = recorded_traces(SHIPPED)["static:10"][0]
    rounds = [replace(some.rounds[0], horizon=20, executed=n) for n in (10, 20, 20, 0, 5)]
    trace = replace(some, rounds=tuple(rounds))
    assert changes_of([trace, trace]).tolist() == [1.0, 0.0, 0.75] * 2
    assert changes_of([trace], whole=True).tolist() == [1.0, 0.0]
    consecutive_rounds.run(STUDIES["fig10"], tmp_path, lambda _: None, policy=str(SHIPPED))
    assert "52.3 to 85.4 %" in (tmp_path / "finding.md").read_text()


def test_a_trace_counts_what_each_chunk_executed_and_the_last_one_to_the_end():
    """Horizon 10, lead 2: a request 2 actions before the end, whose chunk skips them."""
    log = [RoundLog(0, 10, 0), RoundLog(8, 10, 2), RoundLog(16, 10, 2)]
    rounds = rounds_of(log, 21)
    assert [r.executed for r in rounds] == [10, 8, 3]
    assert [r.requested_at for r in rounds] == [0, 8, 16]
    assert [r.executed for r in rounds_of(log, 17)] == [10, 7, 0]  # over before the third began


def test_what_a_round_bears_is_the_longest_horizon_up_to_which_all_hold():
    assert _longest(10, [20, 30, 40], [True, False, True]) == 20
    assert _longest(10, [20], [False]) == 10
    assert _longest(50, [], []) == 50


def test_trajectories_are_compared_over_the_shorter_one():
    chunk = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    assert cosine(chunk, chunk[:2]) == pytest.approx(1.0)
    assert cosine(chunk[:1], chunk[1:2]) == pytest.approx(0.0)
    assert cosine(chunk[:1], np.array([[1.0, 1.0]])) == pytest.approx(0.5**0.5)


def test_the_branched_round_alone_has_another_horizon():
    def length(round_):
        chunk = np.zeros((50, 4), np.float32)
        return Once(30, 2, 10)(chunk[None], chunk, HorizonContext("", round_)).length

    assert [length(n) for n in (1, 2, 3)] == [10, 30, 10]


def test_a_fleet_without_load_delays_only_the_first_round_and_a_loaded_one_others_too():
    def delays(**settings):
        cell = Cell(policy=str(SHIPPED), tasks=48, **settings)
        return [of for tasks in delays_of(run_fleet(cell)).values() for of in tasks]

    calm = delays(load=0.001)
    assert len(calm) == 48
    assert all(first.held == 4 for first, *_ in calm)  # 115 ms and 5 ms of network, at 30 Hz
    assert max(d.held for _, *later in calm for d in later) <= 1
    loaded = delays(load=3.0, refetch=True)
    assert max(d.held for _, *later in loaded for d in later) > 10
    assert any(d.observed is not None for of in loaded for d in of)
    assert all(d.observed is None or d.observed <= d.held for of in loaded for d in of)


class Policy:
    """Moves the hand to the side, a little less with every action; sees nothing."""

    def __call__(self, states, instruction, seeds, committed=()):
        from kairos_ros.lab.training.rollout import Chunks

        self.seen = states
        chunk = np.zeros((len(states), 50, 4), np.float32)
        chunk[:, :, 0] = np.linspace(1, 0, 50)
        return Chunks(np.zeros((1, len(states), 50, 4), np.float32), chunk, chunk)


def arm(scene, decide, seed=3):
    pytest.importorskip("metaworld")
    from kairos_ros.robot.adapters.sim.sim import SimAdapter

    body = SimAdapter()
    body.reset(TaskGoal(SCENES[scene], scene, seed))
    return Arm(body, seed, decide)


@pytest.mark.parametrize("scene", ["push-v3", "door-open-v3", "hammer-v3"])
def test_an_episode_goes_on_from_a_saved_state_exactly_as_it_went_on_before(scene):
    one, other = arm(scene, Once(10, 0, 10)), arm(scene, Once(10, 0, 10))
    policy = Policy()
    one_round(policy, scene, [one], lead=2)
    saved = one.body.save()
    went = [one.body.state()]
    for at in range(12):
        one.body.act(np.array([0.5, -0.3, -1.0, at % 2], np.float32))
        went.append(one.body.state())
    other.body.restore(saved)  # an arm that has not moved
    again = [other.body.state()]
    for at in range(12):
        other.body.act(np.array([0.5, -0.3, -1.0, at % 2], np.float32))
        again.append(other.body.state())
    np.testing.assert_array_equal(went, again)


@pytest.fixture
def no_learned_policy(monkeypatch):
    """The studies run `Policy` instead of the shipped one, which takes seconds to load."""
    from kairos_ros.lab.horizons import cells
    from kairos_ros.lab.paper import borne_horizon, live_delays

    policy = Policy()
    policy.policy_id, policy.chunk_size = "flow_mlp-44349bf9e26a", 50
    for module in (cells, borne_horizon, live_delays):
        monkeypatch.setattr(module, "policy_under_test", lambda folder: policy)
    monkeypatch.setattr(live_delays, "LOADS", (1.2,))
    return policy


@pytest.fixture
def tiny(tmp_path):
    """A study file with one episode of one task."""

    def write(name):
        text = STUDIES[name].read_text()
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"{text[: text.index('sizes:')]}sizes: {{full: {{tasks: [push-v3]}}}}\n")
        return path

    return write


def test_an_arm_that_waits_as_in_a_loaded_fleet_is_compared_with_itself_alone(
    no_learned_policy, tiny, tmp_path, monkeypatch
):
    pytest.importorskip("metaworld")
    from kairos_ros.lab.paper import live_delays

    monkeypatch.setattr("kairos_ros.lab.training.rollout.MAX_ACTIONS", 60)
    live_delays.run(tiny("live_delays"), tmp_path, lambda _: None, policy=str(SHIPPED))
    rows = (tmp_path / "cells.csv").read_text().splitlines()
    assert len(rows) == 1 + len(live_delays.FLEETS)
    assert all(float(row.split(",")[-1]) > 0.1 for row in rows[1:])  # seconds held
    text = (tmp_path / "finding.md").read_text()
    assert "| success alone, static:tuned | 1 of 1" in text
    assert "| success alone, calibrated | 1 of 1" in text
    assert "0 of 1 (0 to 79 %), -100.0 points (1 lost, 0 won)" in text  # blind, it never succeeds
    assert "13 to 14 of 20" in text
    live_delays.run(
        tiny("live_delays"), tmp_path, lambda _: None, policy=str(SHIPPED), plot_only=True
    )


def test_every_round_of_an_episode_is_branched_and_what_it_bears_is_told(
    no_learned_policy, tiny, tmp_path, monkeypatch
):
    pytest.importorskip("metaworld")
    from kairos_ros.lab.paper import borne_horizon
    from kairos_ros.robot.adapters.sim.sim import SimAdapter

    far = 0.15
    """The task is done once the hand is so far to the side (m), which a longer horizon delays: the
    policy moves less with every action of a chunk."""
    monkeypatch.setattr(SimAdapter, "succeeded", lambda self: abs(self.state()[0]) > far)
    monkeypatch.setattr(borne_horizon, "LADDER", (15, 30, 50))
    borne_horizon.run(tiny("fig4"), tmp_path, lambda _: None, policy=str(SHIPPED))
    rows = [line.split(",") for line in (tmp_path / "cells.csv").read_text().splitlines()]
    assert rows[0] == ["task", "seed", "round", "tuned", "borne", "similar"]
    assert {row[3] for row in rows[1:]} == {"15"}  # static:tuned of push
    assert {row[4] for row in rows[1:]} <= {"15", "30", "50"}
    assert (
        "| rounds that bear at least twice the task's horizon |"
        in (tmp_path / "finding.md").read_text()
    )


def test_a_late_chunk_lets_the_arm_hold_and_the_world_go_on():
    done = []
    one = arm("reach-v3", Once(10, 0, 10))
    act, hold = one.body.act, one.body.hold
    one.body.act = lambda action: (done.append("act"), act(action))
    one.body.hold = lambda: (done.append("hold"), hold())
    one.body.succeeded = lambda: False
    policy = Policy()
    one_round(policy, "reach-v3", [one], lead=2, delays=[Delay(3)])
    assert done == ["hold"] * 3 + ["act"] * 8
    del done[:]
    one_round(policy, "reach-v3", [one], lead=2, delays=[Delay(5)])
    assert done == ["act"] * 2 + ["hold"] * 5 + ["act"] * 6  # what was left, then it waits
    before = policy.seen
    del done[:]
    one_round(policy, "reach-v3", [one], lead=2, delays=[Delay(5, observed=1)])
    assert done == ["act"] * 2 + ["hold"] * 5 + ["act"] * 8  # observed anew: nothing is skipped
    assert (policy.seen != before).any()
    assert one.actions == 26


def test_delays_are_those_of_the_episode_and_begin_again():
    from kairos_ros.robot.adapters.sim.sim import SimAdapter

    pytest.importorskip("metaworld")
    held = []

    class Body(SimAdapter):
        def hold(self):
            held.append(1)
            super().hold()

        def succeeded(self):
            return False

    delays = {7: [Delay(1), Delay(0)]}
    (result,) = run_episodes(
        Policy(), "reach-v3", [7], Once(50, 0, 50), [Body()], lead=0, delays=delays
    )
    assert (result.rounds, len(held)) == (10, 5)
