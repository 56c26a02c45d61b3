"""What happens in a simulated cell on demand, for drills: intruders, knocked objects, pushes."""

from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from rclpy.node import Node

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.robot.adapters.sim.intruder import METAWORLD_CELL, Body, random_intruder
from kairos_ros.srv import Disturb

KNOCK_M_S = (2.5, 5.5)
"""Fast enough to send most objects out of the arm's reach, before it has gripped them."""
INTRUDERS = 20
"""Tried at most until every camera sees one."""
PUSH_M = 0.08
PUSH_PERIODS = 5
"""Control periods that a push of the hand lasts."""


@runtime_checkable
class Disturbable(Protocol):
    """What a simulated body offers besides `RobotAdapter`."""

    def show(self, body: Body) -> None: ...

    def sees(self, body: Body) -> bool: ...

    def knock(self, velocity: np.ndarray) -> None: ...

    def push(self, offset: np.ndarray) -> None: ...


class RobotDisturbances:
    """Service `disturb`. The control thread, which owns the body, does what it is asked for."""

    def __init__(self, node: Node, robot: str, body: Disturbable) -> None:
        self._log = node.get_logger()
        self._robot, self._body = robot, body
        # what, how, and in how many more periods after this one
        self._ordered: deque[tuple[str, Callable[[], None], int]] = deque()
        node.create_service(Disturb, "disturb", self._on_disturb)

    def period(self) -> None:
        """In the control thread, once per control period."""
        for _ in range(len(self._ordered)):
            what, disturb, more = self._ordered.popleft()
            try:
                disturb()
            except KairosError as error:
                self._log.error(f"not disturbed: {error}")
                continue
            if more:
                self._ordered.append((what, disturb, more - 1))
            else:
                self._log.info(f"disturbed: {what}")

    def _on_disturb(self, request: Disturb.Request, response: Disturb.Response) -> Disturb.Response:
        try:
            if request.robot != self._robot:
                raise ConfigError(f"this is {self._robot}, not {request.robot!r:.80}")
            disturb = self._disturbance(request.what, request.seed)
            more = PUSH_PERIODS - 1 if request.what == "push" else 0
            self._ordered.append((request.what, disturb, more))
        except ConfigError as error:
            response.message = str(error)
            return response
        response.ok, response.message = True, f"{request.what}, in the next control period"
        return response

    def _disturbance(self, what: str, seed: int) -> Callable[[], None]:
        rng = np.random.default_rng(seed)
        match what:
            case "intruder":
                bodies = [random_intruder(rng, METAWORLD_CELL) for _ in range(INTRUDERS)]
                # somebody whom no camera sees would not be an event
                return lambda: self._body.show(next(filter(self._body.sees, bodies), bodies[0]))
            case "clear":
                return lambda: self._body.show(())
            case "knock":
                angle, speed = rng.uniform(0, 2 * np.pi), rng.uniform(*KNOCK_M_S)
                up = rng.uniform(0.3, 3.0)
                velocity = np.array([speed * np.cos(angle), speed * np.sin(angle), up])
                return lambda: self._body.knock(velocity)
            case "push":
                angle = rng.uniform(0, 2 * np.pi)
                offset = PUSH_M / PUSH_PERIODS * np.array([np.cos(angle), np.sin(angle), 0.0])
                return lambda: self._body.push(offset)
        raise ConfigError(f"unknown disturbance {what!r:.80}; use intruder, knock, push or clear")
