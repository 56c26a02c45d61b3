"""A bag holds whatever anybody published: what cannot be is left out, counted and said, and the
rest is shown as if it had not been there."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ChunkUpdates,
    ExecutionInfo,
    PipelineEvent,
    RobotStatus,
    SafetyVerdict,
    TaskEvent,
)
from rclpy.serialization import serialize_message
from std_msgs.msg import String
from typer.testing import CliRunner

from kairos_ros.commands.cli import app
from kairos_ros.lab.live_replay.workload import load_traces
from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.fleet_run import read_bag
from kairos_ros.recording.metadata import Topic
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.trace_file import read_traces
from kairos_ros.recording.writer import BagWriter

DEFINITIONS = Definitions(installed_prefixes())
NAN, INF = float("nan"), float("inf")
WHO = {"robot": "arm_1", "session": "s"}
GOAL = {"instruction": "lift", "task_kind": "lift", "seed": 3, "control_rate_hz": 10.0}
ENDED = {
    **GOAL,
    "kind": TaskEvent.FINISHED,
    "task": "9",
    "success": True,
    "outcome": "succeeded",
    "duration_s": 1.0,
    "first_request_ago_s": 1.1,
    "actions": 4,
    "round_latency_s": [0.1],
    "round_executed": [4],
    "round_started_s": [0.2],
    "round_ended_s": [0.6],
}
ASKED = {"task": "9", "round": 1, "state": [0.0, 0.0], "instruction": "lift", "task_kind": "lift"}
ANSWER = {"task": "9", "round": 1, "horizon": 4, "chunk_size": 4, "action_dim": 1}
ANSWER |= {"actions": [0.0] * 4, "compute_s": 0.05, "server_s": 0.06, "policy": "p"}


def said(kind: type, suffix: str, /, **values) -> tuple[str, object]:
    return f"/arm_1/{suffix}", kind(**WHO, **values)


def task(number: int) -> Iterator[tuple[str, object]]:
    """A task of one round, served and finished."""
    name = {"task": str(number)}
    yield said(TaskEvent, "task_events", kind=TaskEvent.STARTED, **GOAL, **name)
    yield said(ChunkRequest, "chunk_request", **ASKED | name)
    yield said(ActionChunk, "action_chunk", **ANSWER | name)
    yield said(TaskEvent, "task_events", **ENDED | name | {"seed": number})


def ended(**values) -> tuple[str, object]:
    return said(TaskEvent, "task_events", **ENDED | values)


def asked(**values) -> tuple[str, object]:
    return said(ChunkRequest, "chunk_request", **ASKED | values)


NONSENSE = {
    "a duration that is NaN": ended(duration_s=NAN),
    "an infinite duration": ended(duration_s=INF),
    "a negative duration": ended(duration_s=-1.0),
    "a duration of ages": ended(duration_s=1e30),
    "all times NaN": ended(
        duration_s=NAN, first_request_ago_s=NAN, stalled_s=NAN, first_wait_s=NAN
    ),
    "an end before time": ended(first_request_ago_s=INF),
    "an infinite latency of a round": ended(round_latency_s=[INF]),
    "a billion actions of a round": ended(round_executed=[4_000_000_000]),
    "rounds without ends": ended(round_ended_s=[]),
    "a rate that is NaN": ended(control_rate_hz=NAN),
    "a scene of megabytes": ended(scene="x" * 3_000_000),
    "an observation of the future": asked(observed_ago_s=-INF),
    "a round beyond counting": asked(round=4_000_000_000),
    "an execution that began never": asked(
        execution=ExecutionInfo(round=1, started=True, started_ago_s=NAN)
    ),
    "an answer that took for ever": said(ActionChunk, "action_chunk", **ANSWER | {"queued_s": INF}),
    "a horizon beyond counting": said(
        ActionChunk, "action_chunk", **ANSWER | {"horizon": 4_000_000_000}
    ),
    "updates that are NaN": said(
        ChunkUpdates, "updates", task="1", round=1, chunk_size=1, action_dim=1, chunk=[NAN]
    ),
    "updates of another size": said(
        ChunkUpdates, "updates", task="1", round=1, chunk_size=1000, action_dim=1000, chunk=[0.0]
    ),
    "a verdict of the far past": said(SafetyVerdict, "safety_verdict", latency_s=INF),
    "a reaction that took for ever": said(PipelineEvent, "pipeline_events", reacted_s=INF),
    "rules that are none": ("/arm_1/rules", String(data="{: [")),
    "rules of thousands of digits": ("/arm_1/rules", String(data="a: " + "1:" * 9000 + "1")),
    "no message at all": ("/arm_1/task_events", b"\0\1\0\0torn"),
    "a message that claims gigabytes": (
        "/arm_1/task_events",
        serialize_message(TaskEvent())[:5] + b"\xff" * 60,
    ),
}
# a request that names rounds far ahead of what was ever asked for is no nonsense, and costs no time
FAR_AHEAD = asked(task="1", round=2, execution=ExecutionInfo(round=4_000_000))


def bag(folder: Path, *nonsense: tuple[str, object]) -> Path:
    """A fleet of one robot that finished two tasks, with something in between."""
    writer = BagWriter(folder)
    channels: dict[str, int] = {}
    status = ("/kairos/robot_status", RobotStatus(robot="arm_1", session="s"))
    messages = [status, *task(1), *nonsense, *task(2), ("/diagnostics", DiagnosticArray())]
    for number, (topic, message) in enumerate(messages):
        data = message if isinstance(message, bytes) else serialize_message(message)
        if topic not in channels:
            kind = type(TaskEvent() if isinstance(message, bytes) else message)
            name = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
            definition = DEFINITIONS.of(name)
            channels[topic] = writer.add_topic(Topic(topic, name, definition.rihs01), definition)
        at_ns = 10**18 + number * 10**8
        writer.write(channels[topic], at_ns, at_ns, data)
    writer.close()
    return folder


def kairos(*arguments: object) -> str:
    done = CliRunner().invoke(app(), [str(one) for one in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def tasks_of(run: FleetRun) -> list:
    """Without the times on the recorder's clock, which moved."""
    none = {"wanted_s": 0.0, "given_s": 0.0, "ended_s": 0.0}
    return [replace(one, **none) for one in run.tasks]


