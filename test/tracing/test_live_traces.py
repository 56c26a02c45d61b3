"""Tasks of a live fleet and of its bag as OpenTelemetry traces, against what the robots report."""

import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk")
from kairos_ros.msg import ActionChunk, TaskEvent
from otlp_receiver import OtlpReceiver, attributes
from wire import Operator, until

from kairos_ros.bringup.plan import recorder, serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.nodes import qos

KAIROS = Path(sys.prefix, "bin", "kairos")
POLICY = "emulated:latency_ms=40,chunk=20,state=3,dim=1"
ARMS = ("left", "right")


class Traces:
    """What a receiver took, sorted."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self.by_id = {span.span_id: span for _, _, span in receiver.spans}
        self.service = {span.span_id: who for *who, span in receiver.spans}
        self.children: dict[bytes, list] = defaultdict(list)
        for span in sorted(self.by_id.values(), key=lambda one: one.start_time_unix_nano):
            self.children[span.parent_span_id].append(span)

    def task(self, robot: str):
        (found,) = [one for one in self.children[b""] if attributes(one)["kairos.robot"] == robot]
        return found

    def of(self, parent, name: str) -> list:
        return [one for one in self.children[parent.span_id] if one.name == f"kairos.{name}"]


def results_that_are_none() -> list[TaskEvent]:
    """Of a task of their own each: times that no clock has, and rounds that are half told."""
    said = {"kind": TaskEvent.FINISHED, "robot": "left", "session": "a stranger's"}
    whole = {"round_latency_s": [0.1], "round_executed": [3], "round_started_s": [0.1]}
    return [
        TaskEvent(task="1", **said, **whole | {"round_executed": []}, round_ended_s=[0.2]),
        TaskEvent(task="2", **said, **whole, round_ended_s=[3e38]),
        TaskEvent(task="3", **said, first_request_ago_s=float("-inf")),
    ]


def length_s(span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


@pytest.fixture(scope="module")
def told(starter_for_module, wire, tmp_path_factory):
    """(traces live, traces of the bag, results, chunks, metrics) of a task on each of two arms."""
    receiver, folder = OtlpReceiver(), tmp_path_factory.mktemp("bag") / "bag"
    start = starter_for_module.start
    node = start(recorder(folder))
    dashboard = starter_for_module.run(
        [KAIROS, "dashboard", "--listen", "127.0.0.1:0", "--otlp", receiver.url]
    )
    start(serving(policy=POLICY, horizon="static:12"))
    body = {"adapter_options": ["env_id=Pendulum-v1"], "control_rate_hz": 50.0}
    body["max_pause_s"] = 30.0  # a robot that a busy machine lets stand still gives no round up
    for arm in ARMS:
        start(ProcessSpec("robot_node", "robot", arm, body))
    chunks: list[ActionChunk] = []
    for arm in ARMS:
        wire.node.create_subscription(
            ActionChunk, f"/{arm}/action_chunk", chunks.append, qos.EVENTS
        )
    wire.serving_since()
    # the robot, or the serving node, with those of this test, the recorder and the dashboard
    for arm in ARMS:
        for topic, readers in (("task_events", 2), ("chunk_request", 2), ("action_chunk", 4)):
            found = lambda t=f"/{arm}/{topic}", n=readers: wire.node.count_subscribers(t) >= n  # noqa: E731
            until(found, what=f"for the readers of {arm}/{topic}")
    stranger = wire.node.create_publisher(TaskEvent, "/left/task_events", qos.EVENTS)
    until(lambda: stranger.get_subscription_count() >= 2, what="for recorder and dashboard")
    for event in results_that_are_none():
        stranger.publish(event)
    operators = {arm: Operator(wire, arm) for arm in ARMS}
    goals = {
        arm: one.give(instruction="swing up", max_actions=60) for arm, one in operators.items()
    }
    results = {arm: operators[arm].result(goal) for arm, goal in goals.items()}

    def tasks() -> int:
        return sum(span.name == "kairos.task" for _, _, span in receiver.spans)

    until(lambda: tasks() == 2, what="for the traces")
    url = re.search(r"http://[\d.:]+", dashboard.output())[0]
    metrics = httpx.get(f"{url}/metrics", timeout=30).text
    assert node.stop(signal.SIGINT) == 0
    live, again = Traces(receiver), OtlpReceiver()
    command = [KAIROS, "trace", "export", folder, "--otlp", again.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"2 traces, {len(again.spans)} spans" in done.stdout
    assert dashboard.stop(signal.SIGINT) == 0
    assert f"{len(receiver.spans)} spans sent" in dashboard.output()
    for operator in operators.values():
        operator.close()
    receiver.close()
    again.close()
    return live, Traces(again), results, chunks, metrics


@pytest.mark.parametrize("arm", ARMS)
def test_a_trace_has_every_round_of_its_task_as_the_robot_measured_it(told, arm):
    live, _, results, chunks, _ = told
    task, result = live.task(arm), results[arm]
    assert attributes(task)["kairos.actions"] == 60
    assert attributes(task)["kairos.outcome"] == result.outcome
    # a listener that was late places a round late: their numbers tell their order
    rounds = sorted(live.of(task, "round"), key=lambda one: attributes(one)["kairos.round"])
    assert len(rounds) == len(result.round_latency_s) >= 5
    answers = {c.round: c for c in chunks if c.robot == arm and c.kind == ActionChunk.ACTIONS}
    for number, one in enumerate(rounds, 1):
        about = attributes(one)
        assert (about["kairos.round"], about["kairos.robot"]) == (number, arm)
        assert about["kairos.horizon"] == answers[number].horizon
        (request,) = live.of(one, "request")
        (serve,) = live.of(request, "serve")
        (queue,) = live.of(serve, "queue")
        (infer,) = live.of(serve, "infer")
        answer = answers[number]
        assert length_s(request) == pytest.approx(result.round_latency_s[number - 1], abs=1e-5)
        assert length_s(serve) == pytest.approx(answer.server_s, abs=1e-5)
        assert length_s(queue) == pytest.approx(answer.queued_s, abs=1e-5)
        assert length_s(infer) == pytest.approx(answer.compute_s, abs=1e-5)
        assert attributes(infer)["kairos.batch.size"] == answer.batch_size
        assert live.service[infer.span_id] == ["kairos_engine", answer.engine]
        assert live.service[serve.span_id] == ["kairos_serving", answer.server]
        assert live.service[one.span_id] == ["kairos_robot", arm]
        executed = [attributes(e)["kairos.executed_actions"] for e in live.of(one, "execute")]
        assert executed == [n for n in result.round_executed[number - 1 : number] if n]


def test_no_trace_has_anything_of_another_robot_and_every_span_lies_in_its_parent(told):
    live, *_ = told
    left, right = (live.task(arm).trace_id for arm in ARMS)
    assert left != right
    for span in live.by_id.values():
        arm = ARMS[span.trace_id == right]
        assert span.trace_id in (left, right)
        assert attributes(span)["kairos.robot"] == arm
        if span.parent_span_id:
            parent = live.by_id[span.parent_span_id]
            assert parent.trace_id == span.trace_id
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_a_bag_gives_the_same_traces(told):
    live, bag, *_ = told
    assert bag.by_id.keys() == live.by_id.keys()
    for key, span in bag.by_id.items():
        assert span.name == live.by_id[key].name
        assert span.parent_span_id == live.by_id[key].parent_span_id
        if span.name not in ("kairos.task", "kairos.round"):  # their ends are of several messages
            assert length_s(span) == pytest.approx(length_s(live.by_id[key]), abs=1e-5)
    begun = [
        np.array([one.task(arm).start_time_unix_nano for arm in ARMS]) / 1e9 for one in (live, bag)
    ]
    assert np.abs(begun[0] - begun[1]).max() < 30.0  # of one clock, however late it was read


def test_the_metrics_tell_what_was_sent(told):
    live, *_, metrics = told
    assert f'kairos_trace_spans_total{{outcome="sent"}} {len(live.by_id)}.0' in metrics
    assert 'kairos_trace_spans_total{outcome="not_taken"} 0.0' in metrics


def test_a_result_that_makes_no_sense_is_refused_and_counted_and_costs_no_other_trace(told):
    *_, metrics = told
    found = re.search(r'refused_messages_total{reason="refused_message"} (\S+)', metrics)
    assert found is not None, metrics
    assert float(found[1]) >= len(results_that_are_none())
