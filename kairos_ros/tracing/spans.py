"""A task as the spans of one trace: what is measured where, and how it is put on one clock.

Durations are what robots and servers measured, each on its own clock. Where something begins is
known on the clock of whoever listened: a chunk came to the robot when it came to the listener. So
clocks of two hosts are never compared. Two things are assumed, both only of where a span lies and
not of how long it is: a request takes as long to the server as its answer takes back, and the batch
is computed in the middle of the time between leaving the queue and the answer.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kairos_ros.recording.tasks import BagRound, BagTask
from kairos_ros.telemetry.events import ChunkAnswered, TaskEndReported, TaskKey

Value = str | int | float | bool


class Service(StrEnum):
    """Who did what a span tells, as `service.name`."""

    ROBOT = "kairos_robot"
    SERVING = "kairos_serving"
    ENGINE = "kairos_engine"


@dataclass(slots=True)
class Span:
    """Times in seconds of the listener's clock."""

    name: str
    service: Service
    instance: str
    """Which of them: the robot, the serving node, the engine."""
    start_s: float
    end_s: float
    parent: "Span | None" = None
    attributes: dict[str, Value] = field(default_factory=dict)
    events: list[tuple[str, float, dict[str, Value]]] = field(default_factory=list)
    """Name, when, attributes."""
    error: str = ""

    @property
    def path(self) -> str:
        """Names it within its trace."""
        own = f"{self.name} {self.attributes.get('kairos.round', '')}"
        return f"{self.parent.path}/{own}" if self.parent else own


def trace_id(key: TaskKey) -> int:
    """128 bits. The same for everybody who listens, live and of a bag."""
    return int.from_bytes(_digest(f"{key.robot}/{key.session}/{key.task}")[:16]) or 1


def span_id(key: TaskKey, span: Span) -> int:
    """64 bits; as `trace_id`."""
    return int.from_bytes(_digest(f"{key.name}/{span.path}")[:8]) or 1


def task_spans(task: BagTask) -> list[Span]:
    """The task first, and every other span after its parent; empty where no time is known of it."""
    rounds = [found for number in _numbers(task) for found in _round(task, number)]
    began_s, ended = task.began.at_s if task.began else math.inf, task.ended
    if ended is not None:
        began_s = ended.first_request_s
    starts = [began_s, *(one.start_s for one in rounds)]
    ends = [one.end_s for one in rounds]
    if ended is not None:
        ends.append(ended.at_s)
    if not ends or not math.isfinite(min(starts)):
        return []
    whole = Span(
        "task", Service.ROBOT, task.key.robot, min(starts), max(ends), attributes=_goal(task)
    )
    if ended is not None:
        whole.attributes |= _result(ended)
        whole.error = ended.outcome if ended.outcome.startswith("failed") else ""
    for one in rounds:
        if one.parent is None:
            one.parent = whole
    return [whole, *rounds]


def _numbers(task: BagTask) -> list[int]:
    told = len(task.ended.round_latency_s) if task.ended else 0
    return sorted(task.rounds.keys() | set(range(1, told + 1)))


def _round(task: BagTask, number: int) -> Iterator[Span]:
    """A round, its request with what the server did of it, and its execution."""
    known, ended = task.rounds.get(number, BagRound()), task.ended
    answer = known.answer
    chunk = answer if answer is not None and not answer.refused else None
    latency_s = _of(ended, "round_latency_s", number)
    sent_s = _sent_s(known, chunk, latency_s)
    if number == 1 and ended is not None and not math.isfinite(sent_s):
        sent_s = ended.first_request_s
    began_s = ended.first_request_s if ended else math.nan
    moved = (
        began_s + _of(ended, "round_started_s", number),
        began_s + _of(ended, "round_ended_s", number),
    )
    moves = math.isfinite(moved[0]) and math.isfinite(moved[1])
    came_s = chunk.at_s if chunk else sent_s + latency_s
    refused = [one for one in known.answers if one.refused]
    times = [t for t in (sent_s, came_s, *(moved if moves else ())) if math.isfinite(t)]
    times += [one.at_s for one in refused]
    if not times:
        return
    asked = min(times)
    whole = Span("round", Service.ROBOT, task.key.robot, asked, max(times))
    whole.attributes["kairos.round"] = number
    whole.events = [("refused", one.at_s, {"kairos.reason": one.reason}) for one in refused]
    if chunk is None and ended is not None and not math.isfinite(latency_s):
        whole.error = "given up"
    if chunk is not None:
        whole.attributes |= _of_chunk(chunk)
    yield whole
    if math.isfinite(sent_s) and math.isfinite(came_s):
        yield from _request(whole, chunk, sent_s, max(sent_s, came_s), measured=latency_s)
    if moves:
        yield _execution(whole, ended, number, *moved)


