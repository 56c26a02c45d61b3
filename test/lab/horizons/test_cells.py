"""Cells are run once, kept as they finish, and run again when what decides them changed."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from wire import until

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.lab.metrics.cells import (
    PACKAGE,
    cell_name,
    missing_cells,
    read_cells,
    run_cells,
    source_version,
)

KEYS = [{"seed": seed, "load": load} for seed in range(3) for load in (0.5, 1.5)]


def measure(key):
    return {"latency_s": 10 * key["load"] + key["seed"], "stall": float("nan")}


def measure_or_fail(key):
    if key["seed"] == 2:
        raise KairosError("the third seed does not work")
    return measure(key)


def refuse(key):
    raise AssertionError(f"{key} ran again")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "new" / "cells.jsonl"


def run(file, keys=KEYS, how=measure, code="code", processes=1, finished=lambda *_: None):
    return run_cells(file, keys, how, code=code, processes=processes, finished=finished)


def test_results_come_in_the_order_of_their_keys_and_are_found_again(file):
    results = run(file)
    assert [r["latency_s"] for r in results] == [5.0, 15.0, 6.0, 16.0, 7.0, 17.0]
    assert results[3]["stall"] != 0.0  # NaN stays NaN
    again = run(file, KEYS[::-1], refuse)
    assert [r["latency_s"] for r in again] == [r["latency_s"] for r in results[::-1]]


@pytest.mark.slow
def test_processes_give_the_results_that_one_process_gives(tmp_path):
    one = run(tmp_path / "one")
    two = run(tmp_path / "two", processes=2)
    assert [r["latency_s"] for r in one] == [r["latency_s"] for r in two]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_keeps_what_has_finished_and_a_rerun_runs_only_the_rest(file, processes):
    def stop_after_four(left, key, value):
        if left == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(file, processes=processes, finished=stop_after_four)
    assert multiprocessing.active_children() == []
    assert len(missing_cells(file, KEYS, "code")) == 2
    run(file)
    assert missing_cells(file, KEYS, "code") == []
    assert len(file.read_text().splitlines()) == len(KEYS)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_cell_says_which_and_the_others_are_kept(file, processes):
    with pytest.raises(KairosError, match=r"'seed': 2.*does not work"):
        run(file, how=measure_or_fail, processes=processes)
    missing = missing_cells(file, KEYS, "code")
    assert missing[-2:] == KEYS[4:]
    assert len(missing) < len(KEYS)


def test_a_cell_that_is_asked_for_twice_is_run_once(file):
    ran = []
    run(file, [*KEYS, *KEYS], finished=lambda left, key, value: ran.append(key))
    assert ran == KEYS


def test_other_code_runs_all_cells_again_and_its_results_count(file):
    run(file, how=refuse_nothing)
    assert missing_cells(file, KEYS, "other") == KEYS
    assert run(file, code="other")[0]["latency_s"] == 5.0
    assert read_cells(file)[cell_name(KEYS[0])].code == "other"


def refuse_nothing(key):
    return {"latency_s": -1.0}


def test_a_line_torn_by_a_killed_run_is_run_again_and_spoils_nothing(file):
    run(file, KEYS[:3])
    file.write_bytes(file.read_bytes()[:-20])
    assert missing_cells(file, KEYS[:3], "code") == [KEYS[2]]
    run(file, KEYS[:3])
    assert missing_cells(file, KEYS[:3], "code") == []


@pytest.mark.parametrize("line", ['{"key": "x"}', "no JSON", "[1]", ""])
def test_a_line_that_is_no_result_is_named(file, line):
    run(file, KEYS[:1])
    with file.open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(ConfigError, match=r"cells.jsonl, line 2 is no result"):
        read_cells(file)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match=r"cells cannot be kept in .*taken"):
        run(tmp_path / "taken" / "cells.jsonl")


def test_the_order_of_settings_does_not_name_another_cell():
    assert cell_name({"a": 1, "b": 2.5}) == cell_name({"b": 2.5, "a": 1})
    assert len({cell_name(key) for key in KEYS}) == len(KEYS)
    assert cell_name(json.loads(json.dumps({"a": (1, 2)}))) == cell_name({"a": (1, 2)})


RUN_CELLS = """
import json, sys
from kairos_ros.host.share import share
from kairos_ros.lab.study.cell import Cell
from kairos_ros.lab.study.simulated import run_cell
for cell in (
    {"placement": "hybrid", "scheduling": "wait_ratio", "hedge_budget": 0.1, "refetch": True,
     "policy": str(share() / "models" / "metaworld_flow")},
    {"workload": "vam-bridge", "horizon": "dynamic", "accounting": "observation"},
):
    run_cell(Cell(tasks=2, **cell))
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith("kairos_ros.")]))
"""
DECIDE_NOTHING = {
    "document/faults.py",
    "document/marked_yaml.py",
    "document/text_file.py",
    "engine/policies/policy_source.py",
    "lab/metrics/cells.py",
    "recording/runs/pipeline.py",
    "host/orphan.py",
    "host/process_pool.py",
    "host/share.py",
    "transport/picture.py",
}
"""How cells are run and kept, plain records, pictures that a simulated run has none of, where files
are and how they are read, and whether they are of this policy."""


@pytest.mark.slow
def test_all_that_a_simulated_cell_imports_is_covered_by_the_version_of_its_sources():
    from kairos_ros.lab.study.cell import DECIDES

    said = subprocess.run([sys.executable, "-c", RUN_CELLS], capture_output=True, check=True)
    files = {Path(file).relative_to(PACKAGE) for file in json.loads(said.stdout)}
    ours = {str(file) for file in files if file.name != "__init__.py"}
    covered = {file for file in ours if any(Path(file).is_relative_to(part) for part in DECIDES)}
    assert "core/execution/run.py" in covered
    assert ours - covered == DECIDE_NOTHING


def test_other_recorded_traces_make_other_cells(tmp_path):
    from kairos_ros.lab.sim.recorded import TRACES, traces_version

    versions = set()
    for content in (b"monday", b"tuesday"):
        (tmp_path / TRACES).write_bytes(content)
        versions.add(traces_version(tmp_path))
    assert len(versions) == 2


@pytest.mark.slow
def test_the_version_of_the_sources_covers_files_that_exist():
    from kairos_ros.lab.study.cell import DECIDES

    pytest.importorskip("torch")
    from kairos_ros.lab.training.bench import EPISODES

    assert [part for part in (*DECIDES, *EPISODES) if not (PACKAGE / part).exists()] == []
    assert source_version(["core"]) != source_version(["core/errors.py"])
    assert source_version(["core"]) == source_version(["core"])


POOL = """
import os, sys, time
from kairos_ros.host.process_pool import process_pool

if __name__ == "__main__":
    with process_pool(2) as pool:
        jobs = [pool.submit(os.getpid) for _ in range(20)]
        print(*{job.result() for job in jobs}, flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
def test_the_processes_of_a_run_that_is_killed_end_with_it(tmp_path):
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    run = subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = run.stdout.readline().split()
    assert pids
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    run.kill()
    run.wait()
    run.stdout.close()
    until(lambda: not any(_runs(pid) for pid in pids), what="for the pool's processes to end")


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
