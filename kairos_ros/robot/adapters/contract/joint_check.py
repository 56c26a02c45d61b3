"""Whether what a driver tells of its joints fits the contract."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kairos_ros.document.faults import did_you_mean
from kairos_ros.robot.adapters.contract.contract import ContractArm, ContractJoint
from kairos_ros.robot.adapters.contract.driver_link import Positions


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing that does not fit."""

    code: str
    """Such as `joint missing`; what it is counted by."""
    text: str


def joint_mismatches(arm: ContractArm, told: Positions, tolerance: float) -> Iterator[Mismatch]:
    """Joints that are missing, misnamed, not finite, beyond their limits, or in another unit.

    Args:
        arm: whose driver it is.
        told: its newest message.
        tolerance: rad or m beyond a limit that are still fine.
    """
    where = arm.topic(arm.joint_states.topic)
    positions = dict(zip(told.names, told.values, strict=False))
    known = {joint.name for joint in arm.joints}
    foreign = [name for name in told.names if name not in known]
    for joint in arm.joints:
        if joint.name not in positions:
            hint = did_you_mean(joint.name, foreign)
            code = "wrong joint" if hint else "joint missing"
            has = ", ".join(told.names) or "none"
            yield Mismatch(code, f"{where} has no joint {joint.name!r}{hint}; it has {has}")
            continue
        at = float(positions[joint.name])
        if not math.isfinite(at):
            yield Mismatch("not finite", f"{where}: joint {joint.name} is at {at}")
        elif not joint.lower - tolerance <= at <= joint.upper + tolerance:
            yield _outside(joint, at, where)


def _outside(joint: ContractJoint, at: float, where: str) -> Mismatch:
    unit = "rad" if joint.kind == "revolute" else "m"
    side = f"below its limit {joint.lower:g}" if at < joint.lower else f"above its {joint.upper:g}"
    text = f"{where}: joint {joint.name} is at {at:.4g} {unit}, {side} {unit}"
    turned = abs(at) > 2 * math.pi
    if turned and joint.kind == "revolute" and joint.lower <= math.radians(at) <= joint.upper:
        hint = "this looks like degrees: set joint_states.unit to degrees, or mend the driver"
        return Mismatch("looks like degrees", f"{text}; {hint}")
    return Mismatch(
        "joint out of limits",
        f"{text}; bring it back by hand, or mend the limits in the contract",
    )
