"""`kairos simulate`: what it prints and leaves behind, what it refuses, how it is interrupted."""

import json
import signal
import subprocess
import sys

import pytest

from kairos_ros.commands import cli
from kairos_ros.core.profile import EngineProfile
from kairos_ros.lab.sim.sim_engine import linear_profile
from kairos_ros.lab.sim.workloads import workload
from kairos_ros.recording.runs.run_files import load_run
from kairos_ros.recording.runs.trace_file import write_traces

MAIN = "import sys; from kairos_ros.commands.cli import main; sys.exit(main())"


@pytest.fixture
def kairos(monkeypatch, capsys):
    """Runs `kairos simulate` in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kairos", "simulate", *arguments])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_workload_is_simulated_summarised_and_saved(kairos, tmp_path):
    arguments = ["--workload", "smolvla-meta", "--tasks", "30", "--robots", "10", "--load", "0.5"]
    code, table, _ = kairos(*arguments, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "end-to-end latency, average" in table
    run, configuration = load_run(tmp_path / "run")
    assert len(run.tasks) == 30
    assert configuration["workload"] == "smolvla-meta"
    assert EngineProfile.from_dict(configuration["profile"]).batch_sizes == (1, 16)
    assert kairos(*arguments, "--out", str(tmp_path / "again"))[1] == table
    assert repr(load_run(tmp_path / "again")[0]) == repr(run)


def test_traces_a_profile_file_and_a_cloud_are_simulated(kairos, tmp_path):
    write_traces(tmp_path / "t.jsonl.gz", workload("vam-bridge", tasks=12).traces)
    profile = linear_profile("80+35b", 4, "anything")
    (tmp_path / "p.json").write_text(json.dumps(profile.to_dict()))
    code, document, _ = kairos(
        str(tmp_path / "t.jsonl.gz"),
        "--profile",
        str(tmp_path / "p.json"),
        "--cloud",
        "40+18b",
        "--accounting",
        "replay",
        "--format",
        "json",
    )
    assert code == 0
    assert json.loads(document)["summary"]["tasks"] == 12


@pytest.mark.parametrize("accounting", ["replay", "observation"])
@pytest.mark.parametrize("horizon", ["static:tuned", "calibrated"])
def test_recorded_tasks_are_simulated_under_the_calibration_of_their_policy(
    kairos, tmp_path, horizon, accounting
):
    arguments = ["--horizon", horizon, "--accounting", accounting, "--out", str(tmp_path / "run")]
    code, table, _ = kairos("--workload", "metaworld", "--tasks", "12", *arguments)
    assert code == 0
    assert horizon in table
    run, _ = load_run(tmp_path / "run")
    assert len({r.horizon for r in run.rounds}) > 1


@pytest.mark.parametrize(
    ("arguments", "requests_per_s", "sizes"),
    [
        ([], 8 / 0.36, (1, 8)),
        (["--batch-cap", "1"], 1 / 0.115, (1,)),
        (["--batch-cap", "16"], 16 / 0.64, (1, 16)),
        (["--batch-cap", "1", "--profile", "p.json"], 1 / 0.115, (1, 4)),
        (["--batch-cap", "2", "--engines", "2", "--cloud", "40+18b"], 2 * 2 / 0.15, (1, 2)),
    ],
)
def test_the_load_is_over_what_the_edge_engines_can_do_in_batches_that_are_allowed(
    kairos, tmp_path, monkeypatch, arguments, requests_per_s, sizes
):
    monkeypatch.chdir(tmp_path)
    measured = linear_profile("80+35b", 4, "anything")
    (tmp_path / "p.json").write_text(json.dumps(measured.to_dict()))
    code, *_ = kairos("--tasks", "3", "--load", "0.5", "--out", "run", *arguments)
    assert code == 0
    run, configuration = load_run(tmp_path / "run")
    tasks_per_s = 0.5 * requests_per_s / workload("pi05-libero").mean_static_rounds
    assert configuration["rate"] == pytest.approx(tasks_per_s)
    assert EngineProfile.from_dict(configuration["profile"]).batch_sizes == sizes
    assert run.tasks


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workload", "pi06"], "unknown workload 'pi06'"),
        (["nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--profile", "fast"], "profile 'fast' is neither a file nor"),
        (["--scheduling", "fair"], "unknown scheduling policy 'fair'"),
        (["--horizon", "tail_agreement"], "holds no chunk"),
        (["--horizon", "static:tuned"], "run 'kairos calibrate'"),
        (["--tasks", "3", "--hours", "1"], "either --tasks or --hours"),
        (["--rate", "1", "--offline"], "one of --rate, --load and --offline"),
        (["nowhere.jsonl", "--load", "1"], "--load needs a workload"),
        (["--robots", "0"], "--robots"),
    ],
)
def test_what_cannot_be_simulated_is_told_without_a_traceback(kairos, arguments, told):
    code, _, errors = kairos(*arguments)
    assert code == 2
    assert told in " ".join(errors.replace("│", " ").split())


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_simulated(kairos, tmp_path):
    (tmp_path / "taken").touch()
    for folder in (tmp_path / "taken", tmp_path / "taken" / "run"):
        code, table, errors = kairos("--tasks", "3", "--out", str(folder))
        assert (code, table) == (2, "")
        assert f"no run can be saved in {folder}" in errors


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_simulated(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "simulate", "--hours", "500", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "tasks" in process.stderr.readline()  # the first line of progress
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "tasks, unfinished" in out
    run, _ = load_run(tmp_path / "run")
    assert any(t.outcome == "canceled" for t in run.tasks)
    assert any(t.finished for t in run.tasks)
