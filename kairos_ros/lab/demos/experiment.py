"""What the demo runs: one configuration, or ours and the baseline in interleaved halves."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from kairos_ros.bringup import plan as bringup
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import TUNED
from kairos_ros.engine.policies.calibration_file import NAME as CALIBRATION
from kairos_ros.engine.policies.calibration_file import read_calibration
from kairos_ros.host.share import share
from kairos_ros.lab.testbed.cloud import Cloud, Cut, Paces, paced
from kairos_ros.lab.testbed.display import Display, LineDisplay, LiveDisplay, print_line
from kairos_ros.lab.testbed.processes import FleetError, Interrupted
from kairos_ros.lab.testbed.report import (
    RunReport,
    comparison,
    comparison_finding,
    comparison_table,
    describe,
    part_latencies,
    policies,
    scene_table,
    server_document,
    summary_table,
    write_json,
)
from kairos_ros.lab.testbed.testbed import FleetTestbed, Startup
from kairos_ros.lab.testbed.tiers import tier_document, tier_table
from kairos_ros.lab.testbed.workload import Arrivals, parse_arrivals, scene_tasks
from kairos_ros.recording.runs.run import FleetRun, joined, shared_tasks
from kairos_ros.recording.runs.run_files import save_run
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

UNTUNED = "static:10"
"""Horizon of the baseline for a policy without a calibration."""
HALF_SHARE = 1 / 3
"""Each of the four half runs of a comparison lasts this share of the duration."""
SECOND_HALF = 5000
"""Number of the first task in the second half of a comparison."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What is the same for every configuration of a demo."""

    robots: int
    duration_s: float
    arrivals: str
    seed: int
    policy: str
    """Folder, hub id or `emulated:...`; empty: the policy that ships."""
    folder: Path
    """Of this demo: logs, summary and pictures."""
    record: bool = False
    """Whether to record a bag there, too."""
    paces: Paces | None = None
    """With a cloud worker, at these paces of both engines."""
    cuts: tuple[Cut, ...] = ()
    """Of the link to it."""
    rviz: bool = False
    """Whether to start the viz node, too."""
    cameras: str = ""
    """Of the arms (`robot.cameras_text`); empty: none."""


def run_once(options: DemoOptions, serving: Mapping[str, Any], *, view: bool) -> int:
    """One configuration. Returns the exit code of the command."""
    console, to = _output(view)
    try:
        with TemporaryDirectory(prefix="kairos-keys-") as keys, ExitStack() as stack:
            testbed = _testbed(options, to, Path(keys))
            for each in (to, testbed):
                stack.enter_context(each)
            if options.paces is not None:
                console.print(_said(options.paces), highlight=False)
            startup = _start(testbed, {**calibration(options), **serving}, console)
            testbed.live.phase = f"{options.robots} robots"
            run = testbed.run(_arrivals(options, 0), options.duration_s, options.cuts)
            report = _report(options, testbed, startup, [run])
    except FleetError as error:
        return _failed(console, error)
    except Interrupted:
        console.print("interrupted before the fleet was ready")
        return 0
    summary = summarise(report.run)
    outcome = {"interrupted": testbed.interrupt.requested, "failures": testbed.failures}
    if options.paces is not None:
        outcome |= tier_document(testbed.chunks, _request_bytes(testbed))
    write_json(options.folder / "summary.json", outcome | report.document())
    save_run(options.folder, report.run, report.configuration)
    _draw_fleet(options.folder / "fleet.png", report)
    console.print(scene_table(report))
    console.print(summary_table(report))
    if options.paces is not None:
        console.print(tier_table(testbed.chunks, _request_bytes(testbed)))
    return _conclude(console, options, testbed, finished=summary.tasks)


