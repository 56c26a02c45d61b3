"""The robot body `lerobot`: any robot that LeRobot or a `lerobot_robot_*` plugin drives.

Whatever goes wrong with the driver is a `BodyError` with its reason. The arm is then left alone,
holding its last goal by itself, or loses its torque, as `on_fault` says; only the reset of a new
task connects again.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.fit import camera_name
from kairos_ros.robot.adapter import RobotSpec, TaskGoal
from kairos_ros.robot.adapters.contract.contract import ContractJoint, joint_names
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract
from kairos_ros.robot.adapters.contract.joint_units import JointUnits
from kairos_ros.robot.adapters.lerobot.lerobot_arms import (
    check_range,
    check_step,
    drop_input,
    limp,
    measured,
    positions,
    ranges,
    units_of,
)
from kairos_ros.robot.adapters.lerobot.lerobot_connection import LeRobotConnection
from kairos_ros.robot.adapters.lerobot.lerobot_driver import build_driver, calibration_command
from kairos_ros.robot.adapters.lerobot.lerobot_faults import (
    ADVICE,
    FROZEN,
    LIMITS,
    STALE,
    TORQUE,
    TRANSIENT,
    reason_of,
)
from kairos_ros.robot.adapters.lerobot.lerobot_features import is_velocity, read_features
from kairos_ros.robot.adapters.lerobot.lerobot_options import (
    LeRobotOptions,
    check_names,
    guard_limits,
    safe_targets,
    split_options,
)
from kairos_ros.robot.adapters.lerobot.lerobot_pictures import PixelWatch, as_jpeg
from kairos_ros.robot.body_error import BodyError

log = logging.getLogger(__name__)

DESCRIBED = {"so101_follower": "so101_real", "bi_so_follower": "bi_so101_real"}
"""LeRobot's type of a robot -> the contract that says how its features are joints of a URDF."""
TORQUE_CHECK_S = 1.0
"""How often the motors are asked whether they still have torque, at the control rate."""


def lerobot_body(
    control_rate_hz: float, robot: str, options: Mapping[str, Any]
) -> "LeRobotAdapter":
    """LeRobot's `robot`; options are those of `LeRobotOptions`, all others are LeRobot's own.

    Raises ConfigError and BodyError, which say what to do.
    """
    ours, fields = split_options(options)
    known = DESCRIBED.get(robot)
    joints = read_contract(contract_path(known)).joints if known else ()
    return LeRobotAdapter(
        lambda: build_driver(robot, fields),
        control_rate_hz,
        ours,
        calibrate=calibration_command(robot, fields),
        joints=joints,
    )


