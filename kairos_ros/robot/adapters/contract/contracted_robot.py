"""Any robot that a contract describes, over a link to its drivers."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from kairos_ros.core.exchange import Observation
from kairos_ros.robot.adapter import RobotSpec, TaskGoal
from kairos_ros.robot.adapters.contract.contract import ContractArm, RobotContract, joint_names
from kairos_ros.robot.adapters.contract.driver_link import DriverLink, Entries, Glance, Positions
from kairos_ros.robot.adapters.contract.following import FollowingCheck
from kairos_ros.robot.adapters.contract.joint_check import joint_mismatches
from kairos_ros.robot.adapters.contract.joint_units import JointUnits
from kairos_ros.robot.body_error import BodyError

PREPARED_WITHIN_S = 10.0
"""For drivers and cameras to say something, and for a cell to lay out a task."""
SETTLED_S = 0.2
"""A driver that is back may be heard before it is known to be a new one."""
HOMING_PACE = 0.3
"""Share of the joints' largest velocity on the way to the safe state."""


class ContractedRobot:
    """RobotAdapter, Limited, Homing and Jointed. Actions are absolute targets of all joints.

    Whenever a driver or a camera falls silent, repeats itself or is replaced by another one, a
    joint does not follow, or somebody else commands the arm, the next call raises BodyError. The
    controllers hold the last target then, or let go where the contract says so. What was sent last
    is at most one point of a trajectory, so nothing moves on when everybody is back: only `reset`
    begins anew.
    """

    def __init__(
        self,
        contract: RobotContract,
        link: DriverLink,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._contract = contract
        self._link = link
        self._clock_ns, self._sleep = clock_ns, sleep
        self._units = JointUnits(contract.joints)
        self.limits = self._units.limits()
        self.spec = RobotSpec(
            state_dim=len(contract.state_features),
            action_dim=len(contract.joints),
            control_rate_hz=contract.control_rate_hz,
            images={key: (c.height_px, c.width_px) for key, c in contract.cameras.items()},
            state_names=tuple(contract.state_features),
        )
        self.joint_names = joint_names(contract.joints)
        safe = [joint.safe for joint in contract.joints]
        self.has_safe_state = None not in safe
        # rounded as actions are: what no action says is never arrived at
        self._safe = self._units.policy(np.array(safe, float)).astype(np.float32).astype(float)
        self._commanded: np.ndarray = np.zeros(len(safe))  # in the policy's units
        self._following = FollowingCheck(contract.joints, contract.following)
        self._lives: list[object] = []
        self._let_go = False  # since something was lost

    def reset(self, goal: TaskGoal) -> None:
        """Raises BodyError where the arm is not fit to move; it does not move here."""
        contract, link = self._contract, self._link
        link.begin()
        if self._wait_for(lambda: not any(self._silent()), self._silent):
            self._sleep(SETTLED_S)
        self._lives = [link.lives(a) for a in range(len(contract.arms))]
        for a, arm in enumerate(contract.arms):
            told = cast(Positions, link.positions(a))
            for mismatch in joint_mismatches(arm, told, contract.tolerance):
                raise BodyError(mismatch.code, mismatch.text)
        self._aim()
        link.torque(True)
        self._let_go = False
        link.announce(goal)
        self._wait_for(link.prepared, lambda: iter(["the cell has not prepared the task"]))
        self._following.restart()
        self._commanded = self.state()[: len(contract.joints)].astype(np.float64)

    def observe(self) -> Observation:
        state = self.state()
        self._require_pictures()
        # first, as newer pictures may come meanwhile
        seen = [cast(Glance, self._link.glance(key)) for key in self.spec.images]
        taken_ns = min((glance.at_ns for glance in seen), default=None)
        with self._letting_go():
            images = {key: self._link.picture(key) for key in self.spec.images}
        return Observation(state, images, taken_ns)

    def state(self) -> np.ndarray:
        """float32 [state_dim]: joints in the policy's units, then what else the contract names."""
        self._require_drivers()
        told = [self._joints(a, arm) for a, arm in enumerate(self._contract.arms)]
        entries = [cast(Entries, self._entries(i)) for i in range(len(self._contract.extra_state))]
        extras = [entry.values for entry in entries]
        state: np.ndarray = np.concatenate([self._units.policy(np.concatenate(told)), *extras])
        return state.astype(np.float32)

    def joint_positions(self) -> np.ndarray | None:
        """See `Jointed`."""
        if any(self._silent_drivers()):
            return None
        told = (cast(Positions, self._link.positions(a)) for a in range(len(self._contract.arms)))
        at = [dict(zip(one.names, one.values, strict=False)) for one in told]
        values = np.array(
            [
                one.get(joint.name, np.nan)
                for one, arm in zip(at, self._contract.arms, strict=True)
                for joint in arm.joints
            ]
        )
        return values if np.isfinite(values).all() else None

    def act(self, action: np.ndarray) -> None:
        self._require_drivers()
        self._require_pictures()
        self._commanded = action.astype(np.float64)
        targets = self._units.positions(action)
        at = np.concatenate([self._joints(a, arm) for a, arm in enumerate(self._contract.arms)])
        heard_ns = min(
            cast(Positions, self._link.positions(a)).at_ns for a in range(len(self._contract.arms))
        )
        if text := self._following.told(self._clock_ns(), targets, at, heard_ns):
            raise self._lost("not following", text)
        left = iter(targets)
        for a, arm in enumerate(self._contract.arms):
            self._link.command(a, {joint.name: float(next(left)) for joint in arm.joints})

    def hold(self) -> None:
        """Sends nothing: controllers keep their last target."""
        self._following.held(self._clock_ns())
        self._require_drivers()

    def toward_safe_state(self) -> np.ndarray | None:
        """See `Homing`; at a leisurely pace, in a straight line of joint angles."""
        left = self._safe - self._commanded
        step = HOMING_PACE * np.asarray(self.limits.max_rate) / self.spec.control_rate_hz
        if (np.abs(left) <= 1e-6).all():
            return None
        share = min(1.0, float(np.min(step / np.maximum(np.abs(left), 1e-12))))
        target: np.ndarray = self._commanded + share * left
        return target.astype(np.float32)

    def succeeded(self) -> bool | None:
        return self._link.done()

    def close(self) -> None:
        self._link.close()

    def _joints(self, a: int, arm: ContractArm) -> np.ndarray:
        """float64 [joints of the arm], rad or m."""
        told = cast(Positions, self._link.positions(a))  # silent drivers were refused before
        at = dict(zip(told.names, told.values, strict=False))
        try:
            values = np.array([at[joint.name] for joint in arm.joints])
        except KeyError as error:
            where = arm.topic(arm.joint_states.topic)
            raise self._lost("joint missing", f"{where} has no joint {error} any more") from None
        if not np.isfinite(values).all():
            text = f"{arm.topic(arm.joint_states.topic)} tells positions {values}"
            raise self._lost("not finite", text)
        return values

    def _entries(self, i: int) -> Entries | None:
        with self._letting_go():
            return self._link.entries(i)

    def _require_drivers(self) -> None:
        """Raises BodyError unless every driver is the one that the task began with, and talks."""
        if objection := self._link.objection():
            raise BodyError(objection.reason, objection.text, passes=objection.passes)
        for a, arm in enumerate(self._contract.arms):
            if self._lives and self._link.lives(a) != self._lives[a]:
                where = arm.topic(arm.joint_states.topic)
                text = f"somebody new publishes {where}: the driver was restarted, or is not alone"
                raise self._lost("driver restarted", text, passes=True)
        for text in self._silent_drivers():
            raise self._lost("stale joint states", text, passes=True)
        for text in self._silent_extras():
            raise self._lost("stale state", text, passes=True)

    def _require_pictures(self) -> None:
        for text in self._silent_cameras():
            raise self._lost("stale camera", text)
        for text in self._frozen_cameras():
            raise self._lost("frozen camera", text)

    @contextlib.contextmanager
    def _letting_go(self) -> Iterator[None]:
        """The arm, where the link cannot read what came."""
        try:
            yield
        except BodyError as error:
            raise self._lost(error.reason, str(error)) from None

    def _lost(self, reason: str, text: str, *, passes: bool = False) -> BodyError:
        if self._contract.when_lost == "torque_off" and not self._let_go:
            self._link.torque(False)
            self._let_go = True
        return BodyError(reason, text, passes=passes)

    def _silent(self) -> Iterator[str]:
        yield from self._silent_drivers()
        yield from self._silent_extras()
        yield from self._silent_cameras()

    def _silent_drivers(self) -> Iterator[str]:
        for a, arm in enumerate(self._contract.arms):
            told = self._link.positions(a)
            where = arm.topic(arm.joint_states.topic)
            yield from self._old(
                where, told.at_ns if told else None, arm.joint_states.stale_after_s
            )

    def _silent_extras(self) -> Iterator[str]:
        for i, extra in enumerate(self._contract.extra_state):
            told = self._entries(i)
            where = self._contract.arms[0].topic(extra.topic)
            yield from self._old(where, told.at_ns if told else None, extra.stale_after_s)

    def _silent_cameras(self) -> Iterator[str]:
        for key, camera in self._contract.cameras.items():
            seen = self._link.glance(key)
            yield from self._old(
                f"camera {key}", seen.at_ns if seen else None, camera.stale_after_s
            )

    def _frozen_cameras(self) -> Iterator[str]:
        for key, camera in self._contract.cameras.items():
            seen = self._link.glance(key)
            if camera.frozen_after_s and seen is not None:
                same_s = (seen.at_ns - seen.changed_ns) / 1e9
                if same_s > camera.frozen_after_s:
                    yield f"camera {key} has shown the same pixels for {same_s:.1f} s"

    def _old(self, where: str, at_ns: int | None, stale_after_s: float) -> Iterator[str]:
        if at_ns is None:
            yield f"{where} has said nothing yet"
        elif stale_after_s and (age_s := (self._clock_ns() - at_ns) / 1e9) > stale_after_s:
            yield f"{where} has said nothing new for {age_s:.2f} s (allowed: {stale_after_s:g} s)"

    def _aim(self) -> None:
        """Makes where arms are the target of their controllers: those of an arm that was let go
        remember its last one, and the torque would take it there, past the guard."""
        reach_s = 0.0
        for a, arm in enumerate(self._contract.arms):
            if arm.torque is not None:
                at = self._joints(a, arm).tolist()
                self._link.aim(a, dict(zip((joint.name for joint in arm.joints), at, strict=True)))
                reach_s = max(reach_s, *(command.reach_s for command in arm.commands))
        if reach_s:
            self._sleep(SETTLED_S + reach_s)

    def _wait_for(self, ready: Callable[[], bool], missing: Callable[[], Iterator[str]]) -> bool:
        """Returns when it is ready: whether it had to wait. Raises BodyError for what is missing
        after a while, and at once for what no waiting mends."""
        waited = False
        until_ns = self._clock_ns() + round(PREPARED_WITHIN_S * 1e9)
        while (objection := self._link.objection()) or not ready():
            waited = True
            late = self._clock_ns() > until_ns
            if objection and (late or not objection.passes):
                raise BodyError(objection.reason, objection.text)
            if late:
                raise BodyError("silent at start", "; ".join(missing()) or "it came too late")
            self._sleep(0.02)
        return waited