def run_comparison(options: DemoOptions, serving: Mapping[str, Any], *, view: bool) -> int:
    """Ours and the baseline on the same tasks: ours, baseline, baseline, ours.

    The robots keep running; the serving node is restarted for each half run. Returns the exit code
    of the command.
    """
    half_s = options.duration_s * HALF_SHARE
    fifo = {"scheduling": "fifo", "horizon": baseline_horizon(options.policy)}
    order = [("ours", serving, 0), ("baseline", fifo, 0)]
    order += [("baseline", fifo, SECOND_HALF), ("ours", serving, SECOND_HALF)]
    runs: dict[str, list[FleetRun]] = {"ours": [], "baseline": []}
    reports: dict[str, RunReport] = {}
    console, to = _output(view)
    testbed = _testbed(options, to)
    try:
        with to, testbed, suppress(Interrupted):
            startup = _start(testbed, serving, console)
            testbed.build_scenes(scenes(options.policy))
            for part, (name, parameters, first) in enumerate(order):
                if testbed.stopped:
                    break
                testbed.live.phase = f"{name}, part {part + 1} of 4"
                if part > 0 and parameters != order[part - 1][1]:
                    testbed.serve(parameters)
                runs[name].append(testbed.run(_arrivals(options, first), half_s))
                reports[name] = _report(options, testbed, startup, runs[name])
    except FleetError as error:
        return _failed(console, error)
    if len(reports) < 2:
        console.print("ended before there was anything to compare")
        return int(bool(testbed.failures))
    ours, baseline = reports["ours"], reports["baseline"]
    rows = comparison(ours, baseline)
    write_json(
        options.folder / "summary.json",
        {
            "interrupted": testbed.interrupt.requested,
            "failures": testbed.failures,
            "half_s": half_s,
            "comparison": rows,
            "ours": ours.document(),
            "baseline": baseline.document(),
        },
    )
    _draw_comparison(options.folder / "fleet.png", ours, baseline)
    for name, report in reports.items():
        save_run(options.folder / name, report.run, report.configuration)
        _draw_fleet(options.folder / f"{name}.png", report)
    console.print(comparison_table(ours, baseline))
    console.print(
        f"{comparison_finding(ours, baseline)}. Order: ours, baseline, baseline, ours, "
        f"{half_s:.0f} s each."
    )
    parts = [" and ".join(f"{s:.2f} s" for s in p) for p in part_latencies(ours, baseline)]
    console.print(
        f"Average latency in the parts: ours {parts[0]}, baseline {parts[1]}. Where the parts of "
        "one configuration differ more than the configurations do, something else used the machine."
    )
    shared = len(shared_tasks(ours.run, baseline.run)[0].tasks)
    return _conclude(console, options, testbed, finished=shared)


def scenes(policy: str) -> list[str]:
    """The demo scenes that a policy knows: all, unless its folder lists its instructions.

    Raises ConfigError when it knows none of them.
    """
    folder = Path(policy) if policy else share() / "models" / "metaworld_flow"
    config = folder / "config.json"
    known = json.loads(config.read_text()).get("instructions") if config.is_file() else None
    if known is None:
        return list(SCENES)
    chosen = [scene for scene, instruction in SCENES.items() if instruction in known]
    if not chosen:
        raise ConfigError(f"policy {policy!r} knows none of the demo's instructions: {known}")
    return chosen


def _output(view: bool) -> tuple[Console, Display]:
    console = Console()
    return console, LiveDisplay(console) if view and console.is_terminal else LineDisplay(console)


def _testbed(options: DemoOptions, to: Display, keys: Path | None = None) -> FleetTestbed:
    bag = options.folder / "bag" if options.record else None
    logs = options.folder / "logs"
    policy, cloud = options.policy, None
    if options.paces is not None and keys is not None:
        policy = policy or str(bringup.shipped_policy())
        cloud = Cloud(logs, keys, paced(policy, options.paces.cloud))
        policy = paced(policy, options.paces.edge)
    return FleetTestbed(
        options.robots,
        policy,
        logs,
        to,
        bag,
        cloud,
        rviz=options.rviz,
        cameras=options.cameras,
    )


def baseline_horizon(policy: str) -> str:
    """The horizon policy of the baseline: each task's tuned static one, where the policy's
    calibration has them (Dai et al. §5.1), else one for all. policy: as in DemoOptions."""
    file = Path(policy or bringup.shipped_policy()) / CALIBRATION
    tuned = file.is_file() and read_calibration(file).static is not None
    return TUNED if tuned else UNTUNED


