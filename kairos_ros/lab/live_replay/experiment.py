"""A whole replay: from the traces to the run folder and the table that sums it up."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from kairos_ros.bringup import plan as bringup
from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.emulated import parse_emulated
from kairos_ros.engine.policies.saved_policy import PolicyInputs, policy_inputs
from kairos_ros.lab.live_replay.parity import Parity, parity
from kairos_ros.lab.live_replay.process_messages import ProcessCounts
from kairos_ros.lab.live_replay.progress import ReplayProgress
from kairos_ros.lab.live_replay.testbed import ReplayTestbed, ReplayWorkload
from kairos_ros.lab.live_replay.workload import (
    check_fit,
    fitting_emulated,
    load_traces,
    recorded_tasks,
    robot_spec,
)
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.rules import RECORDED, Rules
from kairos_ros.lab.testbed.processes import FleetError, Interrupted
from kairos_ros.lab.testbed.report import RunReport, summary_table
from kairos_ros.lab.testbed.workload import BACK_TO_BACK
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import make_folder, save_run
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace import Trace

TASKS_PER_ROBOT = 2
"""At least, where the number of tasks is not given."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Of one replay."""

    source: Path
    robots: int
    rate: float | None
    """Tasks per second; None: back to back."""
    tasks: int | None
    rules: Rules
    scheduling: str
    policy: str
    external: bool
    max_batch: int | None
    seed: int
    folder: Path


def replay(options: ReplayOptions) -> int:
    """Returns the exit code of the command. Raises ConfigError for what cannot be replayed."""
    display = ReplayProgress()
    display.print(f"reading {options.source}")
    traces = load_traces(options.source, display.print)
    policy = options.policy
    if policy.startswith("emulated:"):
        policy = fitting_emulated(policy, traces)
    inputs = _inputs(options, policy, traces)
    tasks = options.tasks or max(len(traces), TASKS_PER_ROBOT * options.robots)
    make_folder(options.folder)
    testbed = ReplayTestbed(_serving(options, policy), options.folder / "logs", display)
    try:
        with display, testbed:
            testbed.wait_for_the_server()
            judged = options.rules.accounting == "replay" and testbed.watch.policy in {
                trace.policy for trace in traces
            }
            work = _workload(options, policy, traces, inputs, tasks, judged)
            testbed.probe(work.recorded[0], work.spec)
            run = testbed.run(robot_names(options.robots), work)
            counters = testbed.watch.counters()
    except FleetError as error:
        display.print(f"kairos replay: {error}")
        return 1
    except Interrupted:
        display.print("interrupted before the first task")
        return 0
    by_number = {
        job.number: work.recorded[work.index_of[job.trace.name]].trace
        for job in trace_tasks(traces, options.seed, options.rate, tasks)
    }
    same = parity(run, by_number)
    configuration = _configuration(options, policy, traces, testbed, tasks, judged, counters)
    configuration["parity"] = asdict(same) | {"exact": same.exact}
    save_run(options.folder, run, configuration)
    return _conclude(options, testbed, run, configuration, same)


def robot_names(count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"virtual_{i:0{width}}" for i in range(count)]


def _inputs(options: ReplayOptions, policy: str, traces: Sequence[Trace]) -> PolicyInputs:
    """What the policy reads; of a serving node that runs already, the first answer tells."""
    if options.external and not policy:
        return PolicyInputs(emulated=True)
    inputs = policy_inputs(policy or str(bringup.shipped_policy()))
    check_fit(traces, inputs, policy)
    if options.rules.horizon != RECORDED:
        bringup.check_horizon(options.rules.horizon, policy)
    return inputs


def _serving(options: ReplayOptions, policy: str) -> dict[str, Any] | None:
    if options.external:
        return None
    if policy and not policy.startswith("emulated:") and Path(policy).expanduser().exists():
        policy = str(Path(policy).expanduser().resolve())
    wanted = {"policy": policy, "scheduling": options.scheduling, "max_batch": options.max_batch}
    return {name: value for name, value in wanted.items() if value}


