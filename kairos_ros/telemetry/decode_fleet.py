"""What serving nodes say of their fleet, and diagnostics of nodes, as events."""

import math
from typing import Any

from kairos_ros.core.wire_check import TEXT_BYTES, printable
from kairos_ros.telemetry.events import (
    EngineReported,
    FleetReported,
    Health,
    HealthReported,
    RobotScheduled,
)

_LEVELS = ("ok", "warn", "error", "stale")
"""By DiagnosticStatus.level."""


def fleet_reported(body: Any, robot: str, at_s: float) -> FleetReported:
    """Its texts are for people: in one line each, and cut."""
    names = map(_text, body.counter_names)
    return FleetReported(
        at_s=at_s,
        server=_text(body.server),
        active=body.active,
        scheduling=_text(body.scheduling),
        horizon=_text(body.horizon),
        queue=body.queue_length,
        requests_per_s=body.requests_per_s,
        chunks_per_s=body.chunks_per_s,
        counters=dict(zip(names, map(int, body.counter_values), strict=False)),
        robots=tuple(map(_robot_scheduled, body.robots)),
        engines=tuple(map(_engine_reported, body.engines)),
        plan=_text(getattr(body, "plan", "")),  # older bags lack it
        staged_plan=_text(getattr(body, "staged_plan", "")),
    )


def health_reported(body: Any, robot: str, at_s: float) -> HealthReported:
    """Its texts are for people: in one line each, and cut."""
    return HealthReported(at_s, tuple(_health(one, at_s) for one in body.status))


def _robot_scheduled(body: Any) -> RobotScheduled:
    return RobotScheduled(
        robot=body.robot,
        horizon=body.horizon,
        horizon_reason=_text(body.horizon_reason),
        wait_ratio=body.wait_ratio,
        pending=body.pending,
        running=body.running,
        reason=_text(body.reason),
        request_period_s=getattr(body, "request_period_s", 0.0),
        planned_period_s=getattr(body, "planned_period_s", 0.0),
        over_rate=getattr(body, "over_rate", False),
        policy=_text(getattr(body, "policy", "")),
        policy_name=_text(getattr(body, "policy_name", "")),
        surprised=getattr(body, "surprised", False),
        surprises=getattr(body, "surprises", 0),
        **surprise_of(body),
    )


def _engine_reported(body: Any) -> EngineReported:
    return EngineReported(
        name=_text(body.engine),
        tier=_text(body.tier),
        state=_text(body.state),
        batch=body.batch_size,
        max_batch=body.max_batch,
        load=body.load if math.isfinite(body.load) else 0.0,
        batches=body.batches,
        restarts=body.restarts,
        error=_text(body.last_error),
        rtt_s=body.rtt_s,
        mbps=body.bandwidth_mbps,
        in_flight=body.in_flight,
        request_bytes=body.request_bytes,
        policy=_text(body.policy),
        requests=body.requests,
    )


def _health(body: Any, at_s: float) -> Health:
    level = body.level[0] if isinstance(body.level, bytes) else body.level
    return Health(
        at_s=at_s,
        name=_text(body.name),
        hardware=body.hardware_id,
        level=_LEVELS[level] if level < len(_LEVELS) else "stale",
        message=_text(body.message),
        values={value.key: _text(value.value) for value in body.values},
    )


def surprise_of(body: Any, *, told: bool = True) -> dict[str, Any]:
    """Of a message with `surprise` and `surprise_joint`; older bags have none."""
    score, joint = getattr(body, "surprise", 0.0), getattr(body, "surprise_joint", "")
    sane = told and math.isfinite(score)
    return {"surprise": score if sane else 0.0, "surprise_joint": _text(joint) if sane else ""}


def _text(text: str) -> str:
    return printable(text, TEXT_BYTES)
