import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kairos_ros.commands.cli import app
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.engine.policies.calibration_file import write_calibration

CASES = json.loads((Path(__file__).parents[1] / "support" / "cases" / "schedule.json").read_text())
SCHEDULING = {case["name"]: case for case in CASES["scheduling"]}
PLACEMENT = {case["name"]: case for case in CASES["placement"]}


def kairos(*arguments):
    return CliRunner().invoke(app(), [str(argument) for argument in arguments])


def explained(tmp_path, data):
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(data))
    return kairos("schedule", "explain", file, "--format", "json")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    done = explained(tmp_path_factory.mktemp("explain"), CASES)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SCHEDULING)
def test_scheduling_is_what_was_worked_out_by_hand(name, answers):
    answer, expect = answers["scheduling"][name], SCHEDULING[name]["expect"]
    assert {key: answer[key] for key in expect} == expect


@pytest.mark.parametrize("name", PLACEMENT)
def test_placement_is_what_was_worked_out_by_hand(name, answers):
    assert answers["placement"][name] == PLACEMENT[name]["expect"]


def test_each_scenario_is_answered_in_full(answers):
    for name, answer in answers["scheduling"].items():
        ids = sorted(r["id"] for r in SCHEDULING[name]["requests"])
        assert list(answer) == [
            "order", "bucket", "wait_ratio", "dispatch", "skipped_after", "reason"
        ]  # fmt: skip
        for field in ("order", "bucket", "wait_ratio", "skipped_after", "reason"):
            assert sorted(answer[field]) == ids


def test_people_get_a_table_with_the_reasons(tmp_path):
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"scheduling": [SCHEDULING["capacity"]]}))
    done = kairos("schedule", "explain", file)
    assert done.exit_code == 0
    assert "capacity" in done.stdout
    assert "waits:" in done.stdout


ONE = {"id": "a", "t_start": 0, "rounds": [{"G": [0, 1], "E": [1, 2]}]}


def scenario(**changes):
    return {"scheduling": [{"name": "s", "now_ms": 10, "requests": [ONE]} | changes]}


def request(**changes):
    return scenario(requests=[ONE | changes])


def placement(**changes):
    case = {"name": "p", "order": ["a", "b"], "N_e": 1, "N_c": 1}
    return {"placement": [case | {"edge_delay_ms": [9], "cloud_latency_ms": [5]} | changes]}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ([], "it must be a mapping of scheduling, placement, not []"),
        ({}, "neither 'scheduling' nor 'placement'"),
        (
            scenario(now_ms=None),
            "scheduling.0.now_ms: it must be a valid integer (in ms), not None",
        ),
        (scenario(now_ms=1.5), "scheduling.0.now_ms: it must be a valid integer (in ms), not 1.5"),
        (scenario(requests={}), "scheduling.0.requests: it must be a valid list, not {}"),
        (scenario(requests=[ONE, ONE]), "scheduling.0.requests.1.id: 'a' occurs twice"),
        (scenario(B=0), "B: it must be greater than or equal to 1 (buckets), not 0"),
        (scenario(A=0), "A: it must be greater than or equal to 1 (null: no aging), not 0"),
        (scenario(B=5, options={"B": 6}), "scheduling.0: B is both 5 and 6"),
        (scenario(capacity=-1), "capacity: it must be greater than or equal to 0, not -1"),
        (
            scenario(options={"age": "round"}),
            "age: 'round' is not allowed; allowed are: ceil, floor",
        ),
        (scenario(options={"clamp": 1}), "clamp: it must be a valid boolean, not 1"),
        (
            scenario(options={"capcity": 1}),
            "there is no field 'capcity' here (did you mean 'capacity'?)",
        ),
        (request(id=None), "scheduling.0.requests.0.id: it must be a valid string, not None"),
        (request(t_start=11), "scheduling.0.requests.0.t_start: 11 is after now_ms, 10"),
        (request(skipped=-1), "requests.0.skipped: it must be greater than or equal to 0, not -1"),
        (request(rounds=[{"G": [2, 1]}]), "rounds.0.G: it ends at 1, before it starts at 2"),
        (request(rounds=[{"G": [2]}]), "rounds.0.G: list should have at least 2 items"),
        (request(rounds=[{}]), "rounds.0: it has neither G nor E"),
        (request(t_start=-(10**14)), "too long to count in nanoseconds"),
        (placement(order=["a", "a"]), "placement.0.order: 'a' occurs twice"),
        (placement(N_e=-1), "placement.0.N_e: it must be greater than or equal to 0, not -1"),
        (placement(edge_delay_ms=["x"]), "placement.0.edge_delay_ms.0: it must be a valid number"),
        (placement(edge_delay_ms=[]), "p: edge_delay_ms needs a value for each of 1 requests"),
        (
            {"scheduling": scenario()["scheduling"] * 2},
            "scheduling.1.name: 's' occurs twice",
        ),
    ],
)
def test_a_wrong_scenario_is_refused_by_name_and_field(data, what, tmp_path):
    done = explained(tmp_path, data)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert what in done.stderr


