"""The parts of `kairos profile` that write load profiles."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import QUANTILES, RATES, LoadProfile
from kairos_ros.core.pipeline import Component
from kairos_ros.core.profile import EngineProfile

if TYPE_CHECKING:
    from kairos_ros.engine.profiling import ProfiledEngine

PATIENCE_S = 30.0
"""How long an answer is waited for."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the command line says of a load profile."""

    as_: str
    model: str
    device_name: str
    memory_mib: float
    in_flight: int
    per_rate_s: float
    basis: str
    image_px: int

    def components(self, default: str) -> tuple[Component, ...]:
        """Raises ConfigError for another word, and for none."""
        words = [word.strip() for word in (self.as_ or default).split(",") if word.strip()]
        known = ", ".join(Component)
        if not words:
            raise ConfigError(f"--as says what it is asked as: {known}")
        for word in words:
            if word not in list(Component):
                raise ConfigError(f"--as {word!r}; components are {known}")
        return tuple(Component(word) for word in words)


def assumed_command(line: str, batches: str, how: LoadOptions, out: Path | None) -> None:
    """Writes an assumed profile, from how long a batch is assumed to take."""
    from kairos_ros.planning.assumed import assumed_profile

    components = how.components("")
    if not how.model or not how.device_name:
        raise ConfigError("--assume needs --model and --device-name, as in the fleet file")
    discrete = components == (Component.SYSTEM1,)
    if not discrete and Component.SYSTEM1 in components:
        raise ConfigError("--as: system1 batches in another way than the others; assume it alone")
    try:
        sizes = [int(part) for part in batches.split(",")] if batches else [1, 2, 4, 8, 16]
    except ValueError:
        raise ConfigError(
            f"batches {batches!r}; write numbers with commas, such as 1,2,4"
        ) from None
    profile = assumed_profile(
        model=how.model,
        components=components,
        device=how.device_name,
        line=line,
        batches=sizes if discrete else [how.in_flight],
        memory_mib=how.memory_mib,
        batching="discrete" if discrete else "continuous",
        spread=0.03 if discrete else 0.15,
        basis=how.basis,
    )
    write_profile(profile, out)


def judge_command(judge: str, how: LoadOptions, instruction: str, out: Path | None) -> None:
    """Measures a judge or a planner."""
    from kairos_ros.engine.profiling import machine
    from kairos_ros.vlm.judge import Judge
    from kairos_ros.vlm.load_measurement import measure_judge, standing_question
    from kairos_ros.vlm.loading import ENDPOINT, load_judge

    components = how.components("")
    if Component.SYSTEM1 in components:
        raise ConfigError("--as system1: measure an action model with --policy and --load")

    def new_judge() -> Judge:
        return load_judge(judge, PATIENCE_S)

    remote = judge.startswith(ENDPOINT)
    in_flight = how.in_flight if remote else 1  # one in this process is asked by one thread
    questions = [
        standing_question(component, instruction, how.image_px, seed)
        for seed in range(8)
        for component in components
    ]
    settings = in_flight.bit_length() + (in_flight & (in_flight - 1) > 0) + RATES + 1
    with _progress() as bar:
        task = bar.add_task("starting", total=settings)
        measured = measure_judge(
            new_judge, questions, in_flight, how.per_rate_s, how.memory_mib,
            lambda what: bar.update(task, description=what, advance=1),
        )  # fmt: skip
    first = new_judge()
    version = first.model
    first.close()
    late = f"; {measured.failed} questions were not answered in time" if measured.failed else ""
    write_profile(
        LoadProfile(
            model=how.model or judge,
            version=version,
            components=components,
            device=how.device_name or machine(1),
            machine=machine(1),
            source="measured",
            basis=f"Poisson arrivals, {how.per_rate_s:g} s per rate, pictures of {how.image_px} px"
            f"{late}",
            batching="continuous" if remote else "discrete",
            sizes=measured.sizes,
            service_s=measured.service_s,
            loads=(measured.load,),
        ),
        out,
    )


def policy_load(
    engine: "ProfiledEngine",
    profile: EngineProfile,
    policy: str,
    instruction: str,
    how: LoadOptions,
    bar: Progress,
) -> LoadProfile:
    """Measures a policy whose engine runs and has a profile."""
    from kairos_ros.engine.load_measurement import measure_loads

    task = bar.add_task("under load", total=RATES * len(profile.useful_batches) + 1)
    loads = measure_loads(
        engine, profile, instruction, how.per_rate_s,
        lambda what: bar.update(task, description=what, advance=1),
    )  # fmt: skip
    if how.memory_mib:
        loads = tuple(replace(load, memory_mib=how.memory_mib) for load in loads)
    return LoadProfile(
        model=how.model or policy,
        version=profile.policy_id,
        components=how.components("system1"),
        device=how.device_name or profile.device,
        machine=profile.machine,
        source="measured",
        basis=f"Poisson arrivals, {how.per_rate_s:g} s per rate, {profile.dtype}",
        batching="discrete",
        sizes=profile.useful_batches,
        service_s=profile.p50_s[: len(profile.useful_batches)],
        loads=loads,
    )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip


def write_profile(profile: LoadProfile, out: Path | None) -> None:
    """Writes it, and shows it."""
    if out is None:
        told = "_".join(str(component) for component in profile.components)
        name = f"{profile.model}_{told}_{profile.device}"
        out = Path(f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-').lower()}.load.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(profile.to_dict(), indent=1) + "\n")
    Console(stderr=True).print(_table(profile))
    typer.echo(f"wrote {out}", err=True)


def _table(profile: LoadProfile) -> Table:
    asked = ", ".join(profile.components)
    table = Table(
        title=f"{profile.model} as {asked} on {profile.device} ({profile.source})",
        caption=profile.basis,
    )
    for column in ("batch", "requests/s", "mean ms", *(f"p{100 * q:g} ms" for q in QUANTILES)):
        table.add_column(column, justify="right")
    for load in profile.loads:
        lines = (load.mean_s, *load.quantiles_s)
        for i, rate in enumerate(load.rates_hz):
            numbers = (f"{1e3 * line[i]:.1f}" for line in lines)
            table.add_row(str(load.batch) if not i else "", f"{rate:.3g}", *numbers)
        table.add_section()
    return table
