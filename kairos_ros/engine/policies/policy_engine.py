"""The engine that runs a LeRobot policy: many robots, one forward pass."""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from kairos_ros.core.errors import PolicyError, RefusalCode
from kairos_ros.core.language.decoding import CHOICES
from kairos_ros.core.profile import SATURATION_GAIN, saturation
from kairos_ros.core.wire_check import OBSERVATIONS
from kairos_ros.engine.interface import EngineLostError, EngineOptions, PreparedBatch, Progress
from kairos_ros.engine.policies.batch_tensors import BatchTensors, CopiedRows
from kairos_ros.engine.policies.compiled import bucket, compile_step, faster, require_same
from kairos_ros.engine.policies.device_memory import MIB, most_taken_mib
from kairos_ros.engine.policies.families.guidance import GuidedSampler, committed_of
from kairos_ros.engine.policies.language.unified_decoder import (
    UnifiedDecoder,
    prefill_tap,
    unified_decoder,
)
from kairos_ros.engine.policies.policy import LoadedPolicy, load_policy
from kairos_ros.engine.policies.policy_source import one_line
from kairos_ros.engine.policies.rows import Row, RowReader
from kairos_ros.engine.policies.sampler import KeepingSampler, Sampler
from kairos_ros.engine.policies.saved_policy import STATE_FEATURES
from kairos_ros.engine.policies.served import LEAVE_OUT
from kairos_ros.transport.messages import (
    EngineDescription,
    InferFailure,
    InferOutcome,
    InferRequest,
    InferResult,
)

log = logging.getLogger(__name__)

AFFINE_STEPS = ("unnormalizer_processor", "device_processor")
"""Steps of a postprocessor that treat every action alike, whatever was observed."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
"""Normalised units by which a compiled sampler's actions may differ, by dtype."""

