"""Trace files: what is written is read back exactly; what cannot be read says where and why."""

import dataclasses
import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kairos_ros.commands.bags.bag import extract_command
from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.recording.runs.trace_file import read_traces, write_traces


def trace(name="door-1", rounds=3, **fields):
    def one(j):
        return TraceRound(
            round=j + 1,
            requested_at=4 * j,
            observed_at=4 * j,
            horizon=5,
            executed=4,
            latency_s=0.25,
            state=np.arange(3, dtype=np.float32),
            chunk=np.full((6, 2), j, np.float32),
            step_norms=np.ones((4, 6), np.float32),
        )

    defaults = {
        "name": name,
        "kind": "door",
        "instruction": "open the door",
        "seed": 7,
        "control_rate_hz": 30.0,
        "chunk_size": 6,
        "action_dim": 2,
        "policy": "flow-0123456789ab",
        "horizon_policy": "static:5",
        "success": True,
        "duration_s": 1.5,
        "rounds": tuple(one(j) for j in range(rounds)),
        "scale": np.array([0.5, 2.0], np.float32),
    }
    return Trace(**defaults | fields)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes() and a.shape == b.shape
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_traces_come_back_as_they_were_written(tmp_path, name):
    traces = [trace("a"), trace("b", scale=None, success=False), trace("c", rounds=0)]
    write_traces(tmp_path / name, traces)
    assert same(tuple(read_traces(tmp_path / name)), tuple(traces))
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_the_same_traces_give_the_same_bytes(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_traces(tmp_path / name, [trace()])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@st.composite
def any_trace(draw, name):
    n, d, k = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 3))

    def array(*shape, low=None):
        values = st.floats(
            low, allow_nan=False, allow_infinity=False, allow_subnormal=True, width=32
        )
        return draw(st.none() | arrays(np.float32, shape, elements=values))

    rounds, executed, observed = [], 0, 0
    for j in range(draw(st.integers(0, 4))):
        observed = draw(st.integers(observed, executed))
        horizon = draw(st.integers(0, n))
        rounds.append(
            TraceRound(
                round=3 * j + 1,
                requested_at=draw(st.integers(0, observed)),
                observed_at=observed,
                horizon=horizon,
                executed=draw(st.integers(0, horizon)),
                latency_s=draw(st.none() | st.floats(0, 1e6)),
                state=array(d + 2),
                chunk=array(n, d),
                step_norms=array(k, n, low=0),
                updates=array(k, n, d + 1),
            )
        )
        executed += rounds[-1].executed
    text = st.text(max_size=20)
    return Trace(
        name=name,
        kind=draw(text),
        instruction=draw(text),
        seed=draw(st.integers(0, 2**63 - 1)),
        control_rate_hz=draw(st.floats(0.1, 1000)),
        chunk_size=n,
        action_dim=d,
        policy=draw(text),
        horizon_policy=draw(text),
        success=draw(st.booleans()),
        duration_s=draw(st.floats(0, 1e6)),
        rounds=tuple(rounds),
        scale=draw(st.none() | st.just(np.full(d, 0.25, np.float32))),
    )


@given(one=any_trace("1"), other=any_trace("2"))
@settings(max_examples=60)
def test_any_trace_survives_the_round_trip(tmp_path_factory, one, other):
    path = tmp_path_factory.mktemp("traces") / "t.jsonl"
    write_traces(path, [one, other])
    assert same(tuple(read_traces(path)), (one, other))


def lines(tmp_path):
    write_traces(tmp_path / "good.jsonl", [trace("a"), trace("b")])
    return (tmp_path / "good.jsonl").read_text().splitlines()


def error(tmp_path, text):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_traces(path)
    assert str(caught.value).startswith(f"{path}:")
    return str(caught.value).removeprefix(f"{path}:")


def changed(line, **fields):
    return json.dumps(json.loads(line) | fields)


