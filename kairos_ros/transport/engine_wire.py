"""Engine messages as frames and back. Whatever does not fit is a WireError, nothing else.

Client to engine: `hello {}`, `ping {}`, `infer {batch, requests}`. Each may name the `policy` of
the worker's registry that it is about, a `ping` may carry a number that its answer repeats (and
arrays, which nobody reads: they show how fast the link is; some of them come back as an `echo`,
which makes the way back fast, too), and an `infer` with `tell: true` is confirmed.
Engine to client: `status {...}` (answers hello and ping), `echo`, `description {...}`,
`received {batch}`, `result {batch, compute_s, outcomes}`, `error {batch | nil, code, reason}`.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.transport.frames import Message
from kairos_ros.transport.messages import (
    EngineDescription,
    InferFailure,
    InferOutcome,
    InferRequest,
    InferResult,
)

MAX_REASON = 1000
"""Characters of a reason that travel; a traceback does not."""
MAX_REPLICAS = 256
"""Of one worker. Who asks it keeps a list as long as it claims to have."""
MAX_ECHO = 131_072
"""Bytes: about what a full batch answers."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The worker's heartbeat. `state` is loading, ready, stopping, refused, or unserved where its
    registry has no policy of the name that was asked for."""

    state: str
    stage: str
    """What it is doing (loading) or why it gave up (refused, unserved)."""
    busy_batch: int | None
    """The running batch, if it is one of the client that asks."""
    busy_s: float
    """For how long the running batch (or, before ready, the loading stage) has run."""
    worker: str = ""
    """New with every start of the worker."""
    others: int = 0
    """Batches of other clients that run or wait."""
    ping: int | None = None
    """The number of the ping that this answers."""
    replicas: int = 1
    """Batches that are computed at once; a pool's replicas that are ready now."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outcomes in the order of the batch's requests."""

    batch: int
    compute_s: float
    outcomes: tuple[InferOutcome, ...]


@dataclass(frozen=True, slots=True)
class BatchError:
    """A message or a batch was refused as a whole. `batch` is None where it could not be read."""

    batch: int | None
    code: RefusalCode
    reason: str


def infer_message(
    batch: int, requests: Sequence[InferRequest], wanted: Container[str] | None = None
) -> Message:
    """A batch to infer. Only `wanted` images travel (None: all), whatever else a robot sends."""
    rows, arrays = [], []
    for request in requests:
        keys = [key for key in request.images if wanted is None or key in wanted]
        arrays.append(np.asarray(request.state, dtype=np.float32))
        arrays.extend(np.frombuffer(request.images[key], dtype=np.uint8) for key in keys)
        rows.append(
            {
                "robot": request.robot,
                "session": request.session,
                "task": request.task,
                "round": request.round,
                "attempt": request.attempt,
                "seed": request.seed,
                "instruction": request.instruction,
                "images": keys,
            }
            | ({"shrunk": sorted(request.shrunk)} if request.shrunk else {})
        )
    return Message("infer", {"batch": batch, "requests": rows}, tuple(arrays))


def policy_of(message: Message) -> str:
    """The policy of the registry that a client's message is about; empty: the only one."""
    return _text(message.fields, "policy") if "policy" in message.fields else ""


def wants_receipt(message: Message) -> bool:
    """Whether the client of an `infer` wants to be told that it arrived."""
    return message.fields.get("tell") is True


def received_message(batch: int) -> Message:
    return Message("received", {"batch": batch})


def read_received(message: Message) -> int:
    batch = batch_of(message)
    if batch is None:
        raise WireError("a receipt without a batch number")
    return batch


def ping_message(number: int, policy: str, padding: int = 0) -> Message:
    """A heartbeat; `padding` bytes of it are there to be carried only."""
    arrays = (np.zeros(padding, np.uint8),) if padding else ()
    return Message("ping", {"ping": number, "policy": policy}, arrays)


def ping_of(message: Message) -> int | None:
    number = message.fields.get("ping")
    return number if type(number) is int and 0 <= number < 2**63 else None


