"""Which nodes run one arm, simulated or real: the plan of so101, bimanual_so101 and franka launch.

The launch files map it to `launch_ros` nodes; `kairos arm` and the tests start the very same plan.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.bringup.plan import flag, recorder, robot, serving, viz
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.policies.saved_policy import policy_inputs
from kairos_ros.host.share import share
from kairos_ros.robot.adapters.contract.contract import RobotContract
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract
from kairos_ros.robot.cameras.cameras_text import parse_cameras
from kairos_ros.robot.description.arm import arm_called

PICTURES = re.compile(r"camera/(\w+)/(image_raw|compressed)")
"""Topics of a simulated driver's cameras."""
CAMERA_RATE_HZ = 15.0
"""Of pictures that a policy reads: an arm is elsewhere soon after one was taken."""


def shipped_policy(arm: str) -> Path:
    """The folder of the policy for the simulated arm."""
    return share() / "models" / f"{arm}_reach"


def arguments_of(arm: str) -> Mapping[str, tuple[str, str]]:
    """Launch argument -> (default, description). Raises ConfigError for an arm that is none."""
    if arm not in ARGUMENTS:
        raise ConfigError(f"arm {arm!r} is none of {', '.join(ARGUMENTS)}")
    return ARGUMENTS[arm]


def arm_plan(arm: str, given: Mapping[str, str]) -> list[ProcessSpec]:
    """The driver where it is simulated, the robot, the serving node, and what else was asked for.

    Args:
        arm: so101, bi_so101 or franka.
        given: launch arguments of `ARGUMENTS[arm]`, as text; those left out have their defaults.

    Raises ConfigError for an argument that does not exist or does not fit the others.
    """
    arguments = arguments_of(arm)
    if unknown := sorted(given.keys() - arguments.keys()):
        known = ", ".join(arguments)
        raise ConfigError(f"{arm} has no argument {unknown[0]!r}; it has {known}")
    values = {name: default for name, (default, _) in arguments.items()} | dict(given)
    simulated, serves = (flag(name, values[name]) for name in ("use_sim", "serving"))
    for name in ("policy", "horizon"):
        if values["fleet"] and values[name]:
            raise ConfigError(f"the fleet file names policies and horizons: leave out {name}")
    specs = _body(arm, values, simulated)
    if values["fleet"]:
        fleet = _fleet(Path(values["fleet"]))
        specs = [spec for spec in specs if spec.name != "robot"]
        specs += (spec for spec in fleet if serves or spec.executable != "serving_node")
    elif serves:
        if not (simulated or values["policy"]):
            raise ConfigError(
                f"use_sim is false: name the policy of this {arm}; the one that ships knows only "
                "the simulated cell"
            )
        horizon = {"horizon": values["horizon"]} if values["horizon"] else {}
        specs.append(serving(policy=values["policy"] or str(shipped_policy(arm)), **horizon))
    elif values["horizon"]:  # which the server elsewhere does not know: the robot names it
        named = {"horizon_policy": values["horizon"]}
        specs[-1] = replace(specs[-1], parameters={**specs[-1].parameters, **named})
    if flag("rviz", values["rviz"]):
        specs.append(viz(arms=[_looks(arm, values, simulated)]))
    return [*specs, recorder(values["record"])] if values["record"] else specs


def _looks(arm: str, values: Mapping[str, str], simulated: bool) -> str:
    """How the viz node draws the robot (docs/rviz.md)."""
    looks = {
        "contract": _contract(arm, values, simulated),
        "tips": [hand.tip for hand in arm_called(arm).hands],
        "urdf": str(share() / "models" / "arms" / f"{arm}.urdf"),
    }
    return f"{values['robot'] or f'{arm}_1'}={json.dumps(looks)}"


