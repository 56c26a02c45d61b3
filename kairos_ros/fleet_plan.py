"""From a fleet file to the nodes that run it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_ros.bringup import NodeSpec, recorder, robot, serving, vlm
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.fleet.places import model_of, policy_of
from kairos_ros.robot.rules_text import rules_text
from kairos_ros.share import share

if TYPE_CHECKING:
    from kairos_ros.fleet.fleet_file import FleetFile, RobotGroup, TaskClass

NODES: Mapping[Component, str] = {
    Component.SAFETY: "safety",
    Component.MONITOR: "monitor",
    Component.SYSTEM2: "planner",
}
SIMULATED = "sim"
FASTEST_HZ = 30
"""Cameras are not made to show more for a common multiple's sake."""


def fleet_plan(fleet: "FleetFile", folder: Path, *, record: Path | str = "") -> list[NodeSpec]:
    """Serving node, safety, monitor and planner nodes, robots, and the recorder if there is a bag.

    Tasks whose component is the same model with the same prompt, SLO and rate share its node, and
    each node is a process of its own: what fails, fails alone.

    Args:
        fleet: as it was read.
        folder: where the fleet file stands; files and folders in it count from there.
        record: folder of the bag to record into; empty: no bag.

    Raises ConfigError for more than one System 1 model: a serving node has one policy.
    """
    server = _serving(fleet, folder)
    specs = [server, *_judges(fleet, folder)]
    images = {} if reads_images(server.parameters["policy"]) else {"request_images": False}
    for name, group in fleet.robots.items():
        spec = robot(name, **_robot_parameters(group, fleet.tasks[group.task]), **images)
        if group.params_file:
            spec = replace(spec, params_file=folder / Path(group.params_file).expanduser())
        elif group.adapter != SIMULATED:  # whose limits robot.yaml has
            spec = replace(spec, params_file=share() / "config" / "arm.yaml")
        specs.append(spec)
    return [*specs, recorder(record)] if record else specs


def camera_rate_hz(judged_hz: Sequence[float]) -> float:
    """Pictures per second, so that each judge finds a fresh one at its own rate: the smallest
    common multiple of their rates, or, where that is no rate of a camera, the fastest one's."""
    rates = [Fraction(hz).limit_denominator(100) for hz in judged_hz]
    common = Fraction(lcm(*(r.numerator for r in rates)), gcd(*(r.denominator for r in rates)))
    return float(common if common <= FASTEST_HZ else max(rates))


def reads_images(policy: str) -> bool:
    """False for a policy folder whose configuration lists no image; of a hub, nothing is known."""
    config = Path(policy) / "config.json"
    if not config.is_file():
        return True
    features = json.loads(config.read_text()).get("input_features", {})
    return any(feature.get("type") == "VISUAL" for feature in features.values())


def _serving(fleet: "FleetFile", folder: Path) -> NodeSpec:
    tasks = list(fleet.tasks.values())
    models = dict.fromkeys(task.components.system1.model for task in tasks)
    if len(models) > 1:
        raise ConfigError(
            f"the fleet has the System 1 models {', '.join(models)}, but one serving node serves "
            "one; start a fleet file for each of them, on ROS domains of their own"
        )
    scheduling = {"scheduling": tasks[0].scheduling} if tasks[0].scheduling else {}
    return serving(policy=policy_of(fleet.located(next(iter(models))), folder), **scheduling)


def _judges(fleet: "FleetFile", folder: Path) -> list[NodeSpec]:
    robots_of: dict[tuple[Component, str], list[str]] = {}
    for name, task in fleet.tasks.items():
        for component in NODES.keys() & task.components.used.keys():
            parameters = _judge_parameters(fleet, task, component, folder)
            key = component, json.dumps(parameters)
            robots_of.setdefault(key, []).extend(
                r for r, g in fleet.robots.items() if g.task == name
            )
    specs: list[NodeSpec] = []
    for component, node in NODES.items():
        mine = [(text, robots) for (one, text), robots in robots_of.items() if one is component]
        for i, (text, robots) in enumerate(mine, 1):
            spec = vlm(node, robots=robots, **json.loads(text))
            specs.append(spec if i == 1 else replace(spec, name=f"{node}_{i}"))
    return specs


def _judge_parameters(
    fleet: "FleetFile", task: "TaskClass", component: Component, folder: Path
) -> dict[str, Any]:
    one = task.components.used[component]
    model = model_of(fleet.located(one.model), folder)
    parameters = {"model": model, "prompt": one.prompt, "slo_ms": float(one.slo_ms)}
    if component in PERIODIC:
        parameters["freq_hz"] = float(one.freq_hz)
        if one.cameras:
            parameters["cameras"] = one.cameras
    return parameters


def _robot_parameters(group: "RobotGroup", task: "TaskClass") -> dict[str, Any]:
    options = dict(group.adapter_options)
    judged_hz = [one.freq_hz for c, one in task.components.used.items() if c in PERIODIC]
    if group.safe_state:
        options["safe_state"] = group.safe_state
    parameters = {
        "adapter": group.adapter,
        "control_rate_hz": float(group.control_rate_hz),
        "horizon_policy": task.horizon_policy(group.control_rate_hz),
        "rules": rules_text(task.rules),
    }
    if judged_hz:
        parameters["camera_rate_hz"] = camera_rate_hz(judged_hz)
    if options:
        texts = [f"{name}={json.dumps(value)}" for name, value in options.items()]
        parameters["adapter_options"] = texts
    return parameters
