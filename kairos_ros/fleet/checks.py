"""What must fit together in a fleet file beyond the shape of its fields."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import HorizonPolicy, parse_horizon
from kairos_ros.core.pipeline import PERIODIC, Component, Fallback, are_skills
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.document.faults import did_you_mean
from kairos_ros.document.marked_yaml import Path as FieldPath
from kairos_ros.engine.registry import OWN
from kairos_ros.fleet.fleet_file import (
    GATEWAY,
    SECTIONS,
    FleetFile,
    Monitor,
    Safety,
    System2,
    TaskClass,
)
from kairos_ros.fleet.places import (
    EMBEDDED,
    IN_PROCESS,
    SYSTEM1,
    folder_of,
    policy_of,
    tokenizer_of,
)

EMBEDDED_MODELS: Mapping[str, Collection[Component]] = {
    "embedded:metaworld_flow": {Component.SYSTEM1},
    "embedded:metaworld_cameras": {Component.SYSTEM1},
    "embedded:planner": {Component.SYSTEM2},
    "embedded:factory_judge": PERIODIC,
}
"""Models that come with this package, and what each can be."""
SCHEMES: Mapping[str, Collection[Component]] = {
    "emulated:": {Component.SYSTEM1},
    "openai:": set(Component) - {Component.SYSTEM1},
    IN_PROCESS: set(Component) - {Component.SYSTEM1},
}
"""Prefixes that say how a model is run, and what it can be then."""
ASKED_ITSELF = {
    Component.SYSTEM1: f"{SYSTEM1!r} is what a monitor or planner may ask; name the action model",
    Component.SAFETY: f"safety cannot be {SYSTEM1!r}: a policy is asked about the observations "
    "that it is sent, and a robot that holds sends none",
}
"""What cannot be `system1`, and why."""
ROS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
LARGEST_OPTION = 256
"""Threads of an engine, and robots in one of its batches."""
LARGEST_MIB = 1_000_000
NODE_NAME = re.compile(
    r"kairos|serving|recorder|viz|gateway|(safety|monitor|planner)(_\d+)?(_replica_\d+)?"
)
"""What the other processes of a fleet are called: one robot more of that name would hide them."""


@dataclass(frozen=True, slots=True)
class Known:
    """What this installation can do."""

    adapters: Collection[str]
    """Names of robot adapters."""
    calibrated: Callable[[str], Mapping[str, HorizonPolicy]] = lambda policy: {}
    """The horizon policies that a calibration of this policy stands for, by name. May raise
    ConfigError."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What does not fit, and which field says so."""

    path: FieldPath
    text: str


def problems_of(fleet: FleetFile, known: Known, folder: Path) -> list[Problem]:
    """Everything that does not fit together. Files and folders are looked up from `folder`."""
    found = [*_fleet(fleet, known, folder), *_models(fleet, folder)]
    for name, task in fleet.tasks.items():
        policy = policy_of(fleet.located(task.components.system1.model), folder)
        found += _task(name, task, known, policy)
    return [*found, *_schedulers(fleet), *_engine_options(fleet, folder), *_gateway(fleet, folder)]


def unlocated(fleet: FleetFile) -> dict[str, list[str]]:
    """Judges and planners that only have a name -> the components that use them.

    Such a file is right, but before it can run, `models` must say where they are.
    """
    users: dict[str, list[str]] = {}
    for name, task in fleet.tasks.items():
        for component, one in task.components.used.items():
            located = fleet.located(one.model)
            named = located != SYSTEM1 and HUB_ID.fullmatch(located)
            if component is not Component.SYSTEM1 and named:
                users.setdefault(one.model, []).append(f"{name}.{component}")
    return users


def _fleet(fleet: FleetFile, known: Known, folder: Path) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for i, group in enumerate(fleet.robot_fleet):
        here = ("robot_fleet", i)
        if group.task not in fleet.tasks:
            hint = did_you_mean(group.task, fleet.tasks)
            tasks = ", ".join(fleet.tasks) or "none"
            text = f"there is no task {group.task!r}{hint}; the tasks of this file are: {tasks}"
            yield Problem((*here, "task"), text)
        if group.adapter not in known.adapters:
            hint = did_you_mean(group.adapter, known.adapters)
            adapters = ", ".join(sorted(known.adapters))
            text = f"there is no adapter {group.adapter!r}{hint}; installed are: {adapters}"
            yield Problem((*here, "adapter"), text)
        params = folder / Path(group.params_file).expanduser()
        if group.params_file and not params.is_file():
            yield Problem(
                (*here, "params_file"), f"{group.params_file!r}: there is no file {params}"
            )
        hosts = [host.name for host in fleet.server_cluster.hosts]
        if group.host and group.host not in hosts:
            hint = did_you_mean(group.host, hosts)
            listed = ", ".join(hosts) or "none"
            text = f"there is no host {group.host!r}{hint}; server_cluster.hosts has: {listed}"
            yield Problem((*here, "host"), text)
        if group.safe_state and "safe_state" in group.adapter_options:
            yield Problem((*here, "safe_state"), "it is in adapter_options, too; give it once")
        at = "num_robots" if group.names is None else "names"
        if group.names is None and not ROS_NAME.fullmatch(group.task):
            text = f"{group.robots[0]!r} would be no ROS name (letters, digits, _); give names"
            yield Problem((*here, "task"), text)
        for name in group.robots:
            owner = owners.get(name)
            if any(map(NODE_NAME.fullmatch, name.split("/"))):
                owner = "a node of the fleet"
            if owner:
                text = f"robot name {name!r} is taken by {owner}; give every robot its own"
                yield Problem((*here, at), text)
                break
            owners[name] = f"robot_fleet.{i}"
    for name in fleet.tasks.keys() - {group.task for group in fleet.robot_fleet}:
        hint = did_you_mean(name, {*SECTIONS} - {"server_cluster", "robot_fleet"})
        text = f"no robot of robot_fleet does this task{hint}; add a group of robots, or remove it"
        yield Problem((name,), text)


