"""The motors behind a LeRobot robot, where they hang on a serial bus of LeRobot's.

What LeRobot's drivers do at `connect` is not safe by itself: they switch the torque on while the
motors remember an old goal, whatever their calibration, and a second process may do so beside them.
`prepare` sees to that before. All calls are the driver's own, in the thread that calls here.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kairos_ros.robot.adapters.lerobot.lerobot_faults import (
    ADVICE,
    BUSY,
    CABLE,
    CALIBRATION,
    DRIVER,
    LIMITS,
    LateReplyError,
)
from kairos_ros.robot.body_error import BodyError

log = logging.getLogger(__name__)

MARGIN_TURNS = 2.5 / 360
"""Joints at rest press a little beyond the range that was recorded."""
TRIES = 5
WRITE_TIMEOUT_S = 0.25
RELEASE_S = 3.0
"""How long motors are told to switch their torque off while none of them answers."""
BIMANUAL = ("left", "right")


@dataclass(frozen=True, slots=True)
class ArmMotors:
    """Motors on one bus that are told positions."""

    prefix: str
    """Of the features: `left_` of a bimanual robot."""
    bus: Any
    """LeRobot's `SerialMotorsBus`."""
    motors: tuple[str, ...]


def arms_of(robot: Any, actions: Collection[str]) -> tuple[ArmMotors, ...]:
    """The arms of a robot that is told `actions`; none where its driver does without such a bus."""
    from lerobot.motors.motors_bus import SerialMotorsBus

    owners = {"": robot} | {f"{side}_": getattr(robot, f"{side}_arm", None) for side in BIMANUAL}
    arms = []
    for prefix, owner in owners.items():
        bus = getattr(owner, "bus", None)
        if isinstance(bus, SerialMotorsBus):
            motors = tuple(m for m in bus.motors if f"{prefix}{m}.pos" in actions)
            arms.append(ArmMotors(prefix, bus, motors))
    return tuple(arms)


