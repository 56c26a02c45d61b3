"""Traces over real sockets: to a receiver that takes them, and to those that do not."""

import logging
import socket
import time

import pytest

pytest.importorskip("opentelemetry.sdk")
from otlp_receiver import OtlpReceiver, attributes

from kairos_ros.core.errors import ConfigError
from kairos_ros.telemetry.events import TaskKey
from kairos_ros.tracing import otlp
from kairos_ros.tracing.otlp import Trace, TraceSender
from kairos_ros.tracing.spans import Service, Span, span_id, trace_id

EPOCH_NS = 1_700_000_000_000_000_000
PATIENCE_S = 60.0


@pytest.fixture
def receiver():
    made = OtlpReceiver()
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(otlp, "RECEIVER_S", 0.3)
    monkeypatch.setattr(otlp, "LAST_S", 0.5)


def trace(task: str = "1") -> Trace:
    """Three spans."""
    whole = Span("task", Service.ROBOT, "arm_1", 1.0, 4.0, error="failed: tired")
    asked = Span("round", Service.ROBOT, "arm_1", 1.0, 3.0, whole, {"kairos.round": 1})
    asked.events = [("refused", 1.5, {"kairos.reason": "full"})]
    infer = Span("infer", Service.ENGINE, "gpu", 1.25, 2.0, asked, {"kairos.batch.size": 4})
    return Trace(TaskKey("arm_1", "session", task), (whole, asked, infer), EPOCH_NS)


def until(condition) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_receiver_gets_spans_with_their_parents_times_and_services(receiver):
    with TraceSender(receiver.url) as sender:
        sender.send(trace())
        until(lambda: sender.sent)
    (whole, asked, infer) = [span for _, _, span in receiver.spans]
    assert [who[:2] for who in receiver.spans] == [
        ("kairos_robot", "arm_1"),
        ("kairos_robot", "arm_1"),
        ("kairos_engine", "gpu"),
    ]
    key = TaskKey("arm_1", "session", "1")
    assert {span.trace_id for span in (whole, asked, infer)} == {trace_id(key).to_bytes(16)}
    assert (whole.parent_span_id, asked.parent_span_id) == (b"", whole.span_id)
    assert infer.parent_span_id == asked.span_id
    assert whole.span_id == span_id(key, trace().spans[0]).to_bytes(8)
    assert (whole.name, infer.name) == ("kairos.task", "kairos.infer")
    assert whole.start_time_unix_nano == EPOCH_NS + 1_000_000_000
    assert infer.end_time_unix_nano == EPOCH_NS + 2_000_000_000
    assert (whole.status.code, whole.status.message) == (2, "failed: tired")
    (event,) = asked.events
    assert (event.name, attributes(event)) == ("refused", {"kairos.reason": "full"})
    assert attributes(infer) == {"kairos.robot": "arm_1", "kairos.batch.size": 4}


@pytest.mark.parametrize("mode", ["refuses", "busy", "hangs", "gone"])
def test_who_does_not_take_spans_is_named_once_and_they_are_counted(
    mode, receiver, impatient, caplog
):
    url, receiver.mode = receiver.url, mode
    if mode == "gone":
        with socket.create_server(("127.0.0.1", 0)) as one:
            url = f"http://127.0.0.1:{one.getsockname()[1]}"
    with caplog.at_level(logging.WARNING), TraceSender(url) as sender:
        for number in range(3):
            sender.send(trace(str(number)))
            until(lambda most=3 * number: sender.dropped["not_taken"] > most)
        assert (sender.sent, sender.dropped) == (0, {"not_taken": 9})
        said = [record.message for record in caplog.records]
        assert len(said) == 1, said
        assert f"{url}/v1/traces does not take traces" in said[0]
        receiver.mode = "takes"
        receiver.go_on.set()
        if mode != "gone":
            sender.send(trace("9"))  # again where it was not taken in time
            until(lambda: sender.sent or (not sender._spans_waiting and sender.send(trace("9"))))
            until(lambda: any("takes traces again" in one.message for one in caplog.records))


def test_who_sends_never_waits_and_what_is_too_much_is_counted(receiver, monkeypatch):
    monkeypatch.setattr(otlp, "MOST_WAITING_SPANS", 30)
    monkeypatch.setattr(otlp, "LAST_S", 0.5)
    receiver.mode = "hangs"
    with TraceSender(receiver.url) as sender:
        sender.send(trace("0"))
        until(lambda: receiver.asked["hangs"])  # with the spans of the first
        for number in range(1, 41):
            sender.send(trace(str(number)))
        assert sender.dropped["queue_full"] == 3 * (1 + 40 - 30 // 3)
        receiver.mode = "takes"
        receiver.go_on.set()
        until(lambda: not sender._spans_waiting)
    assert len(receiver.spans) == 3 * (30 // 3 - 1)


def test_all_of_a_bag_is_sent_however_slow_the_receiver_is(receiver, monkeypatch):
    monkeypatch.setattr(otlp, "MOST_WAITING_SPANS", 5)
    with TraceSender(receiver.url) as sender:
        sender.send_all(trace(str(number)) for number in range(20))
        assert sender.sent == len(receiver.spans) == 60


def test_what_waits_at_the_end_is_sent_and_a_receiver_that_hangs_ends_nobody(receiver, monkeypatch):
    with TraceSender(receiver.url) as sender:
        sender.send(trace())
    assert len(receiver.spans) == sender.sent == 3
    monkeypatch.setattr(otlp, "LAST_S", 0.5)
    monkeypatch.setattr(otlp, "RECEIVER_S", 600.0)
    receiver.mode = "hangs"
    with TraceSender(receiver.url) as sender:
        sender.send(trace())
        until(lambda: receiver.asked["hangs"])


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:4318",
        "ftp://host",
        "",
        "http://",
        "http://[::1",
        "http://host:99999",
        "http://a b",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="write http://HOST:4318"):
        TraceSender(url)


def test_an_address_may_have_the_path_of_traces():
    assert TraceSender("http://h:4318/").url == "http://h:4318/v1/traces"
    assert TraceSender("https://h/x/v1/traces").url == "https://h/x/v1/traces"
