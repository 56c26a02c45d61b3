"""From a contract file to what it says, or to everything that is wrong with it and where."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import (
    FaultyFileError,
    did_you_mean,
    fault_at,
    read_document,
    read_model,
)
from kairos_ros.document.marked_yaml import Path as FieldPath
from kairos_ros.host.share import share
from kairos_ros.robot.adapters.contract.contract import ContractArm, RobotContract

FURTHEST_TURN_RAD = 4 * math.pi
"""A limit of a revolute joint beyond two turns is more likely written in degrees."""
AFFINE = ("radians", "degrees", "metres")
ACTIONS = ("follow_joint_trajectory", "gripper_command")


def contract_path(name: str) -> Path:
    """The file itself, or the shipped contract of that name."""
    shipped = share() / "config" / "robots" / f"{name}.yaml"
    return shipped if Path(name).name == name and not Path(name).exists() else Path(name)


def read_contract(path: Path) -> RobotContract:
    """Raises FaultyFileError with file, line, column, field, value and what is allowed of every
    fault, and ConfigError for a file that cannot be read at all."""
    document = read_document(path)
    if not isinstance(document.data, dict):
        text = f"a contract has the fields {', '.join(RobotContract.model_fields)}"
        raise FaultyFileError(path, [fault_at(document, (), text)])
    contract = read_model(path, document, RobotContract)
    faults = [fault_at(document, at, text) for at, text in _contradictions(contract)]
    if faults:
        raise FaultyFileError(path, faults)
    return contract


def at_drivers(contract: RobotContract, drivers: Sequence[str]) -> RobotContract:
    """The contract with its arms' drivers at other namespaces, in the order of its arms.

    Raises ConfigError where there are more or fewer of them than arms, or one is no namespace.
    """
    if len(drivers) != len(contract.arms):
        raise ConfigError(
            f"{len(drivers)} driver namespaces {list(drivers)} for the {len(contract.arms)} arms "
            f"of a {contract.robot}; give one for each arm"
        )
    data = contract.model_dump()
    for arm, driver in zip(data["arms"], drivers, strict=True):
        arm["driver"] = driver if driver.startswith("/") else f"/{driver}"
    try:
        return RobotContract.model_validate(data)
    except ValidationError:
        raise ConfigError(
            f"driver namespaces {list(drivers)}: write them like /so101, letters, digits and _"
        ) from None


def _contradictions(contract: RobotContract) -> Iterator[tuple[FieldPath, str]]:
    """What does not fit together, and which field says so."""
    owners: dict[str, str] = {}
    for a, arm in enumerate(contract.arms):
        here: FieldPath = ("arms", a)
        yield from _joints(arm, here, owners)
        yield from _commands(arm, here)
        for c, camera in enumerate(arm.cameras):
            at = (*here, "cameras", c, "key")
            yield from _once(owners, f"camera {camera.key}", f"arms.{a}.cameras.{c}", at)
        yield from _once(owners, f"driver {arm.driver}", f"arms.{a}", (*here, "driver"))
        if contract.when_lost == "torque_off" and arm.torque is None:
            text = (
                "when_lost is torque_off; say where the driver takes that: torque: {service: ...}"
            )
            yield here, text
    for e, extra in enumerate(contract.extra_state):
        at = ("extra_state", e, "features")
        if extra.kind != "array" and len(extra.features) != 3:
            yield at, f"a {extra.kind} has 3 features (x, y, z), not {len(extra.features)}"
        for feature in extra.features:
            yield from _once(owners, f"feature {feature}", f"extra_state.{e}", at)
    safe = [joint.safe is not None for joint in contract.joints]
    if any(safe) and not all(safe):
        missing = [joint.feature for joint in contract.joints if joint.safe is None]
        yield ("arms",), f"a safe state needs `safe` of every joint; {', '.join(missing)} has none"


def _joints(
    arm: ContractArm, here: FieldPath, owners: dict[str, str]
) -> Iterator[tuple[FieldPath, str]]:
    names: dict[str, str] = {}
    for j, joint in enumerate(arm.joints):
        at = (*here, "joints", j)
        yield from _once(names, f"joint {joint.name}", f"joints.{j} of this arm", (*at, "name"))
        told = ".".join(map(str, at))
        yield from _once(owners, f"feature {joint.feature}", told, (*at, "feature"))
        if not joint.lower < joint.upper:
            yield (*at, "lower"), f"{joint.lower:g} must be below upper, which is {joint.upper:g}"
        elif joint.safe is not None and not joint.lower <= joint.safe <= joint.upper:
            text = f"{joint.safe:g} is outside the limits {joint.lower:g} to {joint.upper:g}"
            yield (*at, "safe"), text
        if joint.kind == "revolute" and joint.unit == "metres":
            yield (*at, "unit"), "a revolute joint has no metres; say kind: prismatic, or an angle"
        if joint.kind == "prismatic" and joint.unit in ("radians", "degrees"):
            yield (
                (*at, "unit"),
                f"a prismatic joint has no {joint.unit}; allowed are: metres, range_*",
            )
        if joint.zero and joint.unit not in AFFINE:
            yield (*at, "zero"), f"{joint.unit} counts from the limits; leave zero out"
        for field in ("lower", "upper"):
            value = getattr(joint, field)
            if joint.kind == "revolute" and abs(value) > FURTHEST_TURN_RAD:
                text = (
                    f"{value:g} rad are {abs(value) / math.tau:.1f} turns; limits are radians "
                    f"({value:g} degrees are {math.radians(value):.4g} rad)"
                )
                yield (*at, field), text


def _commands(arm: ContractArm, here: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    names = [joint.name for joint in arm.joints]
    owners: dict[str, str] = {}
    for c, command in enumerate(arm.commands):
        at = (*here, "commands", c)
        for name in arm.joints_of(command):
            if name not in names:
                hint = did_you_mean(name, names)
                text = f"this arm has no joint {name!r}{hint}; it has {', '.join(names)}"
                yield (*at, "joints"), text
            yield from _once(owners, f"joint {name}", f"commands.{c} of this arm", (*at, "joints"))
        if command.kind == "gripper_command" and len(arm.joints_of(command)) != 1:
            yield (*at, "joints"), "a gripper_command moves one joint; name it"
    if missing := [name for name in names if f"joint {name}" not in owners]:
        yield (*here, "commands"), f"nothing commands {', '.join(missing)}"


def _once(
    owners: dict[str, str], thing: str, owner: str, at: FieldPath
) -> Iterator[tuple[FieldPath, str]]:
    if thing in owners:
        yield at, f"{thing} is there already, in {owners[thing]}; give every one its own"
    owners[thing] = owner
