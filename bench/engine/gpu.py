"""All that needs a GPU, in slices that are resumed: `python -m bench gpu`.

Policies of LeRobot's families at their real size, with random weights, are made without the hub
and loaded by the engine that serves robots. Each family has three slices: in bfloat16 (loading,
memory, latency by batch size, rows alone against rows in a batch), compiled, and in float32. Every
slice is a process of its own with a time limit, and its result is written to FOLDER/gpu.json at
once. A second call skips what is there; no slice is started that is not expected to end within the
minutes that are left. In the end FOLDER gets a page (gpu.md), a plot, and the engine profiles of
each family for the simulators (profiles/).

    python -m bench gpu --device cpu --size tiny    # a dry run without a GPU
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.engine.gpu_report import write_report
from bench.support.arguments import positive_ints
from bench.support.servers import ROOT

FAMILIES = ("pi05", "smolvla", "act", "diffusion", "xvla", "pi0")
ESTIMATES_S = {
    "pi05": (130, 360, 130),
    "smolvla": (75, 240, 75),
    "act": (35, 300, 35),
    "diffusion": (100, 180, 100),
    "xvla": (110, 240, 120),
    "pi0": (130, 360, 130),
}
"""Seconds of the three slices of a family at real size on an H200 with 16 cores: measured for pi05,
smolvla and act in bfloat16 (docs/gpu.md), else guessed."""
TINY_S = 40
"""Of any slice at tiny size."""
REPORT_S = 10
"""Kept for the page."""
OVERRUN = 3
"""A slice is ended after so many times what it was expected to take, or when the time is up."""
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Slice:
    """What one process measures."""

    about: str
    expected_s: int
    """How long it probably takes."""
    family: str = ""
    """Whose folder it needs."""


def slices_of(size: str) -> dict[str, Slice]:
    """By name, in the order in which they run: slices of a family share its folder."""
    slices = {"machine": Slice("names, versions, matrix products, copies", 25)}
    for family in FAMILIES:
        eager_s, compiled_s, float32_s = ESTIMATES_S[family]
        slices[family] = Slice("bfloat16: loading, memory, latency, rows", eager_s, family)
        # a worker has no tiny pi05: its size is hard-coded, and changed in the process of a slice
        if family == ("pi05" if size == "real" else "smolvla"):
            about = "how long a worker waits between two batches"
            slices["idle"] = Slice(about, 200, family)
        if family == "pi05":
            slices["unified"] = Slice("questions answered from the prefill of chunks", 200, family)
        slices[f"{family}_compiled"] = Slice("bfloat16, compiled", compiled_s, family)
        slices[f"{family}_float32"] = Slice("as bfloat16, in float32", float32_s, family)
    if size == "tiny":
        return {name: replace(found, expected_s=TINY_S) for name, found in slices.items()}
    return slices


def start_results(folder: Path, device: str, size: str) -> dict[str, Any]:
    """What earlier calls found, or nothing yet. Raises SystemExit where that is no such file, or
    one of another device or size."""
    file = folder / "gpu.json"
    if not file.exists():
        return {"format": FORMAT, "device": device, "size": size, "slices": {}}
    results: dict[str, Any] = json.loads(file.read_text())
    found = tuple(results.get(key) for key in ("format", "device", "size"))
    if found != (FORMAT, device, size):
        raise SystemExit(
            f"{file} holds format, device and size {found}, and not {(FORMAT, device, size)}; use "
            "another --out"
        )
    return results


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """Replaces gpu.json at once, so that it is always whole."""
    new = folder / "gpu.json.new"
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(folder / "gpu.json")


def run_child(command: Sequence[str], limit_s: float, environment: dict[str, str]) -> str:
    """Runs a command in a session of its own; returns why it did not end well, or nothing.

    Everything that it started is killed when it ends, after `limit_s`, and when this process is
    interrupted.
    """
    child = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        code = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"it was ended at its limit of {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it ended with code {code}" if code else ""


def run_slice(
    name: str, family: str, limit_s: float, work: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Its entry in gpu.json: `status` is done, with a `result`, or failed, with a `reason`."""
    answer, log = work / "answer.json", work / "slice.log"
    answer.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    settings = {
        "device": options.device,
        "size": options.size,
        "batches": options.batches,
        "family": family,
        "work": str(work),
        "results": str(options.out / "gpu.json"),
        "answer": str(answer),
        "log": str(log),
    }
    path = (
        str(ROOT),
        str(ROOT / "test" / "support" / "policies"),
        os.environ.get("PYTHONPATH", ""),
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "bench.engine.gpu_slices", name]
    start = time.monotonic()
    reason = run_child([*command, "--settings", json.dumps(settings)], limit_s, environment)
    entry: dict[str, Any] = {
        "seconds": time.monotonic() - start,
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    found = json.loads(answer.read_text()) if answer.exists() else {}
    if "result" in found and not reason:
        return {"status": "done", **entry, **found}
    tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
    reason = reason or found.get("reason", "it left no answer")
    return {"status": "failed", "reason": reason, **entry, "log_tail": tail}


def run_slices(options: argparse.Namespace, deadline: float, console: Console) -> None:
    """Runs what is not done yet and can probably end before `deadline` (of time.monotonic)."""
    folder: Path = options.out
    slices = slices_of(options.size)
    results = start_results(folder, options.device, options.size)
    write_results(folder, results)
    skipped = ("done",) if options.retry else ("done", "failed")
    with tempfile.TemporaryDirectory(prefix="kairos-gpu-", ignore_cleanup_errors=True) as temporary:
        work = Path(temporary)
        for name in options.slices:
            if (earlier := results["slices"].get(name, {}).get("status")) in skipped:
                console.print(f"{name}: {earlier} in an earlier call, skipped")
                continue
            what, left_s = slices[name], max(0.0, deadline - time.monotonic())
            if what.expected_s > left_s:
                console.print(
                    f"{name}: not started, it takes about {what.expected_s} s and {left_s:.0f} s "
                    "are left"
                )
                continue
            for other in set(FAMILIES) - {what.family}:
                shutil.rmtree(work / other, ignore_errors=True)
            limit_s = min(OVERRUN * what.expected_s, left_s)
            console.print(f"{name}: {what.about}, at most {limit_s:.0f} s")
            entry = run_slice(name, what.family, limit_s, work, options)
            results["slices"][name] = entry
            write_results(folder, results)
            console.print(f"{name}: {entry['status']} {entry.get('reason', '')}", markup=False)


def listing(folder: Path, size: str) -> Table:
    """All slices, and what came of them so far."""
    file = folder / "gpu.json"
    entries = json.loads(file.read_text())["slices"] if file.exists() else {}
    table = Table("slice", "what", "expected s", "status", "took s")
    for name, what in slices_of(size).items():
        entry = entries.get(name, {})
        took = f"{entry['seconds']:.0f}" if entry else ""
        table.add_row(name, what.about, str(what.expected_s), entry.get("status", ""), took)
    return table


def has_gpu() -> bool:
    """Asked in another process: this one needs no torch."""
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", question], check=False).returncode == 0


def chosen_slices(text: str, size: str) -> list[str]:
    """In the order in which they run. Raises ValueError for a name that is none."""
    known = list(slices_of(size))
    names = set(text.split(",")) if text else set(known)
    if unknown := names - set(known):
        raise ValueError(
            f"unknown slice {', '.join(sorted(unknown))}; known are {', '.join(known)}"
        )
    return [name for name in known if name in names]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help="folder of results [runs/gpu, runs/gpu-tiny]")
    parser.add_argument("--slices", default="", help="a,b: only these [all]")
    parser.add_argument("--list", action="store_true", help="say which slices there are, and leave")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for this call; 0 only writes the page [9]"
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu [cuda]")
    parser.add_argument("--size", choices=("real", "tiny"), default="real", help="[real]")
    parser.add_argument("--batches", type=positive_ints, help="sizes [1,2,4,8,16,32; tiny: 1,2]")
    parser.add_argument("--retry", action="store_true", help="run slices again that failed")
    options = parser.parse_args()
    default = [1, 2, 4, 8, 16, 32] if options.size == "real" else [1, 2]
    options.batches = sorted({1, *(options.batches or default)})
    try:
        options.slices = chosen_slices(options.slices, options.size)
    except ValueError as error:
        parser.error(str(error))
    options.out = options.out or ROOT / "runs" / ("gpu" if options.size == "real" else "gpu-tiny")
    return options


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    start = time.monotonic()
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 120)
    if options.list:
        console.print(listing(options.out, options.size))
        return 0
    if options.minutes and options.device.startswith("cuda") and not has_gpu():
        raise SystemExit(
            "torch finds no CUDA GPU here; `python -m bench gpu --device cpu --size tiny` is a dry "
            "run without one"
        )
    signal.signal(signal.SIGTERM, _leave)
    # what a shell starts in the background ignores Ctrl-C, unless it says otherwise
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    code = 0
    try:
        run_slices(options, start + 60 * options.minutes - REPORT_S, console)
    except KeyboardInterrupt:
        console.print("interrupted; what is done is kept")
        code = 130
    write_report(options.out, list(slices_of(options.size)))
    console.print(f"written to {options.out / 'gpu.json'} and {options.out / 'gpu.md'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
