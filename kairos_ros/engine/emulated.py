"""An engine of known latency, for load tests and for GPUs that are not here. It thinks nothing.

`emulated:latency_ms=80+35b,chunk=50,dim=7,steps=10,state=7,images=cam@224x224|wrist@224x224`
sleeps 80 ms + 35 ms per robot in the batch. Every option has a default; `images` is empty.
`observations=2` makes it one that reads the last two observations. `load_s=20` makes it one that
takes 20 s to load, `memory_mib=5000` one that says that it takes so much memory.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.spec import split_options
from kairos_ros.core.wire_check import OBSERVATIONS
from kairos_ros.engine.interface import PreparedBatch
from kairos_ros.engine.policies.observation import refusal
from kairos_ros.engine.policies.saved_policy import PREFIX
from kairos_ros.transport.messages import (
    EngineDescription,
    InferOutcome,
    InferRequest,
    InferResult,
)

MOST = {"chunk": 4096, "dim": 4096, "steps": 4096, "state": 4096, "memory_mib": 10_000_000}
"""Whole numbers among the options, and how large each may be."""
LONGEST_LOAD_S = 600.0
_NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True, slots=True)
class EmulatedSpec:
    """What an emulated engine pretends to be."""

    base_ms: float = 0.0
    per_row_ms: float = 0.0
    chunk: int = 50
    dim: int = 7
    steps: int = 10
    state: int = 7
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    observations: int = 1
    offset: float = field(default=0.0, repr=False)
    """Added to all that it answers."""
    load_s: float = field(default=0.0, repr=False)
    """What loading it takes."""
    memory_mib: int = field(default=0, repr=False)
    """What it says that it takes."""

    def latency_s(self, batch: int) -> float:
        return max(1e-5, (self.base_ms + self.per_row_ms * batch) / 1e3)


def parse_emulated(text: str) -> EmulatedSpec:
    """Reads `emulated:latency_ms=80+35b,chunk=50,...`. Raises ConfigError naming the bad part."""
    options: dict[str, object] = {}
    for part, key, given in split_options(text.removeprefix(PREFIX)):
        value = given or ""
        if not part:
            continue
        if key == "latency_ms":
            options["base_ms"], options["per_row_ms"] = _latency(value)
        elif key in MOST:
            least = 0 if key in ("steps", "memory_mib") else 1
            if not value.isdecimal() or not least <= int(value) <= MOST[key]:
                raise ConfigError(
                    f"emulated policy: {part!r} is not a number from {least} to {MOST[key]}"
                )
            options[key] = int(value)
        elif key == "observations":
            if value not in map(str, range(1, OBSERVATIONS + 1)):
                raise ConfigError(
                    f"emulated policy: {part!r} is not a number from 1 to {OBSERVATIONS}"
                )
            options[key] = int(value)
        elif key == "load_s":
            if not re.fullmatch(_NUMBER, value) or float(value) > LONGEST_LOAD_S:
                raise ConfigError(
                    f"emulated policy: {part!r} is no number of seconds up to {LONGEST_LOAD_S:g}"
                )
            options[key] = float(value)
        elif key == "offset":
            if not re.fullmatch(rf"-?{_NUMBER}", value):
                raise ConfigError(f"emulated policy: {part!r} is not a number such as 0.5")
            options[key] = float(value)
        elif key == "images":
            options["images"] = dict(_camera(camera) for camera in value.split("|"))
        else:
            raise ConfigError(
                f"emulated policy: unknown option {part!r}; known are latency_ms, chunk, dim, "
                "steps, state, offset, images, observations, load_s and memory_mib"
            )
    return EmulatedSpec(**options)  # type: ignore[arg-type]


class EmulatedEngine:
    """Deterministic chunks after a known time.

    Action 0 of every row of a chunk is `state[0]` exactly, so that any action can be traced to
    the observation it came from; action 1 is the row's index; the next ones are `state[0]` of the
    observations before, newest first. The rest is a random walk from the seed. An `offset` is added
    to all of it, so that any action can be traced to the policy, too. Updates approach the chunk in
    equal steps, except that the last step is three times as large from a seeded row on: there the
    confidence rule finds something to cut.
    """

    answering = None

    def __init__(self, text: str, max_batch: int) -> None:
        spec = parse_emulated(text)
        self._spec = spec
        policy = replace(spec, base_ms=0.0, per_row_ms=0.0)  # the same on a faster GPU
        identity = repr(policy) + (f" + {spec.offset:g}" if spec.offset else "")
        self.description = EngineDescription(
            policy_id="emulated-" + hashlib.sha256(identity.encode()).hexdigest()[:12],
            policy_type="emulated",
            state_dim=spec.state,
            images=spec.images,
            action_dim=spec.dim,
            chunk_size=spec.chunk,
            steps=spec.steps,
            instructions=None,
            device="emulated",
            dtype="float32",
            max_batch=max_batch,
            observations=spec.observations,
            warmup=tuple((b, spec.latency_s(b)) for b in sorted({1, max_batch})),
            memory_mib=spec.memory_mib,
        )

    def prepare(self, requests: Sequence[InferRequest]) -> PreparedBatch:
        """There is nothing to prepare."""
        return partial(self.infer, requests)

    def infer(self, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """Sleeps for the emulated latency of the rows that pass the checks. Images stay encoded."""
        end = time.monotonic()
        refused = [refusal(request, self.description) for request in requests]
        rows = refused.count(None)
        outcomes = [
            bad or emulated_result(self._spec, request)
            for bad, request in zip(refused, requests, strict=True)
        ]
        if rows:
            end += (self._spec.base_ms + self._spec.per_row_ms * rows) / 1e3
            time.sleep(max(0.0, end - time.monotonic()))
        return outcomes


def emulated_result(spec: EmulatedSpec, request: InferRequest) -> InferResult:
    """The chunk [N, D] and updates [K, N, D] that the request's state and seed stand for."""
    generator = np.random.default_rng(request.seed)
    noise = generator.standard_normal((spec.chunk, spec.dim), dtype=np.float32)
    walk = generator.standard_normal((spec.chunk, spec.dim), dtype=np.float32)
    chunk = np.cumsum(0.01 * walk, axis=0, dtype=np.float32)
    chunk[:, 0] = request.state[0]
    if spec.dim > 1:
        chunk[:, 1] = np.arange(spec.chunk)
    for column, seen in zip(range(2, spec.dim), reversed(request.earlier), strict=False):
        chunk[:, column] = seen.state[0]
    chunk += np.float32(spec.offset)
    step = (walk - noise) / np.float32(max(1, spec.steps))
    updates = np.repeat(step[None], spec.steps, axis=0)
    updates[-1:, generator.integers(1, spec.chunk + 1) :] *= 3
    return InferResult(chunk, updates)


def _latency(text: str) -> tuple[float, float]:
    match = re.fullmatch(rf"({_NUMBER})(?:\+({_NUMBER})b)?|({_NUMBER})b", text)
    if match is None:
        raise ConfigError(
            f"emulated policy: latency_ms={text!r}; write 80, 35b or 80+35b (b: per robot)"
        )
    base, row, row_alone = match.groups()
    return float(base or 0), float(row or row_alone or 0)


def _camera(text: str) -> tuple[str, tuple[int, int]]:
    match = re.fullmatch(r"(?P<key>[\w.]+)@(?P<height>\d+)x(?P<width>\d+)", text)
    if match is None:
        raise ConfigError(f"emulated policy: image {text!r}; write key@HEIGHTxWIDTH")
    return match["key"], (int(match["height"]), int(match["width"]))
