"""`kairos simulate`: a fleet in virtual time."""

import json
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.document.text_file import read_json
from kairos_ros.engine.policies.calibration_file import NAME, read_calibration
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.metric import METRICS, QUEUEING
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import RECORDED, Rules
from kairos_ros.lab.sim.sim_engine import NO_CAP, SimEngine, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.lab.sim.workloads import WORKLOADS, workload
from kairos_ros.lab.study.simulated import with_cap
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import make_folder, save_run
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.recording.runs.trace_file import read_traces
from kairos_ros.serving.options import ServingOptions

DEFAULT_WORKLOAD = "pi05-libero"
LINE_EVERY_S = 3.0


def simulate_command(
    traces: Annotated[
        Path | None,
        typer.Argument(help="Trace file (.jsonl, .jsonl.gz).", metavar="[TRACES]"),
    ] = None,
    workload_: Annotated[
        str,
        typer.Option(
            "--workload",
            help=f"Instead of traces: {', '.join(WORKLOADS)}. All but metaworld are synthetic.",
        ),
    ] = "",
    robots: Annotated[int, typer.Option(min=1, max=100_000, help="Size of the fleet.")] = 100,
    rate: Annotated[
        float | None,
        typer.Option(min=0.0001, help="Poisson arrivals, tasks per second (online)."),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100,
            help="Instead of --rate, with --workload: what the tasks ask for under the static "
            "horizon, as a multiple of what the edge engines can do in batches of --batch-cap.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Every robot takes task after task; also without --rate and --load."
        ),
    ] = False,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks in all; default: each trace once.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1000, help="Instead of --tasks: robots take tasks for so many hours."
        ),
    ] = None,
    scheduling: Annotated[
        str, typer.Option(help="Scheduling policy, such as fifo.")
    ] = "wait_ratio",
    horizon: Annotated[
        str,
        typer.Option(
            help="Horizon policy, such as static:10, judged by the server on the recorded chunks; "
            "`recorded`: as it was."
        ),
    ] = RECORDED,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="JSON of `kairos calibrate`, for --horizon calibrated and static:tuned; default: "
            "that of the traces' policy, where that ships.",
            metavar="FILE",
        ),
    ] = None,
    accounting: Annotated[
        Literal["replay", "observation"],
        typer.Option(
            help="replay: requests leave at the recorded action, and every round executes a fixed "
            "number of actions. observation: as a robot node, a horizon counts from its "
            "observation and actions executed meanwhile are lost."
        ),
    ] = "observation",
    lead: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Actions left in the buffer when the next request leaves; default: what the "
            "expected latency takes.",
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="Engine: a file of `kairos profile`, or a line such as 80+35b, milliseconds per "
            "batch + per request; default: the workload's, else 80+35b.",
            metavar="FILE|LINE",
        ),
    ] = "",
    batch_cap: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Largest batch; default: the profile's.")
    ] = None,
    engines: Annotated[int, typer.Option(min=1, max=1000, help="Engines at the edge.")] = 1,
    cloud: Annotated[
        str,
        typer.Option(
            help="Profile of one more engine, in the cloud; empty: none.", metavar="FILE|LINE"
        ),
    ] = "",
    wan_ms: Annotated[
        float, typer.Option(min=0, max=10_000, help="Round trip to the cloud, milliseconds.")
    ] = 100.0,
    wan_mbps: Annotated[
        float, typer.Option(min=0, help="Bandwidth to the cloud, megabits per second; 0: no limit.")
    ] = 0.0,
    cloud_replicas: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Batches that the cloud computes at once, in a pool."),
    ] = 1,
    network_ms: Annotated[
        float, typer.Option(min=0, max=10_000, help="Round trip robot to server, milliseconds.")
    ] = 5.0,
    spread: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=2,
            help="Spread of compute times, standard deviation of their logarithm; default: the "
            "profile's p10 and p90.",
        ),
    ] = None,
    refetch_ms: Annotated[
        float,
        typer.Option(
            min=0, help="Observations older than this are fetched again; milliseconds, 0: never."
        ),
    ] = 50.0,
    deadline_s: Annotated[
        float,
        typer.Option(min=0.1, help="Requests queued for longer are refused and sent anew."),
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same run.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run, for `kairos report`; default: none.")
    ] = None,
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
    ] = "table",
) -> None:
    """Simulate a fleet in virtual time: the real scheduler, recorded tasks, profiled engines.

    Ctrl-C ends it early and keeps what was simulated.
    """
    given = {k: v for k, v in locals().items() if v is not None}
    if hours is not None and tasks is not None:
        raise typer.BadParameter("give either --tasks or --hours")
    if [rate is not None, load is not None, offline].count(True) > 1:
        raise typer.BadParameter("give one of --rate, --load and --offline")
    if load is not None and traces is not None:
        raise typer.BadParameter("--load needs a workload, whose static horizon is known")
    if traces is not None and workload_:
        raise typer.BadParameter("give either a trace file or --workload")
    work = _work(traces, workload_ or DEFAULT_WORKLOAD, profile, batch_cap)
    if load is not None:
        rate = engines * work.rate_of_load_1 * load
    known = _calibration(calibration, work.traces[0].policy)
    options = ServingOptions(
        scheduling=parse_scheduling(scheduling),
        horizon_policy="static:10",
        calibration=known,
        stale_after_ns=round(refetch_ms * 1e6),
        default_deadline_ns=round(deadline_s * 1e9),
        max_queue=max(1000, robots),
        batch_cap=batch_cap or NO_CAP,
    )
    fleet = FleetOptions(
        robots=robots,
        rules=Rules(accounting, horizon, lead, calibration=known),
        network_s=network_ms / 1e3,
        open_s=None if hours is None else hours * 3600,
    )
    there = [
        SimEngine(f"edge_{i}" if engines > 1 else "edge", work.profile, spread=spread)
        for i in range(engines)
    ]
    if cloud:
        far = replace(_profile(cloud, batch_cap), policy_id=work.profile.policy_id)
        there.append(
            SimEngine(
                "cloud",
                far,
                "cloud",
                wan_ms / 1e3,
                wan_mbps,
                replicas=cloud_replicas,
                spread=spread,
            )
        )
    count = None if hours is not None else tasks or len(work.traces)
    given["rate"] = rate
    if out is not None:
        make_folder(out)
    console = Console(stderr=True)
    with _Watch(console, count, fleet.open_s) as watch:
        run = simulate(
            trace_tasks(work.traces, seed, rate, count),
            fleet,
            options,
            there,
            seed,
            watch.progress,
            watch.stopped,
        )
    _show(run, format_, _title(work, scheduling, horizon, accounting, robots, rate))
    if out is not None:
        save_run(out, run, _configuration(given, work))
    if watch.stopped():
        raise typer.Exit(130)


