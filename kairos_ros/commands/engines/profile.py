"""`kairos profile`: how long an engine needs for a batch, as a file the serving node reads."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kairos_ros.commands.engines.load_profile import (
    LoadOptions,
    assumed_command,
    judge_command,
    policy_load,
    write_profile,
)
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.core.profile import EngineProfile
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.profile_plot import plot_profile
from kairos_ros.engine.profiling import WARM_UP_ROUNDS, batch_sizes, measure, profiled_engine
from kairos_ros.host.extras import require


def profile_command(
    policy: Annotated[
        str, typer.Option(help="LeRobot policy folder, hub id, or emulated:latency_ms=80+35b,...")
    ] = "",
    judge: Annotated[
        str, typer.Option(help="Instead, a judge or planner: openai:URL#NAME, embedded:NAME, ...")
    ] = "",
    assume: Annotated[
        str,
        typer.Option(help="Instead, measure nothing: a batch of b takes 31+10b ms, for example."),
    ] = "",
    load: Annotated[
        bool,
        typer.Option("--load", help="Of a policy: latency against request rate as well, to plan."),
    ] = False,
    as_: Annotated[
        str,
        typer.Option("--as", help="What it is asked as: system1, system2, safety, monitor, A,B."),
    ] = "",
    model: Annotated[
        str, typer.Option(help="Its name in fleet files, where that is another one.")
    ] = "",
    device_name: Annotated[
        str, typer.Option(help="What it runs on, as gpu_type in fleet files [default: as found].")
    ] = "",
    memory_mib: Annotated[
        float, typer.Option(min=0, help="Memory that it takes [default: as a policy says].")
    ] = 0.0,
    in_flight: Annotated[
        int, typer.Option(min=1, max=256, help="Of judges: most requests at the same time.")
    ] = 16,
    per_rate_s: Annotated[
        float, typer.Option(min=1, max=600, help="Seconds that each request rate is measured for.")
    ] = 10.0,
    image_px: Annotated[
        int, typer.Option(min=8, max=4096, help="Of judges: width and height of their picture.")
    ] = 224,
    basis: Annotated[str, typer.Option(help="Of an assumption: what it rests on.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="JSON to write, the plot beside it [default: POLICY_ID.profile.json]."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, max=256, help="Largest batch.")] = 16,
    batches: Annotated[
        str,
        typer.Option(help="Batch sizes, for example 1,2,4 [default: powers of 2 and the largest]."),
    ] = "",
    repeats: Annotated[int, typer.Option(min=3, help="Measured batches of every size.")] = 20,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a forward pass.")] = 1,
    tokenizer: Annotated[
        str, typer.Option(help="Folder or hub id that replaces the policy's tokenizer.")
    ] = "",
    allowed_steps: Annotated[
        str,
        typer.Option(help="Further processor steps that may be loaded: A,B (docs/security.md)."),
    ] = "",
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile", help="Measure the compiled sampler, and the uncompiled one as well."
        ),
    ] = False,
    instruction: Annotated[
        str, typer.Option(help="Instruction for a policy that reads free text.")
    ] = "pick up the cube",
    plot: Annotated[bool, typer.Option(help="Also draw a plot (needs extra eval).")] = True,
) -> None:
    """Measure latency against batch size, or against request rate, and write it down.

    A policy's profile is read by serving nodes. --load, --judge and --assume write load profiles,
    which `kairos fleet plan` reads.
    """
    if sum(map(bool, (policy, judge, assume))) != 1:
        raise ConfigError("give one of --policy, --judge and --assume")
    how = LoadOptions(as_, model, device_name, memory_mib, in_flight, per_rate_s, basis, image_px)
    if judge:
        judge_command(judge, how, instruction, out)
        return
    if assume:
        assumed_command(assume, batches, how, out)
        return
    options = EngineOptions(policy, device, dtype, threads, max_batch, tokenizer, allowed_steps)
    sizes = _sizes(batches, max_batch)
    compiled = replace(options, compile=True)
    if plot:
        require("matplotlib")
    console = Console(stderr=True)
    log = (out.parent if out else Path()) / "profile.worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console
    )
    with bar:
        under_load = how if load and not compile_ else None
        profile, loads = _measured(bar, options, sizes, repeats, instruction, log, under_load)
        if compile_:
            eager = profile
            profile, loads = _measured(
                bar,
                compiled,
                eager.useful_batches,
                repeats,
                instruction,
                log,
                how if load else None,
            )
            without = eager.p50_s[: len(profile.batch_sizes)]
            profile = replace(profile, eager_p50_s=without)
    log.unlink()  # it stays where something went wrong
    out = out or Path(f"{profile.policy_id}.profile.json")
    out.write_text(json.dumps(profile.to_dict(), indent=2) + "\n")
    if plot:
        plot_profile(profile, out.with_suffix(".png"))
    console.print(_table(profile))
    console.print(f"wrote {out}" + (f" and {out.with_suffix('.png')}" if plot else ""))
    if loads is not None:
        write_profile(loads, out.with_name(f"{profile.policy_id}.load.json"))


def _measured(
    bar: Progress,
    options: EngineOptions,
    sizes: Sequence[int],
    repeats: int,
    instruction: str,
    log: Path,
    how: LoadOptions | None,
) -> tuple[EngineProfile, LoadProfile | None]:
    with profiled_engine(options, log) as engine:
        task = bar.add_task("starting", total=None)
        engine.wait_ready(lambda stage: bar.update(task, description=stage))
        total = (WARM_UP_ROUNDS + repeats) * len(sizes)
        what = "measuring, compiled" if options.compile else "measuring"
        bar.update(task, description=what, total=total, completed=0)
        profile = measure(engine, options, sizes, repeats, instruction, lambda: bar.advance(task))
        if how is None:
            return profile, None
        return profile, policy_load(engine, profile, options.policy, instruction, how, bar)


def _sizes(text: str, largest: int) -> tuple[int, ...]:
    """Always with 1: single requests are what a batch is compared with."""
    if not text:
        return batch_sizes(largest)
    try:
        sizes = {int(part) for part in text.split(",")}
    except ValueError as error:
        raise ConfigError(f"batches {text!r}; write numbers with commas, such as 1,2,4") from error
    if min(sizes) < 1 or max(sizes) > largest:
        raise ConfigError(f"batches {text!r}; use sizes from 1 to --max-batch {largest}")
    return tuple(sorted(sizes | {1}))


def _table(profile: EngineProfile) -> Table:
    best = profile.saturation_batch
    table = Table(
        title=f"{profile.policy_id} on {profile.device}, {profile.dtype}",
        caption=f"saturates at {best}; round trip to the worker {1e3 * profile.network_s:.2f} ms",
    )
    columns = ("batch", "p50 ms", "p10", "p90", "ms per robot", "chunks/s")
    for column in (*columns, *(["p50 ms not compiled"] if profile.eager_p50_s else [])):
        table.add_column(column, justify="right")
    eager = profile.eager_p50_s or (None,) * len(profile.p50_s)
    measured = (profile.p50_s, profile.p10_s, profile.p90_s, eager)
    for size, p50, p10, p90, without in zip(profile.batch_sizes, *measured, strict=True):
        numbers = [1e3 * p50, 1e3 * p10, 1e3 * p90, 1e3 * p50 / size, size / p50]
        numbers += [1e3 * without] if without else []
        style = "bold" if size == best else None
        table.add_row(str(size), *(f"{number:.1f}" for number in numbers), style=style)
    return table
