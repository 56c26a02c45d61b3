"""From a fleet file to the nodes that run it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kairos_ros.bringup.plan import (
    gateway,
    reads_the_hand_only,
    recorder,
    robot,
    serving,
    vlm,
)
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.core.placement.served_plan import ServedPlan
from kairos_ros.engine.emulated import parse_emulated
from kairos_ros.engine.policies.saved_policy import PREFIX
from kairos_ros.fleet.places import (
    EMBEDDED,
    IN_PROCESS,
    SYSTEM1,
    model_of,
    options_of,
    policy_names,
    policy_of,
)
from kairos_ros.host.share import share
from kairos_ros.planning.plan import GPU
from kairos_ros.robot.supervision.rules_text import rules_text

if TYPE_CHECKING:
    from kairos_ros.fleet.fleet_file import (
        FleetFile,
        Monitor,
        RobotGroup,
        Safety,
        System2,
        TaskClass,
    )
    from kairos_ros.planning.plan import Plan, ServerPlan

NODES: Mapping[Component, str] = {
    Component.SAFETY: "safety",
    Component.MONITOR: "monitor",
    Component.SYSTEM2: "planner",
}
SIMULATED = "sim"
STANDBY_S = 1.0
"""Silence of the first serving node after which the second one takes over."""
REPLICA = "_replica_"
"""In the name of a judging node, before the number of a further replica."""
LANGUAGE_MIB = 512
"""Of the engine of a policy that judges or planners ask, where the file does not say it."""
GATEWAY_IN_FLIGHT = 16
"""Questions at a time of a judging node to the gateway, whose queue orders those of all nodes."""
FASTEST_HZ = 30
"""Cameras are not made to show more for a common multiple's sake."""


def fleet_plan(
    fleet: "FleetFile",
    folder: Path,
    *,
    record: Path | str = "",
    served: ServedPlan | None = None,
    plan: "Plan | None" = None,
) -> list[ProcessSpec]:
    """Serving node, gateway if the file has one, safety, monitor and planner nodes, robots, and the
    recorder if there is a bag.

    Tasks whose component is the same model with the same prompt, SLO and rate share its node, and
    each node is a process of its own: what fails, fails alone. By a plan, a node that judges or
    plans has a replica per server of its model, on the server's host, with the robots that are
    routed there; a model at an endpoint has as many as it has places.

    Args:
        fleet: as it was read.
        folder: where the fleet file stands; files and folders in it count from there.
        record: folder of the bag to record into; empty: no bag.
        served: engines, routes and rates of a plan, in the place of one engine per System 1 model.
        plan: the plan itself.
    """
    specs = [_serving(fleet, folder, served)]
    if served and fleet.server_cluster.standby_server:
        standby = serving(**{**specs[0].parameters, "standby_after_s": STANDBY_S})
        specs.append(replace(standby, host=fleet.server_cluster.standby_server))
    if (own := fleet.gateway) is not None:
        specs.append(gateway(own.servers, order=own.order, dispatch=own.dispatch, port=own.port))
    specs += _judges(fleet, folder, plan)
    models = [task.components.system1.model for task in fleet.tasks.values()]
    names = policy_names(models)
    for name, group in fleet.robots.items():
        task = fleet.tasks[group.task]
        model = task.components.system1.model
        policy = policy_of(fleet.located(model), folder)
        parameters = _robot_parameters(group, task, policy)
        if len(names) > 1 or served:
            parameters["policy"] = names[model]
        if not reads_images(policy):
            parameters["request_images"] = False
        spec = robot(name, **parameters)
        if group.params_file:
            spec = replace(spec, params_file=folder / Path(group.params_file).expanduser())
        elif group.adapter != SIMULATED:  # whose limits robot.yaml has
            spec = replace(spec, params_file=share() / "config" / "arm.yaml")
        specs.append(replace(spec, host=group.host))
    if plan is not None and plan.hosts:
        first, _ = plan.hosts[0]
        specs = [replace(spec, host=spec.host or first) for spec in specs]
    else:
        specs = [replace(spec, host="") for spec in specs]
    return [*specs, recorder(record)] if record else specs