@dataclass(frozen=True, slots=True)
class _Work:
    name: str
    traces: tuple[Trace, ...]
    profile: EngineProfile
    rate_of_load_1: float


def _work(traces: Path | None, name: str, profile: str, batch_cap: int | None) -> _Work:
    if traces is None:
        named = workload(name)
        if profile:
            own = replace(_profile(profile, batch_cap), policy_id=named.profile.policy_id)
            named = replace(named, profile=own)
        elif batch_cap:
            named = replace(named, profile=with_cap(named.profile, batch_cap))
        rate = named.arrival_rate(1.0, batch_cap or NO_CAP)
        return _Work(name, named.traces, named.profile, rate)
    try:
        recorded = tuple(t for t in read_traces(traces) if t.actions)
    except OSError as error:
        raise ConfigError(f"{traces} cannot be read: {error}") from None
    if not recorded:
        raise ConfigError(f"{traces}: there is no trace with an executed action")
    engine = replace(_profile(profile or "80+35b", batch_cap), policy_id=recorded[0].policy)
    return _Work(str(traces), recorded, engine, 0.0)


def _calibration(file: Path | None, policy_id: str) -> HorizonCalibration | None:
    if file:
        return read_calibration(file)
    shipped = map(read_calibration, sorted((share() / "models").glob(f"*/{NAME}")))
    return next((one for one in shipped if one.policy_id == policy_id), None)


def _profile(text: str, batch_cap: int | None) -> EngineProfile:
    file = Path(text)
    if not file.is_file():
        return linear_profile(text, batch_cap or 8)
    try:
        return EngineProfile.from_dict(read_json(file))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"profile {file}: {error}") from None


class _Watch:
    """Shows how far the simulation is; the first Ctrl-C asks it to stop, the second one ends it."""

    def __init__(self, console: Console, tasks: int | None, open_s: float | None) -> None:
        columns = (TextColumn("{task.description}"), *Progress.get_default_columns()[1:3])
        self._bar = Progress(
            *columns,
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._console = console
        self._tasks, self._open_s = tasks, open_s
        self._stop = False
        self._due_s = time.monotonic() + LINE_EVERY_S
        self._task = self._bar.add_task("simulating", total=tasks or open_s)

    def __enter__(self) -> "_Watch":
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        signal.signal(signal.SIGINT, self._before)

    def stopped(self) -> bool:
        return self._stop

    def progress(self, tasks: int, now_s: float) -> None:
        done = tasks if self._tasks else min(now_s, self._open_s or now_s)
        text = f"{tasks} tasks, {now_s / 60:.1f} virtual minutes"
        self._bar.update(self._task, completed=done, description=text)
        if not self._console.is_terminal and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + LINE_EVERY_S
            self._console.print(text, highlight=False)

    def _interrupt(self, *_: object) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True


def _configuration(given: dict[str, Any], work: _Work) -> dict[str, Any]:
    """What the run was asked for, as `kairos report` shows it."""
    asked = {k.rstrip("_"): v for k, v in given.items() if k not in ("out", "format_")}
    asked["traces"] = work.name
    if "calibration" in asked:
        asked["calibration"] = str(asked["calibration"])
    return {"command": "simulate", **asked, "profile": work.profile.to_dict()}


def _title(
    work: _Work, scheduling: str, horizon: str, accounting: str, robots: int, rate: float | None
) -> str:
    arrivals = "back to back" if rate is None else f"{rate:.3g} tasks/s"
    return f"{work.name} · {scheduling} · {horizon} · {accounting} · {robots} robots · {arrivals}"


def _show(run: FleetRun, format_: str, title: str) -> None:
    summary = summarise(run)
    if format_ == "json":
        typer.echo(json.dumps({"length_s": run.length_s, "summary": asdict(summary)}))
        return
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(style="bright_black")
    table.add_column(justify="right")
    online = any(task.wanted_s != task.given_s for task in run.tasks)
    for metric in METRICS:
        if online or metric is not QUEUEING:
            table.add_row(metric.label, metric.text(summary))
    table.add_row("tasks, unfinished", f"{summary.tasks}, {summary.unfinished}")
    table.add_row("rounds", str(len(run.rounds)))
    table.add_row("refused, dropped", f"{summary.refusals}, {summary.dropped}")
    table.add_row("virtual time", f"{run.length_s / 60:.1f} min")
    Console().print(table)
