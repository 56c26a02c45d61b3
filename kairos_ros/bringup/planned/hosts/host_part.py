"""What a plan puts on one host: nodes, and the engine workers that the serving node reaches there.

A host that is told its part by the first one starts nothing but these.
"""

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from os import getpid
from typing import Any, Protocol

from kairos_ros.bringup.planned.change import PlannedFleet, planned_fleet
from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.address import is_loopback, tcp_address
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import COMMON
from kairos_ros.core.placement.host_status import SILENT_S, HostStatus
from kairos_ros.core.placement.served_plan import Option, PlannedEngine
from kairos_ros.fleet.deployment import worker_batch

EVERYWHERE = ("robot_node", "serving_node", "safety_node", "monitor_node", "planner_node")
"""Nodes that a host may be told to start."""
JUDGES = EVERYWHERE[2:]
RESTARTED = EVERYWHERE[1:]
"""Nodes of other hosts than the first that are started again where they end by themselves."""
NOT_OF_WORKERS = ("policy", "language_mib", "max_batch")


class Topics(Protocol):
    """`nodes.host_topics.HostTopics`."""

    plan: str

    def tell_status(self, status: HostStatus) -> None: ...

    def tell_plan(self, text: str) -> None: ...

    def heard(self) -> list[tuple[HostStatus, float]]: ...

    def diagnose(self, wrong: Mapping[str, str]) -> None: ...


@dataclass(frozen=True, slots=True)
class ToldPlan:
    """The first host to the others."""

    host: str
    fleet: PlannedFleet
    staged: bool
    """What is new shall be started beside what runs, which goes on."""

    @property
    def text(self) -> str:
        return json.dumps({"host": self.host, "staged": self.staged, "fleet": self.fleet.to_dict()})


def read_told_plan(text: str) -> ToldPlan:
    """Of `ToldPlan.text`. Raises ConfigError for anything else, and for a plan with processes that
    nobody may be told to start."""
    try:
        data: dict[str, Any] = json.loads(text)
        told = ToldPlan(str(data["host"]), planned_fleet(data["fleet"]), data["staged"] is True)
    except ConfigError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"this is no plan of a fleet: {type(error).__name__}") from None
    for spec in told.fleet.specs:
        node = spec.kind is ProcessKind.NODE and not spec.arguments
        if spec.host != told.host and not (
            node and spec.package == "kairos_ros" and spec.executable in EVERYWHERE
        ):
            raise ConfigError(
                f"the plan has {spec.executable!r:.80} on host {spec.host!r:.80}; hosts start "
                f"{', '.join(EVERYWHERE)} and engine workers only"
            )
    return told


def part_of(fleet: PlannedFleet, host: str) -> dict[str, ProcessSpec]:
    """Name of the process -> what runs on a host; of a fleet on one host (empty), all."""
    specs = [spec for spec in fleet.specs if spec.host == host]
    policies = fleet.served.policies
    specs += [
        _worker(one, policies[one.policy])
        for one in fleet.served.engines
        if one.endpoint and one.host == host
    ]
    return {Fleet.key(spec): spec for spec in specs}


def hosts_of(fleet: PlannedFleet) -> list[str]:
    """Those that the plan puts something on."""
    used = [spec.host for spec in fleet.specs] + [one.host for one in fleet.served.engines]
    return list(dict.fromkeys(host for host in used if host))


def worker_key(engine: PlannedEngine) -> str:
    """Name of the process of an engine on another host; the port tells two of one GPU apart."""
    return f"{engine.gpu}-{engine.policy}-{engine.endpoint.rpartition(':')[2]}"


def _worker(engine: PlannedEngine, options: Mapping[str, Option]) -> ProcessSpec:
    """The program of an engine that a serving node elsewhere dials: with keys, but on loopback."""
    address, port = tcp_address(engine.endpoint)
    near = is_loopback(address)
    everywhere = "[::]" if ":" in address else "0.0.0.0"
    listen = engine.endpoint if near else f"tcp://{everywhere}:{port}"
    arguments = ["worker", "--listen", listen, "--policy", f"{engine.policy}={options['policy']}"]
    arguments += ["--device", engine.device, "--max-batch"]
    arguments.append(str(options.get("max_batch", worker_batch(engine.batch))))
    arguments += ["--insecure-loopback"] if near else ["--key", engine.host]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name in NOT_OF_WORKERS or value is False:
            continue
        arguments += [flag] if value is True else [flag, str(value)]
    return ProcessSpec(
        "kairos",
        worker_key(engine),
        namespace=COMMON,
        arguments=tuple(arguments),
        kind=ProcessKind.WORKER,
        host=engine.host,
    )


def new_session() -> str:
    """Of a program that runs a host's part: the later one has the greater text."""
    return f"{time.time_ns():020d} process {getpid()} on {socket.gethostname()}"


def check_sole(topics: Topics, host: str, session: str, *, starting: bool = False) -> None:
    """Raises ConfigError where another program runs the part of this host, and was first. starting:
    this one has told nothing yet, so that any other one was first, whatever their clocks say."""
    for other, ago_s in topics.heard():
        if other.host == host and (starting or other.session < session) and ago_s < SILENT_S:
            which = other.session.partition(" ")[2]
            raise ConfigError(
                f"another program runs the part of host {host} already ({which}); end that one "
                "first, or give this host's name with --host"
            )