def camera_rate_hz(judged_hz: Sequence[float]) -> float:
    """Pictures per second, so that each judge finds a fresh one at its own rate: the smallest
    common multiple of their rates, or, where that is no rate of a camera, the fastest one's."""
    rates = [Fraction(hz).limit_denominator(100) for hz in judged_hz]
    common = Fraction(lcm(*(r.numerator for r in rates)), gcd(*(r.denominator for r in rates)))
    return float(common if common <= FASTEST_HZ else max(rates))


def reads_images(policy: str) -> bool:
    """False for a policy that lists no picture; of a hub id, nothing is known."""
    return pictures_of(policy) != {}


def pictures_of(policy: str) -> dict[str, tuple[int, int]] | None:
    """Feature -> (height_px, width_px) of the pictures that a policy's folder, or `emulated:...`,
    lists; None where nothing is known of it, as of a hub id."""
    if policy.startswith(PREFIX):
        return parse_emulated(policy).images
    try:
        features = json.loads((Path(policy) / "config.json").read_text()).get("input_features", {})
        return {
            name: (feature["shape"][1], feature["shape"][2])
            for name, feature in features.items()
            if feature.get("type") == "VISUAL"
        }
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        return None  # the serving node refuses it, and says why


def _serving(fleet: "FleetFile", folder: Path, served: ServedPlan | None) -> ProcessSpec:
    tasks = list(fleet.tasks.values())
    asked = {
        task.components.system1.model
        for task in tasks
        for one in task.components.used.values()
        if fleet.located(one.model) == SYSTEM1
    }
    if served and asked:
        raise ConfigError(
            f"a planned fleet has no judge or planner {SYSTEM1!r} yet; name another model, or run "
            "the fleet without a plan"
        )
    scheduling = {"scheduling": tasks[0].scheduling} if tasks[0].scheduling else {}
    if served:
        return serving(plan=served.text, **scheduling)
    names = policy_names([task.components.system1.model for task in tasks])
    policies = {name: policy_of(fleet.located(model), folder) for model, name in names.items()}
    options: dict[str, dict[str, bool | int | str]] = {}
    for one in (task.components.system1 for task in tasks):
        options[one.model] = {"language_mib": LANGUAGE_MIB} if one.model in asked else {}
        options[one.model] |= options_of(one.options, folder)
    if len(policies) > 1:
        named = [f"{name}={policy}" for name, policy in policies.items()]
        own = [
            f"{names[model]}.{option}={json.dumps(value) if isinstance(value, bool) else value}"
            for model, chosen in options.items()
            for option, value in chosen.items()
        ]
        return serving(policies=named, **({"policy_options": own} if own else {}), **scheduling)
    (chosen,) = options.values()
    return serving(policy=next(iter(policies.values())), **chosen, **scheduling)


def _judges(fleet: "FleetFile", folder: Path, plan: "Plan | None") -> list[ProcessSpec]:
    robots_of: dict[tuple[Component, str], list[str]] = {}
    models: dict[tuple[Component, str], str] = {}
    for name, task in fleet.tasks.items():
        for component in NODES.keys() & task.components.used.keys():
            parameters = _judge_parameters(fleet, task, component, folder)
            key = component, json.dumps(parameters)
            models[key] = task.components.used[component].model
            robots_of.setdefault(key, []).extend(
                r for r, g in fleet.robots.items() if g.task == name
            )
    specs: list[ProcessSpec] = []
    for component, node in NODES.items():
        mine = [(key, robots) for key, robots in robots_of.items() if key[0] is component]
        for i, (key, robots) in enumerate(mine, 1):
            places = fleet.places(models[key])
            spec = vlm(node, robots=robots, **json.loads(key[1]))
            spec = spec if i == 1 else replace(spec, name=f"{node}_{i}")
            servers = _servers(plan, component, models[key])
            specs += _replicas(spec, servers, places, plan) if plan and servers else [spec]
    return specs