@pytest.mark.parametrize(
    ("line", "fields", "message"),
    [
        (1, {"version": 2}, "1: version: is 2, this kairos_ros reads version 1 only"),
        (1, {"format": "bag"}, "1: format: must be 'kairos-traces', not 'bag'"),
        (2, {"type": "round"}, "2: type: 'round' is not allowed"),
        (2, {"control_rate_hz": 0}, "2: control_rate_hz: it must be greater than"),
        (2, {"seed": -1}, "2: seed: it must be greater than or equal to 0, not -1"),
        (2, {"chunk_size": 7}, "3: step_norms.shape: must be [any, 7], not [4, 6]"),
        (
            2,
            {"colour": "red"},
            "2: colour: there is no field 'colour' here; allowed are: type",
        ),
        (2, {"name": ""}, "2: name: it should have at least 1 character"),
        (2, {"rounds": 2}, "5: type: 'round' is not allowed"),
        (6, {"name": "a"}, "6: name: there was a trace 'a' before"),
        (3, {"latency_s": -0.5}, "3: latency_s: it must be greater than or equal"),
        (3, {"latency_s": float("nan")}, "3: latency_s: it must be a finite"),
        (3, {"horizon": 7}, "3: horizon: 7 exceeds chunk_size=6"),
        (3, {"executed": 6}, "3: executed: 6 exceeds horizon=5"),
        (4, {"round": 1}, "4: round: 1 follows round 1; it must be later"),
        (4, {"requested_at": 5}, "4: observed_at: 4 must not be below requested_at=5"),
        (4, {"observed_at": 9}, "4: observed_at: 9, but the rounds before executed 4"),
        (
            5,
            {"observed_at": 3, "requested_at": 3},
            "5: observed_at: 3 must not be below",
        ),
        (5, {"executed": 2.5}, "5: executed: it must be a valid integer"),
        (5, {"chunk": None, "state": 3}, "5: state: "),
    ],
)
def test_a_bad_value_is_reported_with_its_line_field_and_what_is_allowed(
    tmp_path, line, fields, message
):
    good = lines(tmp_path)
    good[line - 1] = changed(good[line - 1], **fields)
    assert error(tmp_path, "\n".join(good)).startswith(message)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ({"dtype": "|O"}, "state.dtype: '|O' is not allowed"),
        ({"shape": [3, 1]}, "state.shape: must be [any], not [3, 1]"),
        ({"shape": [4]}, "state.base64: 12 bytes, but shape [4] of <f4 takes 16"),
        ({"shape": [-1]}, "state.shape.0: it must be greater than or equal to 0"),
        ({"base64": "??"}, "state.base64: is not base64"),
        ({"base64": "AADAfwAAwH8AAMB/"}, "state: a value is not finite"),
    ],
)
def test_a_bad_array_is_reported(tmp_path, array, message):
    good = lines(tmp_path)
    good[2] = changed(good[2], state=json.loads(good[2])["state"] | array)
    assert error(tmp_path, "\n".join(good)).startswith(f"3: {message}")


def test_a_missing_field_is_named(tmp_path):
    good = lines(tmp_path)
    row = json.loads(good[3])
    del row["observed_at"]
    good[3] = json.dumps(row)
    assert error(tmp_path, "\n".join(good)) == "4: observed_at: it is missing"


def test_a_file_that_ends_within_a_trace_says_which(tmp_path):
    text = "\n".join(lines(tmp_path)[:-1])
    expected = "9: the file ends in trace 'b', after 2 of its 3 rounds"
    assert error(tmp_path, text) == expected


def test_an_empty_file_a_torn_gzip_and_binary_garbage_are_errors(tmp_path):
    assert "1: the file is empty" in error(tmp_path, "")
    packed = gzip.compress("\n".join(lines(tmp_path)).encode())
    assert "torn or damaged" in error(tmp_path, packed[:-20])
    assert "torn or damaged" in error(tmp_path, packed[:30] + bytes(30) + packed[60:])
    assert error(tmp_path, bytes(range(256))).startswith("1: Invalid JSON")


def test_a_trace_that_could_not_be_read_back_is_not_written(tmp_path):
    for bad in (
        trace(duration_s=float("nan")),
        trace(chunk_size=5),
        trace(scale=np.array([1.0, np.inf])),
    ):
        with pytest.raises(ConfigError):
            write_traces(tmp_path / "t.jsonl", [bad])
    with pytest.raises(ConfigError, match=r"\.jsonl"):
        write_traces(tmp_path / "t.csv", [trace()])
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_trace_file_is_made_and_where_it_cannot_be_that_is_said(tmp_path):
    write_traces(tmp_path / "traces" / "monday" / "t.jsonl.gz", [trace()])
    assert len(read_traces(tmp_path / "traces" / "monday" / "t.jsonl.gz")) == 1
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match=r"taken/t\.jsonl cannot be written: "):
        write_traces(tmp_path / "taken" / "t.jsonl", [trace()])


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("t.csv", "a trace file is named"),
        ("taken/t.jsonl", "cannot be written"),
        ("folder.jsonl", "is a folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_bag_is_read(tmp_path, out, said):
    (tmp_path / "taken").touch()
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ConfigError, match=said):
        extract_command(tmp_path / "no_bag", tmp_path / out)


@given(
    line=st.integers(0, 8),
    cut=st.tuples(st.integers(0, 600), st.integers(0, 20)),
    put=st.binary(max_size=6) | st.sampled_from([b"NaN", b"-1", b"1e999", b"{", b"null", b'"']),
)
@settings(max_examples=400)
@pytest.mark.slow
def test_a_mutated_line_is_read_or_refused_but_never_a_traceback(tmp_path_factory, line, cut, put):
    folder = tmp_path_factory.mktemp("mutated")
    rows = [row.encode() for row in lines(folder)]
    at, length = cut[0] % (len(rows[line]) + 1), cut[1]
    rows[line] = rows[line][:at] + put + rows[line][at + length :]
    (folder / "bad.jsonl").write_bytes(b"\n".join(rows))
    told = ""
    try:
        write_traces(folder / "again.jsonl", read_traces(folder / "bad.jsonl"))
    except ConfigError as error:
        told = str(error)
    assert not told or ".jsonl:" in told