def test_everything_that_is_wrong_is_told_with_line_and_column(tmp_path):
    file = tmp_path / "cases.json"
    file.write_text('{"scheduling": [\n\t{"now_ms": true,\n\t"requests": [{"t_start": 1e3}]}]}')
    done = kairos("schedule", "explain", file)
    assert done.exit_code == 2
    lines = done.stderr.removeprefix("error: ").splitlines()
    assert [line.removeprefix(f"{file}:").split(": ")[:2] for line in lines] == [
        ["2:13", "scheduling.0.now_ms"],
        ["3:15", "scheduling.0.requests.0.id"],
        ["3:27", "scheduling.0.requests.0.t_start"],
    ]


def test_a_field_that_nothing_reads_is_a_warning_beside_the_answer(tmp_path):
    done = explained(tmp_path, request(skiped=3))
    assert done.exit_code == 0
    assert "warning: s: requests[0] (a): nothing reads the field 'skiped'" in done.stderr
    assert json.loads(done.stdout)["scheduling"]["s"]["skipped_after"] == {"a": 0}


def test_a_file_that_is_missing_or_no_json_is_an_error(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for file in (tmp_path / "bad.json", tmp_path / "none.json"):
        done = kairos("schedule", "explain", file)
        assert (done.exit_code, done.stdout) == (2, "")
        assert str(file) in done.stderr


@pytest.fixture
def recorded(tmp_path):
    """Norms per step: action 1 shrinks, action 2 ends at 1.5 x its earlier mean, action 3 at 0."""
    size = np.array([[4, 2, 1], [2, 2, 1], [1, 3, 0]], float)
    updates = np.stack([0.6 * size, 0.8 * size], axis=2)
    np.savez(tmp_path / "one.npz", updates=updates)
    np.savez(tmp_path / "two.npz", updates=np.stack([updates, updates[:, ::-1]], axis=1))
    return tmp_path


def test_a_recorded_chunk_is_cut_as_the_server_would(recorded):
    arguments = "--policy", "confidence", "--t", 0.4, "--h-min", 1, "--format", "json"
    one = json.loads(kairos("horizon", recorded / "one.npz", *arguments).stdout)
    assert one["horizon"] == [1]
    assert one["ratio"] == [pytest.approx([1 / 3, 1.5, 0])]
    two = json.loads(kairos("horizon", recorded / "two.npz", *arguments).stdout)
    assert two["horizon"] == [1, 1]
    assert two["ratio"][1] == pytest.approx([0, 1.5, 1 / 3])


@pytest.mark.parametrize(("policy", "horizon"), [("static:tuned", 2), ("calibrated", 3)])
def test_a_chunk_is_cut_as_a_calibration_says(recorded, policy, horizon):
    plans = {("reach",): HorizonPlan((1, 3), 1)}
    static = StaticHorizons({("reach",): 2}, general=1)
    calibration = HorizonCalibration("p", 3, plans, HorizonPlan((), 1), static=static)
    write_calibration(recorded / "c.json", calibration)
    options = ["--policy", policy, "--calibration", recorded / "c.json", "--task", "reach"]
    done = kairos("horizon", recorded / "one.npz", *options, "--round", 2, "--format", "json")
    assert json.loads(done.stdout)["horizon"] == [horizon]
    done = kairos("horizon", recorded / "one.npz", "--policy", policy)
    assert done.exit_code == 2
    assert "kairos calibrate" in done.stderr


def test_people_see_the_horizon_and_why(recorded):
    done = kairos("horizon", recorded / "one.npz", "--h-min", 1)
    assert "H = 1 of 3" in done.stdout
    assert "action 2 still moves 1.50 x its mean" in done.stdout


def test_an_action_that_only_the_last_step_moved_has_no_finite_ratio(tmp_path):
    updates = np.zeros((3, 2, 2))
    updates[2, 1] = 1
    np.savez(tmp_path / "u.npz", updates=updates)
    done = kairos("horizon", tmp_path / "u.npz", "--h-min", 1, "--format", "json")
    assert json.loads(done.stdout)["ratio"] == [[0.0, None]]


@pytest.mark.parametrize(
    ("arrays", "arguments", "what"),
    [
        ({"u": np.zeros((3, 2, 2))}, (), "there is no array 'updates', only ['u']"),
        ({"updates": np.zeros((3, 2))}, (), "must be [K,N,D] or [K,B,N,D], not of shape (3, 2)"),
        ({"updates": np.zeros((1, 2, 2))}, (), "at least 2 sampler steps"),
        ({"updates": np.full((3, 2, 2), np.nan)}, (), "not finite"),
        ({"updates": np.array([[["a"]]])}, (), "must be real numbers"),
        ({"updates": np.zeros((3, 2, 2))}, ("--policy", "static", "--t", 1), "no option 't'"),
        ({"updates": np.zeros((3, 2, 2)), "tail": np.zeros((4, 5, 2))}, (), "1 batch row(s)"),
    ],
)
def test_a_recording_that_cannot_be_judged_is_refused(tmp_path, arrays, arguments, what):
    np.savez(tmp_path / "u.npz", **arrays)
    done = kairos("horizon", tmp_path / "u.npz", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert what in done.stderr


def test_pickled_arrays_and_other_files_are_never_loaded(tmp_path):
    np.savez(tmp_path / "pickled.npz", updates=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("hello")
    for name, what in (("pickled.npz", "allow_pickle=False"), ("text.npz", "no .npz file")):
        done = kairos("horizon", tmp_path / name)
        assert done.exit_code == 2
        assert what in done.stderr
