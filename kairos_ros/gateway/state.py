"""The state of a gateway as plain data, for /state, the dashboard and tests."""

import time
from typing import Any

import numpy as np

from kairos_ros.core.calls.call import NEVER, Call
from kairos_ros.core.calls.distributions import Distribution
from kairos_ros.gateway.gateway import Gateway


def state(gateway: Gateway) -> dict[str, Any]:
    """Times in ms; of JSON's types only."""
    now_ns = time.monotonic_ns()
    queue = gateway.queue
    workflows = queue.learned.workflows
    return {
        "waiting": [
            _call(call, now_ns) | {"place": number, "reason": reason}
            for number, (call, reason) in enumerate(queue.ordered(now_ns), 1)
        ],
        "held": queue.held if queue.waiting else "",
        "running": [
            _call(run.call, now_ns)
            | {"server": instance.name, "running_ms": _ms(now_ns - run.began_ns)}
            for instance, run in queue.running
        ],
        "servers": [
            {
                "name": name,
                "up": one.up,
                "models": sorted(one.instance.models),
                "running": len(one.instance.running),
                "places": one.instance.places,
                "paused": one.instance.suspended_until_ns > now_ns,
                "failures": one.failed,
                "trouble": one.trouble,
            }
            for name, one in gateway.servers.by_name.items()
        ],
        "components": [
            {
                "name": name,
                "answered": one.answered,
                "in_time": one.in_time,
                "late": one.late,
                "unanswered": one.unanswered,
                "mean_wait_ms": _ms(one.waited_ns / max(1, one.answered)),
                "with_model_ms": _distribution(workflows.single.get(name)),
                "rest_of_workflow_ms": _distribution(workflows.remaining.get(name)),
            }
            for name, one in sorted(queue.served.items())
        ],
        "workflows": {
            "open": workflows.open,
            "ended": dict(workflows.ended),
            "edges": [
                {"from": a, "to": b, "parallel": parallel, "count": count}
                for (a, b, parallel), count in sorted(workflows.edges.items())
            ],
        },
        "refused": dict(gateway.refused),
        "decisions": [
            _call(one.start.call, one.at_ns)
            | {
                "ago_ms": _ms(now_ns - one.at_ns),
                "server": one.start.instance.name,
                "reason": one.start.reason,
            }
            for one in reversed(gateway.decisions)
        ],
    }


def _call(call: Call, now_ns: int) -> dict[str, Any]:
    return {
        "robot": call.caller.robot,
        "component": call.caller.component,
        "task": call.caller.task,
        "model": call.model,
        "waited_ms": _ms(now_ns - call.arrived_ns),
        "due_ms": None if call.due_ns == NEVER else _ms(call.due_ns - now_ns),
    }


def _distribution(one: Distribution | None) -> dict[str, Any] | None:
    if one is None or not one.count:
        return None
    p50, p99 = np.percentile(one.samples, (50, 99)) * 1e3
    return {
        "count": one.count,
        "mean": round(one.mean * 1e3, 2),
        "p50": round(float(p50), 2),
        "p99": round(float(p99), 2),
        "converged": one.converged,
    }


def _ms(duration_ns: float) -> float:
    return round(duration_ns / 1e6, 1)
