"""The `kairos` command line. Every command is a function of the package that does the work."""

import importlib
import signal
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kairos_ros.core.errors import KairosError
from kairos_ros.host.interrupt import ctrl_c_kept
from kairos_ros.host.share import share

COMMANDS = {
    "demo": "kairos_ros.lab.commands.demos.arms:demo_command",
    "up": "kairos_ros.commands.up:up_command",
    "drill": "kairos_ros.lab.commands.demos.drill:drill_command",
    "record": "kairos_ros.commands.bags.record:record_command",
    "bag info": "kairos_ros.commands.bags.bag:info_command",
    "bag repair": "kairos_ros.commands.bags.bag:repair_command",
    "bag export": "kairos_ros.commands.bags.bag_export:export_command",
    "trace extract": "kairos_ros.commands.bags.bag:extract_command",
    "trace export": "kairos_ros.commands.bags.bag:export_command",
    "trace record": "kairos_ros.lab.commands.trace:record_command",
    "replay": "kairos_ros.lab.commands.replay:replay_command",
    "simulate": "kairos_ros.lab.commands.simulate:simulate_command",
    "study": "kairos_ros.lab.commands.study:study_command",
    "schedule explain": "kairos_ros.lab.commands.explain:explain_command",
    "horizon": "kairos_ros.lab.commands.horizon:horizon_command",
    "report": "kairos_ros.lab.commands.report:report_command",
    "fleet check": "kairos_ros.commands.fleets.fleet:check_command",
    "fleet schema": "kairos_ros.commands.fleets.fleet:schema_command",
    "fleet show": "kairos_ros.commands.fleets.fleet:show_command",
    "fleet plan": "kairos_ros.commands.fleets.plan:plan_command",
    "fleet admit": "kairos_ros.commands.fleets.admit:admit_command",
    "fleet up": "kairos_ros.commands.fleets.fleet:up_command",
    "fleet apply": "kairos_ros.commands.fleets.planned:apply_command",
    "fleet join": "kairos_ros.commands.fleets.planned:join_command",
    "fleet status": "kairos_ros.commands.fleets.planned:status_command",
    "fleet demo": "kairos_ros.lab.commands.demos.factory:factory_command",
    "fleet states": "kairos_ros.commands.fleets.fleet:states_command",
    "doors": "kairos_ros.commands.doors:doors_command",
    "dashboard": "kairos_ros.commands.dashboard:dashboard_command",
    "sim-so101": "kairos_ros.lab.commands.demos.sim_so101:sim_so101_command",
    "arm up": "kairos_ros.commands.robots.arm:arm_up_command",
    "arm demo": "kairos_ros.lab.commands.demos.arm:arm_demo_command",
    "arm plan": "kairos_ros.commands.robots.arm:arm_plan_command",
    "task send": "kairos_ros.commands.robots.task:send_command",
    "task cancel": "kairos_ros.commands.robots.task:cancel_command",
    "policy swap": "kairos_ros.commands.engines.policy:swap_command",
    "policy restore": "kairos_ros.commands.engines.policy:restore_command",
    "robot check": "kairos_ros.commands.robots.robot:check_command",
    "slo": "kairos_ros.lab.commands.slo:slo_command",
    "profile": "kairos_ros.commands.engines.profile:profile_command",
    "gateway": "kairos_ros.commands.gateway:gateway_command",
    "worker": "kairos_ros.commands.engines.worker:worker_command",
    "keys new": "kairos_ros.commands.engines.keys:new_command",
    "keys list": "kairos_ros.commands.engines.keys:list_command",
    "keys export": "kairos_ros.commands.engines.keys:export_command",
    "keys import": "kairos_ros.commands.engines.keys:import_command",
    "keys revoke": "kairos_ros.commands.engines.keys:revoke_command",
    "train": "kairos_ros.lab.commands.train:train_command",
    "evaluate": "kairos_ros.lab.commands.train:evaluate_command",
    "evaluate-arm": "kairos_ros.lab.commands.evaluate_arm:evaluate_arm_command",
    "train-judge": "kairos_ros.lab.commands.train_judge:train_judge_command",
    "calibrate": "kairos_ros.lab.commands.calibrate:calibrate_command",
}
"""Command -> module:function."""

GROUPS = {
    "fleet": "Fleet files: which robots do which tasks with which models.",
    "arm": "One arm, simulated or real, as its launch file runs it.",
    "task": "What a robot does now.",
    "policy": "Which policy new tasks get.",
    "robot": "Robots behind ROS 2 drivers, and their contracts.",
    "schedule": "Ask the scheduler why.",
    "bag": "Look into bags, repair them, and make datasets of them.",
    "keys": "Who may use a network link.",
    "trace": "Tasks to replay and to simulate.",
}
"""Group -> what its commands are for."""

HELP = "Serve big action models to a fleet of robots from shared GPUs."


def app(words: Sequence[str] = ()) -> typer.Typer:
    """The command line as a Typer application. With what was typed, only of the command that it
    begins with: loading all of them takes longer than most of them run."""
    root = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    root.callback()(_root)
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in GROUPS.items()}
    for name, group in groups.items():
        group.callback()(_group)
        root.add_typer(group, name=name)
    named = [command for command in COMMANDS if command.split() == [*words[: len(command.split())]]]
    for command in named or COMMANDS:
        *into, name = command.split()
        (groups[into[0]] if into else root).command(name)(_load(COMMANDS[command]))
    return root


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kairos_ros {package_version()}")
        raise typer.Exit


def package_version() -> str:
    """Of the installed package.xml: colcon leaves no metadata for Python."""
    return ElementTree.parse(share() / "package.xml").findtext("version", "")


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Takes the options of `kairos` itself."""


def _group() -> None:
    """Makes a group a group although it has only one command."""


def _load(where: str) -> Any:
    module, function = where.split(":")
    return getattr(importlib.import_module(module), function)


def main() -> None:
    """Runs the command line. Ctrl-C ends it with code 130; while Python itself ends, at once."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run() -> None:
    """Errors that the user can fix are printed without a traceback."""
    try:
        run = app(sys.argv[1:])
        with ctrl_c_kept():
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                # while commands were loaded, both ended the process at once (`start`)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run()
    except KairosError as error:
        print(f"kairos: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"kairos: {str(error.filename)[:200]}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
