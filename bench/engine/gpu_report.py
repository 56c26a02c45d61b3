"""The page, the plot and the profiles of `python -m bench gpu`, from its gpu.json."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.engine.unified import HEADER, rows
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

Results = dict[str, Any]
"""Slice -> what it found."""


def write_report(folder: Path, order: Sequence[str]) -> None:
    """Writes gpu.md, gpu.png and profiles/. `order`: all slices."""
    data = json.loads((folder / "gpu.json").read_text())
    slices = data["slices"]
    done = {
        name: slices[name]["result"]
        for name in order
        if slices.get(name, {}).get("status") == "done"
    }
    write_profiles(folder / "profiles", done)
    sections = [
        head(data, done),
        about_machine(done.get("machine")),
        loading(done),
        latency(done),
        compiled(done),
        independence(done),
        idle(done),
        questions(done.get("unified")),
        unfinished(slices, order),
    ]
    if plotted := [name for name in done if "profile" in done[name] and "_" not in name]:
        plot(folder / "gpu.png", done, plotted)
        sections.insert(4, "![Latency and throughput against batch size](gpu.png)\n")
    (folder / "gpu.md").write_text("\n".join(filter(None, sections)))


def head(data: Results, done: Results) -> str:
    size = (
        "The policies have the size of LeRobot's default configurations"
        if data["size"] == "real"
        else "**This is a dry run with tiny policies. Its numbers say nothing about a GPU**"
    )
    return (
        f"# Policies on {data['device']}\n\n{size}. **Their weights are random**, which changes "
        "neither memory nor latency; that the actions are of use is not measured here. Requests "
        "are made up. Latency is that of the engine, in its own process, without decoding of "
        "pictures and without the hop to it.\n"
        f"\n{len(done)} slices are done. Everything measured is in gpu.json.\n"
    )


def about_machine(found: Results | None) -> str:
    if not found:
        return ""
    rows = [
        ("GPU", found.get("gpu", "none")),
        ("nvidia-smi", found.get("nvidia_smi", "")),
        ("processor", f"{found['processor']}, {found['cores']} cores"),
        ("memory", f"{found['memory_b'] / 1e9:.0f} GB"),
        ("system", f"{found['system']}, Python {found['python']}"),
        ("torch", f"{found['torch']}, CUDA {found.get('cuda')}, cuDNN {found.get('cudnn')}"),
        ("LeRobot, transformers", f"{found['lerobot']}, {found['transformers']}"),
        ("matrix product, bfloat16", f"{found['tflops_bfloat16']:.3g} TFLOP/s"),
        ("matrix product, float32", f"{found['tflops_float32']:.3g} TFLOP/s"),
        ("copy on the device", f"{found['copy_gb_s']:.3g} GB/s, read and written"),
        ("copy to the device", f"{found['to_device_gb_s']:.3g} GB/s, pageable"),
    ]
    return "## Machine\n\n" + table(("what", "found"), rows)


def loading(done: Results) -> str:
    rows = []
    for name, found in families(done):
        memory, peaks = found["memory"], found.get("batch_memory_b") or {}
        largest = max(peaks, key=int, default="")
        rows.append(
            (
                name,
                found["dtype"],
                gigabytes(found["file_b"]),
                f"{found['loading']['load_s']:.1f}",
                f"{stage_s(found, 'verifying'):.1f}",
                f"{found['loading']['ready_s']:.1f}",
                gigabytes(memory.get("gpu_weights_b")),
                gigabytes(memory.get("gpu_device_b")),
                f"{gigabytes(peaks.get(largest))} (batch {largest})" if peaks else "",
            )
        )
    if not rows:
        return ""
    columns = ["slice", "dtype", "file GB", "loaded s", "of it verifying s", "ready s"]
    columns += ["weights on the GPU GB", "GPU in use GB", "peak in a batch GB"]
    note = (
        "Loaded: from options to a first pass. Ready: all batch sizes are warm, too. In use: all "
        "that the device holds after loading, the CUDA context included.\n\n"
    )
    return "## Loading and memory\n\n" + note + table(columns, rows)


def latency(done: Results) -> str:
    rows = [
        (
            name,
            found["dtype"],
            str(size),
            *(milliseconds(s) for s in times),
            f"{size / times[1]:.1f}",
        )
        for name, found in ((n, f) for n, f in done.items() if "profile" in f)
        for size, *times in quantiles(found["profile"])
    ]
    if not rows:
        return ""
    columns = ("slice", "dtype", "batch", "p10 ms", "p50 ms", "p90 ms", "chunks/s")
    decode = ", ".join(
        f"{name} {1e3 * found['decode_s_per_request']:.1f} ms" for name, found in families(done)
    )
    return (
        "## Latency\n\n" + table(columns, rows) + f"\nDecoding per request, on the CPU: {decode}.\n"
    )


def compiled(done: Results) -> str:
    rows = []
    for name, found in done.items():
        if "compile_s" not in found:
            continue
        p50 = dict(zip(found["profile"]["batch_sizes"], found["profile"]["p50_s"], strict=True))
        eager = done.get(name.removesuffix("_compiled"), {}).get("profile", {})
        before = dict(zip(eager.get("batch_sizes", ()), eager.get("p50_s", ()), strict=True))
        gains = [f"{before[s] / p50[s]:.2f} (batch {s})" for s in p50 if s in before]
        apart = found["difference"]
        if isinstance(apart, dict):
            apart = ", ".join(f"{value:.2g} (batch {size})" for size, value in apart.items())
        rows.append(
            (
                name,
                f"{found['compile_s']:.0f}",
                ", ".join(map(str, p50)),
                ", ".join(gains),
                apart,
                f"{found['allowed_difference']:g}",
            )
        )
    if not rows:
        return ""
    columns = ["slice", "compiling s", "batches", "times as fast as uncompiled"]
    columns += ["largest difference of an action", "allowed"]
    note = (
        "Nothing was compiled before. Differences are in normalised units; where one is larger "
        "than allowed, the engine refuses to serve that policy compiled.\n\n"
    )
    return "## Compiled\n\n" + note + table(columns, rows)


def independence(done: Results) -> str:
    names = ["rows", "alone", "other_batch_mates", "same_batch_again"]
    names += ["between_rows", "deviation_of_actions"]
    rows = [
        (name, found["dtype"], *(f"{found['independence'][key]:.2g}" for key in names))
        for name, found in families(done)
    ]
    if not rows:
        return ""
    columns = ["slice", "dtype", "rows", "alone", "other batch-mates", "same batch again"]
    columns += ["between two rows", "deviation of all actions"]
    note = (
        "Largest differences of an action from the same request in one batch, in normalised units; "
        "the last two columns say how much actions differ at all.\n\n"
    )
    return "## Rows alone and in a batch\n\n" + note + table(columns, rows)


def idle(done: Results) -> str:
    rows = []
    for found in done.values():
        for arm, blocks in found.get("blocks", {}).items():
            idle, rate, batch = (sorted(values) for values in zip(*blocks, strict=True))
            middle = len(blocks) // 2
            spread = f"{idle[0]:.1%} to {idle[-1]:.1%}"
            numbers = f"{idle[middle]:.1%}", spread, f"{rate[middle]:.1f}", f"{batch[middle]:.1f}"
            rows.append((found["family"], arm, *numbers))
    if not rows:
        return ""
    columns = ("family", "batches", "idle", "of the blocks", "robots/s", "robots in a batch")
    note = "32 robots that always ask, through a worker; see `python -m bench engine_idle`.\n\n"
    return "## Idle between two batches\n\n" + note + table(columns, rows)


def questions(found: Results | None) -> str:
    if not found:
        return ""
    seconds = {
        way: {int(length): values for length, values in of.items()}
        for way, of in found["seconds"].items()
    }
    note = (
        f"A question per frame, whose answer has N tokens; batch 1, {found['dtype']}; see "
        "`python -m bench unified`.\n\n"
    )
    return "## Questions on the prefill of chunks\n\n" + note + table(HEADER, rows(seconds))


def unfinished(slices: Results, order: Sequence[str]) -> str:
    lines = [
        f"- `{name}` failed after {entry['seconds']:.0f} s: {' '.join(entry['reason'].split())}\n"
        for name, entry in slices.items()
        if entry["status"] == "failed"
    ]
    if missing := [name for name in order if name not in slices]:
        lines.append(f"- not run: {', '.join(missing)}\n")
    for name, entry in slices.items():
        said = entry.get("result", {}).get("warnings", [])
        lines += [f"- `{name}` warned: {' '.join(text.split())}\n" for text in dict.fromkeys(said)]
    return "## Not done, and warnings\n\n" + "".join(lines) if lines else ""


def write_profiles(folder: Path, done: Results) -> None:
    """An engine profile per slice, as parameter `profile` of the serving node reads it."""
    for name, found in done.items():
        if "profile" in found:
            folder.mkdir(exist_ok=True)
            text = json.dumps(found["profile"], indent=2)
            (folder / f"{name}.profile.json").write_text(text + "\n")


def plot(path: Path, done: Results, names: Sequence[str]) -> None:
    """A row per family: p50 with p10 to p90, and chunks per second, against batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator, ScalarFormatter

    figure, axes = pyplot.subplots(
        len(names), 2, figsize=(8, 2.4 * len(names) + 0.6), squeeze=False, layout="constrained"
    )
    figure.suptitle("Latency and throughput against batch size, random weights")
    for row, name in zip(axes, names, strict=True):
        for slice_, label, colour in (
            (name, "bfloat16", BASELINE),
            (f"{name}_float32", "float32", "#d0a050"),
            (f"{name}_compiled", "bfloat16, compiled", OURS),
        ):
            if slice_ not in done:
                continue
            points = list(quantiles(done[slice_]["profile"]))
            size, p10, p50, p90 = zip(*points, strict=True)
            low, middle, high = ([1e3 * s for s in times] for times in (p10, p50, p90))
            row[0].fill_between(size, low, high, color=colour, alpha=0.25, linewidth=0)
            row[0].plot(size, middle, "o-", color=colour, label=label, markersize=3)
            rates = [b / s for b, s in zip(size, p50, strict=True)]
            row[1].plot(size, rates, "o-", color=colour, markersize=3)
        row[0].set(title=name, ylabel="ms per batch, p50", yscale="log")
        row[1].set(ylabel="chunks/s", ylim=(0, None))
        for labels in (row[0].yaxis.set_major_formatter, row[0].yaxis.set_minor_formatter):
            labels(ScalarFormatter())
        row[0].legend(frameon=False, fontsize=7)
        for axis in row:
            axis.set(xscale="log", xlabel="robots in a batch")
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xticks(size, labels=map(str, size))
            axis.xaxis.set_minor_locator(NullLocator())
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def families(done: Results) -> Iterable[tuple[str, Results]]:
    """Slices that loaded a policy without compiling it."""
    return ((name, found) for name, found in done.items() if "independence" in found)


def quantiles(profile: Results) -> Iterable[tuple[int, float, float, float]]:
    """Batch size, and p10, p50 and p90 in seconds."""
    columns = (profile[key] for key in ("batch_sizes", "p10_s", "p50_s", "p90_s"))
    return zip(*columns, strict=True)


def stage_s(found: Results, begin: str) -> float:
    return sum(float(s) for stage, s in found["loading"]["stages"] if stage.startswith(begin))


def gigabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.2f}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