def echo_message(ping: Message) -> Message | None:
    """What follows the answer to a `ping` that carries arrays; None where it carries none."""
    size = min(MAX_ECHO, sum(array.nbytes for array in ping.arrays))
    return Message("echo", {}, (np.zeros(size, np.uint8),)) if size else None


def read_infer(message: Message) -> tuple[int, tuple[InferRequest, ...]]:
    batch = batch_of(message)
    if batch is None:
        raise WireError("an infer message without a batch number")
    arrays = iter(message.arrays)
    requests = tuple(_request(row, arrays) for row in _list(message.fields, "requests"))
    _exhausted(arrays)
    return batch, requests


def batch_of(message: Message) -> int | None:
    """The batch that a message claims to be about, so that even its refusal can name it."""
    batch = message.fields.get("batch")
    return batch if type(batch) is int and 0 <= batch < 2**63 else None


def result_message(result: BatchResult) -> Message:
    rows, arrays = [], []
    for outcome in result.outcomes:
        if isinstance(outcome, InferFailure):
            rows.append({"code": int(outcome.code), "reason": outcome.reason[:MAX_REASON]})
        else:
            rows.append({"code": int(RefusalCode.NONE), "reason": ""})
            arrays += [outcome.chunk, outcome.updates]
    fields = {"batch": result.batch, "compute_s": result.compute_s, "outcomes": rows}
    return Message("result", fields, tuple(arrays))


def read_result(message: Message) -> BatchResult:
    batch = batch_of(message)
    if batch is None:
        raise WireError("a result message without a batch number")
    arrays = iter(message.arrays)
    outcomes = tuple(_outcome(row, arrays) for row in _list(message.fields, "outcomes"))
    _exhausted(arrays)
    return BatchResult(batch, _number(message.fields, "compute_s"), outcomes)


def error_message(error: BatchError) -> Message:
    fields = {"batch": error.batch, "code": int(error.code), "reason": error.reason[:MAX_REASON]}
    return Message("error", fields)


def read_error(message: Message) -> BatchError:
    return BatchError(batch_of(message), _code(message.fields), _text(message.fields, "reason"))


def status_message(status: WorkerStatus) -> Message:
    return Message("status", asdict(status) | {"stage": status.stage[:MAX_REASON]})


def read_status(message: Message) -> WorkerStatus:
    busy = message.fields.get("busy_batch")
    if busy is not None and type(busy) is not int:
        raise WireError("busy_batch is neither a number nor nil")
    return WorkerStatus(
        state=_text(message.fields, "state"),
        stage=_text(message.fields, "stage"),
        busy_batch=busy,
        busy_s=_number(message.fields, "busy_s"),
        worker=_text(message.fields, "worker"),
        others=_count(message.fields, "others"),
        ping=ping_of(message),
        replicas=_replicas(message.fields),
    )


def _replicas(fields: Mapping[str, Any]) -> int:
    replicas = _count(fields, "replicas") if "replicas" in fields else 1
    if replicas > MAX_REPLICAS:
        raise WireError(f"replicas is {replicas}, the most is {MAX_REPLICAS}")
    return replicas


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
    instructions = fields.get("instructions")
    if instructions is not None:
        instructions = tuple(_list(fields, "instructions"))
        if not all(isinstance(text, str) for text in instructions):
            raise WireError("instructions holds something else than text")
    return EngineDescription(
        policy_id=_text(fields, "policy_id"),
        policy_type=_text(fields, "policy_type"),
        state_dim=_count(fields, "state_dim"),
        images={key: (height, width) for key, (height, width) in sizes.items()},
        action_dim=_count(fields, "action_dim"),
        chunk_size=_count(fields, "chunk_size"),
        steps=_count(fields, "steps"),
        instructions=instructions,
        device=_text(fields, "device"),
        dtype=_text(fields, "dtype"),
        max_batch=_count(fields, "max_batch"),
        action_scale=_scale(fields),
        history_bytes=_count(fields, "history_bytes") if "history_bytes" in fields else 0,
        warmup=_warmup(fields),
    )