def _body(arm: str, values: Mapping[str, str], simulated: bool) -> list[ProcessSpec]:
    """The simulated driver, if there is one, and the robot node."""
    name = values["robot"] or f"{arm}_1"
    ports = [values.get(key, "") for key in ("port", "left_port", "right_port")]
    if any(ports):
        if simulated:
            raise ConfigError("a serial port is an arm's: say use_sim:=false, too")
        return [_robot(name, "lerobot", _lerobot_options(arm, values), **_named_cameras(values))]
    contract = _contract(arm, values, simulated)
    read = read_contract(contract_path(contract))
    drivers = [one.strip().rstrip("/") for one in values["driver"].split(",") if one.strip("/ ")]
    options: dict[str, Any] = {"contract": contract}
    if simulated:  # it is started here, below the namespace of the fleet
        drivers = [driver.strip("/") for driver in drivers or (read.arms[0].driver,)]
    if drivers:
        options["drivers"] = drivers
    rate_hz = float(read.control_rate_hz)
    body = _robot(name, "ros2", options, control_rate_hz=rate_hz, **_named_cameras(values))
    if not simulated:
        return [body]
    if drivers[0] == name:
        raise ConfigError(f"robot and driver are both called {name!r}; name one of them otherwise")
    return [_simulated_driver(arm, drivers[0], values, read), body]


def _contract(arm: str, values: Mapping[str, str], simulated: bool) -> str:
    """File or name of the contract: for a policy that reads pictures one with cameras, where such
    a one ships."""
    if values["contract"]:
        return values["contract"]
    if not simulated:
        return f"{arm}_real"
    seeing = f"{arm}_cameras"
    reads = values["policy"] and policy_inputs(values["policy"]).cameras
    return seeing if reads and contract_path(seeing).exists() else arm


def _simulated_driver(
    arm: str, driver: str, values: Mapping[str, str], contract: RobotContract
) -> ProcessSpec:
    parameters: dict[str, Any] = {"arm": arm}
    if not values["seed"].isdecimal():
        raise ConfigError(f"seed is {values['seed']!r}; it must be 0 or a positive whole number")
    parameters["seed"] = int(values["seed"])
    if cameras := [one.strip() for one in values["cameras"].split(",") if one.strip()]:
        parse_cameras(values["cameras"])  # what is wrong is told before anything starts
        parameters["cameras"] = cameras
    elif read := [
        f"{topic[1]}:{camera.height_px}x{camera.width_px}"
        for camera in contract.cameras.values()
        if (topic := PICTURES.fullmatch(camera.topic))
    ]:
        parameters |= {"cameras": read, "camera_rate_hz": CAMERA_RATE_HZ}
    return ProcessSpec("sim_driver_node", "driver", namespace=driver, parameters=parameters)


def _named_cameras(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Parameters of the robot node that say how its cameras and the policy's fit."""
    given = {name: values[name].split(",") for name in ("camera_map", "absent_cameras")}
    lists = {name: [one.strip() for one in texts if one.strip()] for name, texts in given.items()}
    return {name: texts for name, texts in lists.items() if texts}


def _robot(name: str, adapter: str, options: Mapping[str, Any], **parameters: Any) -> ProcessSpec:
    texts = [f"{key}={json.dumps(value)}" for key, value in options.items()]
    spec = robot(name, adapter=adapter, adapter_options=texts, **parameters)
    return replace(spec, params_file=share() / "config" / "arm.yaml")


def _lerobot_options(arm: str, values: Mapping[str, str]) -> dict[str, Any]:
    """As `lerobot.robots` wants them."""
    try:
        more = yaml.safe_load(values["lerobot"] or "{}")
    except yaml.YAMLError as error:
        raise ConfigError(f"argument lerobot is no YAML: {error}") from error
    if not isinstance(more, dict):
        raise ConfigError(f"argument lerobot is {values['lerobot']!r}; write {{name: value, ...}}")
    named = {"id": values["id"]} if values["id"] else {}
    if arm == "so101":
        return {"robot": "so101_follower", "port": values["port"], **named, **more}
    if not (values["left_port"] and values["right_port"]):
        raise ConfigError("two arms have two ports: give left_port and right_port")
    ports = {f"{side}_arm_config": {"port": values[f"{side}_port"]} for side in ("left", "right")}
    return {"robot": "bi_so_follower", **ports, **named, **more}


def _fleet(path: Path) -> list[ProcessSpec]:
    """Robots, judges and serving node of a fleet file, which names the arm among its robots."""
    from kairos_ros.bringup.fleet import fleet_plan
    from kairos_ros.bringup.fleet_files import read

    return fleet_plan(read(path), path.parent)
