"""The `kairos` command line. Every command is a function of the package that does the work."""

import importlib
import sys
from typing import Any

import typer

from kairos_ros.core.errors import KairosError
from kairos_ros.extras import explained

COMMANDS = {
    "demo": "kairos_ros.demo.command:demo_command",
    "up": "kairos_ros.up:up_command",
    "drill": "kairos_ros.drill.command:drill_command",
    "record": "kairos_ros.record:record_command",
    "bag info": "kairos_ros.evaluation.bag.commands:info_command",
    "bag repair": "kairos_ros.evaluation.bag.commands:repair_command",
    "trace extract": "kairos_ros.evaluation.bag.commands:extract_command",
    "replay": "kairos_ros.replay.command:replay_command",
    "simulate": "kairos_ros.evaluation.simulate_command:simulate_command",
    "study": "kairos_ros.evaluation.study.command:study_command",
    "schedule explain": "kairos_ros.evaluation.explain:explain_command",
    "horizon": "kairos_ros.evaluation.horizon_command:horizon_command",
    "report": "kairos_ros.evaluation.report.command:report_command",
    "fleet check": "kairos_ros.fleet_command:check_command",
    "fleet schema": "kairos_ros.fleet_command:schema_command",
    "fleet show": "kairos_ros.fleet_command:show_command",
    "fleet up": "kairos_ros.fleet_command:up_command",
    "fleet demo": "kairos_ros.demo.factory_command:factory_command",
    "fleet states": "kairos_ros.fleet_command:states_command",
    "dashboard": "kairos_ros.dashboard.command:dashboard_command",
    "sim-so101": "kairos_ros.robot.feetech_command:sim_so101_command",
    "arm up": "kairos_ros.demo.arm_command:arm_up_command",
    "arm demo": "kairos_ros.demo.arm_command:arm_demo_command",
    "arm plan": "kairos_ros.demo.arm_command:arm_plan_command",
    "robot check": "kairos_ros.robot_command:check_command",
    "slo": "kairos_ros.evaluation.slo_command:slo_command",
    "profile": "kairos_ros.engine.profile_command:profile_command",
    "worker": "kairos_ros.engine.worker_command:worker_command",
    "keys new": "kairos_ros.transport.keys_command:new_command",
    "keys list": "kairos_ros.transport.keys_command:list_command",
    "keys export": "kairos_ros.transport.keys_command:export_command",
    "keys import": "kairos_ros.transport.keys_command:import_command",
    "keys revoke": "kairos_ros.transport.keys_command:revoke_command",
    "train": "kairos_ros.training.command:train_command",
    "evaluate": "kairos_ros.training.command:evaluate_command",
    "evaluate-arm": "kairos_ros.training.arm_command:evaluate_arm_command",
    "train-judge": "kairos_ros.training.judge_command:train_judge_command",
    "calibrate": "kairos_ros.training.calibrate_command:calibrate_command",
}
"""Command -> module:function."""

GROUPS = {
    "fleet": "Fleet files: which robots do which tasks with which models.",
    "arm": "One arm, simulated or real, as its launch file runs it.",
    "robot": "Robots behind ROS 2 drivers, and their contracts.",
    "schedule": "Ask the scheduler why.",
    "bag": "Look into bags, and repair them.",
    "keys": "Who may use a network link.",
    "trace": "Tasks to replay and to simulate.",
}
"""Group -> what its commands are for."""

HELP = "Serve big action models to a fleet of robots from shared GPUs."


def app() -> typer.Typer:
    """The command line as a Typer application."""
    root = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in GROUPS.items()}
    for name, group in groups.items():
        group.callback()(_group)
        root.add_typer(group, name=name)
    for command, where in COMMANDS.items():
        *group, name = command.split()
        (groups[group[0]] if group else root).command(name)(_load(where))
    return root


def _group() -> None:
    """Makes a group a group although it has only one command."""


def _load(where: str) -> Any:
    module, function = where.split(":")
    return getattr(importlib.import_module(module), function)


def main() -> None:
    """Runs the command line; errors that the user can fix are printed without a traceback."""
    try:
        with explained("kairos"):
            app()()
    except KairosError as error:
        print(f"kairos: {error}", file=sys.stderr)
        sys.exit(2)
