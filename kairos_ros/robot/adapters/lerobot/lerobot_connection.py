"""A LeRobot robot and its ports: connected safely, given back whole, and what its errors mean."""

import contextlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from kairos_ros.robot.adapters.lerobot.lerobot_arms import (
    ArmMotors,
    arms_of,
    bound,
    claim,
    close_port,
    gone,
    prepare,
    release,
    silent,
)
from kairos_ros.robot.adapters.lerobot.lerobot_faults import (
    ADVICE,
    CABLE,
    CALIBRATION,
    SILENT,
    STALE,
    TORN,
    TRANSIENT,
    reason_of,
)
from kairos_ros.robot.body_error import BodyError

log = logging.getLogger(__name__)

TRIES = 3
"""LeRobot's drivers give up connecting over one packet that was lost, and over a camera that gives
no picture within a second, as where everything on a host starts at once."""
PATIENT_TIMEOUT_MS = 250.0
"""For a reply while nothing moves; a busy host may be late by so much."""
CONTROL_TIMEOUT_MS = 50.0
"""While the arm is controlled: LeRobot's own, one or two periods."""


class LeRobotConnection:
    """The driver that `build` makes, anew for every time it is opened.

    calibrate: the command that calibrates it. max_image_age_s: pictures older than that are an
    error. Used from one thread only.
    """

    def __init__(self, build: Callable[[], Any], calibrate: str, max_image_age_s: float) -> None:
        self._build = build
        self._calibrate = calibrate
        self._max_image_age_s = max_image_age_s
        self._held: list[int] = []
        self.robot = build()
        self.arms: tuple[ArmMotors, ...] = arms_of(self.robot, self.robot.action_features)
        self.opened = False
        self._used = False  # a driver is opened once
        # of the monotonic clock, to that of LeRobot's cameras
        self._ahead_ns = time.monotonic_ns() - time.perf_counter_ns()

    def open(self) -> None:
        """Connects. The torque comes on where the joints are; nothing is calibrated.

        Raises BodyError where that does not work; everything is closed then.
        """
        for left in reversed(range(TRIES)):
            if self._used:
                self.robot = self._build()
                self.arms = arms_of(self.robot, self.robot.action_features)
            self._used = True
            with self.patient():
                try:
                    self._open()
                    self.opened = True
                    return
                except Exception as error:  # a driver raises whatever it likes
                    if left and reason_of(error) in TRANSIENT | {STALE}:
                        log.warning("connecting again: %s", reason_of(error))
                        self.close()
                        continue
                    fault = error if isinstance(error, BodyError) else self.named(error)
                    self.close()
                    raise fault from error

    def _open(self) -> None:
        for arm in self.arms:
            self._held.append(claim(arm.bus.port))
        for arm in self.arms:
            prepare(arm, self._calibrate)
        for camera in self._cameras():
            close_after_reading(camera)
        self.robot.connect(calibrate=False)
        if not self.robot.is_calibrated:
            raise BodyError(
                CALIBRATION, f"the robot is not calibrated; beside it, run: {self._calibrate}"
            )
        for camera in self._cameras():
            allow_age(camera, self._max_image_age_s)

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Waits for replies as long as a busy host may need; only while nothing moves."""
        for arm in self.arms:
            bound(arm, PATIENT_TIMEOUT_MS)
        try:
            yield
        finally:
            for arm in self.arms:
                bound(arm, CONTROL_TIMEOUT_MS)

    def close(self) -> None:
        """Closes ports and cameras, whatever state they are in. Torque stays as it is."""
        with contextlib.suppress(Exception):  # what is gone cannot be disconnected
            self.robot.disconnect()
        for arm in self.arms:
            close_port(arm)
        for camera in self._cameras():
            with contextlib.suppress(Exception):  # of cameras that are disconnected already
                camera.disconnect()
        for held in self._held:
            os.close(held)
        self._held.clear()
        self.opened = False

    def release(self) -> list[str]:
        """Switches the torque off; motors that did not hear."""
        return release(self.arms)

    def stale_camera(self) -> str:
        """Which camera has given no picture for too long; empty where none is known to."""
        told = {
            name: time.perf_counter() - taken_s
            for name, camera in getattr(self.robot, "cameras", {}).items()
            if (taken_s := getattr(camera, "latest_timestamp", None)) is not None
        }
        name = max(told, key=told.__getitem__, default="")
        if not told or told[name] <= self._max_image_age_s:
            return ""
        return f"camera {name} has given no picture for {told[name]:.1f} s"

    def taken_ns(self) -> int:
        """Monotonic time of the oldest among the cameras' newest pictures; those of a camera that
        does not tell are of now. The same for the same pictures."""
        told = [getattr(camera, "latest_timestamp", None) for camera in self._cameras()]
        taken_ns: list[int] = [
            round(at_s * 1e9) + self._ahead_ns for at_s in told if at_s is not None
        ]
        return min([time.monotonic_ns(), *taken_ns])

    def named(self, error: Exception) -> BodyError:
        """A driver's error with its reason, and which port, motors or camera it is about."""
        reason = reason_of(error)
        arms = list(self.arms)
        told = error.args[1] if len(error.args) == 2 else error  # (number, text) of the system
        said = " ".join(str(told).split()) or type(error).__name__
        if reason in (SILENT, TORN):
            quiet: dict[str, list[str]] = {}
            with contextlib.suppress(Exception):  # the port may be gone by now
                quiet = {arm.prefix: motors for arm in arms if (motors := silent(arm))}
            motors = [motor for of_arm in quiet.values() for motor in of_arm]
            spoiled = reason == TORN and len(motors) == sum(len(arm.bus.motors) for arm in arms)
            if motors and not spoiled:
                reason, said = SILENT, f"no answer from {', '.join(motors)}"
                arms = [arm for arm in arms if arm.prefix in quiet]
        elif reason == CABLE:
            arms = [arm for arm in arms if gone(arm)] or arms
        elif reason == STALE:
            said, arms = self.stale_camera() or said, []  # LeRobot names one that never gave any
        ports = ", ".join(arm.bus.port for arm in arms)
        place = f" ({ports})" if ports else ""
        return BodyError(reason, f"{reason}: {said}; {ADVICE[reason]}{place}")

    def _cameras(self) -> Collection[Any]:
        return getattr(self.robot, "cameras", {}).values()


def allow_age(camera: Any, max_age_s: float) -> None:
    """Reading a picture of this camera fails for its age above that, not above LeRobot's own limit
    of 0.5 or 1 s."""
    for name in ("read_latest", "read_latest_depth"):
        read = getattr(camera, name, None)
        if read is not None and "max_age_ms" in inspect.signature(read).parameters:
            setattr(camera, name, partial(read, max_age_ms=max_age_s * 1e3))


def close_after_reading(camera: Any) -> None:
    """A ZMQ camera that gives no pictures is closed when its last read has ended, after at most its
    `timeout_ms`. LeRobot 0.6.1 closes the socket while a thread may read from it, and then often
    waits for ever."""
    stop, clean = (getattr(camera, name, None) for name in ("_stop_read_thread", "_cleanup"))
    if stop is None or clean is None:
        return

    def stop_reading() -> None:
        if camera.thread is not None:
            camera.stop_event.set()
            camera.thread.join(camera.timeout_ms / 1e3 + 1.0)
        stop()

    def close() -> None:
        stop_reading()
        clean()

    camera._stop_read_thread, camera._cleanup = stop_reading, close
