"""The processes of a plan: what they are, as command lines, and as text."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.host.share import share

NOT_ASCII = re.compile(r"[^ -~]")
RVIZ = "rviz2"
"""Package."""


class ProcessKind(StrEnum):
    """What a process of a plan is."""

    NODE = "node"
    """Of ROS. All others are given nothing but their arguments."""
    GATEWAY = "gateway"
    WORKER = "worker"
    """Of an engine."""
    FLEET = "fleet"
    """Runs a fleet file."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process, nearly always a node."""

    executable: str
    name: str
    namespace: str = ""
    """Below that of the fleet, without slashes at its ends; empty: the fleet's own. As `ros2
    launch`, the runner always sets it, whatever the node calls itself."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Override the values in `params_file`."""
    params_file: Path | None = None
    package: str = "kairos_ros"
    arguments: tuple[str, ...] = ()
    """Of the command line, before those of ROS."""
    kind: ProcessKind = ProcessKind.NODE
    host: str = ""
    """That runs it, where a fleet has several."""


def fixed_frame(spec: ProcessSpec, names: FleetNames) -> tuple[str, ...]:
    """Arguments that rviz needs for the fleet of a namespace, besides its node's namespace."""
    return ("-f", f"{names.prefix}fleet") if spec.package == RVIZ and names.prefix else ()


def command(spec: ProcessSpec, names: FleetNames = ROOT) -> list[str]:
    """The command line that runs `spec` without ros2 launch, in the fleet of `names`.

    Raises ConfigError for a program of another package that is not on PATH.
    """
    if not installed(spec):
        raise ConfigError(missing_text(spec))
    ours = spec.package == "kairos_ros"
    program = program_path(spec.executable) if ours else str(shutil.which(spec.executable))
    if spec.kind is not ProcessKind.NODE:
        return [program, *spec.arguments]
    line = [program, *spec.arguments, *fixed_frame(spec, names), "--ros-args"]
    line += ["-r", f"__node:={spec.name}", "-r", f"__ns:=/{namespace_in(names, spec)}"]
    if spec.params_file is not None:
        line += ["--params-file", str(spec.params_file)]
    for key, value in spec.parameters.items():
        line += ["-p", f"{key}:={_yaml(value)}"]
    return line


def namespace_in(names: FleetNames, spec: ProcessSpec) -> str:
    """The namespace of a node in the fleet of `names`, without a slash at its ends."""
    return f"{names.prefix}{spec.namespace}".rstrip("/")


def installed(spec: ProcessSpec) -> bool:
    """Whether its program is there."""
    return spec.package == "kairos_ros" or shutil.which(spec.executable) is not None


def missing_text(spec: ProcessSpec) -> str:
    """For people: what to do about a program that is not there."""
    return (
        f"{spec.executable} is not on PATH; install its package, or source the setup file of the "
        "ROS 2 installation that has it"
    )


def plan_text(specs: Sequence[ProcessSpec]) -> str:
    """A plan as JSON, which `told_plan` reads."""
    return json.dumps([asdict(spec) for spec in specs], default=str, indent=1)


def told_plan(*command: str, arguments: Mapping[str, str]) -> list[ProcessSpec]:
    """The plan that `kairos COMMAND NAME:=VALUE ...` prints.

    For launch files whose plan needs more than the standard library and numpy: `ros2 launch` runs
    with the system's Python, the command, as every node, with the one that the package was built
    with. Raises ConfigError with the command's own words.
    """
    given = [f"{name}:={value}" for name, value in arguments.items()]
    done = subprocess.run(
        [program_path("kairos"), *command, "--", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(done.stderr.strip().removeprefix("kairos: "))
    return read_plan(json.loads(done.stdout))


def read_plan(specs: Sequence[Mapping[str, Any]]) -> list[ProcessSpec]:
    """What `plan_text` has written. Raises ConfigError for anything else."""
    try:
        return [_spec(**fields) for fields in specs]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this is no plan of nodes: {error}") from None


def _spec(
    params_file: str | None, arguments: Sequence[str], kind: str, **fields: Any
) -> ProcessSpec:
    if not isinstance(fields.get("parameters", {}), Mapping):
        raise TypeError(f"parameters must be an object, not {fields['parameters']!r:.80}")
    file = Path(params_file) if params_file else None
    return ProcessSpec(
        params_file=file, arguments=tuple(arguments), kind=ProcessKind(kind), **fields
    )


def program_path(name: str) -> str:
    """Where a program of this package is installed."""
    return str(share().parents[1] / "lib" / "kairos_ros" / name)


def _yaml(value: Any) -> str:
    """JSON with YAML's escapes: of an emoji JSON makes two halves, which are no YAML."""
    text = json.dumps(value, ensure_ascii=False)
    return NOT_ASCII.sub(lambda character: f"\\U{ord(character[0]):08x}", text)