def _workload(
    options: ReplayOptions,
    policy: str,
    traces: Sequence[Trace],
    inputs: PolicyInputs,
    tasks: int,
    judged: bool,
) -> ReplayWorkload:
    engine_ns = None
    if policy.startswith("emulated:"):
        engine_ns = round(parse_emulated(policy).latency_s(1) * 1e9)
    horizons = [_judge(options.rules, trace, policy) if judged else "" for trace in traces]
    return ReplayWorkload(
        jobs=trace_tasks(traces, options.seed, options.rate, tasks),
        tasks=tasks,
        recorded=recorded_tasks(options.source, traces, inputs, options.rules, engine_ns, horizons),
        index_of={trace.name: i for i, trace in enumerate(traces)},
        rules=options.rules,
        spec=robot_spec(traces, inputs),
    )


def _judge(rules: Rules, trace: Trace, policy: str) -> str:
    """The horizon policy that the server judges the recorded policy's chunks by, once more.

    Empty where it cannot: then the recorded lengths are asked for.
    """
    horizon = trace.horizon_policy if rules.horizon == RECORDED else rules.horizon
    with suppress(ConfigError):
        bringup.check_horizon(horizon, policy)
        return horizon
    return ""


def _configuration(
    options: ReplayOptions,
    policy: str,
    traces: Sequence[Trace],
    testbed: ReplayTestbed,
    tasks: int,
    judged: bool,
    counters: dict[str, int],
) -> dict[str, Any]:
    rules, state = options.rules, testbed.watch.state
    return {
        "command": "replay",
        "source": options.source.name,
        "scheduling": state.scheduling if state is not None else options.scheduling,
        "horizon": rules.horizon,
        "accounting": rules.accounting,
        "lead": rules.lead,
        "policy": policy or ("external" if options.external else "metaworld_flow"),
        "policy_id": testbed.watch.policy,
        "recorded_policy_id": traces[0].policy,
        "judged": judged,
        "robots": options.robots,
        "arrivals": BACK_TO_BACK if options.rate is None else f"poisson:{options.rate:g}",
        "seed": options.seed,
        "tasks": tasks,
        "interrupted": testbed.interrupt.requested,
        "failure": testbed.failure,
        "startup": {"ready_s": testbed.ready_s},
        "server": {"counters": counters},
        "robots_side": tallied(testbed.counts),
    }


def tallied(counts: Sequence[ProcessCounts]) -> dict[str, Any]:
    """All processes of robots together."""
    late_ms = np.concatenate([t.late_ms for t in counts]) if counts else np.zeros(0)
    p50, p99 = np.percentile(late_ms, (50, 99)).tolist() if late_ms.size else (None, None)
    dropped: dict[str, int] = {}
    for one in counts:
        for reason, count in one.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return {
        "processes": len(counts),
        "cpu_s": sum(t.cpu_s for t in counts),
        "requests": sum(t.requests for t in counts),
        "silences": sum(t.silences for t in counts),
        "dropped": dropped,
        "late_p50_ms": p50,
        "late_p99_ms": p99,
    }


def _conclude(
    options: ReplayOptions,
    testbed: ReplayTestbed,
    run: FleetRun,
    configuration: dict[str, Any],
    same: Parity,
) -> int:
    console = Console()

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    console.print(summary_table(RunReport(configuration, run)))
    robots = configuration["robots_side"]
    requests_per_s = robots["requests"] / run.length_s if run.length_s else 0.0
    line = f"{requests_per_s:.1f} requests/s over {run.length_s:.1f} s"
    if robots["late_p99_ms"] is not None:
        line += (
            f"; control periods began {robots['late_p50_ms']:.1f} ms late (median), "
            f"{robots['late_p99_ms']:.1f} ms (99 %); the robots took "
            f"{100 * robots['cpu_s'] / max(run.length_s, 1e-9):.0f} % of a core"
        )
    say(line)
    if options.rules.accounting == "replay":
        judged = "judged again" if configuration["judged"] else "as asked for"
        ratio = "" if same.latency_ratio is None else f", latency {same.latency_ratio:.2f} times"
        say(
            f"of {same.recorded} rounds that executed actions {same.replayed} came again, "
            f"{same.same_request} at the same action, {same.same_horizon} of the same length "
            f"({judged}){ratio}"
        )
    say(f"{options.folder}/: run.json, tasks.csv, rounds.csv, logs/")
    if testbed.failure:
        say(testbed.failure, "red")
        return 1
    if testbed.interrupt.requested:
        say("interrupted; what ran until then is kept")
        return 0
    if not summarise(run).tasks:
        refusals = {r.reason for r in run.rounds if not r.horizon and r.reason}
        say(f"no task finished{': ' + '; '.join(sorted(refusals)) if refusals else ''}", "red")
        return 1
    return 0