def _servers(plan: "Plan | None", component: Component, model: str) -> "list[ServerPlan]":
    servers = [one for one in plan.servers_of(component) if one.model == model] if plan else []
    return sorted(servers, key=lambda one: int(one.gpu.removeprefix(GPU)))


def _replicas(
    spec: ProcessSpec, servers: "Sequence[ServerPlan]", places: Sequence[str], plan: "Plan"
) -> list[ProcessSpec]:
    """A judge by a plan. Robots that the plan does not have are judged by its first replica."""
    several = servers if places[0].startswith((EMBEDDED, IN_PROCESS)) else servers[: len(places)]
    found: list[ProcessSpec] = []
    left = list(spec.parameters["robots"])
    for i, server in enumerate(several):
        routed = {
            robot
            for one in servers[i :: len(several)]
            for robots in one.robots.values()
            for robot in robots
        }
        mine = [robot for robot in spec.parameters["robots"] if robot in routed]
        left = [robot for robot in left if robot not in routed]
        if mine:
            parameters = {**spec.parameters, "robots": mine}
            if len(places) > 1:
                parameters["model"] = places[i]
            name = f"{spec.name}{REPLICA}{len(found) + 1}" if found else spec.name
            host = plan.host_of(server.gpu)
            found.append(replace(spec, name=name, parameters=parameters, host=host))
    if left and found:
        first = dict(found[0].parameters)
        found[0] = replace(found[0], parameters={**first, "robots": [*first["robots"], *left]})
    return found or [spec]


def _judge_parameters(
    fleet: "FleetFile", task: "TaskClass", component: Component, folder: Path
) -> dict[str, Any]:
    one = task.components.used[component]
    model = model_of(fleet.located(one.model), folder)
    parameters = {"model": model, "prompt": one.prompt, "slo_ms": float(one.slo_ms)}
    if model == SYSTEM1:
        names = policy_names([task.components.system1.model for task in fleet.tasks.values()])
        if len(names) > 1:
            parameters["model"] = f"{SYSTEM1}:{names[task.components.system1.model]}"
        parameters["timeout_s"] = one.slo_ms / 1e3  # it is out of time then, wherever it waits
    elif fleet.gateway and model.startswith(fleet.gateway.endpoint):
        parameters["timeout_s"] = one.slo_ms / 1e3
        parameters["in_flight"] = GATEWAY_IN_FLIGHT
    if component in PERIODIC:
        judge = cast("Safety | Monitor", one)
        parameters["freq_hz"] = float(judge.freq_hz)
        if judge.cameras:
            parameters["cameras"] = judge.cameras
    elif skills := cast("System2", one).skills:
        parameters["skills"] = skills
    return parameters


def _robot_parameters(group: "RobotGroup", task: "TaskClass", policy: str) -> dict[str, Any]:
    options = dict(group.adapter_options)
    if group.is_metaworld:
        with suppress(ConfigError):  # the serving node refuses such a policy, and says why
            if reads_the_hand_only(policy):
                options.setdefault("proprioception", True)
    judges = task.components.safety, task.components.monitor
    judged_hz = [judge.freq_hz for judge in judges if judge is not None]
    if group.safe_state:
        options["safe_state"] = group.safe_state
    parameters = {
        "adapter": group.adapter,
        "control_rate_hz": float(group.control_rate_hz),
        "horizon_policy": task.horizon_policy(group.control_rate_hz),
        "rules": rules_text(task.rules),
    }
    needed_hz = camera_rate_hz(judged_hz) if judged_hz else 0.0
    if rate_hz := max(needed_hz, group.camera_rate_hz):
        parameters["camera_rate_hz"] = rate_hz
    if options:
        texts = [f"{name}={json.dumps(value)}" for name, value in options.items()]
        parameters["adapter_options"] = texts
    return parameters
