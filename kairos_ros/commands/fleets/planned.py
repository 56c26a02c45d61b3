"""Planned fleets of this host: `kairos fleet up --planned`, `apply`, `status`, `plan --running`."""

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kairos_ros.bringup.fleet import NODES
from kairos_ros.bringup.foreground import FleetArgument, run
from kairos_ros.bringup.plan import recorder, viz
from kairos_ros.bringup.planned.change import PlannedFleet, change, planned_fleet
from kairos_ros.bringup.planned.hosts.fleet_hosts import FleetHosts
from kairos_ros.bringup.planned.hosts.host_part import part_of
from kairos_ros.bringup.planned.hosts.host_runner import HostRunner
from kairos_ros.bringup.planned.hosts.link_keys import check_keys
from kairos_ros.bringup.planned.planner import FleetPlanner, PlanChoices
from kairos_ros.bringup.planned.robot_admission import RobotAdmissions
from kairos_ros.bringup.planned.runner import PlannedFleetRunner
from kairos_ros.bringup.processes import Fleet
from kairos_ros.commands.fleets.answers import answer_to, interrupted
from kairos_ros.commands.fleets.plan import (
    GpusOption,
    NetworkOption,
    ProfilesOption,
)
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.host.fleet_socket import FleetConnection, FleetListener, connect_to_fleet
from kairos_ros.planning.workload import Objective

if TYPE_CHECKING:
    from kairos_ros.planning.plan import Plan

DeviceOption = Annotated[
    Literal["auto", "cuda", "cpu"],
    typer.Option(
        help="What a GPU of the plan is on this host: CUDA GPU number N, or cpu, a slot of this "
        "host's CPU; auto: cuda if there is any."
    ),
]
ANSWER_S = 10.0
"""How long an answer may take that needs no engine."""
SEEN_S = 6.0
"""Within this time a serving node that runs is heard."""
HEARD_S = 3.0
"""Within this time another program of the same host is heard."""


def planned(
    file: str, how: PlanChoices, running: PlannedFleet | None = None
) -> "tuple[PlannedFleet, Plan]":
    """A fleet file as it is planned for this host. running: what is to stay as far as it can, and
    whose guests are planned for.

    Raises ConfigError for a file that does not run here, and for GPUs that are too few."""
    planner = FleetPlanner(file, how)
    with _planning():
        return planner.plan(running)


def _planning() -> AbstractContextManager[object]:
    from rich.console import Console

    return Console(stderr=True).status("planning")


def up_planned(
    file: str, how: PlanChoices, names: FleetNames, folder: Path, *, record: bool, rviz: bool
) -> int:
    """Runs a fleet file by its plan, or what the plan puts on this host, until Ctrl-C. The exit
    code."""
    from kairos_ros.nodes.clients.fleet_client import FleetClient
    from kairos_ros.nodes.host_topics import HostTopics

    planner = FleetPlanner(file, how)
    with _planning():
        running, plan = planner.plan()
    show_plan(plan)
    for text in not_started(plan, running):
        typer.echo(text, err=True)
    check_keys(part_of(running, how.host).values())
    if plan.hosts and how.host != plan.hosts[0][0]:
        if record or rviz:
            raise ConfigError(f"--record and --rviz are for the first host, {plan.hosts[0][0]}")
        return _up_beside(how.host, running, names, folder)
    further = [*([viz()] if rviz else []), *([recorder(folder / "bag")] if record else [])]
    fleet = Fleet([*part_of(running, how.host).values(), *further], folder, names=names)
    with ExitStack() as stack:
        listener = stack.enter_context(FleetListener(names.namespace))
        client = FleetClient("fleet_runner", names)
        stack.callback(client.close)
        hosts = FleetHosts()
        if how.host:
            hosts = FleetHosts(how.host, HostTopics(client.node, names))
            hear(client.spin, partial(hosts.check_sole, starting=True))
        admissions = RobotAdmissions(planner, plan, running)
        runner = PlannedFleetRunner(fleet, running, client, listener, typer.echo, admissions, hosts)
        stack.callback(runner.close)
        typer.echo(f"plan {running.served.identity}: {len(running.served.engines)} engines, "
                   f"{len(running.robots)} robots; logs in {folder}")  # fmt: skip
        return run(fleet, runner.turn, stays=bool(running.standbys))


