"""Robots that announce themselves to a planned fleet which does not have them: let in, or told why
not.

Whether they fit is planned in a thread, one robot at a time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kairos_ros.bringup.planned.change import PlannedFleet
from kairos_ros.bringup.planned.planner import (
    FleetDecision,
    FleetPlanner,
    PlanChoices,
    exchanged,
    forget,
    refuse,
)
from kairos_ros.core.errors import KairosError
from kairos_ros.core.wire_check import printable
from kairos_ros.host.fleet_socket import FleetConnection

if TYPE_CHECKING:
    from kairos_ros.planning.plan import Plan

LEFT_S = 60.0
"""The place of a robot that has joined is kept for so long after it was last here."""
MOST_REQUESTS = 100
RESERVED_S = 600.0
"""A place that was asked for beforehand is kept for so long."""


def task_of(robot: str, tasks: Iterable[str]) -> str:
    """The task of a robot that is in no fleet file, by its name: TASK or TASK_ANYTHING, or the only
    task there is; empty where that says nothing."""
    known = list(tasks)
    named = [task for task in known if robot == task or robot.startswith(f"{task}_")]
    return max(named, key=len, default=known[0] if len(known) == 1 else "")


def in_already(robot: str, engine: str) -> str:
    """For whoever asks for a robot that need not ask."""
    return f"{robot} is in the fleet already, served by {engine}"


class JoinRequest(NamedTuple):
    """Somebody asks for a robot to join, which may not be here yet."""

    robot: str
    task: str
    """Empty: by its name."""
    force: bool
    """It joins although it does not fit."""
    asker: FleetConnection


class RobotAdmissions:
    """Decides about robots; who calls it makes the changes. Not thread safe."""

    def __init__(self, planner: FleetPlanner, plan: "Plan", running: PlannedFleet) -> None:
        """plan: of the fleet that runs, by this planner."""
        self._known = planner, plan, running.served.identity
        self._pool = ThreadPoolExecutor(1, "admission")
        self._heard_s: dict[str, float] = {}
        """When guests were last here."""
        self._deciding: Future[FleetDecision] | None = None
        self._about, self._base = "", ""
        """The robot, and the plan, that is decided about."""
        self._leaving: set[str] = set()
        """Guests that have left, while it is planned who may have their places."""
        self._requests: deque[JoinRequest] = deque()
        self._request: JoinRequest | None = None
        """The one that is decided about."""

    def close(self) -> None:
        """A decision that is being made is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """A decision is being made, or is there."""
        return self._deciding is not None

    def put(self, request: JoinRequest, running: PlannedFleet) -> None:
        """To be decided about before robots that are here. Raises KairosError."""
        from kairos_ros.fleet.fleet_file import check_robot_name

        check_robot_name(request.robot)
        if engine := running.served.routes.get(request.robot):
            raise KairosError(in_already(request.robot, engine))
        if len(self._requests) >= MOST_REQUESTS:
            raise KairosError(f"{MOST_REQUESTS} robots are waiting for an answer; ask later")
        self._requests.append(request)

    def withdraw(self, asker: FleetConnection) -> bool:
        """Whoever asked does not want to know any more; what is decided about the request is
        dropped. Whether there was one."""
        asked = len(self._requests)
        self._requests = deque(one for one in self._requests if one.asker is not asker)
        if self._request is not None and self._request.asker is asker:
            self._request, self._base = None, ""
            return True
        return len(self._requests) < asked

    def answer_all(self, why: str) -> None:
        """Tells everybody who asks, and has no answer yet, that the robot cannot join."""
        for one in [*self._requests, *filter(None, [self._request])]:
            one.asker.send({"refused": f"{one.robot} cannot join: {why}"})
            self.withdraw(one.asker)

    def look(self, robots: Iterable[str], running: PlannedFleet) -> None:
        """robots: that are here. Begins to decide where one is not in the plan, or has left it."""
        here, now_s = set(robots), time.monotonic()
        for robot in here & running.guests.keys():
            self._heard_s[robot] = max(now_s, self._heard_s.get(robot, 0.0))
        if self.busy:
            return
        while self._requests:
            request = self._requests.popleft()
            if engine := running.served.routes.get(request.robot):  # somebody else asked, too
                request.asker.send({"refused": in_already(request.robot, engine)})
                continue
            self._request = request
            self.ask(running, request.robot, request.task, force=request.force)
            return
        left = {
            robot
            for robot in running.guests.keys() - here
            if now_s - self._heard_s.setdefault(robot, now_s) > LEFT_S
        }
        refused = running.served.refused.keys()
        new = sorted(here - running.served.routes.keys() - refused)
        if left:
            self._leaving = left
            self._decide(running, "", lambda planner, plan: planner.without(running, plan, left))
        elif gone := set(refused - here):
            self._submit(running, "", lambda: forget(running, gone))
        elif new:
            self.ask(running, new[0])

    def ask(
        self, running: PlannedFleet, robot: str, task: str = "", *, force: bool = False
    ) -> None:
        """Begins to decide about a robot. task: empty: by its name. force: it joins although it
        does not fit."""

        def decide(planner: FleetPlanner, plan: "Plan") -> FleetDecision:
            mine = task or task_of(robot, planner.tasks)
            if mine not in planner.tasks:
                tasks = ", ".join(planner.tasks)
                why = f"its task is not known; name it TASK_NAME with one of the tasks {tasks}"
                if task:
                    why = f"there is no task '{printable(task)}'; tasks are {tasks}"
                return refuse(running, robot, why)
            join = planner.force if force else planner.join
            return join(running, plan, robot, mine)

        self._decide(running, robot, decide)

    def decided(self, running: PlannedFleet) -> tuple[FleetDecision, JoinRequest | None] | None:
        """A fleet to change to, once there is one, and the request that it answers. Raises
        KairosError where it cannot be planned who may have the place of a robot that has left,
        which is tried again after LEFT_S."""
        if self._deciding is None or not self._deciding.done():
            return None
        deciding, self._deciding = self._deciding, None
        request, self._request = self._request, None
        if self._base != running.served.identity:
            if request is not None:
                self._requests.appendleft(request)
            return None  # it was changed meanwhile: all is looked at again
        try:
            return deciding.result(), request
        except KairosError as error:
            if not self._about:
                self._heard_s |= dict.fromkeys(self._leaving, time.monotonic())
                raise
            return refuse(running, self._about, str(error)), request

    def exchanged(self, running: PlannedFleet, dead: str, spare: str) -> FleetDecision:
        """As `fleet_planner.exchanged`."""
        _, plan, of = self._known
        return exchanged(running, plan if of == running.served.identity else None, dead, spare)

    def applied(self, before: PlannedFleet, joined: FleetDecision, reserved: str = "") -> None:
        """The fleet ran as before, and runs by this now. reserved: a robot that may not be here
        yet."""
        planner, plan, of = self._known
        if of == before.served.identity:
            self._known = planner, joined.plan or plan, joined.fleet.served.identity
        if reserved:
            self._heard_s[reserved] = time.monotonic() + RESERVED_S - LEFT_S
        self._heard_s = {r: s for r, s in self._heard_s.items() if r in joined.fleet.guests}

    def _decide(
        self,
        running: PlannedFleet,
        about: str,
        decide: "Callable[[FleetPlanner, Plan], FleetDecision]",
    ) -> None:
        def planned() -> FleetDecision:
            planner, plan, of = self._known
            if of != running.served.identity:  # `kairos fleet apply` has changed it
                planner, plan = _read_again(running)
                self._known = planner, plan, running.served.identity
            return decide(planner, plan)

        self._submit(running, about, planned)

    def _submit(
        self, running: PlannedFleet, about: str, decide: Callable[[], FleetDecision]
    ) -> None:
        self._about, self._base = about, running.served.identity
        self._deciding = self._pool.submit(decide)


def _read_again(running: PlannedFleet) -> "tuple[FleetPlanner, Plan]":
    """Planner and plan of a fleet that another program has planned. Raises KairosError."""
    planner = FleetPlanner(running.file, PlanChoices.of(running.choices))
    fleet, plan = planner.plan(running)
    if replace(fleet.served, forced=()) != replace(running.served, refused={}, forced=()):
        raise KairosError(
            f"{running.file} is not what the fleet was planned from (any more); give it to "
            "`kairos fleet apply`"
        )
    return planner, plan
