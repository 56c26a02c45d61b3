"""A task as spans: lengths as they were measured, places and parents as worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kairos_ros.core.robot_state import RobotState
from kairos_ros.recording.tasks import BagRound, BagTask
from kairos_ros.telemetry.events import (
    ChunkAnswered,
    RobotReported,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)
from kairos_ros.tracing.live import MOST_ROUNDS, LiveTasks
from kairos_ros.tracing.spans import Span, span_id, task_spans, trace_id

KEY = TaskKey("arm_1", "session", "7")
GOAL = TaskStartReported(100.0, KEY, "reach", "reach it", "", 3, "static:10", 30.0)
NAN = math.nan
END = TaskEndReported(
    110.0, KEY, GOAL, first_request_s=100.5, success=True, outcome="succeeded", duration_s=9.0,
    actions=22, stalled_s=0.25, first_wait_s=0.3, refusals=1, dropped=0, guarded=0,
    round_latency_s=(0.25, 0.5, NAN), round_executed=(10, 12, 0),
    round_started_s=(0.25, 1.25, NAN), round_ended_s=(1.0, 2.0, NAN),
    round_seam=(NAN, 0.125, NAN), round_surprise=(0.0, 0.0, 0.0),
)  # fmt: skip


def chunk(round_: int, at_s: float, **changes) -> ChunkAnswered:
    made = ChunkAnswered(
        at_s, KEY, round_, 0, False, "longest waited", 10, 50, 2, np.zeros((10, 2), np.float32),
        np.ones(10, np.float32), "tail", 0.0625, 0.0625, 0.1875, 4, "edge", "gpu", "pi0-1", "s1",
    )  # fmt: skip
    return replace(made, **changes)


def refusal(round_: int, at_s: float) -> ChunkAnswered:
    return chunk(round_, at_s, refused=True, actions=None, reason="engine down", server_s=0.0)


def task(*answers: ChunkAnswered, ended: TaskEndReported | None = END) -> BagTask:
    made = BagTask(KEY, began=GOAL, ended=ended)
    for one in answers:
        made.rounds.setdefault(one.round, BagRound()).answers.append(one)
    return made


def named(spans: list[Span], name: str, round_: int) -> Span:
    (found,) = [s for s in spans if s.name == name and s.attributes.get("kairos.round") == round_]
    return found


def times(span: Span) -> tuple[float, float]:
    return span.start_s, span.end_s


def test_a_round_is_its_request_with_what_the_server_did_and_its_execution():
    spans = task_spans(task(chunk(1, 100.75), chunk(2, 102.0)))
    assert times(spans[0]) == (100.5, 110.0)
    assert (spans[0].name, spans[0].parent) == ("task", None)
    # 250 ms for the robot, of which 187.5 ms at the server: 31.25 ms each way
    assert times(named(spans, "request", 1)) == (100.5, 100.75)
    assert named(spans, "request", 1).attributes["kairos.network_s"] == 0.0625
    assert times(named(spans, "serve", 1)) == (100.53125, 100.71875)
    assert times(named(spans, "queue", 1)) == (100.53125, 100.59375)
    # 62.5 ms of the server's are neither queue nor batch: half of them before it, half after
    assert times(named(spans, "infer", 1)) == (100.625, 100.6875)
    assert times(named(spans, "execute", 1)) == (100.75, 101.5)
    assert times(named(spans, "round", 1)) == (100.5, 101.5)
    assert times(named(spans, "request", 2)) == (101.5, 102.0)
    assert times(named(spans, "execute", 2)) == (101.75, 102.5)
    assert named(spans, "execute", 2).attributes["kairos.seam"] == 0.125
    assert named(spans, "execute", 2).attributes["kairos.executed_actions"] == 12


def test_every_span_lies_in_its_parent_and_follows_it():
    spans = task_spans(task(chunk(1, 100.75), refusal(2, 101.8), chunk(2, 102.0)))
    for n, span in enumerate(spans[1:], 1):
        assert span.parent in spans[:n]
        assert span.parent.start_s <= span.start_s <= span.end_s <= span.parent.end_s
    parents = {(s.name, s.parent.name) for s in spans[1:]}
    assert parents == {
        ("round", "task"), ("request", "round"), ("execute", "round"), ("serve", "request"),
        ("queue", "serve"), ("infer", "serve"),
    }  # fmt: skip
    assert {(s.service, s.instance) for s in spans} == {
        ("kairos_robot", "arm_1"),
        ("kairos_serving", "s1"),
        ("kairos_engine", "gpu"),
    }


def test_refusals_are_events_and_a_round_that_was_given_up_is_an_error():
    spans = task_spans(task(chunk(1, 100.75), refusal(2, 101.75), chunk(2, 102.0), refusal(3, 105)))
    assert named(spans, "round", 2).events == [
        ("refused", 101.75, {"kairos.reason": "engine down"})
    ]
    assert not named(spans, "round", 2).error
    # what was asked again is not all network, and the server had it last
    assert "kairos.network_s" not in named(spans, "request", 2).attributes
    assert times(named(spans, "serve", 2)) == (101.8125, 102.0)
    assert named(spans, "round", 3).error == "given up"
    assert [s.name for s in spans if s.attributes.get("kairos.round") == 3] == ["round"]


def test_a_robot_that_tells_no_end_has_what_the_server_tells():
    spans = task_spans(task(chunk(1, 100.75), chunk(2, 102.0), ended=None))
    assert times(spans[0]) == (100.0, 102.0)
    assert times(named(spans, "request", 2)) == times(named(spans, "serve", 2)) == (101.8125, 102.0)
    assert "kairos.network_s" not in named(spans, "request", 2).attributes
    assert not [s for s in spans if s.name == "execute"]


def test_a_task_that_failed_is_an_error_and_one_without_a_time_has_no_spans():
    failed = replace(END, success=False, outcome="failed: no server")
    assert task_spans(task(ended=failed))[0].error == "failed: no server"
    assert task_spans(BagTask(KEY)) == []


def test_ids_are_of_the_task_and_of_no_other():
    spans = task_spans(task(chunk(1, 100.75), chunk(2, 102.0)))
    ids = {span_id(KEY, span) for span in spans}
    assert len(ids) == len(spans)
    again = task_spans(task(chunk(1, 100.76), chunk(2, 102.3)))
    assert {span_id(KEY, span) for span in again} == ids
    assert trace_id(KEY) == trace_id(replace(KEY))
    others = [replace(KEY, robot="arm_2"), replace(KEY, session="x"), replace(KEY, task="8")]
    assert len({trace_id(key) for key in [KEY, *others]}) == 4


@pytest.fixture
def tasks() -> LiveTasks:
    return LiveTasks()


def test_a_task_is_over_once_its_last_answer_can_have_come(tasks):
    for event in (GOAL, chunk(1, 100.75), END, chunk(2, 110.25)):
        tasks.take(event)
    assert tasks.over(110.5) == []
    (done,) = tasks.over(111.0)
    assert (done.key, sorted(done.rounds), done.ended) == (KEY, [1, 2], END)
    tasks.take(chunk(3, 111.25))
    assert tasks.over(999.0) == []
    assert tasks.left_out == {"after_the_end": 1}


def test_a_task_without_an_end_is_over_when_nothing_is_heard_of_it(tasks):
    tasks.take(chunk(1, 100.0))
    assert tasks.over(159.0) == []
    assert [one.key for one in tasks.over(160.0)] == [KEY]
    tasks.take(replace(GOAL, key=replace(KEY, task="8")))
    assert tasks.over(690.0) == []
    assert len(tasks.over(700.0)) == 1


def test_the_answer_of_a_server_that_was_not_asked_is_left_out(tasks):
    tasks.take(RobotReported(99.0, "arm_1", state=RobotState.RUNNING, server="s1"))
    tasks.take(chunk(1, 100.5, server="s2"))
    tasks.take(chunk(1, 100.75))
    (left,) = tasks.all()
    assert [one.server for one in left.rounds[1].answers] == ["s1"]
    assert tasks.left_out == {"other_server": 1}


def test_what_is_kept_is_bounded(tasks):
    for number in range(MOST_ROUNDS + 5):
        tasks.take(chunk(number, 100.0))
    for number in range(1200):
        tasks.take(chunk(1, 101.0, key=replace(KEY, task=f"t{number}")))
    assert tasks.left_out == {"round_of_a_long_task": 5, "task_of_too_many": 201}
    assert len(tasks.all()) == 1000