def _up_beside(host: str, running: PlannedFleet, names: FleetNames, folder: Path) -> int:
    """Runs what a plan puts on a host besides the first one, until Ctrl-C. The exit code."""
    from kairos_ros.nodes.clients.standalone_node import StandaloneNode
    from kairos_ros.nodes.host_topics import HostTopics

    with ExitStack() as stack:
        stack.enter_context(FleetListener(names.namespace, host))
        node = StandaloneNode(f"fleet_runner_{re.sub(r'[^A-Za-z0-9]', '_', host)}", names=names)
        stack.callback(node.close)
        fleet = Fleet([], folder, names=names)
        topics = HostTopics(node.node, names)
        runner = HostRunner(host, fleet, running, topics, node.spin, typer.echo)
        hear(node.spin, partial(runner.check_sole, starting=True))
        part = ", ".join(part_of(running, host)) or "nothing"
        typer.echo(f"host {host} of plan {running.served.identity}: {part}; logs in {folder}")
        return run(fleet, runner.turn, stays=True)


def hear(spin: Callable[[float], None], check: Callable[[], None]) -> None:
    """Before anything is started: whether another program runs the part of this host."""
    until_s = time.monotonic() + HEARD_S
    while time.monotonic() < until_s:
        spin(0.1)
    check()


def show_plan(plan: "Plan") -> None:
    """Prints it as a tree."""
    from rich.console import Console

    from kairos_ros.fleet.plan_tree import plan_tree

    Console().print(plan_tree(plan), highlight=False)


def not_started(plan: "Plan", fleet: PlannedFleet) -> list[str]:
    """What of a plan has to be started by other means, for people."""
    found = []
    for component, node in NODES.items():
        servers = plan.servers_of(component)
        replicas = [spec for spec in fleet.specs if spec.executable == f"{node}_node"]
        if len(servers) > len(replicas):
            found.append(
                f"note: the plan has {len(servers)} servers of {component} ({servers[0].model}), "
                f"which are asked in {len(replicas)} places: name one for each in models, "
                "openai:URL#NAME|URL#NAME, or put an endpoint there that shares requests out"
            )
    return found


def apply_command(
    file: FleetArgument,
    gpus: GpusOption = None,
    objective: Objective = "weighted",
    network_ms: NetworkOption = 5.0,
    profiles: ProfilesOption = None,
    device: DeviceOption = "auto",
    namespace: NamespaceOption = "",
) -> None:
    """Change the planned fleet that runs on this host to the plan of a fleet file.

    Robots whose part does not change go on with their tasks: new engines are loaded first, robots
    are routed to them when they are up, and old ones end when they have finished their batches.
    Where the new plan is refused, an engine does not come up, or Ctrl-C comes first, the fleet goes
    on by its old plan. Exit code 0: the fleet runs by the new plan. 1: by the old one. 2: nothing
    was asked of it.
    """
    names = FleetNames.below(namespace)
    with interrupted("nothing was asked of the fleet, which runs as before"):
        line, running, told = _running(names)
        if told.get("changes"):
            raise KairosError(f"another `kairos fleet apply` changes this fleet: {told['changes']}")
        how = _choices(running, gpus, objective, network_ms, profiles, device)
        wanted, plan = planned(file, how, running)
        steps = change(running, wanted)
        for text in not_started(plan, wanted):
            typer.echo(text, err=True)
        if wanted == running or not (steps.lines or steps.tell):
            typer.echo(f"the fleet runs by {running.served.identity} already; nothing changes")
            return
        typer.echo(f"from {running.served.identity} to {wanted.served.identity}:")
        for text in steps.lines:
            typer.echo(f"  {text}")
    base = running.served.identity
    line.send({"do": "apply", "base": base, "fleet": wanted.to_dict()})
    answer = answer_to(line, names, "the fleet is asked to stay as it was")
    if "done" in answer:
        typer.echo(answer["done"])
        return
    stays = answer.get("stays") or f"the fleet runs by {base}, as before"
    what = "not applied: " if stays.endswith("as before") else ""
    typer.echo(f"kairos: {what}{answer['refused']}; {stays}", err=True)
    raise typer.Exit(1)


def join_command(
    robot: Annotated[str, typer.Argument(help="Name of the robot.")],
    task: Annotated[
        str, typer.Option(help="Of the fleet file; by its name TASK_... if left out.")
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="It joins although SLOs may not be kept then, which is recorded."
        ),
    ] = False,
    namespace: NamespaceOption = "",
) -> None:
    """Let a robot join the planned fleet that runs on this host, before it is started.

    A robot that is started elsewhere joins by itself if it fits, and is refused otherwise; this
    asks beforehand, and keeps the place for ten minutes. Exit code 0: it may come. 1: it may not,
    and why.
    """
    names = FleetNames.below(namespace)
    with interrupted("nothing was asked of the fleet"):
        line, _, _ = _running(names)
    line.send({"do": "join", "robot": robot, "task": task, "force": force})
    answer = answer_to(line, names, "the fleet is asked not to let it join")
    if "done" in answer:
        typer.echo(answer["done"])
        return
    typer.echo(f"kairos: {answer['refused']}", err=True)
    raise typer.Exit(1)


