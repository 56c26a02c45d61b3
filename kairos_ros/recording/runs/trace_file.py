"""Trace files: JSON lines, plain or gzipped, one trace after the other (docs/traces.md).

Everything is checked on reading and on writing: a file that was written can be read, and whatever
cannot be read is a ConfigError that names the file, the line and the field.
"""

import base64
import binascii
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import first_fault
from kairos_ros.document.text_file import check_regular
from kairos_ros.recording.runs.trace import Trace, TraceRound

FORMAT = "kairos-traces"
VERSION = 1
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_VALUES = 8 * 1024 * 1024
"""Of one array."""
GZIP_MAGIC = b"\x1f\x8b"

Text = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(ge=1, le=65_536)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Array(_Line):
    """Values in C order; read as float32 whatever they were stored as."""

    dtype: Literal["<f2", "<f4", "<f8"]
    shape: Annotated[
        list[Annotated[int, Field(ge=0, le=65_536)]], Field(min_length=1, max_length=3)
    ]
    """The steps of a policy that answers at once are none."""
    base64: str


class _Format(_Line):
    format: str
    version: int


class _Trace(_Line):
    type: Literal["trace"]
    name: Annotated[str, Field(min_length=1, max_length=1000)]
    kind: Text
    instruction: Text
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    control_rate_hz: Annotated[FiniteFloat, Field(gt=0, le=1000)]
    chunk_size: Annotated[int, Field(ge=1, le=4096)]
    action_dim: Annotated[int, Field(ge=1, le=4096)]
    policy: Text
    horizon_policy: Text
    success: bool
    duration_s: Seconds
    rounds: Annotated[int, Field(ge=0, le=10**6)]
    scale: _Array | None = None


class _Round(_Line):
    type: Literal["round"]
    round: Annotated[int, Field(ge=1, le=10**9)]
    requested_at: Count
    observed_at: Count
    horizon: Annotated[int, Field(ge=0, le=4096)]
    executed: Annotated[int, Field(ge=0, le=4096)]
    latency_s: Seconds | None = None
    state: _Array | None = None
    chunk: _Array | None = None
    step_norms: _Array | None = None
    updates: _Array | None = None


def read_traces(path: Path) -> list[Trace]:
    """All traces of a file; gzip is recognised by its content.

    Raises ConfigError for anything that is not a whole file of valid traces.
    """
    check_regular(Path(path))
    source = _Source(Path(path), _read_lines(Path(path)))
    traces: list[Trace] = []
    names: set[str] = set()
    head = source.next(_Format)
    if head is None:
        raise source.error("", f"the file is empty; the first line must be {_head()}")
    if head.format != FORMAT:
        raise source.error("format", f"must be {FORMAT!r}, not {head.format!r}")
    if head.version != VERSION:
        raise source.error(
            "version", f"is {head.version}, this kairos_ros reads version {VERSION} only"
        )
    while (header := source.next(_Trace)) is not None:
        if header.name in names:
            raise source.error("name", f"there was a trace {header.name!r} before")
        names.add(header.name)
        traces.append(_trace(source, header))
    return traces


def check_writable(path: Path) -> None:
    """Makes the folder of a trace file. Raises ConfigError where the file could not be written."""
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"{path}: a trace file is named *.jsonl or *.jsonl.gz")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder")
    with _writing(path) as part:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Writes a `.jsonl` or `.jsonl.gz` file, whole or not at all; the same traces, the same bytes.

    Raises ConfigError for another suffix, for a trace that could not be read back, and where the
    file cannot be written.
    """
    path = Path(path)
    check_writable(path)
    with _writing(path) as part:
        with part.open("wb") as raw, _packed(raw, path) as stream:
            stream.write(_head().encode() + b"\n")
            for trace in traces:
                for line in trace_lines(trace):
                    stream.write(line + b"\n")
        _prove_readable(part)
        os.replace(part, path)


def check_trace(trace: Trace) -> None:
    """Raises ConfigError for a trace that a file cannot hold, naming the field."""
    trace_from_lines(trace_lines(trace), trace.name)


def trace_lines(trace: Trace) -> list[bytes]:
    """As a file holds it. Raises ConfigError for a trace that a file cannot hold."""
    return [line.model_dump_json(exclude_none=True).encode() for line in _lines(trace)]


def trace_from_lines(lines: Iterable[bytes], source_name: str = "trace") -> Trace:
    """The inverse of `trace_lines`. Raises ConfigError, which names the source."""
    source = _Source(Path(source_name), iter(lines))
    header = source.next(_Trace)
    if header is None:
        raise source.error("", "there is no trace")
    return _trace(source, header)


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """The file beside it that becomes it, which is gone afterwards."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _prove_readable(part: Path) -> None:
    try:
        read_traces(part)
    except ConfigError as error:
        raise ConfigError(f"the traces were not written: {error}") from None


class _Source:
    """The lines of a file, numbered."""

    def __init__(self, path: Path, lines: Iterator[bytes]) -> None:
        self.path = path
        self.line = 0
        self._lines = lines

    def next[T: _Line](self, model: type[T]) -> T | None:
        """The next line as `model`; None at the end of the file."""
        self.line += 1
        line = next(self._lines, None)
        if line is None:
            return None
        try:
            return model.model_validate_json(line)
        except ValidationError as error:
            raise self.error("", first_fault(error, model)) from None

    def error(self, field: str, text: str) -> ConfigError:
        return ConfigError(f"{self.path}:{self.line}: {field}{': ' if field else ''}{text}")


def _read_lines(path: Path) -> Iterator[bytes]:
    """Decompressed and limited in length. Raises ConfigError."""
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        for number in count(1):
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ConfigError(
                    f"{path}:{number}: the gzip data is torn or damaged: {error}"
                ) from None
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(
                    f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes"
                )
            if not line:
                return
            yield line


