"""Runs on disk: what is saved comes back, and what is not a run says why."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, Span, TaskRecord
from kairos_ros.recording.runs.run_files import is_run, load_run, save_run

TASK = TaskRecord(
    number=3,
    robot="robot_000",
    scene='reach, push; or "pull"\n',
    seed=7,
    wanted_s=0.1,
    given_s=0.30000000000000004,
    ended_s=9.5,
    outcome="succeeded",
    success=True,
    duration_s=9.0,
    round_latency_s=(0.25, 1 / 3),
    round_executed=(8, 0),
    task="a1",
)
ROUND = RoundRecord(
    robot="robot_000",
    task="a1",
    round=0,
    attempts=2,
    requested_s=0.5,
    answered_s=0.75,
    exec_start_s=0.8,
    exec_end_s=math.nan,
    requested_at=0,
    observed_at=1,
    horizon=8,
    chunk_size=50,
    executed=7,
    queued_s=0.1,
    compute_s=0.05,
    server_s=0.2,
    batch_size=4,
    tier="edge",
    engine="gpu0",
    horizon_reason="t=0.2, cut at 8",
    reason="wait ratio 0.4",
)
RUN = FleetRun(
    robots=("robot_000", "robot_001"),
    length_s=12.5,
    tasks=(TASK, replace(TASK, number=4, round_latency_s=(), round_executed=(), success=False)),
    spans=(Span("robot_000", 0.0, 1.5, "executing"), Span("robot_001", 0.0, 12.5, "down")),
    open_s=((0.0, 10.0),),
    rounds=(ROUND,),
)


def saved(folder: Path) -> Path:
    save_run(folder, RUN, {"scheduling": "fifo"})
    return folder


def test_a_saved_run_comes_back_exactly(tmp_path: Path) -> None:
    save_run(tmp_path / "deep" / "run", RUN, {"scheduling": "wait_ratio", "robots": 2})
    run, configuration = load_run(tmp_path / "deep" / "run")
    assert math.isnan(run.rounds[0].exec_end_s)
    assert replace(run, rounds=()) == replace(RUN, rounds=())
    assert replace(run.rounds[0], exec_end_s=0.0) == replace(ROUND, exec_end_s=0.0)
    assert configuration == {"scheduling": "wait_ratio", "robots": 2}


def test_a_round_that_was_given_up_stays_without_latency(tmp_path: Path) -> None:
    task = replace(TASK, round_latency_s=(0.25, math.nan), round_executed=(30, 0))
    save_run(tmp_path, replace(RUN, tasks=(task,)), {})
    (read,) = load_run(tmp_path)[0].tasks
    assert repr(read) == repr(task)


def test_a_task_may_have_any_number_of_rounds(tmp_path: Path) -> None:
    task = replace(TASK, round_latency_s=(1 / 3,) * 10_000, round_executed=(10,) * 10_000)
    save_run(tmp_path, replace(RUN, tasks=(task,)), {})
    assert load_run(tmp_path)[0].tasks == (task,)


def test_a_run_made_of_numpy_numbers_comes_back_as_plain_ones(tmp_path: Path) -> None:
    odd = replace(ROUND, requested_s=np.float64(0.1), executed=np.int64(5), exec_end_s=1.0)
    task = replace(TASK, success=np.bool_(True), round_latency_s=(np.float64(0.5), 0.25))
    odd_run = replace(RUN, tasks=(task,), rounds=(odd,))
    save_run(tmp_path, odd_run, {"load": np.float64(0.5), "robots": np.int64(2)})
    run, configuration = load_run(tmp_path)
    assert run.rounds == (replace(ROUND, requested_s=0.1, executed=5, exec_end_s=1.0),)
    assert run.tasks == (replace(TASK, round_latency_s=(0.5, 0.25)),)
    assert configuration == {"load": 0.5, "robots": 2}


def test_a_configuration_may_hold_what_json_does_not_have(tmp_path: Path) -> None:
    save_run(tmp_path, RUN, {"buckets": math.inf, "policy": Path("a/b"), "nested": {"x": (1,)}})
    assert load_run(tmp_path)[1] == {"buckets": "inf", "policy": "a/b", "nested": {"x": [1]}}
    json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)


def test_a_run_that_cannot_be_saved_says_where(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match="no run can be saved in"):
        save_run(tmp_path / "taken", RUN, {})
    (tmp_path / "run" / "tasks.csv").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no run can be saved in"):
        save_run(tmp_path / "run", RUN, {})
    assert not is_run(tmp_path / "run")


def test_saving_again_replaces_the_run(tmp_path: Path) -> None:
    saved(tmp_path)
    save_run(tmp_path, replace(RUN, rounds=()), {})
    assert load_run(tmp_path)[0].rounds == ()


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run there, run\.json is missing$"):
        load_run(tmp_path)
    with pytest.raises(ConfigError, match="no run there"):
        load_run(tmp_path / "nowhere")


def test_a_run_that_was_never_finished_says_so(tmp_path: Path) -> None:
    (saved(tmp_path) / "run.json").unlink()
    with pytest.raises(ConfigError, match="never finished"):
        load_run(tmp_path)


def test_a_table_that_lost_lines_is_found_out(tmp_path: Path) -> None:
    table = saved(tmp_path) / "tasks.csv"
    whole = table.read_text()
    table.write_text(whole[: whole.index("\n") + 1])
    with pytest.raises(ConfigError, match=r"tasks\.csv: 0 records, but run\.json says 2"):
        load_run(tmp_path)


def test_a_wrong_value_is_named_with_its_record(tmp_path: Path) -> None:
    table = saved(tmp_path) / "rounds.csv"
    table.write_text(table.read_text().replace(",50,", ",many,"))
    with pytest.raises(ConfigError, match=r"rounds\.csv: record 1: chunk_size cannot be 'many'"):
        load_run(tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_task_that_took_no_finite_time_is_named(tmp_path: Path, value: str) -> None:
    table = saved(tmp_path) / "tasks.csv"
    table.write_text(table.read_text().replace(f",{TASK.duration_s},", f",{value},", 1))
    with pytest.raises(ConfigError, match=rf"tasks\.csv: record 1: duration_s cannot be {value}"):
        load_run(tmp_path)


def test_a_torn_line_is_named(tmp_path: Path) -> None:
    table = saved(tmp_path) / "rounds.csv"
    table.write_text(table.read_text()[:-30])
    with pytest.raises(ConfigError, match=r"rounds\.csv: record 1 has \d+ columns, not 21"):
        load_run(tmp_path)


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    table = saved(tmp_path) / "rounds.csv"
    rows = [line.split(",") for line in table.read_text().replace("t=0.2, ", "").splitlines()]
    rows = [[row[0].replace('"', ""), *row[1:]] for row in rows]
    table.write_text("\n".join(",".join(reversed(row)) for row in rows).replace('"', ""))
    assert load_run(tmp_path)[0].rounds[0].horizon_reason == "cut at 8"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not the description of a run"),
        ({"version": 9}, "version 9, but this kairos_ros reads version 1"),
        ({"robots": None}, "run.json: "),
        ({"spans": [["robot_000", 0, 1, "dancing"]]}, "activity 'dancing'"),
        ({"open_s": [[1]]}, "run.json: "),
        ({"length_s": math.nan}, "NaN is no number in JSON"),
        ({"open_s": [[0, "inf"]]}, "no finite time"),
        ({"configuration": 3}, "run.json: "),
        ({"records": []}, "run.json: "),
    ],
)
def test_a_wrong_description_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file = saved(tmp_path) / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        load_run(tmp_path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    table = saved(tmp_path) / "tasks.csv"
    table.write_text(table.read_text().replace("outcome", "result", 1))
    with pytest.raises(ConfigError, match=r"tasks\.csv:1: columns \['outcome'\] are missing"):
        load_run(tmp_path)