def status_command(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A fleet file whose plan shall be the one that runs.", metavar="[FILE|NAME]"
        ),
    ] = None,
    gpus: GpusOption = None,
    objective: Objective = "weighted",
    network_ms: NetworkOption = 5.0,
    profiles: ProfilesOption = None,
    device: DeviceOption = "auto",
    namespace: NamespaceOption = "",
    json_: Annotated[
        Path | None, typer.Option("--json", help="Write it here; - for stdout.")
    ] = None,
) -> None:
    """Compare the planned fleet of this host with its plan: engines, routes, rates, robots.

    With a file, its plan with that of the running fleet, too. Exit code 0: all of it agrees. 1: it
    does not, and it says in what. 2: no planned fleet runs.
    """
    names = FleetNames.below(namespace)
    line, running, told = _running(names)
    line.close()
    found = [f"node {key} {how}" for key, how in told["dead"].items()]
    if told.get("changes"):
        found.append(f"`kairos fleet apply` changes it: {told['changes']}")
    if file is not None:
        how = _choices(running, gpus, objective, network_ms, profiles, device)
        wanted, _ = planned(file, how, running)
        found += [f"by {file}: {text}" for text in change(running, wanted).lines]
    hosts = told.get("hosts", {})
    found += [why for why in hosts.values() if why]
    rows, differ = _seen(running, names)
    found += differ
    served = running.served
    if json_ is not None:
        from kairos_ros.commands.fleets.plan import write_json

        write_json(json_, {"plan": served.identity, "file": running.file, "agrees": not found,
                           "differences": found, "engines": rows,
                           "hosts": {h: why or "there" for h, why in hosts.items()}})  # fmt: skip
    if json_ != Path("-"):
        typer.echo(f"plan {served.identity} of {running.file}")
        for row in rows:
            where = f"{row['engine']} on {row['host']}".removesuffix(" on ")
            typer.echo(f"  {where}: {row['state']}, {row['robots']} robots, batches up to "
                       f"{row['batch']}, load {100 * row['load']:.0f} %")  # fmt: skip
        for text in found:
            typer.echo(f"differs: {text}")
        typer.echo("plan and fleet differ" if found else "plan and fleet agree")
    raise typer.Exit(1 if found else 0)


def running_difference(file: str, how: PlanChoices, namespace: str) -> "tuple[Plan, list[str]]":
    """The plan of a file for the fleet that runs, and what would change in it."""
    line, running, _ = _running(FleetNames.below(namespace))
    line.close()
    how = replace(how, host=str(running.choices.get("host", "")))
    wanted, plan = planned(file, how, running)
    same = f"the running fleet, {running.served.identity}, would not change"
    return plan, list(change(running, wanted).lines) or [same]


def _choices(
    running: PlannedFleet,
    gpus: int | None,
    objective: Objective,
    network_ms: float,
    profiles: list[Path] | None,
    device: Literal["auto", "cuda", "cpu"],
) -> PlanChoices:
    """Options of a command, for the host that the fleet runs on."""
    host = str(running.choices.get("host", ""))
    return PlanChoices(gpus, objective, network_ms, tuple(profiles or ()), device, host)


def _running(names: FleetNames) -> tuple[FleetConnection, PlannedFleet, dict[str, Any]]:
    """The fleet that runs here, and a connection to it. Raises KairosError without one."""
    line = connect_to_fleet(names.namespace)
    line.send({"do": "show"})
    until_s = time.monotonic() + ANSWER_S
    while (message := line.receive()) is None:
        if line.closed or time.monotonic() > until_s:
            raise KairosError("the running fleet does not answer; look at its terminal")
    return line, planned_fleet(message["fleet"]), message


def _seen(running: PlannedFleet, names: FleetNames) -> tuple[list[dict[str, Any]], list[str]]:
    """Engines of the plan as they are, and in what the fleet differs."""
    from kairos_ros.nodes.clients.fleet_client import FleetClient, disagreements, is_of

    client = FleetClient("fleet_status", names)
    try:
        until_s = time.monotonic() + SEEN_S
        while True:  # until that one is heard which serves, where another one stands by
            client.spin(0.1)
            state = client.state
            if (state and state.active) or time.monotonic() > until_s:
                break
    finally:
        client.close()
    if state is None:
        return [], ["the serving node says nothing"]
    rows = []
    for one in running.served.engines:
        mine = next((engine for engine in state.engines if is_of(engine, one)), None)
        rows.append({
            "engine": one.name, "host": one.host, "device": one.device, "robots": len(one.robots),
            "batch": one.batch, "state": mine.state if mine else "not there",
            "load": round(mine.load, 3) if mine else 0.0,
        })  # fmt: skip
    return rows, disagreements(running.served, state)
