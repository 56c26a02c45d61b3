"""`kairos up`: a fleet in the foreground, its output in the terminal, until Ctrl-C."""

import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated

import typer

from kairos_ros.bringup import Fleet, check_horizon, plan, rviz_line
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.scheduling import parse_scheduling
from kairos_ros.demo.interrupt import Interrupt

RecordOption = Annotated[bool, typer.Option("--record", help="Record everything into a bag, too.")]
RvizOption = Annotated[
    bool, typer.Option("--rviz", help="Draw the fleet for rviz, too (docs/rviz.md).")
]
OutOption = Annotated[
    Path, typer.Option(help="Where the folder of the log files, and of the bag, is made.")
]


def up_command(
    robots: Annotated[int, typer.Option(min=0, help="Simulated arms: arm_1, arm_2, ...")] = 8,
    policy: Annotated[
        str, typer.Option(help="Policy folder, hub id or emulated:...; empty: the one that ships.")
    ] = "",
    scheduling: Annotated[
        str, typer.Option(help="Scheduling policy, such as fifo; empty: as in serving.yaml.")
    ] = "",
    horizon: Annotated[
        str, typer.Option(help="Horizon policy, such as static:10; empty: as in serving.yaml.")
    ] = "",
    serving: Annotated[
        bool, typer.Option(help="Start the serving node, too; it may also run elsewhere.")
    ] = True,
    record: RecordOption = False,
    rviz: RvizOption = False,
    out: OutOption = Path("runs"),
) -> None:
    """Run the serving node and simulated arms until Ctrl-C, without ros2 launch.

    A node that ends by itself is reported and the others go on; the exit code is 1 then.
    """
    if scheduling:
        parse_scheduling(scheduling)
    if horizon:
        check_horizon(horizon, policy)
    wanted = {"policy": policy, "scheduling": scheduling, "horizon": horizon}
    folder = out / datetime.now().strftime("up_%Y-%m-%d_%H-%M-%S")
    specs = plan(
        robots,
        record=folder / "bag" if record else "",
        serve={name: value for name, value in wanted.items() if value},
        view=rviz,
    )
    specs = specs if serving else specs[1:]
    if not specs:
        raise ConfigError("nothing to start: give --robots or leave out --no-serving")
    if rviz:
        typer.echo(f"in rviz: {rviz_line()}")
    fleet = Fleet(specs, folder)
    raise typer.Exit(run(fleet))


def run(fleet: Fleet) -> int:
    """Runs the fleet until a signal or until all of it has ended; 1 if a node ended by itself."""
    ended: dict[str, int] = {}
    with Interrupt(at_once=fleet.kill) as interrupt, fleet:
        output = _output(fleet)
        while not interrupt.requested and len(ended) < len(fleet.processes):
            dead = fleet.dead()  # asked first, so that last words are read before the report
            _show(output)
            for key in dead.keys() - ended.keys():
                typer.echo(f"{key} {how(dead[key])}", err=True)
            ended = dead
            time.sleep(0.1)
        fleet.stop()
        _show(output)
    return int(bool(ended))


def how(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


Output = dict[str, IO[str]]
"""Log files by name of the process, read up to what was shown."""


def _output(fleet: Fleet) -> Output:
    return {key: fleet.log(key).open(errors="replace") for key in fleet.processes}


def _show(output: Output) -> None:
    width = max(map(len, output))
    for key, file in output.items():
        for line in _whole_lines(file):
            typer.echo(f"{key:{width}} | {line}")


def _whole_lines(file: IO[str]) -> Iterator[str]:
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(start)
            return
        yield line.rstrip("\n")
