"""A fleet in Prometheus' words: gauges and counters of what robots and serving node said last."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ENGINE_UP
from kairos_ros.dashboard.page import SILENT_AFTER_S
from kairos_ros.telemetry.events import EngineReported, RobotReported, RobotScheduled
from kairos_ros.telemetry.exposition import counter, gauge, page
from kairos_ros.telemetry.fleet_view import FleetView, RobotView

if TYPE_CHECKING:
    from kairos_ros.tracing.fleet_traces import Traces  # of an extra

LEVELS = {"ok": 0, "warn": 1, "error": 2, "stale": 3}
"""Of diagnostics, as in DiagnosticStatus.msg."""


def metrics(
    view: FleetView, refused: Mapping[str, int], now_s: float, traces: "Traces | None" = None
) -> bytes:
    """The page that Prometheus scrapes (text format 0.0.4), UTF-8.

    Of a serving node or a robot that was silent for SILENT_AFTER_S nothing is told but that it is
    not up: a graph has a gap then, and no line that only looks alive.
    """
    told = [*_fleet(view, refused, now_s), *([] if traces is None else _traces(traces))]
    return page(told)


def _traces(traces: "Traces") -> Iterator[Metric]:
    sender = traces.sender
    yield counter(
        "trace_spans",
        "Spans that the receiver took (sent), or that were dropped",
        ("outcome",),
        [
            (("sent",), sender.sent),
            *(((reason,), sender.dropped[reason]) for reason in sender.REASONS),
        ],
    )
    yield counter(
        "trace_left_out",
        "Rounds and tasks that are in no trace",
        ("reason",),
        [((reason,), count) for reason, count in traces.left_out.items()],
    )


def _fleet(view: FleetView, refused: Mapping[str, int], now_s: float) -> Iterator[Metric]:
    heard = bool(view.server) and now_s - view.server_heard_s <= SILENT_AFTER_S
    yield gauge(
        "server_up",
        "1 while the serving node is heard and serves robots",
        (),
        [((), heard and view.active)],
    )
    if heard:
        yield from _server(view)
        yield from _engines(view.engines)
    yield from _robots(view.robots.values(), now_s)
    yield gauge(
        "health_level",
        "Of /diagnostics: 0 ok, 1 warning, 2 error, 3 stale",
        ("name",),
        [
            ((name,), LEVELS.get(one.level, 3) if now_s - one.at_s <= SILENT_AFTER_S else 3)
            for name, one in view.health.items()
        ],
    )
    yield counter(
        "exporter_refused_messages",
        "Messages that this program refused",
        ("reason",),
        [((why,), n) for why, n in refused.items()],
    )


def _server(view: FleetView) -> Iterator[Metric]:
    yield gauge("queue_requests", "Requests that wait for an engine", (), [((), view.queue)])
    yield gauge("requests_per_second", "Over the last two seconds", (), [((), view.requests_per_s)])
    yield gauge("chunks_per_second", "Over the last two seconds", (), [((), view.chunks_per_s)])
    yield counter(
        "events",
        "Answers, refusals by code and faults since the serving node started",
        ("event",),
        [((name,), count) for name, count in view.counters.items()],
    )


ENGINE_GAUGES: Mapping[str, tuple[str, Callable[[EngineReported], float]]] = {
    "engine_up": ("1 while it serves or stands by", lambda one: one.state in ENGINE_UP),
    "engine_load_ratio": ("Share of the time in which it computed", lambda one: one.load),
    "engine_batch_robots": ("Robots in its newest batch", lambda one: one.batch),
    "engine_batch_limit_robots": ("Robots in a full batch", lambda one: one.max_batch),
    "engine_in_flight_batches": ("Sent and not answered", lambda one: one.in_flight),
    "engine_rtt_seconds": ("Of the link; 0 on the serving node's host", lambda one: one.rtt_s),
}
ENGINE_COUNTERS: Mapping[str, tuple[str, Callable[[EngineReported], float]]] = {
    "engine_batches": ("Since the serving node started", lambda one: one.batches),
    "engine_requests": ("Since the serving node started", lambda one: one.requests),
    "engine_restarts": ("Workers or links that were lost", lambda one: one.restarts),
}


def _engines(engines: Iterable[EngineReported]) -> Iterator[Metric]:
    labels = ("engine", "tier", "policy")
    rows = [((one.name, one.tier, one.policy), one) for one in engines]
    for name, (text, value) in ENGINE_GAUGES.items():
        yield gauge(name, text, labels, [(who, value(one)) for who, one in rows])
    for name, (text, value) in ENGINE_COUNTERS.items():
        yield counter(name, text, labels, [(who, value(one)) for who, one in rows])


STATUS_GAUGES: Mapping[str, tuple[str, Callable[[RobotReported], float]]] = {
    "robot_buffered_actions": ("Actions left to execute", lambda one: one.buffered),
    "robot_task_stalled_seconds": (
        "Held for want of actions, in this task",
        lambda one: one.stalled_s,
    ),
}
STATUS_COUNTERS: Mapping[str, tuple[str, Callable[[RobotReported], float]]] = {
    "robot_tasks": ("Tasks that have ended", lambda one: one.tasks_done),
    "robot_tasks_succeeded": ("Of these", lambda one: one.tasks_succeeded),
    "robot_chunks_dropped": (
        "Not for its session, task or round, or too late",
        lambda one: one.dropped,
    ),
    "robot_actions_guarded": (
        "Actions that its guard changed or refused",
        lambda one: one.guarded,
    ),
}
SCHEDULE_GAUGES: Mapping[str, tuple[str, Callable[[RobotScheduled], float]]] = {
    "robot_task_wait_ratio": (
        "Share of its task's life that it waited for compute",
        lambda one: one.wait_ratio,
    ),
    "robot_horizon_actions": ("Actions of its newest chunk", lambda one: one.horizon),
    "robot_request_period_seconds": (
        "Least time between its requests; 0: no limit",
        lambda one: one.request_period_s,
    ),
    "robot_over_rate": ("1 while it asks too often", lambda one: one.over_rate),
}


def _robots(robots: Iterable[RobotView], now_s: float) -> Iterator[Metric]:
    known = [r for r in robots if r.status and r.status.state is not RobotState.LEAVING]
    up = {one.name: now_s - one.status.at_s <= SILENT_AFTER_S for one in known if one.status}
    yield gauge(
        "robot_up",
        "1 while it is heard",
        ("robot",),
        [((name,), heard) for name, heard in up.items()],
    )
    yield gauge(
        "robot_state",
        "1 for the state that it is in, as in RobotStatus.msg or that of its state machine",
        ("robot", "state"),
        [
            ((one.name, one.mode or one.status.state.name.lower()), 1)
            for one in known
            if one.status and up[one.name]
        ],
    )
    heard = [one for one in known if up[one.name]]
    told = [((one.name,), one.status) for one in heard if one.status]
    for name, (text, of_status) in STATUS_GAUGES.items():
        yield gauge(name, text, ("robot",), [(who, of_status(one)) for who, one in told])
    for name, (text, of_status) in STATUS_COUNTERS.items():
        yield counter(name, text, ("robot",), [(who, of_status(one)) for who, one in told])
    scheduled = [((one.name,), one.scheduled) for one in heard if one.scheduled]
    for name, (text, value) in SCHEDULE_GAUGES.items():
        yield gauge(name, text, ("robot",), [(who, value(one)) for who, one in scheduled])
