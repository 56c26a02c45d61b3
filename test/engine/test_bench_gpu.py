"""`python -m bench gpu` without a GPU: slices are resumed, fail alone, and end in time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.engine.gpu import run_child, slices_of
from kairos_ros.core.profile import EngineProfile

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = ("--device", "cpu", "--size", "tiny")


def command(*options: str | Path) -> list[str]:
    return [sys.executable, "-m", "bench", "gpu", *TINY, *map(str, options)]


def bench(*options: str | Path) -> str:
    done = subprocess.run(command(*options), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def slices(folder: Path) -> dict:
    return json.loads((folder / "gpu.json").read_text())["slices"]


def test_slices_are_resumed_and_a_failed_one_stops_no_other(tmp_path):
    bench("--out", tmp_path, "--minutes", "0")
    assert slices(tmp_path) == {}
    bench("--out", tmp_path, "--slices", "machine,act", "--batches", "1,1000")
    first = slices(tmp_path)
    assert first["machine"]["status"] == "done"
    assert first["act"]["status"] == "failed"
    assert "max_batch is 1000" in first["act"]["reason"]

    said = bench("--out", tmp_path, "--slices", "machine,act")
    assert "machine: done in an earlier call" in said
    assert "act: failed in an earlier call" in said
    assert slices(tmp_path) == first

    bench("--out", tmp_path, "--slices", "machine,act", "--retry")
    second = slices(tmp_path)
    assert second["machine"] == first["machine"]
    found = second["act"]["result"]
    assert found["independence"]["rows"] == 2
    assert found["independence"]["between_rows"] > 0
    assert not found["warnings"]
    profile = json.loads((tmp_path / "profiles" / "act.profile.json").read_text())
    assert EngineProfile.from_dict(profile).batch_sizes == (1, 2)
    page = (tmp_path / "gpu.md").read_text()
    assert "dry run" in page
    assert "weights are random" in page
    assert (tmp_path / "gpu.png").is_file()


def test_the_list_names_every_slice(tmp_path):
    said = bench("--list", "--out", tmp_path)
    assert all(name in said for name in slices_of("tiny"))


def test_results_of_another_size_are_not_mixed(tmp_path):
    (tmp_path / "gpu.json").write_text('{"format": 1, "device": "cuda", "size": "real"}')
    done = subprocess.run(
        command("--out", tmp_path, "--slices", "machine"), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "use another --out" in done.stderr


def test_a_slice_is_ended_at_its_limit_with_all_that_it_started():
    script = "sleep 60 & sleep 60"
    assert "limit of 1 s" in run_child(["sh", "-c", script], 1.0, dict(os.environ))
    assert "SIGKILL" in run_child(["sh", "-c", "kill -9 $$"], 9.0, dict(os.environ))
    assert "code 3" in run_child(["sh", "-c", "exit 3"], 9.0, dict(os.environ))
    assert run_child(["true"], 9.0, dict(os.environ)) == ""


def test_an_interrupted_call_leaves_whole_results(tmp_path):
    bench = subprocess.Popen(
        command("--out", tmp_path, "--slices", "machine"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        text=True,
    )
    assert bench.stdout is not None
    assert bench.stdout.readline().startswith("machine")
    bench.send_signal(signal.SIGINT)
    bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert slices(tmp_path) == {}
    assert (tmp_path / "gpu.md").is_file()