def _sent_s(known: BagRound, chunk: ChunkAnswered | None, latency_s: float) -> float:
    """When the request was sent; NaN where that is not known."""
    if chunk is not None and math.isfinite(latency_s):
        return chunk.at_s - latency_s
    if known.asked:
        return min(one.at_s for one in known.asked.values())
    return chunk.at_s - chunk.server_s if chunk is not None else math.nan


def _request(
    whole: Span, chunk: ChunkAnswered | None, sent_s: float, came_s: float, measured: float
) -> Iterator[Span]:
    """measured: by the robot, from its first request to the chunk; NaN: not told."""
    request = Span(
        "request", Service.ROBOT, whole.instance, sent_s, came_s, whole, _of_round(whole)
    )
    yield request
    if chunk is None:
        return
    network_s = max(0.0, came_s - sent_s - chunk.server_s)
    once = chunk.attempt == 0 and not whole.events
    if once and math.isfinite(measured):
        request.attributes["kairos.network_s"] = network_s
    # what was sent again was received again: the time before was not all network
    left_s = came_s - (network_s / 2 if once else 0.0)
    serve = Span("serve", Service.SERVING, chunk.server, left_s - chunk.server_s, left_s, request)
    serve.attributes = _of_round(whole) | {
        "kairos.reason": chunk.reason,
        "kairos.attempt": chunk.attempt,
    }
    yield serve
    dispatched_s = serve.start_s + chunk.queued_s
    queue = Span("queue", Service.SERVING, chunk.server, serve.start_s, dispatched_s, serve)
    queue.attributes = _of_round(whole)
    yield queue
    rest_s = max(0.0, chunk.server_s - chunk.queued_s - chunk.compute_s)
    begins_s = dispatched_s + rest_s / 2
    ends_s = begins_s + chunk.compute_s
    infer = Span("infer", Service.ENGINE, chunk.engine, begins_s, ends_s, serve)
    infer.attributes = _of_round(whole) | {
        "kairos.tier": chunk.tier,
        "kairos.policy": chunk.policy,
        "kairos.batch.size": chunk.batch_size,
    }
    yield infer


def _execution(
    whole: Span, ended: TaskEndReported | None, number: int, start_s: float, end_s: float
) -> Span:
    execute = Span("execute", Service.ROBOT, whole.instance, start_s, max(start_s, end_s), whole)
    execute.attributes = _of_round(whole) | {
        "kairos.executed_actions": int(_of(ended, "round_executed", number))
    }
    for name in ("seam", "surprise"):
        value = _of(ended, f"round_{name}", number)
        if math.isfinite(value) and value > 0:
            execute.attributes[f"kairos.{name}"] = value
    return execute


def _of(ended: TaskEndReported | None, name: str, number: int) -> float:
    """What a result says of a round; NaN where it says nothing."""
    told: tuple[float, ...] = getattr(ended, name) if ended is not None else ()
    return float(told[number - 1]) if number <= len(told) else math.nan


def _of_round(whole: Span) -> dict[str, Value]:
    return {"kairos.round": whole.attributes["kairos.round"]}


def _of_chunk(chunk: ChunkAnswered) -> dict[str, Value]:
    return {
        "kairos.horizon": chunk.horizon,
        "kairos.horizon_reason": chunk.horizon_reason,
        "kairos.chunk_size": chunk.chunk_size,
    }


def _goal(task: BagTask) -> dict[str, Value]:
    key = task.key
    told: dict[str, Value] = {"kairos.session": key.session, "kairos.task": key.task}
    goal = task.began or (task.ended.goal if task.ended else None)
    if goal is not None:
        told |= {
            "kairos.instruction": goal.instruction,
            "kairos.task_kind": goal.kind,
            "kairos.horizon_policy": goal.horizon_policy,
            "kairos.control_rate_hz": goal.control_rate_hz,
        }
        if goal.scene:
            told |= {"kairos.scene": goal.scene, "kairos.seed": str(goal.seed)}  # it has 64 bits
    return told


def _result(ended: TaskEndReported) -> dict[str, Value]:
    return {
        "kairos.success": ended.success,
        "kairos.outcome": ended.outcome,
        "kairos.actions": ended.actions,
        "kairos.stalled_s": ended.stalled_s,
        "kairos.first_wait_s": ended.first_wait_s,
        "kairos.refusals": ended.refusals,
        "kairos.dropped_chunks": ended.dropped,
        "kairos.guarded_actions": ended.guarded,
    }


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