def calibration(options: DemoOptions) -> dict[str, str]:
    """Parameters of the serving node: the calibration of a paced policy is still in its folder."""
    file = Path(options.policy or bringup.shipped_policy()) / CALIBRATION
    return {"horizon_calibration": str(file)} if options.paces and file.is_file() else {}


def _said(paces: Paces) -> str:
    """What is emulated, said before anything runs."""
    return (
        f"both engines run the demo's policy at the pace of a large model ({paces}), so that the "
        "edge alone is too slow for the fleet; the cloud worker is a process of this host behind "
        "an emulated link"
    )


def _request_bytes(testbed: FleetTestbed) -> float:
    return next((e.request_bytes for e in testbed.live.engines if e.remote), 0.0)


def _arrivals(options: DemoOptions, first: int) -> Arrivals:
    rate = parse_arrivals(options.arrivals)
    return Arrivals(
        scene_tasks(scenes(options.policy), options.seed, rate, first), poisson=rate is not None
    )


def _start(testbed: FleetTestbed, serving: Mapping[str, Any], console: Console) -> Startup:
    startup = testbed.start(serving)
    console.print(
        f"ready after {startup.ready_s:.1f} s: engine {startup.engine_s:.1f} s, "
        f"first robot {startup.first_robot_s:.1f} s, "
        f"all {testbed.robots} robots {startup.all_robots_s:.1f} s",
        highlight=False,
    )
    return startup


def _report(
    options: DemoOptions, testbed: FleetTestbed, startup: Startup, runs: Sequence[FleetRun]
) -> RunReport:
    live = testbed.live
    configuration: dict[str, Any] = {
        "scheduling": live.scheduling,
        "horizon": live.horizon,
        "policy": options.policy or "metaworld_flow",
        "paces": str(options.paces) if options.paces else None,
        "robots": options.robots,
        "arrivals": options.arrivals,
        "seed": options.seed,
        "duration_s": options.duration_s,
    }
    times = asdict(startup) | {"first_action_s": testbed.first_action_s}
    return RunReport(configuration, joined(runs), times, server_document(live))


def _draw_fleet(path: Path, report: RunReport) -> None:
    from kairos_ros.lab.metrics.fleet_plot import plot_fleet

    plot_fleet(path, report.run, summarise(report.run), describe(report.configuration))


def _draw_comparison(path: Path, ours: RunReport, baseline: RunReport) -> None:
    from kairos_ros.lab.metrics.fleet_plot import plot_comparison

    mine, theirs = shared_tasks(ours.run, baseline.run)
    plot_comparison(
        path,
        comparison_finding(ours, baseline),
        f"ours: {policies(ours)} · baseline: {policies(baseline)} · "
        f"{ours.configuration['robots']} robots",
        (mine, summarise(mine)),
        (theirs, summarise(theirs)),
    )


def _failed(console: Console, error: FleetError) -> int:
    print_line(console, f"kairos demo: {error}", "red")
    return 1


def _conclude(
    console: Console, options: DemoOptions, testbed: FleetTestbed, *, finished: int
) -> int:
    """Says where everything is and what went wrong; the exit code."""
    point_latest(options.folder)
    bag = ", bag/" if options.record else ""
    console.print(f"{options.folder}/: summary.json, fleet.png, logs/{bag}", highlight=False)
    console.print(f"as a page: kairos report {options.folder}", highlight=False, soft_wrap=True)
    for failure in testbed.failures:
        print_line(console, failure, "red")
    if testbed.failures:
        return 1
    if testbed.interrupt.requested:
        return 0
    if not finished:
        console.print(f"no task finished; see {options.folder}/logs", style="red")
        return 1
    return 0


def point_latest(folder: Path) -> None:
    """`latest` beside the run folder leads to it; replaced in one step."""
    link = folder.parent / f".latest-{time.monotonic_ns()}"
    link.symlink_to(folder.name)
    link.replace(folder.parent / "latest")
