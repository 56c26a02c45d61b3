"""`kairos fleet plan`: from files to a plan, and what is said of files that do not fit."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kairos_ros.commands.cli import app
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.core.pipeline import Component
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.load_profiles import profile_of, read_profiles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.fleet.workload import WhatIf, fleet_workload, what_if
from kairos_ros.planning.workload import scaled

CONFIG = Path(__file__).parents[2] / "config"
P4 = CONFIG / "fleets" / "paper_p4.yaml"
PROFILES = ("--profiles", str(CONFIG / "profiles"))
KNOWN = Known(adapters={"sim"})


def plan(*arguments):
    return CliRunner().invoke(app(), ["fleet", "plan", *map(str, arguments), *PROFILES])


def workload(*paths, found=None, **changes):
    fleets = [(path, read_fleet(path, KNOWN)) for path in paths]
    profiles = read_profiles([CONFIG / "profiles"]) if found is None else found
    return fleet_workload(fleets, profiles, WhatIf(**changes))


def edited(tmp_path, name, *changes):
    text = P4.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_fleet_file_is_planned_and_written_as_json_and_pictures(tmp_path):
    done = plan(
        P4, "--execution", "synchronous", "--json", "-", "--png", tmp_path / "plan.png",
        "--svg", tmp_path / "plan.svg",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert [one["component"] for one in made["servers"]] == [
        *["system1"] * 5, "system2", "safety", "monitor",
    ]  # fmt: skip
    assert len(made["assumed_profiles"]) == 4
    assert "assumed, not measured" in done.stderr
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert "gpu7" in (tmp_path / "plan.svg").read_text()


def test_a_sweep_says_how_many_robots_a_gpu_serves(tmp_path):
    done = plan(P4, "--sweep", "3:5", "--json", "-", "--png", tmp_path / "sweep.png")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["gpus"] for row in rows] == [3, 4, 5]
    assert rows[0]["robots"] == 0
    assert rows[0]["value_hz"] is None
    assert 0 < rows[1]["robots"] <= rows[2]["robots"]
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


@pytest.mark.parametrize("text", ["5", "0:3", "5:3", "1:9:0", "a:b"])
def test_a_sweep_that_is_none_is_refused(text):
    done = plan(P4, "--sweep", text)
    assert isinstance(done.exception, ConfigError)


def test_a_cluster_that_is_too_small_is_refused():
    done = plan(P4, "--gpus", 3)
    assert isinstance(done.exception, ConfigError)
    assert "3 GPUs are too few: system2 of assemble_kit" in str(done.exception)


def test_fewest_without_a_floor_says_which_field_is_missing():
    done = plan(P4, "--objective", "fewest")
    assert "min_actions_per_s" in str(done.exception)


def test_value_and_floor_of_a_task_come_from_the_file(tmp_path):
    path = edited(
        tmp_path, "fleet.yaml",
        ("assemble_kit:  # P4\n", "assemble_kit:\n  value: 2.5\n  min_actions_per_s: 10\n"),
    )  # fmt: skip
    work, cluster = workload(path)
    assert (work.classes[0].value, work.classes[0].floor_hz) == (2.5, 10)
    assert (cluster.gpus, cluster.device) == (8, "NVIDIA H200")
    assert cluster.memory_mib == pytest.approx(134468.1, abs=0.1)


def test_robots_that_are_in_two_files_are_refused_with_both(tmp_path):
    other = edited(tmp_path, "other.yaml")
    with pytest.raises(ConfigError) as caught:
        workload(P4, other)
    text = str(caught.value)
    assert f"robot 'assemble_kit_1' is in {P4} and in {other}, and 31 more" in text


def test_two_files_with_robots_of_their_own_are_planned_together(tmp_path):
    other = edited(tmp_path, "other.yaml", ("num_robots: 32", "names: [left, right]"))
    work, _ = workload(P4, other)
    names = [(one.name, one.count) for one in work.classes]
    assert names == [("paper_p4:assemble_kit", 32), ("other:assemble_kit", 2)]


def test_files_with_different_clusters_are_not_planned_together(tmp_path):
    other = edited(
        tmp_path,
        "other.yaml",
        ("num_robots: 32", "names: [a]"),
        ("num_servers: 8", "num_servers: 4"),
    )
    with pytest.raises(ConfigError, match="share one server_cluster"):
        workload(P4, other)


def test_a_model_without_a_profile_is_named_with_the_command_that_measures_it():
    with pytest.raises(ConfigError) as caught:
        workload(P4, found=[])
    assert "no profile of model 'nvidia/GR00T-N1.6-3B' as system1" in str(caught.value)
    command = 'kairos profile --policy nvidia/GR00T-N1.6-3B --load --device-name "NVIDIA H200"'
    assert command in str(caught.value)


def test_a_profile_of_another_device_is_not_used(tmp_path):
    path = edited(tmp_path, "fleet.yaml", ("NVIDIA H200", "NVIDIA A100"))
    with pytest.raises(ConfigError, match="is of 'NVIDIA H200', but the servers are 'NVIDIA A100'"):
        workload(path)


def test_a_profile_of_another_use_is_not_used():
    found = read_profiles([CONFIG / "profiles"])
    with pytest.raises(ConfigError, match="has a profile as safety, but none as monitor"):
        profile_of(found, ["Qwen2.5-VL-3B-Instruct"], Component.MONITOR, "NVIDIA H200")


def test_a_measured_profile_goes_before_an_assumed_one(tmp_path):
    assumed = next(one for one in read_profiles([CONFIG / "profiles"]) if "3b" in one.path.name)
    data = assumed.profile.to_dict() | {"source": "measured"}
    (tmp_path / "measured.json").write_text(json.dumps(data))
    found = read_profiles([CONFIG / "profiles", tmp_path])
    best = profile_of(found, ["Qwen2.5-VL-3B-Instruct"], Component.SAFETY, "NVIDIA H200")
    assert best.source == "measured"


def test_a_broken_profile_is_refused_with_its_file(tmp_path):
    (tmp_path / "bad.json").write_text(json.dumps({"kind": "load_profile", "format": 1}))
    with pytest.raises(ConfigError, match=r"bad\.json: load profile: field 'model' is missing"):
        read_profiles([tmp_path])


def test_other_json_in_the_folder_is_left_alone(tmp_path):
    (tmp_path / "engine.json").write_text(json.dumps({"format": 1, "policy_id": "x"}))
    assert read_profiles([tmp_path]) == []


def test_what_if_changes_robots_of_the_fleet_or_of_a_task():
    work, _ = workload(CONFIG / "fleets" / "paper_mix4.yaml", robots=64)
    assert [one.count for one in work.classes] == [16] * 4
    mix2 = CONFIG / "fleets" / "paper_mix2.yaml"
    work, _ = workload(mix2, of_task={"assemble_kit": 20})
    assert [(one.count, one.robots[-1]) for one in work.classes][1] == (20, "assemble_kit_20")
    with pytest.raises(ConfigError, match=r"no task 'assemble' \(did you mean 'assemble_kit'"):
        workload(mix2, of_task={"assemble": 2})


@pytest.mark.parametrize("text", ["robots", "robots=0", "gpus=3", "robots.=3", "robots=x"])
def test_a_what_if_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="what-if"):
        what_if([text])


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([8, 8], 7, [4, 3]),
        ([1, 9], 100, [10, 90]),
        ([1, 99], 2, [1, 1]),
        ([3, 3, 4], 20, [6, 6, 8]),
    ],
)
def test_a_fleet_is_scaled_in_its_proportions(counts, total, expected):
    assert scaled(counts, total) == expected


def test_every_shipped_profile_says_that_it_is_assumed_and_on_what_it_rests():
    found = read_profiles([CONFIG / "profiles"])
    assert len(found) == 6
    for one in found:
        assert one.profile.assumed
        emulated = one.profile.model.startswith("emulated-")
        assert ("fleets/emulated.yaml" if emulated else "Rosa") in one.profile.basis


def test_an_assumed_profile_is_written_by_the_command_line(tmp_path):
    out = tmp_path / "p.load.json"
    done = CliRunner().invoke(
        app(),
        ["profile", "--assume", "30+5b", "--model", "pi05", "--as", "system1", "--device-name",
         "A100", "--batches", "1,2", "--memory-mib", "9000", "--out", str(out)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    profile = LoadProfile.from_dict(json.loads(out.read_text()))
    assert (profile.model, profile.device, profile.assumed) == ("pi05", "A100", True)
    assert [load.batch for load in profile.loads] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one of --policy, --judge and --assume"),
        (["--assume", "30+5b", "--judge", "x"], "give one of"),
        (["--assume", "30+5b", "--as", "safety"], "--assume needs --model"),
        (["--assume", "30+5b", "--as", "safty"], "--as 'safty'"),
        (["--judge", "embedded:factory_judge"], "--as says what it is asked as"),
        (["--judge", "embedded:planner", "--as", "system1"], "with --policy and --load"),
    ],
)
def test_profile_options_that_contradict_each_other_are_refused(arguments, says):
    done = CliRunner().invoke(app(), ["profile", *arguments])
    assert says in str(done.exception)