def claim(port: str) -> int:
    """Holds the port against other robot nodes; the descriptor, to be closed to let go.

    Raises BodyError where it is not there or held already. Nothing is sent.
    """
    try:
        held = os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BodyError(
            CABLE,
            f"port {port} cannot be opened: {error.strerror}; check the cable, the port "
            "(lerobot-find-port) and that this user may use it (group dialout)",
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise BodyError(BUSY, f"port {port} is in use by another robot node; stop that") from error
    return held


def prepare(arm: ArmMotors, calibrate: str) -> None:
    """Opens the bus for a moment and makes it safe to switch the torque on.

    Raises BodyError where the motors are not calibrated (`calibrate` is the command that does it)
    or a joint is out of its range; whatever the driver raises where it cannot talk to them.
    """
    bus = arm.bus
    bus.connect()
    try:
        if not bus.is_calibrated:
            raise BodyError(
                CALIBRATION,
                f"the arm at {bus.port} is not calibrated: what its motors hold is not what the "
                f"calibration file says, or there is no file; beside the arm, run: {calibrate}",
            )
        at = bus.sync_read("Present_Position", list(arm.motors), normalize=False, num_retry=TRIES)
        check_range(arm, at)
        _aim_at(arm, at)
    finally:
        bus.disconnect(disable_torque=False)


def check_range(arm: ArmMotors, at: Mapping[str, float]) -> None:
    """Raises BodyError for a joint whose position, in steps, is not in its calibrated range."""
    for motor in arm.motors:
        calibrated = arm.bus.calibration[motor]
        margin = MARGIN_TURNS * _resolution(arm, motor)
        if not calibrated.range_min - margin <= at[motor] <= calibrated.range_max + margin:
            low, high = range_of(arm, motor)
            raise BodyError(
                LIMITS,
                f"joint {arm.prefix}{motor} is at {_scaled(arm, motor, at[motor]):.1f}, out of its "
                f"range from {low:.1f} to {high:.1f}; {ADVICE[LIMITS]}",
            )


def positions(arm: ArmMotors) -> dict[str, float]:
    """Where the motors are, in steps."""
    motors = list(arm.motors)
    steps: dict[str, float] = arm.bus.sync_read(
        "Present_Position", motors, normalize=False, num_retry=TRIES
    )
    return steps


def measured(arms: Collection[ArmMotors]) -> dict[str, float]:
    """Feature -> where its motor is, in the unit of the features."""
    told: dict[str, float] = {}
    for arm in arms:
        drop_input(arm)
        at = arm.bus.sync_read("Present_Position", list(arm.motors))
        told |= {f"{arm.prefix}{motor}.pos": value for motor, value in at.items()}
    return told


def units_of(arms: Collection[ArmMotors]) -> dict[str, str]:
    """Feature -> its unit, as LeRobot and contracts name it."""
    return {
        f"{arm.prefix}{motor}.pos": arm.bus.motors[motor].norm_mode.value
        for arm in arms
        for motor in arm.motors
    }


def ranges(arms: Collection[ArmMotors]) -> dict[str, tuple[float, float]]:
    """Feature -> its calibrated range in the unit of the features; without those uncalibrated."""
    return {
        f"{arm.prefix}{motor}.pos": range_of(arm, motor)
        for arm in arms
        for motor in arm.motors
        if motor in arm.bus.calibration
    }


def range_of(arm: ArmMotors, motor: str) -> tuple[float, float]:
    calibrated = arm.bus.calibration[motor]
    ends = (_scaled(arm, motor, end) for end in (calibrated.range_min, calibrated.range_max))
    low, high = sorted(ends)
    return low, high


def limp(arm: ArmMotors) -> list[str]:
    """Motors that have no torque."""
    torque = arm.bus.sync_read("Torque_Enable", list(arm.motors))
    return [f"{arm.prefix}{motor}" for motor, on in torque.items() if not on]


def bound(arm: ArmMotors, timeout_ms: float) -> None:
    """How long the driver waits for a reply beyond its time on the wire, and for room to write.

    LeRobot sets its 50 ms on the port the same way.
    """
    port = arm.bus.port_handler

    def set_packet_timeout(length: int) -> None:
        port.packet_start_time = port.getCurrentTime()
        port.packet_timeout = port.tx_time_per_byte * (length + 3.0) + timeout_ms

    port.setPacketTimeout = set_packet_timeout
    if port.is_open:
        port.ser.write_timeout = WRITE_TIMEOUT_S


def silent(arm: ArmMotors) -> list[str]:
    """Motors that do not answer, each with its number."""
    return [
        f"{arm.prefix}{name} (id {motor.id})"
        for name, motor in arm.bus.motors.items()
        if not _answers(arm, name)
    ]


def _answers(arm: ArmMotors, motor: str) -> bool:
    drop_input(arm)
    try:
        return arm.bus.ping(motor, num_retry=1) is not None
    except IndexError:  # the driver, from this motor's reply to the first try
        return True


def gone(arm: ArmMotors) -> bool:
    """Whether its port is not there any more."""
    handler = arm.bus.port_handler
    if not handler.is_open:
        return not os.path.exists(arm.bus.port)
    try:
        _ = handler.ser.in_waiting
    except Exception:  # pyserial's own, or the system's
        return True
    return False


def release(arms: Collection[ArmMotors]) -> list[str]:
    """Switches off the torque of every motor; returns those that do not confirm it.

    A round tells every motor of every arm once, so that none waits for a silent one; those that
    have confirmed, too, so that one silent motor differs from a bus on which nobody answers. The
    last round is the fifth (`TRIES`) in which some motor answered. Rounds without any answer end
    after `RELEASE_S`, but not before the fifth.
    """
    motors = [(arm, motor) for arm in arms for motor in arm.bus.motors]
    deaf = motors
    rounds = answered = 0
    end_s = time.monotonic() + RELEASE_S
    while deaf and answered < TRIES and (rounds < TRIES or time.monotonic() < end_s):
        reached = [arm for arm in arms if arm.bus.is_connected and not gone(arm)]
        if not reached:
            break
        for arm in reached:
            with contextlib.suppress(Exception):  # a port that goes now
                drop_input(arm)
        heard = [(arm, motor) for arm, motor in motors if arm in reached and _let_go(arm, motor)]
        deaf = [motor for motor in deaf if motor not in heard]
        rounds += 1
        answered += bool(heard)
    return [f"{arm.prefix}{motor}" for arm, motor in deaf]


def _let_go(arm: ArmMotors, motor: str) -> bool:
    try:
        arm.bus.disable_torque(motor)
    except Exception as error:  # as many kinds as a driver has
        log.debug("motor %s keeps its torque: %s", motor, error)
        return False
    return True


def check_step(arm: ArmMotors) -> None:
    """Sees that the motors answer what they are asked now, after something went wrong.

    Replies carry no number: one that comes too late passes for the answer to the next question, and
    so on for ever. The answer to this question is known.

    Raises LateReplyError for another one, and what the driver raises where there is none.
    """
    motor = arm.motors[-1]  # the last to answer: what was late is through
    expected = arm.bus.model_number_table[arm.bus.motors[motor].model]
    try:
        said = arm.bus.ping(motor, raise_on_error=True)
    except IndexError:  # the driver, from a reply that is shorter than one to this question
        said = None
    if said != expected:
        raise LateReplyError(f"{arm.prefix}{motor} is asked what it is and answers {said}")


def drop_input(arm: ArmMotors) -> None:
    """Forgets what was received: a late reply, or the rest of a torn one, would be taken for the
    next, and so would each after it."""
    arm.bus.port_handler.is_using = False
    arm.bus.port_handler.ser.reset_input_buffer()


def close_port(arm: ArmMotors) -> None:
    """Closes the port even where the driver gave up half way. Torque stays as it is."""
    handler = arm.bus.port_handler
    with contextlib.suppress(Exception):  # of a port that is gone
        if handler.is_open:
            handler.closePort()
    handler.is_open = False


def _aim_at(arm: ArmMotors, at: Mapping[str, float]) -> None:
    """Makes the motors' goal where they are, and sees that they heard."""
    for _ in range(TRIES):
        arm.bus.sync_write("Goal_Position", dict(at), normalize=False)
        goals = arm.bus.sync_read(
            "Goal_Position", list(arm.motors), normalize=False, num_retry=TRIES
        )
        if goals == at:
            return
    raise BodyError(
        DRIVER,
        f"the motors at {arm.bus.port} do not take a goal: {_unlike(at, goals)}; switch the arm's "
        "power off and on",
    )


def _unlike(told: Mapping[str, float], has: Mapping[str, float]) -> str:
    """Motors whose goal is not what they were told."""
    wrong = [(motor, goal) for motor, goal in told.items() if has.get(motor) != goal]
    return ", ".join(f"{motor} was told {goal} and has {has.get(motor)}" for motor, goal in wrong)


def _resolution(arm: ArmMotors, motor: str) -> int:
    steps: int = arm.bus.model_resolution_table[arm.bus.motors[motor].model]
    return steps


def _scaled(arm: ArmMotors, motor: str, steps: float) -> float:
    """In the unit of the features, as LeRobot's bus does it, but beyond the range, too."""
    calibrated = arm.bus.calibration[motor]
    low: float = calibrated.range_min
    high: float = calibrated.range_max
    inverted = arm.bus.apply_drive_mode and calibrated.drive_mode
    match arm.bus.motors[motor].norm_mode.value:
        case "degrees":
            return (steps - (low + high) / 2) * 360 / (_resolution(arm, motor) - 1)
        case "range_m100_100":
            value = (steps - low) / (high - low) * 200 - 100
            return -value if inverted else value
        case _:
            value = (steps - low) / (high - low) * 100
            return 100 - value if inverted else value
