"""The `kairos` command line. Every command is a function of the package that does the work."""

import sys

import typer

from kairos_ros.core.errors import KairosError
from kairos_ros.evaluation.explain import explain_command
from kairos_ros.evaluation.horizon_command import horizon_command

app = typer.Typer(
    help="Serve big action models to a fleet of robots from shared GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
schedule = typer.Typer(help="Ask the scheduler why.", no_args_is_help=True)
app.add_typer(schedule, name="schedule")
schedule.command("explain")(explain_command)
app.command("horizon")(horizon_command)


@schedule.callback()
def _schedule() -> None:
    """Keeps `schedule` a group although it has one command."""


def main() -> None:
    """Runs the command line; errors that the user can fix are printed without a traceback."""
    try:
        app()
    except KairosError as error:
        print(f"kairos: {error}", file=sys.stderr)
        sys.exit(2)
