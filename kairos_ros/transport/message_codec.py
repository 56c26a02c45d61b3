"""Messages of serving nodes and engines, as frames and back. What does not fit is a WireError.

Client to engine: `hello {}`, `ping {}`, `infer {batch, requests}`. Each may name the `policy` of
the worker's registry that it is about, a `ping` may carry a number that its answer repeats (and
arrays, which nobody reads: they show how fast the link is; some of them come back as an `echo`,
which makes the way back fast, too), and an `infer` with `tell: true` is confirmed.
Engine to client: `status {...}` (answers hello and ping), `echo`, `description {...}`,
`received {batch}`, `result {batch, compute_s, outcomes}`, `error {batch | nil, code, reason}`.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Observation, no_actions
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.core.wire_check import OBSERVATIONS
from kairos_ros.transport.field_checks import (
    Check,
    checks_of,
    is_point,
    is_positive,
    is_text,
    list_of,
    number,
    refusal_code,
    serial,
    text,
    tuple_of,
)
from kairos_ros.transport.frames import Message, check_all_taken, take_array
from kairos_ros.transport.messages import (
    BatchError,
    BatchResult,
    EngineDescription,
    InferFailure,
    InferOutcome,
    InferRequest,
    InferResult,
    WorkerStatus,
)

MAX_REASON = 1000
"""Characters of a reason that travel; a traceback does not."""
MAX_REPLICAS = 256
"""Of one worker. Who asks it keeps a list as long as it claims to have."""
MAX_STRIDE = 1000
"""Executed actions between two keyframes."""
MAX_ECHO = 131_072
"""Bytes: about what a full batch answers."""
OLDER = (
    *("any_image_size", "images_optional", "observations", "history_bytes", "replicas"),
    *("memory_mib", "keyframe_stride", "task_actions", "language"),
)
"""Fields that peers of earlier versions do not send."""


def infer_message(
    batch: int, requests: Sequence[InferRequest], wanted: Container[str] | None = None
) -> Message:
    """A batch to infer. Only `wanted` images travel (None: all), whatever else a robot sends."""
    rows, arrays = [], []
    for request in requests:
        keys = [key for key in request.images if wanted is None or key in wanted]
        for seen in request.observations:
            arrays.append(np.asarray(seen.state, dtype=np.float32))
            arrays.extend(np.frombuffer(seen.images[key], dtype=np.uint8) for key in keys)
        row = {name: getattr(request, name) for name in CHECKS[InferRequest]} | {"images": keys}
        if request.shrunk:
            row["shrunk"] = sorted(request.shrunk)
        if len(request.committed):
            row["committed"] = True
            arrays.append(np.asarray(request.committed, dtype=np.float32))
        if len(request.executed):
            row["executed"] = True
            arrays.append(np.asarray(request.executed, dtype=np.float32))
        if request.earlier:
            row["earlier"] = len(request.earlier)
        rows.append(row)
    return Message("infer", {"batch": batch, "requests": rows}, tuple(arrays))


def policy_of(message: Message) -> str:
    """The policy of the registry that a client's message is about; empty: the only one."""
    return text(message.fields, "policy") if "policy" in message.fields else ""


def wants_receipt(message: Message) -> bool:
    """Whether the client of an `infer` wants to be told that it arrived."""
    return message.fields.get("tell") is True


def received_message(batch: int) -> Message:
    return Message("received", {"batch": batch})


def read_batch(message: Message) -> int:
    batch = batch_of(message)
    if batch is None:
        raise WireError(f"{message.kind!r:.40} without a batch number")
    return batch


def ping_message(number: int, policy: str, padding: int = 0) -> Message:
    """A heartbeat; `padding` bytes of it are there to be carried only."""
    arrays = (np.zeros(padding, np.uint8),) if padding else ()
    return Message("ping", {"ping": number, "policy": policy}, arrays)


def ping_of(message: Message) -> int | None:
    return serial(message.fields.get("ping"))


def echo_message(ping: Message) -> Message | None:
    """What follows the answer to a `ping` that carries arrays; None where it carries none."""
    size = min(MAX_ECHO, sum(array.nbytes for array in ping.arrays))
    return Message("echo", {}, (np.zeros(size, np.uint8),)) if size else None


def read_infer(message: Message) -> tuple[int, tuple[InferRequest, ...]]:
    batch = read_batch(message)
    arrays = iter(message.arrays)
    requests = tuple(_request(row, arrays) for row in list_of(message.fields, "requests"))
    check_all_taken(arrays)
    return batch, requests


def batch_of(message: Message) -> int | None:
    """The batch that a message claims to be about, so that even its refusal can name it."""
    return serial(message.fields.get("batch"))


def result_message(result: BatchResult) -> Message:
    rows, arrays = [], []
    for outcome in result.outcomes:
        if isinstance(outcome, InferFailure):
            rows.append({"code": int(outcome.code), "reason": outcome.reason[:MAX_REASON]})
        else:
            rows.append({"code": int(RefusalCode.NONE), "reason": outcome.begun_anew[:MAX_REASON]})
            arrays += [outcome.chunk, outcome.updates]
    fields = {
        "batch": result.batch,
        "compute_s": result.compute_s,
        "prepare_s": result.prepare_s,
        "outcomes": rows,
    }
    return Message("result", fields, tuple(arrays))


def read_result(message: Message) -> BatchResult:
    batch = read_batch(message)
    arrays = iter(message.arrays)
    outcomes = tuple(_outcome(row, arrays) for row in list_of(message.fields, "outcomes"))
    check_all_taken(arrays)
    fields = {"prepare_s": 0.0, **message.fields}
    return BatchResult(batch, number(fields, "compute_s"), outcomes, number(fields, "prepare_s"))