def _models(fleet: FleetFile, folder: Path) -> Iterator[Problem]:
    for name, task in fleet.tasks.items():
        for component, one in task.components.used.items():
            path: FieldPath = (name, "components", component.value, "model")
            if one.model in fleet.models:
                path = ("models", one.model)
                if fleet.models[one.model] == SYSTEM1:
                    yield Problem(path, f"write model: {SYSTEM1} at the component that asks it")
                    continue
            elif fleet.models and not _says_where(one.model):
                hint = did_you_mean(one.model, fleet.models)
                listed = ", ".join(fleet.models)
                text = f"model {one.model!r} is unknown{hint}; models has: {listed}"
                yield Problem(path, text)
                continue
            if text := _wrong_model(fleet.located(one.model), component, folder):
                yield Problem(path, text)
    used = {one.model for task in fleet.tasks.values() for one in task.components.used.values()}
    for model in fleet.models.keys() - used:
        hint = did_you_mean(model, used)
        yield Problem(("models", model), f"no component uses model {model!r}{hint}")


def _says_where(model: str) -> bool:
    here = model == SYSTEM1 or model.startswith((EMBEDDED, GATEWAY, *SCHEMES))
    return here or folder_of(model, Path()) is not None


def _wrong_model(model: str, component: Component, folder: Path) -> str:
    """Why `component` cannot be this model; empty if it can, as far as its name tells."""
    if model.startswith(GATEWAY):
        return f"model {model!r}: the file has no section gateway, with its servers"
    if model == SYSTEM1:
        return ASKED_ITSELF.get(component, "")
    if model.startswith(EMBEDDED + "/") and component in PERIODIC:
        place = Path(model.removeprefix(EMBEDDED))
        return "" if place.is_dir() else f"model {model!r}: there is no folder {place}"
    if model.startswith(EMBEDDED):
        able = [name for name, kinds in EMBEDDED_MODELS.items() if component in kinds]
        if model not in EMBEDDED_MODELS:
            hint = did_you_mean(model, able)
            return f"there is no model {model!r}{hint}; for {component} there is: {', '.join(able)}"
        if model not in able:
            return f"{model!r} cannot be a {component}; {', '.join(able)} can"
        return ""
    for scheme, kinds in SCHEMES.items():
        if model.startswith(scheme) and component not in kinds:
            return f"a model of {scheme!r} cannot be {component}"
    if own := folder_of(model, folder):
        if not own.is_dir():
            return f"model {model!r}: there is no folder {own}"
        if component is not Component.SYSTEM1 and not model.startswith(IN_PROCESS):
            return f"folder {model!r} cannot be {component}; say how it is run: {IN_PROCESS}{model}"
        return ""
    if HUB_ID.fullmatch(model) or model.startswith(tuple(SCHEMES)):
        return ""
    return (
        f"{model!r} is no model; give {EMBEDDED}NAME, a folder, a hub id or name such as "
        f"owner/model, or one of {', '.join(f'{scheme}...' for scheme in SCHEMES)}"
    )


def _place(server: str) -> str:
    """Host and port of a server that is asked over HTTP; the gateway tells servers apart by it."""
    try:
        parts = urlsplit(server)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # no address, which is said elsewhere
        return server
    return f"{parts.hostname}:{port}" if parts.hostname else server


