"""What keeps a fleet file from running on this host, for `kairos fleet check` and `up` alike.

A file may be right (`fleet.checks`) and yet not run here: `up` starts all its nodes on one host, or
those of one of several, with what is installed there.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fit import camera_name
from kairos_ros.core.horizons.policies import Static, parse_horizon
from kairos_ros.core.pipeline import Component
from kairos_ros.document.marked_yaml import Path as FieldPath
from kairos_ros.engine.emulated import parse_emulated
from kairos_ros.engine.policies.saved_policy import PREFIX, policy_inputs
from kairos_ros.engine.policies.served import not_guided, not_speaking
from kairos_ros.fleet.checks import Problem, unlocated
from kairos_ros.fleet.fleet_file import ENDPOINT, FleetFile, Monitor, Safety
from kairos_ros.fleet.places import EMBEDDED, IN_PROCESS, SYSTEM1, policy_of
from kairos_ros.host.extras import lacking

MOST_NODES = 30
"""With discovery limited to this host, 32 DDS participants find each other; two are for whoever
gives tasks and whoever looks."""
JUDGES_NEED = {
    EMBEDDED: ("safetensors", "PIL"),
    ENDPOINT: ("httpx", "PIL"),
    IN_PROCESS: ("torch", "transformers"),
}


def obstacles(fleet: FleetFile, folder: Path, host: str = "") -> Iterator[Problem]:
    """Everything that keeps its nodes from running here. folder: where the fleet file stands. host:
    this is that one of `server_cluster.hosts`, and runs its part only; empty: all runs here."""
    hosts = fleet.server_cluster.hosts
    serves = not host or any(one.name == host and (one.gpus or one is hosts[0]) for one in hosts)
    for path, text in (
        *_system1(fleet, folder, serves),
        *_judges(fleet, folder, serves),
        *(_gateway(fleet) if serves else ()),
        *_robots(fleet, folder, host),
    ):
        yield Problem(path, text)


def _system1(fleet: FleetFile, folder: Path, serves: bool) -> Iterator[tuple[FieldPath, str]]:
    told = set()
    for name, task in fleet.tasks.items():
        model = task.components.system1.model
        path: FieldPath = (name, "components", "system1", "model")
        if model in told:
            continue
        told.add(model)
        served = policy_of(fleet.located(model), folder)
        if text := _wrong_policy(served, serves):
            yield path, text
        elif task.components.system1.options.get("rtc") and (why := _not_guided(served)):
            yield (name, "components", "system1", "options", "rtc"), f"{why}; leave it out"
    for group in fleet.robot_fleet:
        task = fleet.tasks[group.task]
        chunk = chunk_size(policy_of(fleet.located(task.components.system1.model), folder))
        horizon = task.horizon_policy(group.control_rate_hz)
        with suppress(ConfigError):  # which the check of the file tells
            policy = parse_horizon(horizon)
            if chunk and isinstance(policy, Static) and policy.h > chunk:
                path = (group.task, "horizon") if task.horizon else (group.task, "pipeline")
                yield path, f"{horizon} is longer than the model's chunk of {chunk} actions"


def _wrong_policy(policy: str, serves: bool) -> str:
    """Why a serving node would end that is told to serve this. serves: here."""
    if policy.startswith(PREFIX):
        try:
            parse_emulated(policy)
        except ConfigError as error:
            return str(error)
        return ""
    if Path(policy).is_dir() and _configuration(policy) is None:
        return f"{policy} is no policy folder: it has no readable config.json"
    return _lacking("torch", "lerobot") if serves else ""


def _not_guided(policy: str) -> str:
    """Why a policy whose type is known here cannot be served with `rtc`."""
    if policy.startswith(PREFIX):
        return "an emulated policy has no sampler"
    kind = (_configuration(policy) or {}).get("type")
    return not_guided(kind) if isinstance(kind, str) else ""


def _not_speaking(policy: str) -> str:
    """Why a policy whose type is known here cannot be asked by a monitor or planner."""
    if policy.startswith(PREFIX):
        return f"{SYSTEM1}: an emulated policy has no words"
    kind = (_configuration(policy) or {}).get("type")
    why = not_speaking(kind) if isinstance(kind, str) else ""
    return f"{SYSTEM1}: {why.partition(': ')[2]}" if why else ""


def chunk_size(policy: str) -> int | None:
    """Of a policy folder or an emulated policy; None where its configuration names none."""
    if policy.startswith(PREFIX):
        with suppress(ConfigError):
            return parse_emulated(policy).chunk
        return None
    size = (_configuration(policy) or {}).get("chunk_size")
    return size if isinstance(size, int) else None


def _configuration(policy: str) -> dict[str, object] | None:
    with suppress(OSError, ValueError):
        read = json.loads((Path(policy) / "config.json").read_text())
        return read if isinstance(read, dict) else None
    return None


def _judges(fleet: FleetFile, folder: Path, serves: bool) -> Iterator[tuple[FieldPath, str]]:
    nowhere = unlocated(fleet)
    told = set()
    for name, task in fleet.tasks.items():
        for component, one in task.components.used.items():
            path: FieldPath = (name, "components", component.value, "model")
            if component is not Component.SYSTEM1 and fleet.located(one.model) == SYSTEM1:
                served = policy_of(fleet.located(task.components.system1.model), folder)
                if why := _not_speaking(served):
                    yield path, why
                continue
            if component is Component.SYSTEM1 or one.model in told:
                continue
            told.add(one.model)
            if one.model in nowhere:
                users = ", ".join(nowhere[one.model])
                yield (
                    path,
                    (
                        f"models must say where {one.model!r} is, for example "
                        f"openai:http://HOST:8000/v1#{one.model} (used by {users})"
                    ),
                )
            for place in () if one.model in nowhere else fleet.places(one.model):
                if text := _wrong_judge(place, component, serves):
                    yield (("models", one.model) if one.model in fleet.models else path), text


def _wrong_judge(model: str, component: Component, serves: bool) -> str:
    if model.startswith(EMBEDDED) and component is Component.SYSTEM2:
        return ""  # rules
    scheme = next(scheme for scheme in JUDGES_NEED if model.startswith(scheme))
    if serves and (text := _lacking(*JUDGES_NEED[scheme])):
        return text
    return _wrong_endpoint(model.removeprefix(ENDPOINT)) if scheme == ENDPOINT else ""


def _gateway(fleet: FleetFile) -> Iterator[tuple[FieldPath, str]]:
    if fleet.gateway is None:
        return
    if text := _lacking("httpx", "starlette", "uvicorn", "prometheus_client"):
        yield ("gateway",), text
    for i, server in enumerate(fleet.gateway.servers):
        wrong = not server.startswith(EMBEDDED) and _wrong_endpoint(f"{server.partition('#')[0]}#m")
        if wrong:
            yield ("gateway", "servers", i), f"{server!r} is no server; give http://HOST:PORT/v1"


def _wrong_endpoint(url: str) -> str:
    where, _, name = url.partition("#")
    with suppress(ValueError):  # a port beyond 65535
        parts = urlsplit(where)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_web and name and not any(map(str.isspace, where)):
            return ""
    return f"{where!r} with model {name!r} is no endpoint; give http://HOST:PORT/v1#MODEL"


def _robots(fleet: FleetFile, folder: Path, host: str) -> Iterator[tuple[FieldPath, str]]:
    first = next((one.name for one in fleet.server_cluster.hosts), "")
    for i, group in enumerate(fleet.robot_fleet):
        if host and host != (group.host or first):
            continue
        needs = {"sim": "gymnasium" if "env_id" in group.adapter_options else "metaworld"}
        needs["lerobot"] = "lerobot"
        if group.adapter in needs and (text := _lacking(needs[group.adapter])):
            yield ("robot_fleet", i), text
        if group.is_metaworld:
            yield from _cameras(fleet, i, folder)
    judges = {
        (component, one.model, one.prompt, one.slo_ms)
        for task in fleet.tasks.values()
        for component, one in task.components.used.items()
        if component is not Component.SYSTEM1
    }
    nodes = 1 + len(judges) + len(fleet.robots)
    here_only = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "").upper() == "LOCALHOST"
    if here_only and nodes > MOST_NODES:
        yield (
            ("robot_fleet",),
            f"{len(fleet.robots)} robots are {nodes} nodes with their services; with "
            f"ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST at most {MOST_NODES} find each other: unset "
            "it, or run the robots on several hosts",
        )


def _cameras(fleet: FleetFile, number: int, folder: Path) -> Iterator[tuple[FieldPath, str]]:
    """What does not fit the cameras of a group of simulated arms, which the file names itself."""
    group = fleet.robot_fleet[number]
    images = group.adapter_options.get("images", {})
    if group.params_file or not isinstance(images, Mapping):
        return  # which may rename cameras; the adapter refuses the other
    task, robot = fleet.tasks[group.task], group.robots[0]
    has = f"{robot} has {', '.join(images) or 'no camera'}"
    system1 = task.components.system1
    here: FieldPath = ("robot_fleet", number, *(("adapter_options",) if images else ()))
    read = _pictures(policy_of(fleet.located(system1.model), folder))
    if any(list(images.get(camera, ())) != size for camera, size in read.items()):
        listed = ", ".join(f"{camera}: {size}" for camera, size in read.items())
        text = f"{system1.model} reads pictures; give adapter_options.images: {{{listed}}}"
        yield here, f"{text}; {has}"
    for component, judge in task.components.used.items():
        model = fleet.located(judge.model)
        if not isinstance(judge, Safety | Monitor) or model == SYSTEM1:
            continue
        path: FieldPath = (group.task, "components", component.value)
        cameras = judge.cameras or list(images)
        if not images:
            text = "looks at pictures; give adapter_options.images, such as {corner3: [240, 240]}"
            yield here, f"{component} {text}"
        elif unknown := [camera for camera in cameras if camera not in images]:
            yield (*path, "cameras"), f"there is no camera {unknown[0]!r}; {has}"
        elif model.startswith(EMBEDDED) and len(cameras) > 1:
            text = f"{model} looks at one picture; write cameras: [NAME]; {has}"
            yield (*path, "cameras" if judge.cameras else "model"), text


def _pictures(policy: str) -> dict[str, list[int]]:
    """Camera -> [height_px, width_px] of the pictures that a policy needs in this size, as far as
    that is known."""
    with suppress(ConfigError):
        inputs = policy_inputs(policy)
        if not inputs.any_size:
            return {camera_name(name): list(size) for name, size in (inputs.cameras or {}).items()}
    return {}


def _lacking(*modules: str) -> str:
    return next(filter(None, map(lacking, modules)), "")