def _scale(fields: Mapping[str, Any]) -> tuple[float, ...] | None:
    if fields.get("action_scale") is None:
        return None
    scale = _list(fields, "action_scale")
    if not all(type(value) is float and 0 < value < math.inf for value in scale):
        raise WireError("action_scale holds something else than positive numbers")
    return tuple(scale)


def _warmup(fields: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    points = _list(fields, "warmup")
    if not all(
        isinstance(point, list)
        and [type(value) for value in point] == [int, float]
        and point[0] > 0
        and 0 < point[1] < math.inf
        for point in points
    ):
        raise WireError("warmup is not a list of [batch size, seconds]")
    return tuple((batch, seconds) for batch, seconds in points)


def _request(row: Any, arrays: Any) -> InferRequest:
    if not isinstance(row, dict):
        raise WireError("a request that is not a map")
    keys = _list(row, "images")
    if not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise WireError("images is not a list of different camera keys")
    shrunk = _list(row, "shrunk") if "shrunk" in row else []
    if not all(isinstance(key, str) for key in shrunk) or not set(keys).issuperset(shrunk):
        raise WireError("shrunk is not a list of cameras whose images are there")
    state = _next(arrays, np.float32, 1, "state")
    jpegs = [_next(arrays, np.uint8, 1, "image").tobytes() for _ in keys]
    return InferRequest(
        robot=_text(row, "robot"),
        session=_text(row, "session"),
        task=_text(row, "task"),
        round=_count(row, "round"),
        attempt=_count(row, "attempt"),
        seed=_count(row, "seed"),
        instruction=_text(row, "instruction"),
        state=state,
        images=dict(zip(keys, jpegs, strict=True)),
        shrunk=frozenset(shrunk),
    )


def _outcome(row: Any, arrays: Any) -> InferOutcome:
    if not isinstance(row, dict):
        raise WireError("an outcome that is not a map")
    code = _code(row)
    if code is not RefusalCode.NONE:
        return InferFailure(code, _text(row, "reason"))
    chunk = _next(arrays, np.float32, 2, "chunk")
    updates = _next(arrays, np.float32, 3, "updates")
    if updates.shape[1:] != chunk.shape:
        raise WireError(f"updates of shape {updates.shape} for a chunk of shape {chunk.shape}")
    return InferResult(chunk, updates)


def _next(arrays: Any, dtype: type, dims: int, name: str) -> np.ndarray:
    array: np.ndarray | None = next(arrays, None)
    if array is None:
        raise WireError(f"the array of {name} is missing")
    if array.dtype != dtype or array.ndim != dims:
        raise WireError(
            f"{name} is {array.dtype} of {array.ndim} dimensions, "
            f"expected {np.dtype(dtype)} of {dims}"
        )
    return array


def _exhausted(arrays: Any) -> None:
    if next(arrays, None) is not None:
        raise WireError("more arrays than the fields speak of")


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise WireError(f"{key} is {type(value).__name__}, expected text")
    return value


def _count(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value < 2**64:
        raise WireError(f"{key} is not a whole number from 0 to 2**64 - 1")
    return value


def _number(fields: Mapping[str, Any], key: str) -> float:
    value: Any = fields.get(key)
    if type(value) not in (int, float):
        raise WireError(f"{key} is {type(value).__name__}, expected a number")
    if not math.isfinite(value):
        raise WireError(f"{key} is {value}, expected a finite number")
    return float(value)


def _list(fields: Mapping[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise WireError(f"{key} is {type(value).__name__}, expected a list")
    return value


def _code(fields: Mapping[str, Any]) -> RefusalCode:
    value: Any = fields.get("code")
    try:
        return RefusalCode(value)
    except ValueError as error:
        raise WireError("code is not a refusal code that this side knows") from error


READERS = (read_infer, read_result, read_received, read_error, read_status, read_description)
"""What reads the messages of a peer: a value or a WireError, whatever it said (`bench/fuzz.py`)."""