def _gateway(fleet: FleetFile, folder: Path) -> Iterator[Problem]:
    """What is asked of it, and what it has; servers elsewhere are not asked what they have."""
    if fleet.gateway is None:
        return
    servers = fleet.gateway.servers
    places = [_place(server) for server in servers]
    for i, server in enumerate(servers):
        here: FieldPath = ("gateway", "servers", i)
        if places[i] in places[:i]:
            yield Problem(here, f"{server!r} is given twice; name each server once")
        if not server.startswith(("http://", "https://", EMBEDDED)):
            text = f"{server!r} is no server; write http://HOST:PORT/v1 or {EMBEDDED}NAME"
            yield Problem(here, text)
        elif server.startswith(EMBEDDED) and not server.startswith(EMBEDDED + "/"):
            judges = [
                name for name, able in EMBEDDED_MODELS.items() if Component.SYSTEM1 not in able
            ]
            if server not in judges:
                text = f"there is no judge {server!r}{did_you_mean(server, judges)}"
                yield Problem(here, f"{text}; there is: {', '.join(judges)}")
    own = [server for server in servers if server.startswith(EMBEDDED)]
    asked = False
    for name, task in fleet.tasks.items():
        for component, one in task.components.used.items():
            located = fleet.models.get(one.model, one.model)
            if not located.startswith(GATEWAY):
                continue
            asked, model = True, located.removeprefix(GATEWAY)
            text = ""
            if model in own:
                text = _wrong_model(model, component, folder)
            elif model.startswith(EMBEDDED) or len(own) == len(servers):
                text = f"the gateway has no model {model!r}{did_you_mean(model, own)}"
            if text:
                yield Problem((name, "components", component.value, "model"), text)
    if not asked:
        text = f"no component asks it; name a model {GATEWAY}MODEL, or leave the gateway out"
        yield Problem(("gateway",), text)


def _task(name: str, task: TaskClass, known: Known, policy: str) -> Iterator[Problem]:
    used = task.components.used
    if task.pipeline.system2_to_system1_call_ratio is not None and Component.SYSTEM2 not in used:
        path: FieldPath = (name, "pipeline", "system2_to_system1_call_ratio")
        yield Problem(path, "it needs components.system2; add that, or remove the ratio")
    if task.pipeline.system2_to_system1_call_ratio is None and Component.SYSTEM2 in used:
        text = "components.system2 needs system2_to_system1_call_ratio; 1 asks it every time"
        yield Problem((name, "pipeline"), text)
    for component, one in used.items():
        here = (name, "components", component.value)
        if isinstance(one, Safety | Monitor) and one.slo_ms > 1000 / one.freq_hz:
            text = (
                f"{one.slo_ms:g} ms is longer than the period of {1000 / one.freq_hz:g} ms: "
                "answers would be due after the next question; lower slo_ms or freq_hz"
            )
            yield Problem((*here, "slo_ms"), text)
        if isinstance(one, System2) and one.skills and not are_skills(one.skills):
            text = "a planner chooses from at least two different skills, none of them blank"
            yield Problem((*here, "skills"), text)
        replans = one.fallback is Fallback.STOP_AND_REPLAN
        if component is Component.SYSTEM1 and replans and Component.SYSTEM2 not in used:
            text = "stop_and_replan needs components.system2; stop_and_resend asks system1 again"
            yield Problem((*here, "fallback"), text)
    for field, parse in (
        ("horizon", lambda text: parse_horizon(text, known.calibrated(policy))),
        ("scheduling", parse_scheduling),
    ):
        if text := getattr(task, field):
            try:
                parse(text)
            except ConfigError as error:
                yield Problem((name, field), str(error))


def _schedulers(fleet: FleetFile) -> Iterator[Problem]:
    """All tasks share one server, which has one scheduling policy."""
    other = next(iter(fleet.tasks), "")
    for name, task in fleet.tasks.items():
        ours, theirs = task.scheduling, fleet.tasks[other].scheduling
        if ours != theirs:
            text = (
                f"{ours or 'none'!r} differs from {theirs or 'none'!r} of task {other}; the "
                "server that all tasks of a fleet share has one scheduling policy"
            )
            yield Problem((name, "scheduling"), text)


def _engine_options(fleet: FleetFile, folder: Path) -> Iterator[Problem]:
    """A model is served by one engine, whichever tasks use it."""
    first: dict[str, tuple[str, Mapping[str, object]]] = {}
    for name, task in fleet.tasks.items():
        system1 = task.components.system1
        here: FieldPath = (name, "components", "system1", "options")
        other, theirs = first.setdefault(system1.model, (name, system1.options))
        for option, value in system1.options.items():
            kind = OWN.get(option)
            largest = LARGEST_MIB if option.endswith("_mib") else LARGEST_OPTION
            if kind is None:
                hint = did_you_mean(option, OWN)
                text = f"there is no option {option!r}{hint}; an engine has: {', '.join(OWN)}"
                yield Problem((*here, option), text)
            elif type(value) is not kind or (kind is int and not 1 <= int(value) <= largest):
                number = f"a whole number, 1 to {largest}"
                wanted = {bool: "true or false", int: number, str: "a text"}[kind]
                yield Problem((*here, option), f"{value!r} must be {wanted}")
        if (own := tokenizer_of(system1.options, folder)) and not own.is_dir():
            yield Problem((*here, "tokenizer"), f"there is no folder {own}")
        if system1.options != theirs:
            text = (
                f"{dict(system1.options)} differs from {dict(theirs)} of task {other}, whose model "
                f"is {system1.model!r}, too: one engine serves both; give both the same"
            )
            yield Problem((name, "components", "system1"), text)