def error_message(error: BatchError) -> Message:
    reason = error.reason[:MAX_REASON]
    return Message("error", {"batch": error.batch, "code": int(error.code), "reason": reason})


def read_error(message: Message) -> BatchError:
    return BatchError(
        batch_of(message), refusal_code(message.fields), text(message.fields, "reason")
    )


def status_message(status: WorkerStatus) -> Message:
    return Message("status", asdict(status) | {"stage": status.stage[:MAX_REASON]})


def read_status(message: Message) -> WorkerStatus:
    busy = message.fields.get("busy_batch")
    if busy is not None and type(busy) is not int:
        raise WireError("busy_batch is neither a number nor nil")
    load = message.fields.get("language")
    if load is not None and not isinstance(load, dict):
        raise WireError("language is neither a map nor nil")
    language = None if load is None else LanguageLoad(**_plain(LanguageLoad, load))
    plain = _plain(WorkerStatus, message.fields)
    if plain.get("replicas", 1) > MAX_REPLICAS:
        raise WireError(f"replicas is {plain['replicas']}, the most is {MAX_REPLICAS}")
    return WorkerStatus(**plain, busy_batch=busy, ping=ping_of(message), language=language)


def description_message(description: EngineDescription) -> Message:
    fields = asdict(description)
    fields["images"] = {key: list(size) for key, size in description.images.items()}
    return Message("description", fields)


def read_description(message: Message) -> EngineDescription:
    fields = message.fields
    sizes = fields.get("images")
    if not isinstance(sizes, dict) or not all(
        isinstance(key, str)
        and isinstance(size, list)
        and len(size) == 2
        and all(type(n) is int and n > 0 for n in size)
        for key, size in sizes.items()
    ):
        raise WireError("images is not a map of camera key to [height, width]")
    plain = _plain(EngineDescription, fields)
    if not 1 <= plain.get("observations", 1) <= OBSERVATIONS:
        raise WireError(f"observations is {plain['observations']}, it goes to {OBSERVATIONS}")
    if plain.get("keyframe_stride", 0) > MAX_STRIDE:
        raise WireError(f"keyframe_stride is {plain['keyframe_stride']}, the most is {MAX_STRIDE}")
    return EngineDescription(
        **plain,
        images={key: (height, width) for key, (height, width) in sizes.items()},
        instructions=tuple_of(fields, "instructions", is_text, "text"),
        action_scale=tuple_of(fields, "action_scale", is_positive, "positive numbers"),
        warmup=tuple(map(tuple, list_of(fields, "warmup", is_point, "[batch size, seconds]"))),
        eager=tuple(map(tuple, list_of(fields, "eager", is_point, "[batch size, seconds]"))),
    )


def _request(row: Any, arrays: Iterator[np.ndarray]) -> InferRequest:
    if not isinstance(row, dict):
        raise WireError("a request that is not a map")
    keys = list_of(row, "images", is_text, "camera keys")
    if len(set(keys)) != len(keys):
        raise WireError("images is not a list of different camera keys")
    shrunk = list_of(row, "shrunk", is_text, "camera keys") if "shrunk" in row else []
    if not set(keys).issuperset(shrunk):
        raise WireError("shrunk is not a list of cameras whose images are there")
    earlier = row.get("earlier", 0)
    if type(earlier) is not int or not 0 <= earlier < OBSERVATIONS:
        raise WireError(f"earlier is not a whole number from 0 to {OBSERVATIONS - 1}")
    *before, newest = [_observation(keys, arrays) for _ in range(earlier + 1)]
    committed = _actions(row, "committed", arrays)
    executed = _actions(row, "executed", arrays)
    return InferRequest(
        **_plain(InferRequest, row),
        state=newest.state,
        images=newest.images,
        committed=committed,
        executed=executed,
        shrunk=frozenset(shrunk),
        earlier=tuple(before),
    )


def _actions(row: Mapping[str, Any], name: str, arrays: Iterator[np.ndarray]) -> np.ndarray:
    if row.get(name, False) is False:
        return no_actions()
    return take_array(arrays, np.float32, 2, name)


def _observation(keys: Sequence[str], arrays: Iterator[np.ndarray]) -> Observation:
    state = take_array(arrays, np.float32, 1, "state")
    return Observation(
        state, {key: take_array(arrays, np.uint8, 1, "image").tobytes() for key in keys}
    )


def _outcome(row: Any, arrays: Iterator[np.ndarray]) -> InferOutcome:
    if not isinstance(row, dict):
        raise WireError("an outcome that is not a map")
    code, reason = refusal_code(row), text(row, "reason")
    if code is not RefusalCode.NONE:
        return InferFailure(code, reason)
    chunk = take_array(arrays, np.float32, 2, "chunk")
    updates = take_array(arrays, np.float32, 3, "updates")
    if updates.shape[1:] != chunk.shape:
        raise WireError(f"updates of shape {updates.shape} for a chunk of shape {chunk.shape}")
    return InferResult(chunk, updates, reason)


def _plain(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The plain fields of a dataclass, checked."""
    checks = CHECKS[kind].items()
    return {n: check(given, n) for n, check in checks if n in given or n not in OLDER}


CHECKS: Mapping[type, Mapping[str, Check]] = {
    kind: checks_of(kind) for kind in (InferRequest, WorkerStatus, EngineDescription, LanguageLoad)
}
"""The plain fields of each kind; the others are checked by hand, above."""

READERS = (read_infer, read_result, read_batch, read_error, read_status, read_description)
"""What reads the messages of a peer: a value or a WireError, whatever it said (`bench fuzz`)."""
