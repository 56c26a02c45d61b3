"""What robots did about their judges, and monitors against the truth, worked out by hand."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kairos_ros.core.pipeline import Component, TaskState
from kairos_ros.lab.metrics.monitor_score import confusions
from kairos_ros.lab.metrics.reactions import cause_of, mode_spans, reactions, stop_times
from kairos_ros.lab.metrics.slo import Slo
from kairos_ros.lab.report.page import render
from kairos_ros.recording.runs.pipeline import JudgementRecord, PipelineRecord, TransitionRecord
from kairos_ros.recording.runs.run import FleetRun, TaskRecord
from kairos_ros.recording.runs.run_source import NamedRun

ONGOING, DONE, FAILED = TaskState
TASK = TaskRecord(0, "arm_1", "push-v3", 1, 1.0, 1.0, 9.0, "succeeded", True, actions=9, task="s/1")
OTHER = replace(TASK, robot="arm_2", scene="door-open-v3", ended_s=8.0)


def moved(at_s, before, after, trigger, component="", effects=(), reacted_s=0.01, age_s=math.nan):
    reason = f"{component or 'the cell'}: {trigger}"
    return TransitionRecord(
        "arm_1", "s/1", at_s, before, after, trigger, component, reason, effects, reacted_s, age_s
    )


STOP = ("stop", "replan")
ENDED = ("stop", "succeed")
MOVES = (
    moved(1.5, "holding", "running", "safe and answered"),
    moved(3.0, "running", "holding", "stop_and_replan", "safety", STOP, 0.02, 0.10),
    moved(3.1, "holding", "holding", "stop_and_replan", "safety", STOP, 0.50, 0.60),
    moved(4.0, "holding", "running", "safe and answered"),
    moved(4.5, "running", "holding", "stop_and_replan", "safety", STOP, 0.04),
    moved(5.0, "holding", "running", "safe and answered"),
    moved(6.0, "running", "retrying", "task failed", "monitor", ("stop", "reset"), 0.03, 0.2),
    moved(6.5, "retrying", "holding", "reset done"),
    moved(6.5, "holding", "running", "safe and answered"),
    moved(
        7.0,
        "running",
        "waiting_for_human",
        "stop_and_call_human",
        "safety",
        ("stop", "call human"),
        0.06,
        0.30,
    ),
    replace(
        moved(8.0, "waiting_for_human", "holding", "released by a human"),
        reason="Ada: the cell is empty",
    ),
    moved(8.5, "holding", "running", "safe and answered"),
    moved(9.0, "running", "holding", "task done", "monitor", ENDED, 0.01, 0.05),
)
OTHER_MOVES = (
    replace(
        moved(8.0, "running", "holding", "task done", "monitor", ENDED, 0.01, 0.15), robot="arm_2"
    ),
)


def judged(said, truth, answered_s=2.0, robot="arm_1"):
    at = answered_s - 0.1
    return JudgementRecord(
        robot, "s/1", Component.MONITOR, at, answered_s, said.value, "monitor", truth
    )


JUDGED = (
    *[judged(ONGOING, ONGOING)] * 6,
    judged(ONGOING, FAILED),
    judged(FAILED, FAILED),
    judged(FAILED, ONGOING),
    judged(ONGOING, None),
    judged(DONE, DONE, 3.0),
    judged(DONE, ONGOING, 9.1),  # the recorder got it when its effects were there already
    judged(DONE, DONE, 9.3),
    judged(DONE, DONE, 7.9, "arm_2"),
    judged(ONGOING, ONGOING, 7.0, "arm_2"),
)
RUN = FleetRun(
    ("arm_1", "arm_2"),
    10.0,
    (TASK, OTHER),
    (),
    ((0.0, 10.0),),
    (),
    PipelineRecord(judged=JUDGED, moves=MOVES),
)


def test_the_modes_of_a_robot_fill_its_whole_run():
    spans = [(s.start_s, s.end_s, s.mode) for s in mode_spans(RUN)]
    assert spans == [
        (0.0, 1.0, "no task"),
        (1.0, 1.5, "holding"),
        (1.5, 3.0, "running"),
        (3.0, 4.0, "holding"),
        (4.0, 4.5, "running"),
        (4.5, 5.0, "holding"),
        (5.0, 6.0, "running"),
        (6.0, 6.5, "retrying"),
        (6.5, 7.0, "running"),
        (7.0, 8.0, "waiting_for_human"),
        (8.0, 8.5, "holding"),
        (8.5, 9.0, "running"),
        (9.0, 10.0, "no task"),
    ]


def test_stop_times_are_those_of_robots_that_moved():
    unsafe, done, failed, overdue = stop_times(RUN)
    # the repeated stop of a robot that held already took half a second and counts for nothing
    assert (unsafe.cause, unsafe.count) == ("safety: unsafe", 2)
    assert (unsafe.reacted_p50_s, unsafe.reacted_max_s) == (pytest.approx(0.04), 0.06)
    assert (unsafe.frame_age_p50_s, unsafe.frame_age_max_s) == (pytest.approx(0.2), 0.30)
    assert (failed.cause, failed.count) == ("monitor: task failed", 1)
    assert (done.cause, overdue.cause) == ("monitor: task done", "safety: overdue")
    assert math.isnan(overdue.frame_age_p50_s)


def test_a_monitor_whose_retries_are_used_up_has_said_failed():
    last = moved(1.0, "running", "waiting_for_human", "stop_and_call_human", "monitor", age_s=0.1)
    assert cause_of(last) == "monitor: task failed"


def test_retries_waits_and_releases_are_counted_by_robot():
    (arm,) = reactions(RUN)
    assert (arm.robot, arm.stops, arm.retries, arm.human_waits) == ("arm_1", 5, 1, 1)
    assert arm.waited_s == pytest.approx(1.0)
    assert arm.released == ("Ada: the cell is empty",)
    assert arm.share["running"] == pytest.approx(4.0 / 8.0)
    assert sum(arm.share.values()) == pytest.approx(1.0)


def test_a_monitor_is_scored_by_the_truth_about_the_pictures_it_judged():
    both = PipelineRecord(judged=JUDGED, moves=(*MOVES, *OTHER_MOVES))
    door, push = confusions(replace(RUN, pipeline=both))
    assert push.counts == {
        (ONGOING, ONGOING): 6,
        (FAILED, ONGOING): 1,
        (FAILED, FAILED): 1,
        (ONGOING, FAILED): 1,
        (DONE, DONE): 2,
        (ONGOING, DONE): 1,
    }
    assert push.unknown == 1
    assert push.agreement == pytest.approx(9 / 12)
    assert push.recall(FAILED) == 0.5
    # the "done" that ended the task was of a picture of 0.05 s before, and it was wrong
    assert (push.succeeded, push.confirmed) == (1, 0)
    assert (door.scene, door.agreement, door.succeeded, door.confirmed) == ("door-open-v3", 1, 1, 1)
    assert math.isnan(door.recall(FAILED))


def test_without_recorded_truth_nobody_is_scored():
    blind = tuple(replace(one, truth=None) for one in JUDGED)
    assert confusions(replace(RUN, pipeline=PipelineRecord(judged=blind))) == []
    assert confusions(replace(RUN, pipeline=None)) == []


def test_the_report_has_a_section_about_the_models_around_the_policy():
    told = []
    html = render([NamedRun("cell", Path("cell"), RUN, {})], Slo("system1", 0.5), told.append)
    body = re.sub(r"<script.*?</script>", " ", html, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))
    assert "safety: unsafe 2 40 58 60 200 300" in text
    assert "Ada: the cell is empty" in text
    assert "push-v3: 75.0 % of 12 judgements are right" in text
    assert "0 of 1 tasks that the monitor ended as done were; the truth of 1 more pictures" in text
    plain = render(
        [NamedRun("cell", Path("cell"), replace(RUN, pipeline=None), {})],
        Slo("system1", 0.5),
        told.append,
    )
    assert "Models around the policy" not in plain