@pytest.mark.parametrize("message", NONSENSE.values(), ids=NONSENSE.keys())
def test_one_senseless_message_is_left_out_and_changes_nothing_else(tmp_path, message):
    run = read_bag(bag(tmp_path / "bag", message))
    clean = read_bag(bag(tmp_path / "clean"))
    assert tasks_of(run) == tasks_of(clean)
    assert len(run.rounds) == len(clean.rounds)
    (line,) = run.left_out
    assert line.startswith(f"1 message of {message[0]} (")
    assert len(line) < 400
    assert clean.left_out == ()


def test_a_page_of_a_bag_with_all_of_it_shows_the_fleet_and_a_warning(tmp_path):
    folder = bag(tmp_path / "bag", *NONSENSE.values(), NONSENSE["a duration that is NaN"])
    kairos("report", folder, "--out", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    for name in ("figures", "decision-rows"):
        embedded = re.search(rf'id="{name}">(.*?)</script>', html, re.DOTALL)
        assert embedded
        json.loads(embedded[1], parse_constant=pytest.fail)
    assert "1 robots, 2 tasks: 2 succeeded, 1.0 s each" in html
    assert "messages of the bag that make no sense are left out" in html
    assert "6 messages of /arm_1/task_events (kairos_ros/msg/TaskEvent): duration_s is no" in html
    assert "more reasons" in html


def test_every_other_command_that_reads_such_a_bag_says_what_it_left_out(tmp_path):
    folder = bag(tmp_path / "bag", *NONSENSE.values())
    left_out = "of /arm_1/task_events (kairos_ros/msg/TaskEvent): duration_s is no time"
    assert left_out in re.sub(r"\s+", " ", kairos("bag", "info", folder))
    assert left_out in kairos("slo", folder)
    assert left_out in kairos("trace", "extract", folder, "--out", tmp_path / "t.jsonl")
    assert len(read_traces(tmp_path / "t.jsonl")) == 2
    told: list[str] = []
    assert len(load_traces(folder, told.append)) == 2
    assert any(left_out in line for line in told)


def test_a_trace_that_no_file_can_hold_is_left_out_alone(tmp_path):
    contradiction = [
        said(ChunkRequest, "chunk_request", **ASKED),
        said(ActionChunk, "action_chunk", **ANSWER),
        ended(round_executed=[40]),  # of a chunk of four
    ]
    folder = bag(tmp_path / "bag", *contradiction)
    output = kairos("trace", "extract", folder, "--out", tmp_path / "t.jsonl")
    assert "left out 1: it contradicts itself: " in output
    assert "executed: 40 exceeds horizon=4" in output
    assert len(read_traces(tmp_path / "t.jsonl")) == 2


def test_rounds_far_ahead_cost_no_time(tmp_path):
    run = read_bag(bag(tmp_path / "bag", FAR_AHEAD))
    assert len(run.rounds) == 3
