"""A fleet in the foreground: its output in the terminal, until Ctrl-C; and the options of commands
that run one."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import IO, Annotated

import typer

from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.bringup.fleet import pictures_of
from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import ConfigError
from kairos_ros.host.interrupt import Interrupt
from kairos_ros.robot.cameras.cameras_text import METAWORLD, SIZE_PX

RecordOption = Annotated[bool, typer.Option("--record", help="Record everything into a bag, too.")]
RvizOption = Annotated[
    bool, typer.Option("--rviz", help="Draw the fleet for rviz, too (docs/rviz.md).")
]
OutOption = Annotated[
    Path, typer.Option(help="Where the folder of the log files, and of the bag, is made.")
]


CamerasOption = Annotated[
    str,
    typer.Option(
        help=f"Cameras of the arms, such as corner2,gripperPOV:480x640 ({SIZE_PX[0]}x{SIZE_PX[1]} "
        f"pixels unless said); Meta-World has {', '.join(METAWORLD)}. 1: those that the policy "
        "reads, which is the one that ships for cameras where none is named. Empty: none.",
        metavar="NAME[:HEIGHTxWIDTH],...",
    ),
]
FleetArgument = Annotated[
    str,
    typer.Argument(
        help="A fleet file, or the name of a shipped one, such as factory.",
        metavar="FILE|NAME",
    ),
]
ArmArgument = Annotated[
    str, typer.Argument(help=f"One of {', '.join(ARGUMENTS)}.", metavar="ARM", show_default=False)
]
Given = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arguments of the arm's launch file, such as use_sim:=false port:=/dev/ttyACM0; "
        "--show-args lists them.",
        metavar="NAME:=VALUE ...",
    ),
]
OutFolder = Annotated[Path, typer.Option(help="Where the folder of this run is made.")]


SERVING = Fleet.key(serving())
"""Name of its process. A signal that kills it leaves the others waiting for the next one."""


def no_cameras(policy: str, cameras: str) -> str:
    """What to say where a policy reads pictures and the arms have no camera; empty: nothing."""
    pictures = pictures_of(policy) if policy and not cameras else None
    if not pictures:
        return ""
    listed = ", ".join(f"{name} ({high}x{wide})" for name, (high, wide) in pictures.items())
    high, wide = next(iter(pictures.values()))
    return (
        f"the policy reads pictures, {listed}, and the arms have no camera: give them some, for "
        f"example --cameras corner2:{high}x{wide}; there are {', '.join(METAWORLD)}"
    )


def arguments(texts: Sequence[str]) -> dict[str, str]:
    """`["use_sim:=false"]` as launch arguments. Raises ConfigError for one without `:=`."""
    found = {}
    for text in texts:
        name, given, value = text.partition(":=")
        if not given or not name:
            raise ConfigError(f"argument {text!r} must read NAME:=VALUE, as for ros2 launch")
        found[name] = value
    return found


def show(known: Mapping[str, tuple[str, str]]) -> None:
    """Prints launch arguments with their defaults."""
    for name, (default, text) in known.items():
        typer.echo(f"{name}:={default}\n    {text}")


def run_folder(out: Path, name: str = "") -> Path:
    """Makes the folder of a run that begins now: `NAME_DATE_TIME` in `out`, with a number behind it
    where another run began in the same second. Raises ConfigError where it cannot be made."""
    began = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for ending in chain([""], map("_{}".format, count(2))):
        folder = out / f"{name}{'_' if name else ''}{began}{ending}"
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"no folder can be made in {out}: {error.strerror}") from error
    return folder


def run(
    fleet: Fleet, turn: Callable[[], None] = lambda: time.sleep(0.1), *, stays: bool = False
) -> int:
    """Runs the fleet until a signal, until all of it has ended, or until its serving node ends with
    an error, which says why it cannot serve; 1 if a node ended by itself.

    turn: what else is to be done again and again, and may add nodes and dismiss some; it takes
    about 0.1 s. stays: it goes on also while nothing of the fleet runs, and without its serving
    node, because `turn` starts it again, or another host has one."""
    ended: dict[str, int] = {}
    with Interrupt(at_once=fleet.kill) as interrupt, fleet:
        output: Output = {}
        while not interrupt.requested and (stays or len(ended) < len(fleet.processes)):
            dead = fleet.dead()  # asked first, so that its last output is read before the report
            _show(fleet, output)
            for key in dead.keys() - ended.keys():
                typer.echo(f"{key} {how(dead[key])}", err=True)
            ended = dead
            if dead.get(SERVING, 0) > 0 and not stays:
                typer.echo("without a serving node no robot moves: everything ends", err=True)
                break
            turn()
        fleet.stop()
        _show(fleet, output)
    return int(bool(ended))


def how(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


Output = dict[str, IO[str]]
"""Log files by name of the process, read up to what was shown."""


def _show(fleet: Fleet, output: Output) -> None:
    for key in fleet.processes.keys() - output.keys():
        output[key] = fleet.log(key).open(errors="replace")
    width = max(map(len, output), default=0)
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