MEASURED = 3
"""Timed passes per batch size; fewer where they take longer than PASSES_S together."""
PASSES_S = 2.0
WARM_UP_S = 10.0
"""Larger batches are tried while they bring something, and otherwise for so long."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """Requests of one forward pass, and where in their batch they stand."""

    places: list[int]
    rows: list[Row]
    copied: CopiedRows | None


def load_policy_engine(options: EngineOptions, progress: Progress) -> "PolicyEngine":
    """A verified policy, warm for the batches that it will get. Raises PolicyError or
    ConfigError."""
    torch.set_num_threads(options.threads)
    loaded = load_policy(options, progress)
    engine = PolicyEngine(loaded, options)
    engine.measure(progress)
    if options.compile:
        engine.compile(progress)
    taken_mib = most_taken_mib(loaded.device) + engine.states_mib
    engine.description = replace(engine.description, memory_mib=taken_mib)
    return engine


class PolicyEngine:
    """Engine of one LeRobot policy. See `interface.Engine`."""

    def __init__(self, loaded: LoadedPolicy, options: EngineOptions) -> None:
        self._loaded = loaded
        self._sampler = loaded.family.sampler(loaded.policy)
        self._keeping = self._sampler if isinstance(self._sampler, KeepingSampler) else None
        config, inputs = loaded.config, loaded.inputs
        self._state_dims = {
            name: config.input_features[name].shape[0]
            for name in STATE_FEATURES
            if name in config.input_features
        }
        self.description = EngineDescription(
            policy_id=loaded.policy_id,
            policy_type=config.type,
            state_dim=sum(self._state_dims.values()),
            images=inputs.cameras or {},
            action_dim=self._sampler.action_dim,
            chunk_size=self._sampler.chunk_size,
            steps=0,  # what the sampler does, known after a first pass
            instructions=tuple(config.instructions) if hasattr(config, "instructions") else None,
            device=_device_name(loaded.device),
            dtype=loaded.dtype,
            max_batch=min(options.max_batch, loaded.family.largest_batch or options.max_batch),
            any_image_size=inputs.any_size,
            images_optional=inputs.optional,
            observations=self._sampler.observations,
            keyframe_stride=self._keeping.keyframe_stride if self._keeping else 0,
        )
        if self.description.observations > OBSERVATIONS:
            raise PolicyError(
                f"{loaded.policy_id} reads {self.description.observations} observations; robots "
                f"keep at most {OBSERVATIONS}"
            )
        own_resize = loaded.family.resize
        self._tensors = BatchTensors(
            loaded.device,
            self._state_dims,
            self.description.observations,
            own_resize(config) if own_resize and inputs.any_size else None,
        )
        self._offset, self._gain = loaded.units(self.description.action_dim)
        self._rows = RowReader(self.description)
        self._rtc = options.rtc
        self._begun_anew = ""
        """Why the newest pass began the state of its task anew."""
        self._compiled = False
        if self._rtc:
            self._check_affine(options, f"rtc: {LEAVE_OUT}")
        if self._keeping:
            self._check_affine(options, "it is told what was executed")
        self._tap = prefill_tap(loaded, options)
        self.answering: UnifiedDecoder | None = None
        steps = self.warm_up(1)
        if self._tap:
            like, budget = self._tap.take(), options.language_mib * MIB
            choose = CHOICES[options.language_decoding]
            self.answering = unified_decoder(loaded, like, budget, choose)
        self.description = replace(
            self.description,
            steps=steps,
            action_scale=self._scale(),
            language=self.answering is not None,
        )

    @property
    def state_features(self) -> tuple[str, ...]:
        """That a request's state is made of, in this order."""
        return tuple(self._state_dims)

    @property
    def states_mib(self) -> int:
        """Most memory that the states of tasks may come to take."""
        return self._keeping.states_bytes // MIB if self._keeping else 0

    def prepare(self, requests: Sequence[InferRequest]) -> PreparedBatch:
        """Decodes the pictures, several at a time, and copies them to the device; that may be done
        beside a forward pass."""
        prepared = self._rows.read(requests)
        alone = self._keeping is not None
        passes: dict[tuple[object, ...], tuple[list[int], list[Row]]] = {}  # one per set of cameras
        for place, row in enumerate(prepared):
            if isinstance(row, Row):
                places, rows = passes.setdefault((alone and place, *row.images), ([], []))
                places.append(place)
                rows.append(row)
        return partial(self._infer, prepared, [self._pass(*one) for one in passes.values()])

    def infer(self, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """One outcome per request, in order. Raises EngineLostError when the device is lost."""
        return self.prepare(requests)()

    def _infer(self, prepared: list[Row | InferFailure], passes: list[_Pass]) -> list[InferOutcome]:
        outcomes: dict[int, InferOutcome] = {
            place: row for place, row in enumerate(prepared) if isinstance(row, InferFailure)
        }
        for one in passes:
            outcomes |= zip(one.places, self._infer_rows(one.rows, one.copied), strict=True)
        return [outcomes[place] for place in range(len(prepared))]

    def _pass(self, places: list[int], rows: list[Row]) -> _Pass:
        try:
            return _Pass(places, rows, self._copied(rows))
        except Exception:  # whose fault it is shows when it is done again, in its turn
            return _Pass(places, rows, None)

    def _copied(self, rows: list[Row]) -> CopiedRows:
        """Padded to a batch that is compiled."""
        if self._compiled:
            largest = self.description.max_batch
            rows = rows + rows[-1:] * (bucket(len(rows), largest) - len(rows))
        return self._tensors.copied(rows)

    def warm_up(self, size: int) -> int:
        """Runs a batch of zero observations; returns the number of sampler steps.

        Raises PolicyError when that does not work.
        """
        described = self.description
        try:
            chunk, updates = self._forward(self._copied([self._blank()] * size), size)
        except Exception as error:
            raise PolicyError(
                f"{described.policy_id} fails on a zero observation: {one_line(error)}"
            ) from error
        shape = (size, described.chunk_size, described.action_dim)
        whole = shape if not described.keyframe_stride else (size, chunk.shape[1], shape[2])
        if chunk.shape != whole or updates.shape[1:] != whole or whole[1] > shape[1]:
            raise PolicyError(
                f"{described.policy_id} gives chunks {chunk.shape} and updates {updates.shape}, "
                f"its configuration says {shape}"
            )
        if not np.isfinite(chunk).all():
            raise PolicyError(f"{described.policy_id} gives NaN or infinity on a zero observation")
        return len(updates)

    def _blank(self) -> Row:
        """A request with an observation of zeros."""
        described = self.description
        black = {
            key: [np.zeros((*size, 3), np.uint8)] * described.observations
            for key, size in described.images.items()
        }
        request = InferRequest(
            robot="",
            session="",
            task="",
            round=0,
            attempt=0,
            seed=0,
            instruction=described.instructions[0] if described.instructions else "warm up",
            state=np.zeros(described.state_dim, np.float32),
        )
        return Row(request, [request.state] * described.observations, black)

    def compile(self, progress: Progress) -> None:
        """Compiles the sampler for the batches up to saturation, and measures those again.

        Raises PolicyError where that fails or changes what the policy says.
        """
        loaded, eager = self._loaded, self.description.warmup
        assert loaded.family.step is not None  # load_policy refuses the others
        largest = saturation(*zip(*eager, strict=True))
        before, _ = self._chunk(self._copied([self._blank()]))
        step = compile_step(loaded.family.step(loaded.policy), loaded.device)
        self._compiled = True
        progress("compiling (up to minutes, the first time)")
        try:
            after, _ = self._chunk(self._copied([self._blank()]))
            self.measure(lambda stage: progress(f"compiling: {stage}"), largest)
        except Exception as error:  # whatever torch and its C++ compiler raise
            cause = error.__cause__ if isinstance(error, PolicyError) else error
            said = str(cause).strip().partition("\n")[0]
            raise PolicyError(
                f"compile: {type(cause).__name__}: {said}; leave compile out"
            ) from error
        require_same(after, before, TOLERANCE[loaded.dtype])
        step.learning = False
        self.description = replace(self.description, eager=eager)
        log.info("compiled: %s", faster(eager, self.description.warmup))

    def measure(self, progress: Progress, largest: int | None = None) -> None:
        """Warms batches of 1, 2, 4, ... `largest` (default: `max_batch`) up, and notes in the
        description how long they take without image decoding: the fastest of a few, to see through
        what else the machine does.

        Batches beyond the size at which throughput no longer grows are never formed
        (`EngineProfile.saturation_batch`). So that is the last size where the next would take the
        whole longer than WARM_UP_S. Raises PolicyError for a batch that fails.
        """
        largest = largest or self.description.max_batch
        began, best = time.perf_counter(), 0.0
        measured: list[tuple[int, float]] = []
        for size in sorted({2**power for power in range(largest.bit_length())} | {largest}):
            progress(f"warming up: batch {size} of {largest}")
            start = time.perf_counter()
            self.warm_up(size)
            measured.append((size, self._fastest(size)))
            now, throughput = time.perf_counter(), size / measured[-1][1]
            if (
                throughput <= (1 + SATURATION_GAIN) * best
                and now + 2 * (now - start) > began + WARM_UP_S
            ):
                break
            best = max(best, throughput)
        self.description = replace(self.description, warmup=tuple(measured))

    def _fastest(self, size: int) -> float:
        """Seconds of the fastest of MEASURED passes, or of those that fit into PASSES_S."""
        fastest, spent = float("inf"), 0.0
        for _ in range(MEASURED):
            start = time.perf_counter()
            self.warm_up(size)
            seconds = time.perf_counter() - start
            fastest, spent = min(fastest, seconds), spent + seconds
            if spent > PASSES_S:
                break
        return fastest

    def _scale(self) -> tuple[float, ...] | None:
        """Robot units per normalised unit; None where one of them is 0 or not finite."""
        scale = self._gain.abs()
        usable = bool(torch.isfinite(scale).all() and (scale > 0).all())
        return tuple(scale.tolist()) if usable else None

    def _check_affine(self, options: EngineOptions, why: str) -> None:
        """Raises PolicyError for a policy whose actions in robot units do not tell the model's."""
        relative = [step for step in self._loaded.output_steps if step not in AFFINE_STEPS]
        if relative:
            raise PolicyError(
                f"{options.policy} makes its actions by {', '.join(relative)}, which depends on "
                f"the observation; {why}"
            )

    def _infer_rows(self, rows: list[Row], copied: CopiedRows | None = None) -> list[InferOutcome]:
        """All rows at once; if that fails, each alone, so that the culprit fails alone."""
        try:
            chunk, updates = self._forward(copied or self._copied(rows), len(rows))
        except Exception as error:  # whatever a policy raises
            if isinstance(error, torch.AcceleratorError):
                raise EngineLostError(f"the device failed: {error}") from error
            if len(rows) > 1:
                log.warning("a batch of %d failed (%s): trying rows alone", len(rows), error)
                return [self._infer_rows([row])[0] for row in rows]
            reason = f"the policy failed: {type(error).__name__}: {error}"
            return [InferFailure(RefusalCode.ENGINE_FAILED, reason)]
        anew = self._begun_anew
        outcomes = [_outcome(chunk[row], updates[:, row], anew) for row in range(len(rows))]
        if self._tap and self.answering:
            seen = [
                row.request if isinstance(outcome, InferResult) else None
                for row, outcome in zip(rows, outcomes, strict=True)
            ]
            self.answering.frame(seen, self._tap.take())
        return outcomes

    @torch.inference_mode()
    def _forward(self, copied: CopiedRows, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the first `count` rows: chunk float32 [B, N, D] in robot units and updates float32
        [K, B, N, D]."""
        chunk, updates = self._chunk(copied)
        chunk = self._loaded.postprocess(chunk)[:count]
        return chunk.float().cpu().numpy(), updates[:, :count].float().cpu().numpy()

    @torch.inference_mode()
    def _chunk(self, copied: CopiedRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Chunk float32 [B, N, D] and updates [K, B, N, D] in the model's units."""
        loaded = self._loaded
        batch = loaded.preprocess(self._tensors.batch(copied))
        autocast = torch.autocast(loaded.device.type, torch.bfloat16, enabled=loaded.autocast)
        with autocast, self._tap or nullcontext():
            chunk, updates = self._sample(batch, [row.request for row in copied.rows])
        return chunk.float(), updates

    def _sample(
        self, batch: dict[str, Any], requests: list[InferRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._keeping:
            (request,) = requests
            executed = torch.tensor(request.executed).reshape(-1, len(self._gain))
            executed = (executed - self._offset) / self._gain
            chunk, updates, self._begun_anew = self._keeping.go_on(batch, request, executed)
            if self._begun_anew:
                log.warning(
                    "robot %s, task %s, round %d: its state is begun anew: %s",
                    *(request.robot, request.task, request.round, self._begun_anew),
                )
            return chunk, updates
        seeds = [request.seed for request in requests]
        if not self._rtc:
            return cast(Sampler, self._sampler).sample(batch, seeds)
        shape = self.description.chunk_size, self.description.action_dim
        committed = committed_of(
            [torch.tensor(request.committed) for request in requests],
            shape,
            self._offset,
            self._gain,
        )
        guided = cast(GuidedSampler, self._sampler)
        return guided.sample(batch, seeds, committed)


def _outcome(chunk: np.ndarray, updates: np.ndarray, begun_anew: str) -> InferOutcome:
    if np.isfinite(chunk).all() and np.isfinite(updates).all():
        return InferResult(np.ascontiguousarray(chunk), np.ascontiguousarray(updates), begun_anew)
    return InferFailure(RefusalCode.ENGINE_FAILED, "the policy gave NaN or infinity")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)