class LeRobotAdapter:
    """RobotAdapter over LeRobot's `Robot`. One read and one write per control period.

    build: makes the driver anew, for every connection. calibrate: the command that calibrates it.
    joints: of its description; none where it has no known one.
    Raises ConfigError and BodyError where the robot cannot be used as configured; a joint out of
    its range does not stop it from being made, but every task until it was moved back.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        control_rate_hz: float,
        options: LeRobotOptions,
        calibrate: str = "lerobot-calibrate",
        joints: Sequence[ContractJoint] = (),
    ) -> None:
        self._options = options
        self._link = LeRobotConnection(build, calibrate, options.max_image_age_s)
        robot = self._link.robot
        self._features = read_features(robot.observation_features, robot.action_features)
        self._sizes: dict[str, tuple[int, int]] = {
            camera: (options.image_size[0], options.image_size[1]) if options.image_size else size
            for camera, size in self._features.cameras.items()
        }
        names = self._features.action
        self.spec = RobotSpec(
            len(self._features.state),
            len(names),
            control_rate_hz,
            {self._key(camera): size for camera, size in self._sizes.items()},
            self._features.state,
        )
        if units_of(self._link.arms) != {joint.feature: joint.unit for joint in joints}:
            joints = ()  # motors that tell shares of their range do not say angles
        self.joint_names = joint_names(joints)
        self._joint_units = JointUnits(joints)
        self._joint_features = [joint.feature for joint in joints]
        check_names(options, self._features)
        if options.on_fault == "torque_off" and not self._link.arms:
            raise ConfigError(
                "adapter lerobot: this robot's driver has no serial bus of LeRobot's whose torque "
                "could be switched off; leave on_fault at hold"
            )
        self.limits = guard_limits(options, self._features, ranges(self._link.arms))
        self._safe = safe_targets(options, self.limits, names)
        self.has_safe_state = bool(options.safe_state)
        self.tolerated: Counter[str] = Counter()
        """Reads and writes that failed and did no harm, by reason."""
        self._fault: BodyError | None = None
        self._seen: Mapping[str, Any] = {}
        self._looked_ns = 0
        self._taken_ns = 0  # the oldest picture of `_seen`
        self._state = np.zeros(len(self._features.state), np.float32)
        self._blind_since_ns: int | None = None
        self._pixels = PixelWatch(options.frozen_after_s)
        self._looks = 0
        self._torque_every = max(1, round(TORQUE_CHECK_S * control_rate_hz))
        self._told: np.ndarray | None = None  # the last action of the running task
        self._rolls = np.array([is_velocity(name) for name in names])  # dimensions [action_dim]
        self._rolling = False  # some velocity is not 0
        try:
            self._open()
        except BodyError as error:
            if error.reason != LIMITS:
                raise
            log.error("no task is taken until this is fixed: %s", error)

    def reset(self, goal: TaskGoal) -> None:
        """Connects again after a fault; sees that the robot answers and is within its limits.

        Raises BodyError where it does not or is not. Nothing moves.
        """
        if self._fault is None:
            try:
                with self._link.patient():
                    self._check_torque()
                    self._look(patient=True)  # last: what it reads next is answered in turn then
            except BodyError as error:
                log.warning("connecting again: %s", error)
        if self._fault is not None:
            self._link.close()
            self._open()
        with self._link.patient():
            self._check_within()
        self._told = None

    def observe(self) -> Observation:
        self._require_sound()
        self._look()
        pictures = {
            self._key(camera): as_jpeg(self._seen[camera], size)
            for camera, size in self._sizes.items()
        }
        return Observation(self._state, pictures, self._taken_ns)

    def state(self) -> np.ndarray:
        """As read last, in this control period or the one before; float32 [state_dim]."""
        self._require_sound()
        return self._state

    def joint_positions(self) -> np.ndarray | None:
        """See `Jointed`. Before the first task nobody else looks: the motors are asked then."""
        if self._fault is not None or self._blind_since_ns is not None:
            return None
        at: Mapping[str, float] = dict(zip(self._features.state, self._state, strict=True))
        if time.monotonic_ns() - self._looked_ns > 2e9 / self.spec.control_rate_hz:
            try:
                at = measured(self._link.arms)
            except Exception:  # a driver raises whatever it likes; the next task says what is wrong
                return None
        return self._joint_units.positions(np.array([at[name] for name in self._joint_features]))

    def act(self, action: np.ndarray) -> None:
        """Sends one action and reads where the robot is."""
        self._require_sound()
        self._told = np.array(action, np.float32)
        self._send(self._told)
        self._rolling = bool(self._told[self._rolls].any())
        self._look()

    def hold(self) -> None:
        """The motors keep their last goal by themselves; velocities are set to 0, once."""
        self._require_sound()
        if self._rolling:
            self._rolling = not self._send(self._still())
        self._look()

    def succeeded(self) -> None:
        """A real robot cannot tell."""

    def toward_safe_state(self) -> np.ndarray | None:
        """See `Homing`."""
        at = self._still()
        target = np.where(np.isnan(self._safe), at, self._safe)
        step = self._options.safe_speed / self.spec.control_rate_hz
        if np.array_equal(target, at):
            return None
        action: np.ndarray = at + np.clip(target - at, -step, step)
        return action.astype(np.float32)

    def close(self) -> None:
        """Lets go of the robot; its torque is as `on_stop` says where LeRobot has a bus for it."""
        if self._rolling:
            with contextlib.suppress(BodyError):
                self._send(self._still())
        if self._options.on_stop == "torque_off" and self._link.opened:
            self._link.release()
        self._link.close()

    def _open(self) -> None:
        """Connects. Raises BodyError where that fails."""
        try:
            self._link.open()
            self._fault = None
            self._pixels = PixelWatch(self._options.frozen_after_s)
            with self._link.patient():
                self._look(patient=True)
        except BodyError as error:
            self._fault = error
            self._link.close()
            raise

    def _look(self, *, patient: bool = False) -> None:
        """Reads the robot. A read that fails is tolerated unless they have failed for too long.

        patient: read again at once instead, and tolerate nothing.
        """
        tries = 5 if patient else 1
        for left in reversed(range(tries)):
            try:
                self._check_steps()
                taken_ns = self._link.taken_ns()  # first, as newer pictures may come meanwhile
                seen = self._link.robot.get_observation()
                state = self._features.vector(seen)
                self._features.check_pictures(seen)
            except Exception as error:  # a driver raises whatever it likes
                self._tolerate(error, again=left > 0, old=patient)
            else:
                self._check_cameras(seen)
                self._seen, self._taken_ns = seen, taken_ns
                self._state, self._blind_since_ns = state, None
                self._looked_ns = time.monotonic_ns()
                self._looks += 1
                if self._looks % self._torque_every == 0:
                    self._check_torque()
                return

    def _check_steps(self) -> None:
        """Before every read: forgets what came too late; after a failed one, sees that the motors
        answer what they are asked now. Raises what `check_step` raises."""
        for arm in self._link.arms:
            drop_input(arm)
            if self._blind_since_ns is not None:
                check_step(arm)

    def _send(self, action: np.ndarray) -> bool:
        """Whether it was sent; a failure that may pass is tolerated."""
        try:
            self._link.robot.send_action(self._features.named(action))
        except Exception as error:  # as above; some drivers read before they write
            self._tolerate(error)
            return False
        return True

    def _tolerate(self, error: Exception, *, again: bool = False, old: bool = False) -> None:
        """Counts a failure that may pass; raises the BodyError that it is otherwise."""
        reason = reason_of(error)
        now_ns = time.monotonic_ns()
        if self._blind_since_ns is None:
            self._blind_since_ns = now_ns
        blind_s = (now_ns - self._blind_since_ns) / 1e9
        lasting = old or blind_s > self._options.max_blind_s
        if reason in TRANSIENT and (again or not lasting):
            self.tolerated[reason] += 1
            return
        raise self._give_up(error) from error

    def _check_cameras(self, seen: Mapping[str, Any]) -> None:
        """Raises BodyError for a camera that gives no pictures, or always the same."""
        if stale := self._link.stale_camera():
            raise self._give_up(BodyError(STALE, f"{stale}; {ADVICE[STALE]}"))
        if frozen := self._pixels.frozen(self._features.cameras, seen, time.monotonic_ns()):
            raise self._give_up(BodyError(FROZEN, f"{frozen}; {ADVICE[FROZEN]}"))

    def _check_torque(self) -> None:
        """Raises BodyError for motors that lost their torque: their power was gone, or overload."""
        try:
            self._check_steps()
            weak = [motor for arm in self._link.arms for motor in limp(arm)]
        except Exception as error:  # a driver raises whatever it likes
            self._tolerate(error)
            return
        if weak:
            said = f"{TORQUE}: {', '.join(weak)}"
            raise self._give_up(BodyError(TORQUE, f"{said}; {ADVICE[TORQUE]}"))

    def _give_up(self, error: Exception) -> BodyError:
        """The robot is left alone from here on. Returns the fault with what its motors do now."""
        rolling, self._rolling = self._rolling, False
        if rolling:
            with contextlib.suppress(Exception):  # it may not hear
                self._link.robot.send_action(self._features.named(self._still()))
        lets_go = self._options.on_fault == "torque_off"
        deaf = self._link.release() if lets_go else []
        # which motor is silent is asked after that, since it takes time
        fault = error if isinstance(error, BodyError) else self._link.named(error)
        if deaf:
            said = f"motors that hear are let go, {', '.join(deaf)} did not hear it,"
        elif lets_go:
            said = "the torque is off"
        elif fault.reason == TORQUE:
            said = "nothing is sent to the motors"
        else:
            said = "nothing is sent to the motors, which hold their last goal,"
        self._fault = BodyError(fault.reason, f"{fault}; {said} until the next task")
        return self._fault

    def _still(self) -> np.ndarray:
        """Velocities 0, positions as told last or as they are; float32 [action_dim]."""
        return np.where(self._rolls, 0.0, self._measured() if self._told is None else self._told)

    def _require_sound(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _check_within(self) -> None:
        """Raises BodyError for a joint that is where it must not be."""
        try:
            self._check_steps()
            for arm in self._link.arms:
                check_range(arm, positions(arm))
        except Exception as error:  # a driver raises whatever it likes
            raise self._give_up(error) from error
        for name, value in zip(self._features.state, self._state, strict=True):
            low, high = self._options.limits.get(name, (-np.inf, np.inf))
            if not low <= value <= high:
                said = f"joint {name} is at {value:.1f}, out of its limits from {low:g} to {high:g}"
                raise self._give_up(BodyError(LIMITS, f"{said}; {ADVICE[LIMITS]}"))

    def _measured(self) -> np.ndarray:
        """Where each action dimension is, float32 [action_dim]; 0 for those not measured."""
        return np.array(
            [self._state[i] if i >= 0 else 0.0 for i in self._features.measured_by], np.float32
        )

    def _key(self, camera: str) -> str:
        return camera_name(self._options.image_keys.get(camera, camera))
