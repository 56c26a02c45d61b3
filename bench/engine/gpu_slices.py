"""One slice of `python -m bench gpu`, in a process of its own.

    python -m bench.engine.gpu_slices SLICE --settings JSON

Writes what it found, or why it failed, to `Settings.answer`. What it and the libraries print goes
to `Settings.log`; its own progress goes to standard output, a line each.
"""

import argparse
import json
import logging
import math
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.engine.gpu_policies import REAL, around_loading, save_sized
from kairos_ros.core.errors import PolicyError
from kairos_ros.core.profile import EngineProfile
from kairos_ros.engine.interface import Engine, EngineOptions
from kairos_ros.engine.policies import policy_engine
from kairos_ros.engine.profiling import WARM_UP_ROUNDS, measure, sample_request
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferRequest, InferResult

INSTRUCTION = "pick up the cube"
COMPARED = (1, 4)
"""Batch sizes whose chunks are compared, uncompiled with compiled."""
INDEPENDENT = 8
"""Rows that are computed alone and in one batch."""
REPEATS = 3, 30
"""Of every batch size: at least, at most."""
Progress = Callable[[str], None]
Found = dict[str, Any]
"""What a slice found: JSON."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all slices of one call share."""

    device: str
    size: str
    """real or tiny."""
    batches: tuple[int, ...]
    family: str
    """Of this slice."""
    work: str
    """A temporary folder for policies; one folder in it for each family."""
    results: str
    """gpu.json, as it was before this slice."""
    answer: str
    log: str

    @property
    def measured_s(self) -> float:
        """About how long all batches of a family are measured."""
        return 20.0 if self.size == "real" else 2.0


