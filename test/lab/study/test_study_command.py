"""`kairos study` end to end: simulated cells, the files that come out, what is said on errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.study import shipped_studies, study_command
from kairos_ros.lab.study.cell import Cell
from kairos_ros.lab.study.simulated import run_cell

pytestmark = pytest.mark.slow

STUDY = """
question: Does a dynamic horizon help?
settings: {workload: pi05-libero, load: 1.4, tasks: 12}
vary:
  accounting: [replay, observation]
  horizon: [static, dynamic]
sizes:
  quick: {seeds: 1}
  full: {seeds: 40}
figure: {x: horizon, lines: accounting}
claims:
  - {ours: {horizon: dynamic}, baseline: {horizon: static}, per: [accounting]}
"""


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(study_command)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(STUDY)
    return path


def test_a_study_writes_table_figure_and_finding_and_a_rerun_runs_nothing(command, file, tmp_path):
    out = tmp_path / "out"
    result = command(file, "--size", "quick", "--out", out)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out / "cells.csv")
    assert len(table) == 4
    assert (table.latency_mean_s > 0).all()
    assert (out / "figure.png").stat().st_size > 10_000
    assert "Does a dynamic horizon help?" in (out / "finding.md").read_text()
    lines = (out / "cells.jsonl").read_bytes()
    assert command(file, "--size", "quick", "--out", out).exit_code == 0
    assert (out / "cells.jsonl").read_bytes() == lines


def test_plot_only_draws_what_has_run_and_runs_nothing(command, file, tmp_path):
    out = tmp_path / "out"
    command(file, "--size", "quick", "--out", out)
    lines = (out / "cells.jsonl").read_bytes()
    result = command(file, "--size", "full", "--out", out, "--plot-only")
    assert result.exit_code == 0, result.output
    assert "156 of 160 cells have not run yet" in (out / "finding.md").read_text()
    assert (out / "cells.jsonl").read_bytes() == lines


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_keeps_finished_cells_and_still_writes_the_table(file, tmp_path, processes):
    file.write_text(STUDY.replace("seeds: 40", "seeds: 1000"))  # more than it does until it is told
    out = tmp_path / "out"
    kairos = Path(sys.executable).with_name("kairos")
    line = [kairos, "study", file, "--out", out, "--processes", processes]
    process = subprocess.Popen(
        list(map(str, line)),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    cells = out / "cells.jsonl"
    until = time.monotonic() + 60
    while not (cells.exists() and cells.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "the same command continues" in output[1]
    kept = [json.loads(line) for line in cells.read_text().splitlines()]
    assert 3 <= len(kept) < 4000
    assert len(pd.read_csv(out / "cells.csv")) == len(kept)


def test_list_says_what_each_study_answers(command):
    result = command("--list")
    assert result.exit_code == 0
    for name in shipped_studies():
        assert name in result.output
    assert "How do latency and stall grow with the load" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a study"),
        (["nothing"], "no study 'nothing'; there are aging, batch_cap"),
        (["none.yaml"], "none.yaml: No such file"),
    ],
)
def test_a_wrong_call_says_what_is_allowed(command, arguments, message):
    result = command(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_a_kind_of_study_that_there_is_not_is_said(command, file):
    file.write_text("kind: live_delay\n" + STUDY)
    result = command(file)
    assert isinstance(result.exception, ConfigError)
    assert "mine.yaml: kind: there is no kind 'live_delay', only factory" in str(result.exception)


CELL = Cell(workload="pi05-libero", horizon="static", tasks=15, load=1.4)


def test_a_cell_gives_the_same_numbers_again():
    assert run_cell(CELL) == run_cell(CELL)


def test_seeds_give_other_numbers():
    assert run_cell(CELL) != run_cell(CELL.model_copy(update={"seed": 1}))


@pytest.mark.parametrize("accounting", ["replay", "observation"])
@pytest.mark.parametrize("horizon", ["static", "dynamic"])
def test_a_policy_changes_when_things_happen_but_not_what_is_done(horizon, accounting):
    same = {"horizon": horizon, "accounting": accounting}
    one, other = (
        run_cell(CELL.model_copy(update={**same, **policy}))
        for policy in ({"scheduling": "fifo"}, {"scheduling": "admit", "refetch": True})
    )
    assert one["tasks"] == other["tasks"] == 15
    assert one["actions"] == other["actions"]


def test_both_horizons_are_offered_the_same_tasks_at_the_same_times():
    """Their arrivals and their lengths in actions, so that a reduction compares like with like."""
    static, dynamic = (run_cell(CELL.model_copy(update={"horizon": h})) for h in HORIZONS)
    assert static["actions"] == dynamic["actions"]
    assert static["last_arrival_s"] == dynamic["last_arrival_s"]
    assert static["rounds_per_task"] > 1.3 * dynamic["rounds_per_task"]


HORIZONS = ("static", "dynamic")


def test_a_fleet_takes_tasks_back_to_back():
    fleet = Cell(
        workload="pi05-libero", horizon="static", arrivals="back_to_back", robots=3, tasks=9
    )
    found = run_cell(fleet)
    assert found["tasks"] == 9
    assert found["busy_robots_mean"] > 2


def test_a_cloud_engine_serves_some_rounds_of_a_hybrid_fleet_and_none_at_the_edge():
    loaded = CELL.model_copy(update={"load": 3.0, "wan_ms": 20.0})
    shares = {
        place: run_cell(loaded.model_copy(update={"placement": place}))["cloud_fraction"]
        for place in ("edge", "hybrid", "cloud")
    }
    assert shares["edge"] == 0
    assert 0 < shares["hybrid"] < 1
    assert shares["cloud"] == 1


@pytest.mark.parametrize(("pipelined", "load"), [(False, 2.4), (True, 4.8)])
def test_fetching_observations_again_does_not_starve_an_engine_that_is_far_away(pipelined, load):
    far = {"placement": "cloud", "load": load, "horizon": "dynamic", "tasks": 40}
    far["pipelined"] = pipelined
    without, with_refetch = (
        run_cell(CELL.model_copy(update={**far, "refetch": refetch})) for refetch in (False, True)
    )
    assert with_refetch["observations_per_round"] > 1.3
    assert with_refetch["latency_mean_s"] < 1.1 * without["latency_mean_s"]
