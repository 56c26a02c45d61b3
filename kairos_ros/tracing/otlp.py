"""Sends traces to an OpenTelemetry receiver, by OTLP over HTTP, in a thread of its own."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator

from kairos_ros.core.errors import ConfigError
from kairos_ros.telemetry.events import TaskKey
from kairos_ros.tracing.spans import Service, Span, span_id, trace_id

log = logging.getLogger(__name__)

MOST_WAITING_SPANS = 20_000
"""Of all traces that wait; those of a trace beyond them are dropped."""
BATCH_SPANS = 512
RECEIVER_S = 10.0
"""A receiver that has not taken a batch by then has not taken it."""
LAST_S = 5.0
"""At the end, what still waits is sent for at most so long."""
CALL_S = 1.0
"""At the end, a call that is under way may take so much longer."""
MOST_FAILURES = 2
"""Batches in a row that a receiver does not take before the tasks of a bag are not sent to it."""
MOST_TRACERS = 1000
PATH = "/v1/traces"
SCOPE = "kairos_ros"


@dataclass(frozen=True, slots=True)
class Trace:
    """One task."""

    key: TaskKey
    spans: Sequence[Span]
    epoch_ns: int
    """Of the spans' clock: nanoseconds since 1970 at its 0."""


class TraceSender:
    """A context manager; `send` may be called in any thread."""

    REASONS = ("queue_full", "not_taken")
    """Why spans are dropped: the receiver is too slow, or it is not there or refuses them."""

    def __init__(self, url: str) -> None:
        """url: of the receiver, such as http://127.0.0.1:4318. Raises ConfigError."""
        try:
            where = urlsplit(url)
            known = where.scheme in ("http", "https") and where.hostname and where.port != 0
        except ValueError:  # of an address or a port
            known = False
        if not known or where.query or any(map(str.isspace, url)):
            raise ConfigError(f"--otlp {url!r} is no address; write http://HOST:4318")
        path = where.path.rstrip("/")
        self.url = url if path.endswith(PATH) else f"{url.rstrip('/')}{PATH}"
        self.sent = 0
        """Spans that the receiver has taken."""
        self.dropped: Counter[str] = Counter()
        """Spans that were not sent, by reason."""
        self._exporter = OTLPSpanExporter(endpoint=self.url, timeout=RECEIVER_S)
        self._waiting: queue.SimpleQueue[Trace | None] = queue.SimpleQueue()
        self._spans_waiting = 0
        self._room = threading.Condition()
        """Of `_spans_waiting` and `_waiting`."""
        self._failures = 0
        """Batches in a row that were not taken."""
        self._most_failures = 0
        """After so many it gives up; 0: never."""
        self._over = False
        self._giving_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # we say it, once

    def __enter__(self) -> "TraceSender":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for what is left to send: not after Ctrl-C, and not for who takes nothing."""
        self._waiting.put(None)
        if kind is None and not self._failures:
            self._thread.join(CALL_S)
            if self._thread.is_alive():
                log.warning("sends what is left to %s, for at most %g s", self.url, LAST_S)
                self._thread.join(LAST_S)
        self._giving_up.set()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        if kind is None:
            self._thread.join(CALL_S)
        with self._room:
            self._over = True
            if self._spans_waiting:
                self.dropped["not_taken"] += self._spans_waiting

    def send(self, trace_: Trace) -> None:
        """Never waits: what the receiver is too slow for is dropped and counted."""
        with self._room:
            if self._has_room(trace_):
                self._put(trace_)
            else:
                self.dropped["queue_full"] += len(trace_.spans)

    def send_all(self, traces: Iterable[Trace]) -> None:
        """Waits for the receiver. What it does not take is dropped and counted, too; one that takes
        nothing is not asked again and again."""
        self._most_failures = MOST_FAILURES
        for one in traces:
            with self._room:
                while not self._has_room(one):
                    self._room.wait()
                self._put(one)
        with self._room:
            self._room.wait_for(lambda: not self._spans_waiting)

    def _has_room(self, trace_: Trace) -> bool:
        waiting = self._spans_waiting
        return not waiting or waiting + len(trace_.spans) <= MOST_WAITING_SPANS

    def _put(self, trace_: Trace) -> None:
        self._spans_waiting += len(trace_.spans)
        self._waiting.put(trace_)

    def _run(self) -> None:
        writer = SpanWriter()
        while (taken := self._waiting.get()) is not None:
            spans = writer.written(taken)
            count = len(taken.spans)
            while len(spans) < BATCH_SPANS and not self._waiting.empty():
                if (more := self._waiting.get()) is None:
                    self._waiting.put(None)
                    break
                spans += writer.written(more)
                count += len(more.spans)
            for begin in range(0, len(spans), BATCH_SPANS):
                batch = spans[begin : begin + BATCH_SPANS]
                self._settle(len(batch), taken=self._export(batch))
            self._settle(count - len(spans), taken=None)  # what the sampler left out

    def _settle(self, spans: int, taken: bool | None) -> None:
        """So many spans wait no more: were taken, were not, or are not counted."""
        with self._room:
            if self._over:
                return
            self._spans_waiting -= spans
            if taken:
                self.sent += spans
            elif taken is not None:
                self.dropped["not_taken"] += spans
            self._room.notify_all()

    def _export(self, spans: list[ReadableSpan]) -> bool:
        """Whether the receiver has taken them."""
        if self._giving_up.is_set():
            return False
        taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        self._note(taken)
        if self._most_failures and self._failures >= self._most_failures:
            self._giving_up.set()
        return taken

    def _note(self, taken: bool) -> None:
        """Says once that a receiver takes nothing, and once that it does again."""
        if not taken and not self._failures:
            log.warning(
                "%s does not take traces; what it does not take within %g s is dropped and counted",
                self.url,
                RECEIVER_S,
            )
        elif taken and self._failures:
            log.warning("%s takes traces again", self.url)
        self._failures = 0 if taken else self._failures + 1


class SpanWriter:
    """Makes OpenTelemetry's spans of ours, with ids that depend on the task only."""

    def __init__(self) -> None:
        self._ids = _GivenIds()
        self._ended = _Ended()
        self._tracers: dict[tuple[Service, str], trace.Tracer] = {}

    def written(self, told: Trace) -> list[ReadableSpan]:
        """The spans of one trace, parents first; none that $OTEL_TRACES_SAMPLER leaves out."""
        self._ids.trace_id = trace_id(told.key)
        for span in told.spans:
            self._write(told, span)
        spans, self._ended.spans = self._ended.spans, []
        return spans

    def _write(self, told: Trace, span: Span) -> None:
        self._ids.span_id = span_id(told.key, span)
        parent = trace.INVALID_SPAN_CONTEXT
        if span.parent is not None:
            parent = trace.SpanContext(
                self._ids.trace_id,
                span_id(told.key, span.parent),
                is_remote=span.parent.service is not span.service,
                trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
            )
        made = self._tracer(span).start_span(
            f"kairos.{span.name}",
            trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            _kind(span),
            {"kairos.robot": told.key.robot, **span.attributes},
            start_time=_ns(told, span.start_s),
        )
        for name, at_s, attributes in span.events:
            made.add_event(name, attributes, _ns(told, at_s))
        if span.error:
            made.set_status(trace.StatusCode.ERROR, span.error)
        made.end(_ns(told, span.end_s))

    def _tracer(self, span: Span) -> trace.Tracer:
        key = span.service, span.instance
        if key not in self._tracers:
            if len(self._tracers) >= MOST_TRACERS:
                self._tracers.clear()
            resource = Resource.create(
                {SERVICE_NAME: span.service, SERVICE_INSTANCE_ID: span.instance}
            )
            provider = TracerProvider(
                resource=resource, id_generator=self._ids, shutdown_on_exit=False
            )
            provider.add_span_processor(self._ended)
            self._tracers[key] = provider.get_tracer(SCOPE)
        return self._tracers[key]


def _kind(span: Span) -> trace.SpanKind:
    kinds = {"request": trace.SpanKind.CLIENT, "serve": trace.SpanKind.SERVER}
    return kinds.get(span.name, trace.SpanKind.INTERNAL)


def _ns(told: Trace, at_s: float) -> int:
    return told.epoch_ns + round(at_s * 1e9)


class _GivenIds(IdGenerator):
    trace_id = span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)
