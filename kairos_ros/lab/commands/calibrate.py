"""`kairos calibrate`: the options, and nothing that costs an import."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import printable
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

if TYPE_CHECKING:
    from kairos_ros.core.horizons.calibration import HorizonCalibration
    from kairos_ros.lab.horizons.recorded import Compared
    from kairos_ros.lab.horizons.search import SearchOptions
    from kairos_ros.recording.runs.run import FleetRun


OF_SIMULATION = (
    "episodes", "most_episodes", "ladder", "disturbance", "lead", "static_only", "critic",
    "teach_episodes", "careful_rounds", "longer_leads", "work", "processes",
)  # fmt: skip
"""Options that say nothing about bags."""


def calibrate_command(
    context: typer.Context,
    policy: Annotated[Path, typer.Argument(help="Policy folder.")] = Path("models/metaworld_flow"),
    bags: Annotated[
        list[Path] | None,
        typer.Option(
            help="Bags or runs of a fleet: horizons come from what happened in them, and nothing "
            "is simulated. Say it once for each, or name a folder of them.",
            show_default=False,
        ),
    ] = None,
    success: Annotated[
        str,
        typer.Option(
            help="With --bags, who says whether a task succeeded: told (its robot), judged (the "
            "monitor), or a CSV file with robot, task (SESSION/ID) and success (0 or 1)."
        ),
    ] = "told",
    tasks: Annotated[
        str,
        typer.Option(
            help="Comma-separated Meta-World tasks, or with --bags kinds of tasks in these; empty "
            "means all."
        ),
    ] = "",
    episodes: Annotated[
        int,
        typer.Option(min=8, help="Per task, of each horizon and plan that the search tries."),
    ] = 128,
    worst_loss: Annotated[
        float,
        typer.Option(
            min=0.1, max=50.0, help="Points of success that no task may lose to static:tuned."
        ),
    ] = 2.0,
    slack: Annotated[
        float,
        typer.Option(
            min=0.0, help="Points of success that a plan may cost by the estimate of its test."
        ),
    ] = 0.0,
    error: Annotated[
        float,
        typer.Option(
            min=1e-6, max=0.5, help="Probability that any task loses --worst-loss after all."
        ),
    ] = 0.05,
    most_episodes: Annotated[
        int, typer.Option(min=32, help="Paired episodes of one test, which ends when it is sure.")
    ] = 3000,
    ladder: Annotated[
        str, typer.Option(help="Horizons to choose from, actions.")
    ] = "5,10,15,20,30,40,50",
    disturbance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Noise on executed hand motions, action units.")
    ] = 0.0,
    lead: Annotated[
        int,
        typer.Option(
            min=0,
            help="Actions that robots execute between an observation and the first action of its "
            "chunk: latency and margin times control rate.",
        ),
    ] = 2,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON file; without it horizon_calibration.json in the policy folder."),
    ] = None,
    static_only: Annotated[
        bool,
        typer.Option(
            "--static-only",
            help="Tune static horizons only, and keep the plans that the file has. Without a file "
            "the plan of each task is its tuned static horizon.",
        ),
    ] = False,
    critic: Annotated[
        bool,
        typer.Option(
            "--critic",
            help="Keep the plans that the file has, teach a critic for each task, and use it where "
            "it needs fewer rounds and a test shows that it loses less than --worst-loss; with "
            "--out, the file to extend.",
        ),
    ] = False,
    teach_episodes: Annotated[
        int, typer.Option(min=16, help="With --critic: episodes of each of a task's two lessons.")
    ] = 3000,
    careful_rounds: Annotated[
        int,
        typer.Option(
            min=0,
            help="With --critic: rounds at the beginning of a task that keep its tuned static "
            "horizon; the critic judges the later ones.",
        ),
    ] = 0,
    longer_leads: Annotated[
        str,
        typer.Option(
            help="Comma-separated: keep the plans that the file has, and run each with these "
            "leads. Robots with a lead with which it loses more than --worst-loss to the horizons "
            "of a policy without a calibration get those. With --out, the file to extend.",
        ),
    ] = "",
    work: Annotated[Path, typer.Option(help="Finished tasks are kept here.")] = Path(
        "runs/calibrate"
    ),
    processes: Annotated[int, typer.Option(min=1, max=256, help="Parallel processes.")] = 1,
) -> None:
    """Find the horizons that suit a policy: per task the largest static horizon at the highest
    accuracy, for HORIZON=static:tuned, and a plan that loses less than --worst-loss to it, for
    HORIZON=calibrated. With --critic, a network that judges by the robot's state how far a chunk is
    safe replaces the plan of a task where it is better.

    Simulates one to ten thousand episodes per task, some minutes each. Run the same command again
    to continue a stopped one.
    """
    from kairos_ros.engine.policies.calibration_file import (
        NAME,
        read_calibration,
        write_calibration,
    )
    from kairos_ros.lab.horizons.search import SearchOptions

    options = SearchOptions(
        _numbers("ladder", ladder),
        episodes,
        worst_loss=worst_loss / 100,
        slack=slack / 100,
        error=error,
        most_episodes=most_episodes,
    )
    named = tuple(part.strip() for part in tasks.split(",") if part.strip())
    scenes = named or tuple(SCENES)
    out = out or policy / NAME
    modes = {"--static-only": static_only, "--critic": critic, "--longer-leads": longer_leads}
    said = [mode for mode, on in modes.items() if on]
    if bags:
        for name in OF_SIMULATION:
            source = context.get_parameter_source(name)
            if source and source.name == "COMMANDLINE":
                option = "--" + name.replace("_", "-")
                raise ConfigError(f"{option} is of simulated episodes; leave it out, or --bags")
        if not out.parent.is_dir():
            raise ConfigError(f"there is no folder {out.parent}; name the policy's, or --out FILE")
        keep = read_calibration(out) if out.is_file() else None
        calibration = _recorded(policy, bags, named, success, options, keep)
        write_calibration(out, calibration)
        typer.echo(f"wrote {out}")
        return
    if len(said) > 1:
        raise ConfigError(f"{' and '.join(said)}: say one of them, then the other")
    if (critic or longer_leads) and not out.is_file():
        raise ConfigError(
            f"{said[0]} keeps the plans of a calibration, but there is no {out}; leave it out, or "
            "name the calibration with --out"
        )
    how: dict[str, Any] = {
        "disturbance": disturbance,
        "work": work,
        "processes": processes,
        "report": typer.echo,
    }
    try:
        if longer_leads:
            from kairos_ros.lab.horizons.longer_leads import limit_leads

            calibration = read_calibration(out)
            scenes = named or tuple(names[0] for names in calibration.tasks)
            how |= {"episodes": episodes, "worst_loss": options.worst_loss}
            leads = _numbers("--longer-leads", longer_leads)
            calibration = limit_leads(policy, calibration, scenes, leads, **how)
        elif critic:
            from kairos_ros.lab.horizons.critics import CriticOptions, add_critics

            critics = CriticOptions(teach_episodes, careful_rounds)
            calibration = add_critics(
                policy, read_calibration(out), scenes, options, critics, lead=lead, **how
            )
        else:
            from kairos_ros.lab.horizons.calibrate import calibrate

            keep = read_calibration(out) if static_only and out.is_file() else None
            how |= {"options": options, "static_only": static_only, "keep": keep, "lead": lead}
            calibration = calibrate(policy, scenes=scenes, **how)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues", err=True)
        raise typer.Exit(130) from None
    write_calibration(out, calibration)
    _print(calibration)
    typer.echo(f"wrote {out}")


def _recorded(
    policy: Path,
    bags: list[Path],
    named: tuple[str, ...],
    success: str,
    options: "SearchOptions",
    keep: "HorizonCalibration | None",
) -> "HorizonCalibration":
    from kairos_ros.engine.policies.policy_source import may_hold
    from kairos_ros.lab.horizons import recorded as of_bags
    from kairos_ros.recording.runs.run_source import bag_name, find_runs, read_run

    if success in (of_bags.TOLD, of_bags.JUDGED):
        labels = None
    elif not Path(success).exists():
        raise ConfigError(f"--success {success!r}: told, judged, or a CSV file that exists")
    else:
        labels = of_bags.read_labels(Path(success))
    paths = find_runs(bags)
    unread: dict[Path, ConfigError] = {}

    def runs() -> Iterator["FleetRun"]:
        for number, path in enumerate(paths, 1):
            typer.echo(f"reading {path} ({number} of {len(paths)})", err=True)
            try:
                run, _ = read_run(path)
            except ConfigError as unreadable:
                unread[path] = unreadable
                continue
            for line in run.left_out:
                typer.echo(f"left out {line}")
            yield run

    recorded = of_bags.read_outcomes(runs(), success, labels, cache(partial(may_hold, policy)))
    if len(unread) == len(paths):
        raise next(iter(unread.values()))
    if recorded.others and not recorded.policy:
        raise ConfigError(
            f"the bags are of policy {', '.join(recorded.others)}, and {policy} is another one; "
            "name the folder of that policy"
        )
    if strange := [kind for kind in named if kind not in recorded.tasks]:
        there = ", ".join(sorted(recorded.tasks)) or "none"
        raise ConfigError(f"--tasks: no task {strange[0]!r} of the bags counts; those are: {there}")
    outcomes_of = {k: of for k, of in sorted(recorded.tasks.items()) if k in named or not named}
    error = options.error / max(1, len(outcomes_of))
    chosen = {
        kind: of_bags.choose(outcomes, options.worst_loss, options.slack, error)
        for kind, outcomes in outcomes_of.items()
    }
    for kind, one in chosen.items():
        counts = ", ".join(f"{h}: {ok} of {n}" for h, (ok, n) in one.counts.items())
        plan = f"static {one.horizon}" if not one.missing else f"no plan: {one.missing}"
        typer.echo(f"{kind:28} {plan}; successes by static horizon {counts}")
        for compared in one.compared:
            typer.echo(f"    {_compared(compared, one.reference, options.worst_loss)}")
    for unreadable in unread.values():
        typer.echo(f"left out a bag: {unreadable}")
    for why, tasks in recorded.left_out.most_common():
        typer.echo(f"left out, {why}: {tasks} tasks")
    for other, tasks in recorded.others.most_common():
        typer.echo(f"left out, of policy {other}: {tasks} tasks")
    if lost := sorted(recorded.unlabelled):
        robot, task = map(printable, lost[0])
        typer.echo(
            f"{len(lost)} rows of {success} are of no task of the bags, such as {robot}, {task}; a "
            "task is SESSION/ID, which kairos bag export writes to meta/kairos_ros.json"
        )
    how = {
        "bags": [bag_name(path) for path in paths if path not in unread],
        "success": "labels" if labels is not None else success,
        "worst_loss": options.worst_loss,
        "slack": options.slack,
        "error": options.error,
        "successes": {
            kind: {str(h): list(count) for h, count in one.counts.items()}
            for kind, one in chosen.items()
        },
    }
    return of_bags.calibration_of(recorded, chosen, how, keep)


def _compared(compared: "Compared", reference: int, worst_loss: float) -> str:
    from kairos_ros.lab.horizons.recorded import tasks_needed

    outcomes = compared.outcomes
    text = (
        f"{compared.horizon} against {reference}: in {outcomes.pairs} pairs of tasks it lost "
        f"{outcomes.lost} and won {outcomes.won}"
    )
    if compared.holds:
        return f"{text}; it holds"
    if compared.evidence >= compared.needed:
        return f"{text}; it loses more than the slack"
    needed = tasks_needed(compared, worst_loss)
    return f"{text}; " + (
        f"about {needed} tasks of each would show that it holds, if they go on like this"
        if needed
        else "it loses too much"
    )


def _print(calibration: "HorizonCalibration") -> None:
    static = calibration.static
    assert static
    head = f"{'task':28} {'plan, actions per round':28} "
    typer.echo(f"{head}static:tuned  successes by static horizon")
    for names, h in static.tasks.items():
        of_task = calibration.tasks.get(names)
        plan = "critic" if names in calibration.critics else str(of_task or "")
        if of_task and of_task.longest_lead is not None:
            plan += f", lead up to {of_task.longest_lead}"
        tried = ", ".join(f"{x}: {ok}" for x, ok in static.how["successes"][names[0]].items())
        typer.echo(f"{names[0]:28} {plan:28} {h:<13} {tried}")
    others = str(calibration.unknown or "as without a calibration")
    typer.echo(f"{'tasks that are none of these':28} {others:28} {static.general}")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option}: whole numbers separated by commas, not {text!r}") from None