def _trace(source: _Source, header: _Trace) -> Trace:
    scale = _decode(source, "scale", header.scale, (header.action_dim,))
    if scale is not None and not (scale > 0).all():
        raise source.error("scale", "every value must be positive")
    rounds: list[TraceRound] = []
    executed = 0
    for number in range(header.rounds):
        line = source.next(_Round)
        if line is None:
            raise source.error(
                "",
                f"the file ends in trace {header.name!r}, after {number} of its "
                f"{header.rounds} rounds",
            )
        _check_order(source, header, line, rounds[-1] if rounds else None, executed)
        rounds.append(_round(source, header, line))
        executed += line.executed
    fields = header.model_dump(exclude={"type", "rounds", "scale"})
    return Trace(**fields, rounds=tuple(rounds), scale=scale)


def _check_order(
    source: _Source, header: _Trace, line: _Round, before: TraceRound | None, executed: int
) -> None:
    if before is not None and line.round <= before.round:
        raise source.error("round", f"{line.round} follows round {before.round}; it must be later")
    if line.observed_at < line.requested_at:
        raise source.error(
            "observed_at", f"{line.observed_at} must not be below requested_at={line.requested_at}"
        )
    if before is not None and line.observed_at < before.observed_at:
        raise source.error(
            "observed_at",
            f"{line.observed_at} must not be below that of the round before, {before.observed_at}",
        )
    if line.observed_at > executed:
        raise source.error(
            "observed_at",
            f"{line.observed_at}, but the rounds before executed {executed} actions together",
        )
    if line.horizon > header.chunk_size:
        raise source.error("horizon", f"{line.horizon} exceeds chunk_size={header.chunk_size}")
    if line.executed > line.horizon:
        raise source.error("executed", f"{line.executed} exceeds horizon={line.horizon}")


def _round(source: _Source, header: _Trace, line: _Round) -> TraceRound:
    actions = header.chunk_size
    norms = _decode(source, "step_norms", line.step_norms, (None, actions))
    if norms is not None and (norms < 0).any():
        raise source.error("step_norms", "a length is negative")
    return TraceRound(
        round=line.round,
        requested_at=line.requested_at,
        observed_at=line.observed_at,
        horizon=line.horizon,
        executed=line.executed,
        latency_s=line.latency_s,
        state=_decode(source, "state", line.state, (None,)),
        chunk=_decode(source, "chunk", line.chunk, (actions, header.action_dim)),
        step_norms=norms,
        updates=_decode(source, "updates", line.updates, (None, actions, None)),
    )


def _decode(
    source: _Source, field: str, array: _Array | None, wanted: tuple[int | None, ...]
) -> np.ndarray | None:
    """float32, read-only. `wanted` holds None where any length will do."""
    if array is None:
        return None
    shape = tuple(array.shape)
    fits = len(shape) == len(wanted) and all(
        want is None or want == got for got, want in zip(shape, wanted, strict=True)
    )
    if not fits:
        text = ", ".join("any" if want is None else str(want) for want in wanted)
        raise source.error(f"{field}.shape", f"must be [{text}], not {list(shape)}")
    values = int(np.prod(shape, dtype=object))
    if values > MAX_VALUES:
        raise source.error(f"{field}.shape", f"{values} values, at most {MAX_VALUES} are read")
    try:
        data = base64.b64decode(array.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise source.error(f"{field}.base64", f"is not base64: {error}") from None
    dtype = np.dtype(array.dtype)
    if len(data) != values * dtype.itemsize:
        raise source.error(
            f"{field}.base64",
            f"{len(data)} bytes, but shape {list(shape)} of {array.dtype} takes "
            f"{values * dtype.itemsize}",
        )
    with np.errstate(over="ignore"):
        decoded = np.frombuffer(data, dtype).reshape(shape).astype(np.float32)
    if not np.isfinite(decoded).all():
        raise source.error(field, "a value is not finite")
    decoded.flags.writeable = False
    return decoded


def _packed(raw: IO[bytes], path: Path) -> IO[bytes]:
    if path.suffix != ".gz":
        return raw
    # neither the time nor the name of the file gets into its bytes
    return gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)  # type: ignore[return-value]


def _head() -> str:
    return _Format(format=FORMAT, version=VERSION).model_dump_json()


def _lines(trace: Trace) -> Iterator[_Line]:
    try:
        yield _Trace(
            type="trace",
            name=trace.name,
            kind=trace.kind,
            instruction=trace.instruction,
            seed=trace.seed,
            control_rate_hz=float(trace.control_rate_hz),
            chunk_size=trace.chunk_size,
            action_dim=trace.action_dim,
            policy=trace.policy,
            horizon_policy=trace.horizon_policy,
            success=trace.success,
            duration_s=float(trace.duration_s),
            rounds=len(trace.rounds),
            scale=_encode(trace.scale),
        )
        for line in trace.rounds:
            yield _Round(
                type="round",
                round=line.round,
                requested_at=line.requested_at,
                observed_at=line.observed_at,
                horizon=line.horizon,
                executed=line.executed,
                latency_s=None if line.latency_s is None else float(line.latency_s),
                state=_encode(line.state),
                chunk=_encode(line.chunk),
                step_norms=_encode(line.step_norms),
                updates=_encode(line.updates),
            )
    except ValidationError as error:
        raise ConfigError(f"trace {trace.name!r}: {first_fault(error, _Round)}") from None


def _encode(array: np.ndarray | None) -> _Array | None:
    if array is None:
        return None
    data = np.ascontiguousarray(array, "<f4")
    return _Array(
        dtype="<f4", shape=list(data.shape), base64=base64.b64encode(data.tobytes()).decode()
    )
