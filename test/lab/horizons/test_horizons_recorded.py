"""Horizons from a fleet's recorded outcomes: exploration, what the data carry, what they do not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kairos_ros.commands.cli import app
from kairos_ros.core.conformance import check_horizon_policy
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.horizons.policies import Explore, HorizonContext, Static, parse_horizon
from kairos_ros.engine.policies.calibration_file import NAME, read_calibration
from kairos_ros.engine.policies.policy_source import policy_id
from kairos_ros.lab.horizons.recorded import (
    Recorded,
    calibration_of,
    choose,
    read_labels,
    read_outcomes,
    tasks_needed,
)
from kairos_ros.recording.runs.pipeline import JudgementRecord, PipelineRecord
from kairos_ros.recording.runs.run import LOST, FleetRun, RoundRecord, TaskRecord
from kairos_ros.recording.runs.run_files import save_run
from kairos_ros.recording.runs.run_source import read_run

CHUNK, UPDATES = np.zeros((50, 4), np.float32), np.ones((10, 50, 4), np.float32)
POLICY = "flow_mlp-1234"


def test_exploring_gives_a_share_of_the_tasks_a_horizon_that_stays():
    policy = parse_horizon("explore:0.25")
    check_horizon_policy(policy)
    lengths = {}
    for number in range(2000):
        of_rounds = {
            policy(UPDATES, CHUNK, HorizonContext("push-v3", r, task_id=f"arm 1 {number}")).reason
            for r in (1, 2, 7)
        }
        assert len(of_rounds) == 1, "a task keeps what it tries"
        reason = of_rounds.pop()
        lengths[reason] = lengths.get(reason, 0) + 1
    tried = {reason: n for reason, n in lengths.items() if reason.startswith("explores static")}
    assert len(tried) == 7
    assert 400 < sum(tried.values()) < 600
    assert min(tried.values()) > 40


def test_a_task_that_nobody_identifies_is_not_experimented_with():
    policy = Explore(1.0, Static(7))
    assert policy(UPDATES, CHUNK, HorizonContext("push-v3", 1)).length == 7
    short = policy(UPDATES[:, :4], CHUNK[:4], HorizonContext("push-v3", 1, task_id="arm 1 2"))
    assert short.length == 4, "a chunk shorter than every horizon is executed whole"
    with pytest.raises(ConfigError, match="share of tasks"):
        parse_horizon("explore:0")


def fleet(rates, *, tasks=700, kind="push-v3", policy=POLICY, seed=0, session=""):
    """A run in which each task had one of the horizons of `rates`, with that rate of success."""
    rng, records, rounds = np.random.default_rng(seed), [], []
    for number in range(tasks):
        h = list(rates)[number % len(rates)]
        name = f"{session}task_{number}"
        ok = bool(rng.random() < rates[h])
        records.append(
            TaskRecord(number, "arm", kind, number, number, number, number + 1,
                       "succeeded" if ok else "max_actions", ok, task=name, policy=policy)
        )  # fmt: skip
        rounds += [
            RoundRecord("arm", name, r, 1, number, number, number, number, 0, 0, h, 50, h,
                        0.0, 0.0, 0.0, 1, "edge", "edge", f"explores static {h} in this task")
            for r in (1, 2)
        ]  # fmt: skip
    return FleetRun(("arm",), float(tasks), tuple(records), (), (), tuple(rounds))


def chosen(run, **options):
    recorded = read_outcomes([run])
    given = {"worst_loss": 0.05, "slack": 0.02, "error": 0.05} | options
    return recorded, {kind: choose(of, **given) for kind, of in recorded.tasks.items()}


def test_a_longer_horizon_is_planned_where_the_outcomes_show_that_it_loses_little():
    recorded, of = chosen(fleet({10: 1.0, 20: 1.0, 40: 0.8}, tasks=1200))
    assert (of["push-v3"].reference, of["push-v3"].horizon) == (20, 20)
    assert [one.holds for one in of["push-v3"].compared] == [False], "40 loses too much"
    calibration = calibration_of(recorded, of, {})
    assert (calibration.policy_id, calibration.chunk_size) == (POLICY, 50)
    calibrated = calibration.policies()["calibrated"]
    assert calibrated(UPDATES, CHUNK, HorizonContext("push-v3", 3)).length == 20
    assert (
        HorizonCalibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration
    )


def test_a_task_that_the_bags_say_nothing_of_keeps_the_horizons_it_had():
    """What one task bears, another one fails with."""
    calibration = calibration_of(*chosen(fleet({50: 1.0})), {})
    policies = calibration.policies()
    calibrated, uncalibrated = parse_horizon("auto", policies), parse_horizon("auto")
    assert calibrated(UPDATES, CHUNK, HorizonContext("push-v3", 3)).length == 50
    for tail in (None, CHUNK[:12]):
        other = HorizonContext("lever-pull-v3", 3, tail=tail)
        found, before = (rule(UPDATES, CHUNK, other) for rule in (calibrated, uncalibrated))
        assert found.length == before.length
        assert found.reason == f"{before.reason}, a task that was not calibrated"


def test_a_task_that_was_given_by_its_instruction_alone_is_of_the_same_kind():
    """As by `kairos task send`, beside a demo that names its scenes."""
    told = fleet({10: 1.0}, kind="push the puck to the target", tasks=40, session="b/")
    recorded = read_outcomes([fleet({10: 1.0}, tasks=40), told])
    assert {kind: len(of[10]) for kind, of in recorded.tasks.items()} == {"push-v3": 80}


@pytest.mark.parametrize(
    ("every", "points", "needed", "needed_of_twelve"),
    [
        (0, 2, 354, 483), (0, 5, 140, 190), (0, 10, 68, 93),
        (50, 2, 1550, 2150), (50, 5, 350, 450), (50, 10, 150, 200),
        (20, 2, 3400, 4760), (20, 5, 600, 840), (20, 10, 180, 240),
    ],
)  # fmt: skip
def test_the_docs_say_how_many_tasks_show_that_a_longer_horizon_holds(
    every, points, needed, needed_of_twelve
):
    """Of seven horizons that fail in every so many tasks, never together. The shortest has a few
    tasks more, and so is the reference."""

    def planned(tasks, error):
        outcomes = {
            h: [not every or i % every != 7 * k % every for i in range(tasks + (k == 0) * more)]
            for k, h in enumerate(Explore.tried)
        }
        return choose(outcomes, points / 100, 0.0, error).horizon

    more = every or 1
    for tasks, error in ((needed, 0.05), (needed_of_twelve, 0.05 / 12)):
        assert planned(tasks, error) == 50
        assert planned(tasks - more, error) < 50
    page = (Path(__file__).parents[3] / "docs" / "horizon.md").read_text()
    assert f" {needed:,} ({needed_of_twelve:,}) |" in page


def test_a_horizon_as_good_as_the_one_that_most_tasks_had_needs_evidence():
    rates = {10: 1.0, 11: 1.0, 12: 1.0, 30: 0.985}
    _, few = chosen(fleet(rates, tasks=240))
    assert few["push-v3"].horizon < 30
    missing = few["push-v3"].compared[0]
    assert missing.horizon == 30
    assert 60 < tasks_needed(missing, 0.05) < 2000
    _, many = chosen(fleet(rates, tasks=2400))
    assert many["push-v3"].horizon == 30


def test_tasks_that_say_nothing_are_counted_and_left_out():
    run = fleet({10: 1.0}, tasks=5)
    lost, mixed, unseen, unpolicied, good = run.tasks
    tasks = (replace(lost, outcome=LOST), mixed, unseen, replace(unpolicied, policy=""), good)
    rounds = tuple(
        replace(r, horizon=20) if (r.task, r.round) == (mixed.task, 2) else r
        for r in run.rounds
        if r.task != unseen.task
    )
    recorded = read_outcomes([replace(run, tasks=tasks, rounds=rounds)])
    assert recorded.left_out == {
        "canceled or lost": 1, "of several horizons": 1, "without its rounds": 2
    }  # fmt: skip
    assert recorded.tasks == {"push-v3": {10: [True]}}


def test_a_task_whose_rounds_happened_to_be_alike_is_no_task_of_a_static_horizon():
    """A rule that begins with 50: who succeeds in the first round would count as static 50, and who
    does not would not count at all."""
    run = fleet({50: 1.0}, tasks=8)
    for reason, counts in {
        "agrees with all 50 remaining actions of the previous chunk": False,
        "calibrated for round 1": False,
        "calibrated as static 50": True,
        "static 50 of 50": True,
        "static 50, tuned": True,
        "static 5 of 50; 50 for the most successes at this load": False,
    }.items():
        rounds = tuple(replace(one, horizon_reason=reason) for one in run.rounds)
        recorded = read_outcomes([replace(run, rounds=rounds)])
        why = {} if counts else {"of horizons that were decided round by round": 8}
        assert recorded.left_out == why, reason


def test_the_monitor_or_an_operator_may_decide_what_succeeded(tmp_path):
    run = fleet({10: 0.0}, tasks=3)
    judged = tuple(
        JudgementRecord("arm", task, "monitor", at, at, said)
        for task, at, said in [
            ("task_0", 1.0, "ongoing"), ("task_0", 2.0, "done"), ("task_1", 3.0, "failed")
        ]
    )  # fmt: skip
    run = replace(run, pipeline=PipelineRecord(judged=judged))
    recorded = read_outcomes([run], "judged")
    assert recorded.tasks == {"push-v3": {10: [True, False]}}
    assert recorded.left_out == {"without a word on success": 1}
    labels = tmp_path / "labels.csv"
    labels.write_text("robot,task,success\narm,task_2,1\narm,task_0,0\narm,task_7,1\n")
    recorded = read_outcomes([run], labels=read_labels(labels))
    assert recorded.tasks == {"push-v3": {10: [False, True]}}
    assert recorded.unlabelled == {("arm", "task_7")}
    for text, complaint in [
        ("robot,task\narm,task_2\n", "no column 'success'"),
        ("robot,task,success\narm,task_2,1\narm,task_3,maybe\n", "csv:3: .* 0 or 1, not 'maybe'"),
        ("robot,task,success\narm,task_2,2\n", "0 or 1"),
        ("robot,task,success\narm\n", "0 or 1"),
        (
            "robot,task,success\narm,task_2,1\narm,task_2,0\n",
            "csv:3: arm, task_2 has success 0 and",
        ),
    ]:
        labels.write_text(text)
        with pytest.raises(ConfigError, match=complaint):
            read_labels(labels)
    labels.write_text("\ufeffrobot, task, success\r\narm, task_2, 1\r\n")  # of a spreadsheet
    assert read_labels(labels) == {("arm", "task_2"): True}
    with pytest.raises(ConfigError, match="No such file"):
        read_labels(tmp_path / "none.csv")


def test_bags_of_two_policies_are_refused():
    with pytest.raises(ConfigError, match="tasks of two policies"):
        read_outcomes(
            [fleet({10: 1.0}, tasks=2), fleet({10: 1.0}, tasks=2, policy="act-1", session="b/")]
        )


@pytest.fixture
def runs(tmp_path):
    save_run(tmp_path / "monday", fleet({10: 1.0, 30: 1.0, 50: 0.5}, tasks=900), {})
    save_run(tmp_path / "tuesday", fleet({20: 0.9}, tasks=20, kind="reach-v3", session="b/"), {})
    return tmp_path


def calibrate(*arguments):
    return CliRunner().invoke(app(), ["calibrate", *map(str, arguments)])


def test_the_command_writes_what_the_bags_carry_and_says_what_they_do_not(runs):
    out = runs / "horizons.json"
    told = calibrate(runs, "--bags", runs, "--worst-loss", 5, "--out", out)
    assert told.exit_code == 0, told.output
    assert "push-v3                      static 30;" in told.output
    assert "reach-v3                     no plan: 20 tasks of one horizon at most" in told.output
    assert "50 against 30: in 300 pairs of tasks it lost" in told.output
    data = json.loads(out.read_text())
    assert [(row["names"], row["after"]) for row in data["tasks"]] == [
        (["push-v3", "push the puck to the target"], 30)
    ]
    again = calibrate(runs, "--bags", runs / "monday", "--worst-loss", 5, "--out", out)
    assert again.exit_code == 0, again.output
    other = calibrate(runs, "--bags", runs, "--tasks", "reach-v3", "--out", runs / "other.json")
    assert "the bags carry no plan (reach-v3: 20 tasks" in str(other.exception)
    assert "push-v3" not in other.output
    strange = calibrate(runs, "--bags", runs, "--tasks", "reach", "--out", out)
    assert "'reach' of the bags counts; those are: push-v3, reach-v3" in str(strange.exception)
    for option in (["--critic"], ["--lead", 2], ["--disturbance", 0.1], ["--longer-leads", "5"]):
        told = calibrate(runs, "--bags", runs, *option, "--out", out)
        assert f"{option[0]} is of simulated episodes" in str(told.exception)


def test_a_bag_that_cannot_be_read_and_one_that_is_there_twice_lose_nothing_else(runs):
    monday, _ = read_run(runs / "monday")
    torn_off = (replace(monday.tasks[-1], outcome=LOST),)
    save_run(runs / "before_monday", replace(monday, tasks=monday.tasks[:-1] + torn_off), {})
    torn = runs / "thursday" / "bag"
    torn.mkdir(parents=True)
    (torn / "bag_0.mcap").touch()
    out = runs / "horizons.json"
    told = calibrate(runs, "--bags", runs, "--worst-loss", 5, "--out", out)
    assert told.exit_code == 0, told.output
    assert "10: 300 of 300, 30: 300 of 300" in told.output
    assert "left out, in another of the bags, too: 899 tasks" in told.output
    assert "bag_0.mcap is empty: its recorder ended before anything was written" in told.output
    assert json.loads(out.read_text())["how"]["bags"] == ["before_monday", "monday", "tuesday"]
    alone = calibrate(runs, "--bags", torn, "--out", out)
    assert "bag_0.mcap is empty" in str(alone.exception)


def test_a_fleet_without_fixed_horizons_is_told_how_to_record_them():
    with pytest.raises(ConfigError, match=r"under explore:0\.1 or a static horizon"):
        calibration_of(Recorded("act-1", {}), {}, {})


def test_bags_that_carry_no_plan_leave_the_calibration_as_it_is(runs):
    out = runs / "horizons.json"
    told = calibrate(runs, "--bags", runs / "tuesday", "--out", out)
    assert told.exit_code != 0
    assert "the bags carry no plan (reach-v3: 20 tasks of one horizon at most" in str(
        told.exception or told.output
    )
    assert not out.exists()


def test_the_folder_of_another_policy_and_words_that_are_none_are_refused(runs):
    folder = runs / "policy"
    bags = ("--bags", runs / "monday", "--worst-loss", 5)
    assert "there is no folder" in str(calibrate(folder, *bags).exception)
    folder.mkdir()
    for part in ("config.json", "model.safetensors"):
        (folder / part).write_text("{}")
    assert f"the bags are of policy {POLICY}" in str(calibrate(folder, *bags).exception)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    told = calibrate(folder, *bags, "--success", "juged")
    assert "told, judged, or a CSV file" in str(told.exception)


def test_of_bags_of_several_policies_those_of_the_named_folder_count(runs):
    folder = runs / "policy"
    folder.mkdir()
    for part in ("config.json", "model.safetensors"):
        (folder / part).write_text("{}")
    own = fleet({10: 1.0, 30: 1.0}, tasks=600, policy=policy_id(folder, "act"), session="c/")
    save_run(runs / "wednesday", own, {})
    told = calibrate(folder, "--bags", runs, "--worst-loss", 5)
    assert told.exit_code == 0, told.output
    assert f"left out, of policy {POLICY}: 920 tasks" in told.output
    assert read_calibration(folder / NAME).policy_id == own.tasks[0].policy


def test_plans_of_other_tasks_stay_and_another_policy_is_refused(runs):
    recorded, of = chosen(fleet({10: 1.0, 30: 1.0}, tasks=900))
    keep = calibration_of(*chosen(fleet({20: 1.0}, kind="reach-v3")), {})
    together = calibration_of(recorded, of, {}, keep)
    assert ("push-v3", "push the puck to the target") in together.tasks, "as kairos task send says"
    assert {names[0]: plan.after for names, plan in together.tasks.items()} == {
        "reach-v3": 20, "push-v3": 30
    }  # fmt: skip
    other = calibration_of(*chosen(fleet({20: 1.0}, policy="act-1")), {})
    with pytest.raises(ConfigError, match="act-1"):
        calibration_of(recorded, of, {}, other)
