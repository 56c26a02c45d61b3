"""Critics learn which horizons fail a task, and replace a plan where a test shows that they may."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("metaworld")

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.horizons.policies import HorizonContext
from kairos_ros.lab.horizons import critics
from kairos_ros.lab.horizons.critic_fit import fit_critic
from kairos_ros.lab.horizons.critics import CriticOptions, add_critics, unspent_error
from kairos_ros.lab.horizons.search import SearchOptions
from kairos_ros.lab.horizons.teaching import Drawn, Taught, failed_by_first_round, shares
from kairos_ros.lab.training.bench import policy_under_test

pytestmark = pytest.mark.slow

HORIZONS = (5, 10, 20, 50)
LEVER, REACH = ("lever-pull-v3", "pull the lever up"), ("reach-v3", "move the gripper")


def lessons(episodes=500, rounds=3, inputs=14):
    """The two longer horizons fail where the first number is above 0.7; nothing else does."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(episodes * rounds, inputs)).astype(np.float32)
    horizon = rng.choice(len(HORIZONS), len(seen), p=shares(len(HORIZONS)))
    fails = (seen[:, 0] > 0.7) & (horizon >= 2)
    failed = np.repeat(fails.reshape(episodes, rounds).any(axis=1), rounds)
    second = np.zeros(len(seen), bool)
    return Taught(seen, horizon, failed, np.repeat(np.arange(episodes), rounds), second)


def test_it_learns_from_outcomes_of_episodes_what_fails_in_which_state():
    critic = fit_critic(lessons(), HORIZONS, np.zeros(1, np.float32))
    safe, delicate = np.zeros((2, 14), np.float32)
    safe[0], delicate[0] = -1.5, 1.5
    assert critic.risks(safe)[-1] < 0.2
    assert critic.risks(delicate)[1] < 0.1
    assert critic.risks(delicate)[2] > 0.4


def test_where_nothing_failed_there_is_nothing_to_learn():
    all_well = replace(lessons(), failed=np.zeros(1500, bool))
    with pytest.raises(ConfigError, match=r"all 500 episodes .* succeeded"):
        fit_critic(all_well, HORIZONS, np.zeros(1, np.float32))


def test_what_the_first_round_does_to_an_episode_is_told():
    lesson = [
        {"success": 1, "horizons": [0, 2]},
        {"success": 0, "horizons": [2, 0]},
        {"success": 1, "horizons": [2]},
        {"success": 1, "horizons": []},
    ]
    failed = failed_by_first_round(lesson, HORIZONS)
    assert {horizon: of.tolist() for horizon, of in failed.items()} == {
        5: [False],
        20: [True, False],
    }


def test_careful_rounds_teach_nothing():
    decide = Drawn((5, 10), np.zeros(1, np.float32), careful=(20, 20))
    chunk = np.zeros((50, 1), np.float32)
    lengths = [
        decide(chunk[None], chunk, HorizonContext(round=number, task_id="reach-v3 7")).length
        for number in (1, 2, 3, 4)
    ]
    assert lengths[:2] == [20, 20]
    assert set(lengths[2:]) <= {5, 10}
    assert [decide.horizons[drawn] for _, drawn in decide.rounds[7]] == lengths[2:]


def test_a_policys_critic_is_taught_tried_and_tested_in_simulation(
    tmp_path, monkeypatch, pytestconfig
):
    folder = pytestconfig.rootpath / "models/metaworld_flow"
    monkeypatch.setattr(critics, "ALLOWED", (0.2,))
    calibration = HorizonCalibration(
        policy_under_test(str(folder)).policy_id,
        50,
        {LEVER: HorizonPlan((), 20), REACH: HorizonPlan((), 50)},
        HorizonPlan((), 20),
        static=StaticHorizons({LEVER: 20, REACH: 50}, 20),
    )
    # so few pairs carry a critic only if it may lose nearly everything
    search = SearchOptions(episodes=4, most_episodes=4, worst_loss=0.99, error=0.9)
    told: list[str] = []

    def again(careful_rounds=0):
        told.clear()
        return add_critics(
            folder,
            calibration,
            [LEVER[0]],
            search,
            CriticOptions(teach_episodes=16, careful_rounds=careful_rounds),
            lead=2,
            work=tmp_path,
            report=told.append,
        )

    found = again()
    how = found.how["critics"][LEVER[0]]
    drawn, half_drawn = how["failed"]
    assert 0 < drawn < 1
    assert 0 <= half_drawn < 1
    assert how["tried"]["0.2"]["episodes"] == 4
    assert sum("cells left" in line for line in told) >= 2 + 2, "lessons, both rules"
    assert set(found.critics) == ({LEVER} if any(test["holds"] for test in how["tests"]) else set())
    assert again().to_dict() == found.to_dict()
    assert not any("cells left" in line for line in told), "nothing ran twice"
    json.dumps(found.to_dict())
    late = again(careful_rounds=3)
    assert late.how["critics"][LEVER[0]]["careful_rounds"] == 3
    assert late.tasks[LEVER].rounds == ((20, 20, 20) if late.critics else ())
    with pytest.raises(ConfigError, match="calibrated for policy 'another'"):
        add_critics(folder, replace(calibration, policy_id="another"), [LEVER[0]], search)
    with pytest.raises(ConfigError, match="no plan of hammer-v3"):
        add_critics(folder, calibration, ["hammer-v3"], search)
    with pytest.raises(ConfigError, match="--static-only"):
        add_critics(folder, replace(calibration, static=None), [LEVER[0]], search)


def test_the_errors_of_all_tests_add_up_to_that_of_the_calibration():
    """0.05 of which a plan's test had 1/100: two tasks may still be tested with 0.02 each."""
    static = StaticHorizons({LEVER: 5, ("push-v3",): 15, REACH: 50}, 5)
    tests = {"push-v3": {"tests": [{"needed": 100}]}}
    calibration = HorizonCalibration(
        "one", 50, {LEVER: HorizonPlan((), 5)}, HorizonPlan((), 5), {"found": tests}, static
    )
    search = SearchOptions(error=0.05)
    assert unspent_error(calibration, search, LEVER) == pytest.approx(0.02)
    told = {"critics": {"push-v3": {"tests": [{"needed": 50}]}}}
    tested = replace(calibration, how={**calibration.how, **told})
    assert unspent_error(tested, search, LEVER) == pytest.approx(0.02)
    spent = replace(calibration, how={"found": {"x": {"tests": [{"needed": 20}]}}})
    with pytest.raises(ConfigError, match="used up"):
        unspent_error(spent, search, LEVER)