def machine(settings: Settings, progress: Progress) -> Found:
    """Names and versions, and how fast matrices are multiplied and memory is copied."""
    device = torch.device(settings.device)
    progress("names and versions")
    found = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_b": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_free_b": shutil.disk_usage(settings.work).free,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lerobot": _version("lerobot"),
        "transformers": _version("transformers"),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_b": properties.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "triton": _version("triton"),
            "nvidia_smi": _nvidia_smi(),
        }
    side, copied = (8192, 1 << 32) if device.type == "cuda" else (512, 1 << 24)
    for dtype in (torch.bfloat16, torch.float32):
        progress(f"a matrix product of {side} x {side}, {dtype}")
        name = f"tflops_{str(dtype).removeprefix('torch.')}"
        found[name] = 2e-12 * side**3 / _product_s(side, dtype, device)
    progress("copies of memory")
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _timed(lambda: target.copy_(source), device)
    found["copy_gb_s"] = 2e-9 * copied / seconds  # read and written
    host = torch.empty(copied // 16, dtype=torch.uint8)
    seconds = _timed(lambda: target[: copied // 16].copy_(host), device)
    found["to_device_gb_s"] = 1e-9 * (copied // 16) / seconds
    return found


def uncompiled(settings: Settings, progress: Progress, dtype: str) -> Found:
    """Loading, memory, latency and independence of batch-mates, without compilation."""
    folder, build_s = policy_folder(settings, progress, dtype)
    options = engine_options(settings, folder, dtype)
    engine, loading = loaded(options, progress)
    found = {
        "build_s": build_s,
        "file_b": (folder / "model.safetensors").stat().st_size,
        "loading": loading,
        "memory": memory(settings.device),
    }
    found["batch_memory_b"] = batch_memory(engine, settings, progress)
    profile, decode_s = latency(engine, options, settings.batches, settings, progress)
    found |= {"profile": profile.to_dict(), "decode_s_per_request": decode_s}
    progress("rows alone and in a batch")
    found["independence"] = independence(engine, min(INDEPENDENT, max(settings.batches)))
    found["chunks"] = chunks_to_compare(engine, settings.batches)
    return found | description(engine)


def compiled(settings: Settings, progress: Progress, dtype: str) -> Found:
    """Compile time, latency of the compiled policy, and how far its chunks are from those of the
    uncompiled slice.

    The engine refuses a compiled policy that differs much; here it is measured all the same. Tiny
    policies are traced only, since making machine code for a CPU takes a minute for each.
    """
    if settings.size == "tiny":
        torch.compile = partial(torch.compile, backend="aot_eager")
    cache = Path(settings.work) / "inductor"
    shutil.rmtree(cache, ignore_errors=True)  # what is measured is compiling, not reading
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    allowed = policy_engine.TOLERANCE[dtype]
    policy_engine.TOLERANCE = dict.fromkeys(policy_engine.TOLERANCE, math.inf)
    folder, build_s = policy_folder(settings, progress, dtype)
    options = replace(engine_options(settings, folder, dtype), compile=True)
    engine, loading = loaded(options, progress)
    found = {
        "build_s": build_s,
        "loading": loading,
        "memory": memory(settings.device),
        "compile_s": sum(s for stage, s in loading["stages"] if stage.startswith("compiling")),
        "allowed_difference": allowed,
    }
    sizes = tuple(size for size, _ in engine.description.warmup)
    profile, _ = latency(engine, options, sizes, settings, progress)
    found["profile"] = profile.to_dict()
    found["difference"] = difference(engine, chunks_to_compare(engine, sizes), settings)
    return found | description(engine)


def idle(settings: Settings, progress: Progress, dtype: str) -> Found:
    """How long a worker waits between two batches; see `bench engine_idle`."""
    from bench.engine import engine_idle

    folder, build_s = policy_folder(settings, progress, dtype)
    options = replace(engine_options(settings, folder, dtype), max_batch=16)
    blocks, block_s = (4, 10.0) if settings.size == "real" else (1, 2.0)
    log = Path(settings.log)
    found = engine_idle.measure(options, blocks, block_s, log, progress)
    return {
        "family": settings.family,
        "dtype": dtype,
        "build_s": build_s,
        "block_s": block_s,
        "blocks": found,
    }


def unified(settings: Settings, progress: Progress, dtype: str) -> Found:
    """Chunks, and questions answered from their prefill; see `bench unified`."""
    from bench.engine.unified import K, measure

    folder, build_s = policy_folder(settings, progress, dtype)
    real = settings.size == "real"
    options = replace(
        engine_options(settings, folder, dtype), max_batch=1, language_mib=1024 if real else 1
    )
    engine, loading = loaded(options, progress)
    device = torch.device(settings.device)

    def clock() -> float:
        _wait(device)
        return time.perf_counter()

    progress("chunks and questions, three ways")
    blocks, frames = (3, 3) if real else (1, 1)
    seconds = measure(engine, clock, blocks, frames)
    return {
        "family": settings.family,
        "dtype": dtype,
        "build_s": build_s,
        "loading": loading,
        "k": K,
        "seconds": seconds,
    }


def policy_folder(settings: Settings, progress: Progress, dtype: str) -> tuple[Path, float | None]:
    """The folder of a family, made now unless an earlier slice of this call made it, and seconds
    that making it took. Raises RuntimeError where it does not fit."""
    name = settings.family
    folder = Path(settings.work) / name
    built = folder / "built"
    if settings.size == "real":
        require_room(settings, dtype, 0 if built.exists() else REAL[name].file_b)
    if built.exists():
        return folder / "policy", None
    shutil.rmtree(folder, ignore_errors=True)
    progress(f"making a {settings.size} {name} with random weights")
    start = time.perf_counter()
    with around_loading(name, settings.size):
        save_sized(name, settings.size, folder)
    built.touch()
    return folder / "policy", time.perf_counter() - start


def require_room(settings: Settings, dtype: str, file_b: int) -> None:
    """Raises RuntimeError where disk, memory or GPU memory is too small for a family. `file_b`:
    bytes that are going to be written."""
    real = REAL[settings.family]
    weights_b = real.float32_b if dtype == "float32" else max(real.file_b, real.float32_b // 2)
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    needs = [
        ("disk", shutil.disk_usage(settings.work).free, int(1.1 * file_b)),
        # LeRobot builds in float32, reads the file beside it, and makes a copy where it saves
        ("memory", 1024 * int(available.split()[1]), real.float32_b + real.file_b),
    ]
    if settings.device.startswith("cuda"):
        free_b, _ = torch.cuda.mem_get_info(torch.device(settings.device))
        needs.append(("GPU memory", free_b, int(1.3 * weights_b)))
    for what, free_b, needed_b in needs:
        if free_b < needed_b:
            raise RuntimeError(
                f"{settings.family} in {dtype} needs {needed_b / 1e9:.1f} GB of {what}; "
                f"{free_b / 1e9:.1f} GB are free"
            )


def engine_options(settings: Settings, folder: Path, dtype: str) -> EngineOptions:
    tokenizer = folder.parent / "tokenizer"
    named = "google/paligemma" in (folder / "policy_preprocessor.json").read_text()
    return EngineOptions(
        str(folder),
        device=settings.device,
        dtype=dtype,
        max_batch=max(settings.batches),
        tokenizer=str(tokenizer) if named else "",
    )


def loaded(options: EngineOptions, progress: Progress) -> tuple[Engine, Found]:
    """An engine as a worker loads it, and seconds of every stage."""
    began: list[tuple[str, float]] = []

    def note(stage: str) -> None:
        progress(stage)
        began.append((stage, time.perf_counter()))

    start = time.perf_counter()
    engine = load_engine(options, note)
    ends = [at for _, at in began[1:]] + [time.perf_counter()]
    stages = [(stage, end - at) for (stage, at), end in zip(began, ends, strict=True)]
    warming = next(i for i, (stage, _) in enumerate(stages) if stage.startswith("warming up"))
    return engine, {
        "load_s": began[warming][1] - start,  # with a first pass
        "ready_s": time.perf_counter() - start,
        "stages": stages,
    }


class Timed:
    """An engine of this process as `profiling.measure` wants one; notes what decoding took."""

    def __init__(self, engine: Engine) -> None:
        self.description = engine.description
        self.decode_s: list[float] = []
        """Per request."""
        self._engine = engine

    def infer(self, requests: Sequence[InferRequest]) -> tuple[float, float]:
        """Seconds of compute for one batch, and 0: there is no hop to a worker."""
        start = time.perf_counter()
        batch = self._engine.prepare(requests)
        decoded = time.perf_counter()
        results_of(batch())
        self.decode_s.append((decoded - start) / len(requests))
        return time.perf_counter() - decoded, 0.0


def latency(
    engine: Engine,
    options: EngineOptions,
    sizes: Sequence[int],
    settings: Settings,
    progress: Progress,
) -> tuple[EngineProfile, float]:
    """p10, p50 and p90 per batch size without decoding; median seconds of decoding a request."""
    known = engine.description.warmup
    per_row_s = known[-1][1] / known[-1][0]
    round_s = sum(dict(known).get(size, size * per_row_s) for size in sizes)
    least, most = REPEATS
    repeats = int(np.clip(settings.measured_s / round_s - WARM_UP_ROUNDS, least, most))
    total = (WARM_UP_ROUNDS + repeats) * len(sizes)
    progress(f"measuring {total} batches, about {round_s * (WARM_UP_ROUNDS + repeats):.0f} s")
    timed = Timed(engine)
    profile = measure(timed, options, sizes, repeats, INSTRUCTION, lambda: None)  # type: ignore[arg-type]
    return profile, median(timed.decode_s)


def results_of(outcomes: Sequence[Any]) -> list[InferResult]:
    """Raises PolicyError where a request failed."""
    for outcome in outcomes:
        if not isinstance(outcome, InferResult):
            raise PolicyError(f"the policy failed: {outcome.reason}")
    return list(outcomes)


def chunks_of(engine: Engine, rows: Sequence[int]) -> np.ndarray:
    """float32 [rows, N, D] in normalised units (robot units where they are not known)."""
    described = engine.description
    requests = [sample_request(described, row, INSTRUCTION) for row in rows]
    chunks = np.stack([result.chunk for result in results_of(engine.infer(requests))])
    return chunks / np.array(described.action_scale or (1.0,), np.float32)


def chunks_to_compare(engine: Engine, sizes: Sequence[int]) -> Found:
    """By batch size, chunks of the first rows as nested lists."""
    return {
        str(size): chunks_of(engine, range(size)).round(6).tolist()
        for size in COMPARED
        if size <= max(sizes)
    }


def difference(engine: Engine, chunks: Found, settings: Settings) -> Found | str:
    """Largest difference of chunks from those of the uncompiled slice, in normalised units, by
    batch size; or why they are not compared."""
    name, slices = settings.family, json.loads(Path(settings.results).read_text())["slices"]
    eager = slices.get(name, {})
    if eager.get("status") != "done":
        return f"slice {name} has no result to compare with"
    if eager["result"]["policy_id"] != engine.description.policy_id:
        return f"slice {name} was measured with other weights"
    before = eager["result"]["chunks"]
    return {
        size: float(np.abs(np.array(chunk) - np.array(before[size])).max())
        for size, chunk in chunks.items()
        if size in before
    }


def independence(engine: Engine, rows: int) -> Found:
    """Largest differences of chunks, in normalised units."""
    batch = chunks_of(engine, range(rows))
    alone = np.concatenate([chunks_of(engine, [row]) for row in range(rows)])
    again = chunks_of(engine, range(rows))
    other = chunks_of(engine, [0, *range(rows, 2 * rows - 1)])[:1]
    return {
        "rows": rows,
        "alone": float(np.abs(alone - batch).max()),
        "other_batch_mates": float(np.abs(other - batch[:1]).max()),
        "same_batch_again": float(np.abs(again - batch).max()),
        "deviation_of_actions": float(batch.std()),
        "between_rows": float(np.abs(batch[0] - batch[-1]).max()),
    }


def memory(device: str) -> Found:
    """Bytes that are in use now."""
    if not device.startswith("cuda"):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"resident_b": pages * os.sysconf("SC_PAGE_SIZE")}
    torch.cuda.synchronize()
    free_b, total_b = torch.cuda.mem_get_info(torch.device(device))
    return {
        "gpu_weights_b": torch.cuda.memory_allocated(torch.device(device)),
        "gpu_reserved_b": torch.cuda.memory_reserved(torch.device(device)),
        "gpu_device_b": total_b - free_b,
    }


def batch_memory(engine: Engine, settings: Settings, progress: Progress) -> Found:
    """Peak of what torch allocates on the GPU in a batch, weights included, by batch size. Empty
    without a GPU."""
    if not settings.device.startswith("cuda"):
        return {}
    found = {}
    for size in settings.batches:
        progress(f"memory of batch {size}")
        torch.cuda.reset_peak_memory_stats()
        chunks_of(engine, range(size))
        found[str(size)] = torch.cuda.max_memory_allocated()
    return found


def description(engine: Engine) -> Found:
    """What the engine says of itself."""
    described = engine.description
    return {
        "policy_id": described.policy_id,
        "device": described.device,
        "dtype": described.dtype,
        "steps": described.steps,
        "chunk_size": described.chunk_size,
        "images": {name: list(size) for name, size in described.images.items()},
        "warmup": described.warmup,
        "eager": described.eager,
    }


def run(name: str, settings: Settings, progress: Progress) -> Found:
    """A slice by name."""
    if name == "machine":
        return machine(settings, progress)
    if name == "idle":
        return idle(settings, progress, "bfloat16")
    if name == "unified":
        with around_loading(settings.family, settings.size):
            return unified(settings, progress, "bfloat16")
    what = name.removeprefix(settings.family).removeprefix("_")
    with around_loading(settings.family, settings.size):
        if what == "compiled":
            return compiled(settings, progress, "bfloat16")
        return uncompiled(settings, progress, what or "bfloat16")


@contextmanager
def warnings_of_ours() -> Iterator[list[str]]:
    """What kairos_ros warns of meanwhile: batches that were computed otherwise than asked for."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, listener = logging.getLogger("kairos_ros"), Listener(logging.WARNING)
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _nvidia_smi() -> str:
    """Name, driver, memory, power limit and clocks, or why they are not known."""
    fields = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=30
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def _product_s(side: int, dtype: torch.dtype, device: torch.device) -> float:
    """Seconds of a product of two random matrices [side, side]."""
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return _timed(lambda: left @ right, device)


def _timed(call: Callable[[], object], device: torch.device, times: int = 10) -> float:
    """Mean seconds of a call, after three that do not count."""
    for _ in range(3):
        call()
    _wait(device)
    start = time.perf_counter()
    for _ in range(times):
        call()
    _wait(device)
    return (time.perf_counter() - start) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slice")
    parser.add_argument("--settings", required=True)
    arguments = parser.parse_args()
    fields = json.loads(arguments.settings)
    settings = Settings(**fields | {"batches": tuple(fields["batches"])})
    terminal = os.fdopen(os.dup(1), "w", buffering=1)
    with open(settings.log, "a") as log:  # a worker writes there, too
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    start = time.perf_counter()

    def progress(what: str) -> None:
        print(f"  {time.perf_counter() - start:6.1f} s  {what}", file=terminal)

    answer: Found
    try:
        with warnings_of_ours() as said:
            answer = {"result": run(arguments.slice, settings, progress) | {"warnings": said}}
    except (Exception, SystemExit) as error:  # whatever a driver, torch or LeRobot raises
        traceback.print_exc()
        answer = {"reason": f"{type(error).__name__}: {error}"}
    Path(settings.answer).write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
