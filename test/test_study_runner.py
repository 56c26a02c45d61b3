"""Cells are run once, kept as they finish, and run again when what decides them changed."""

import multiprocessing

import pytest

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.evaluation.study import results, runner
from kairos_ros.evaluation.study.cell import Cell
from kairos_ros.evaluation.study.results import FILE, Result, ResultFile, read_results
from kairos_ros.evaluation.study.runner import missing_cells, run_cells

CELLS = [Cell(seed=seed, load=load) for seed in range(3) for load in (0.5, 1.5)]


def measure(cell: Cell) -> dict[str, float]:
    return {"latency_mean_s": 10 * cell.load + cell.seed, "stall_fraction": float("nan")}


def measure_or_fail(cell: Cell) -> dict[str, float]:
    if cell.seed == 2:
        raise KairosError("the third seed does not work")
    return measure(cell)


def test_every_finished_cell_is_found_again_with_its_numbers(tmp_path):
    run_cells(tmp_path, CELLS, measure, 1, lambda *_: None)
    found = read_results(tmp_path)
    assert len(found) == len(CELLS)
    assert found[CELLS[3].key].metrics["latency_mean_s"] == 16.0
    assert found[CELLS[3].key].metrics["stall_fraction"] != 0.0  # NaN stays NaN
    assert missing_cells(tmp_path, CELLS) == []


def test_processes_give_the_results_that_one_process_gives(tmp_path):
    run_cells(tmp_path / "one", CELLS, measure, 1, lambda *_: None)
    run_cells(tmp_path / "two", CELLS, measure, 2, lambda *_: None)
    one, two = (
        {key: r.metrics["latency_mean_s"] for key, r in read_results(tmp_path / name).items()}
        for name in ("one", "two")
    )
    assert one == two
    assert multiprocessing.active_children() == []


def test_ctrl_c_keeps_what_has_finished_and_a_rerun_runs_only_the_rest(tmp_path):
    def stop_after_four(count, cell, took_s):
        if count == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(tmp_path, CELLS, measure, 1, stop_after_four)
    left = missing_cells(tmp_path, CELLS)
    assert left == CELLS[4:]
    run_cells(tmp_path, left, measure, 1, lambda *_: None)
    assert missing_cells(tmp_path, CELLS) == []
    assert len((tmp_path / FILE).read_text().splitlines()) == len(CELLS)


def test_a_failing_cell_says_which_and_the_others_are_kept(tmp_path):
    with pytest.raises(KairosError, match=r"'seed': 2.*does not work"):
        run_cells(tmp_path, CELLS, measure_or_fail, 1, lambda *_: None)
    assert missing_cells(tmp_path, CELLS) == CELLS[4:]


def test_a_cell_that_two_studies_share_is_run_once(tmp_path):
    assert missing_cells(tmp_path, [*CELLS, *CELLS]) == CELLS


def test_other_code_runs_all_cells_again(tmp_path, monkeypatch):
    run_cells(tmp_path, CELLS, measure, 1, lambda *_: None)
    monkeypatch.setattr(runner, "code_version", lambda: "another")
    assert missing_cells(tmp_path, CELLS) == CELLS


def test_a_line_torn_by_a_killed_run_is_run_again_and_spoils_nothing(tmp_path):
    run_cells(tmp_path, CELLS[:3], measure, 1, lambda *_: None)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-20])
    assert missing_cells(tmp_path, CELLS[:3]) == [CELLS[2]]
    run_cells(tmp_path, [CELLS[2]], measure, 1, lambda *_: None)
    assert missing_cells(tmp_path, CELLS[:3]) == []


def test_a_line_that_is_no_result_is_named(tmp_path):
    run_cells(tmp_path, CELLS[:1], measure, 1, lambda *_: None)
    with (tmp_path / FILE).open("a") as stream:
        stream.write('{"key": "x"}\n')
    with pytest.raises(ConfigError, match=r"cells.jsonl, line 2 is no result"):
        read_results(tmp_path)


def test_the_newest_result_of_a_cell_counts(tmp_path):
    with ResultFile(tmp_path) as file:
        for value in (1.0, 2.0):
            file.append(CELLS[0], Result(CELLS[0].key, "code", 0.1, {"latency_mean_s": value}))
    assert read_results(tmp_path)[CELLS[0].key].metrics["latency_mean_s"] == 2.0


def test_settings_decide_the_key_and_nothing_else_does():
    assert Cell(load=1).key == Cell(load=1.0).key
    assert Cell(load=1.1).key != Cell(load=1.0).key
    assert len({cell.key for cell in CELLS}) == len(CELLS)


def test_the_code_version_covers_sources_that_exist():
    from kairos_ros.evaluation.study import cell

    assert [part for part in cell.DECIDES if not (cell.PACKAGE / part).exists()] == []
    assert results.FILE.endswith(".jsonl")
