"""Runs a planned fleet, and changes it to another plan when it is asked to.

What is new is started first: nodes, and at the serving nodes engines. Only when all of it is up are
the serving nodes told to route by the new plan; then what is old is stopped. Whatever goes wrong
before, and whoever asked hanging up, undoes what was begun, and the fleet goes on by the old plan.

Robots that announce themselves and are not in the plan join in the same way, or are refused.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from kairos_ros.bringup.foreground import SERVING, how
from kairos_ros.bringup.planned.change import (
    PLAN,
    Change,
    Client,
    PlannedFleet,
    change,
    planned_fleet,
)
from kairos_ros.bringup.planned.engine_repair import EngineRepair
from kairos_ros.bringup.planned.hosts.fleet_hosts import FleetHosts
from kairos_ros.bringup.planned.hosts.host_part import part_of
from kairos_ros.bringup.planned.hosts.link_keys import check_keys
from kairos_ros.bringup.planned.hosts.process_watch import ProcessWatch
from kairos_ros.bringup.planned.planner import FleetDecision, refuse
from kairos_ros.bringup.planned.robot_admission import JoinRequest, RobotAdmissions
from kairos_ros.bringup.planned.serving_plans import SETTLED_S, ServingPlans
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import KairosError, WireError
from kairos_ros.core.wire_check import printable
from kairos_ros.host.fleet_socket import FleetConnection, FleetListener

SHOWN = 200
"""Characters of what is done, for others that wait for it."""


class PlannedFleetRunner:
    """`turn` is to be called again and again, in the thread that starts the fleet's processes."""

    def __init__(
        self,
        fleet: Fleet,
        running: PlannedFleet,
        client: Client,
        listener: FleetListener,
        say: Callable[[str], None],
        admissions: RobotAdmissions,
        hosts: FleetHosts,
    ) -> None:
        """say: for whoever looks at the program that runs the fleet. hosts: the other ones."""
        self.running = running
        self._admissions = admissions
        self._joined: FleetDecision | None = None
        """What the change is made for: a robot, or an engine that died."""
        self._engines = EngineRepair()
        self._hosts, self._watch = hosts, ProcessWatch(fleet, client, hosts, say)
        self._serving = ServingPlans(client, self._watch)
        hosts.tell(running)
        self._reserved = ""
        """The robot, where somebody has asked for it beforehand."""
        self._fleet, self._client, self._listener, self._say = fleet, client, listener, say
        self._connections: list[FleetConnection] = []
        self._work: Iterator[str] | None = None
        """The change that is made."""
        self._for: FleetConnection | None = None
        """Who asked for it."""
        self._what, self._kind = "", "apply"
        self._committed = self._applied = self._ends = False
        """The serving nodes are told to follow the new plan; have taken it; the fleet ends."""
        self._since_s = 0.0

    def turn(self) -> None:
        """Takes about 0.1 s. Raises ConfigError where another program runs this host's part."""
        self._client.spin(0.1)
        self._fleet.reap()
        self._watch.look(self.running, changing=self._work is not None)
        if connection := self._listener.accept():
            self._connections.append(connection)
        for connection in list(self._connections):
            self._hear(connection)
        if self._work is not None:
            self._go_on(self._work)
        else:
            self._serving.keep_to(self.running)
            self._repair()
            self._admit()

    def close(self) -> None:
        """The fleet ends."""
        self._ends = True
        if self._work is not None:
            self._stop("the fleet was stopped")
        for connection in self._connections:
            connection.close()
        self._admissions.close()

    # Processes and engines that die, and robots that are not in the plan

    def _repair(self) -> None:
        """An engine that stands by, and has served since another one died, takes its place for good
        where that one does not come up again."""
        state = self._client.state
        exchange = self._engines.look(self.running.served, state.engines) if state else None
        if exchange is not None and self._work is None:
            joined = self._admissions.exchanged(self.running, *exchange)
            self._say(f"repair: {joined.text}")
            self._join(joined, kind="repair")

    def _admit(self) -> None:
        code = self._fleet.dead().get(SERVING)
        if code is not None and not self.running.standbys:
            self._admissions.answer_all(f"serving {how(code)}; end the fleet, and start it again")
        state = self._client.state
        if self._work is not None or state is None or state.plan != self.running.served.identity:
            return
        self._admissions.look((one.robot for one in state.robots), self.running)
        try:
            decided = self._admissions.decided(self.running)
        except KairosError as error:
            self._say(f"admission: {error}")
            return
        if decided is None:
            return
        joined, request = decided
        if joined.text:
            self._say(f"admission: {joined.text}")
        asker = request.asker if request else None
        if request is None or request.robot in joined.fleet.guests:
            if asker is not None:
                asker.send({"told": joined.text})
            self._join(joined, asker, request.robot if request else "")
        elif asker is not None:
            asker.send({"refused": joined.text})

    def _join(
        self,
        joined: FleetDecision,
        asker: FleetConnection | None = None,
        reserved: str = "",
        kind: str = "admission",
    ) -> None:
        self._kind = kind
        self._what = joined.text or "robots that were refused have left"
        self._joined, self._reserved = joined, reserved
        self._start(joined.fleet, change(self.running, joined.fleet), asker)

    def _start(self, wanted: PlannedFleet, steps: Change, asker: FleetConnection | None) -> None:
        self._for, self._committed, self._applied = asker, False, False
        self._since_s = time.monotonic()
        self._work = self._change(wanted, steps)

    def _ask_to_join(self, connection: FleetConnection, message: Mapping[str, Any]) -> None:
        """Raises KairosError."""
        robot, task = (str(message.get(field) or "") for field in ("robot", "task"))
        force = message.get("force") is True
        self._admissions.put(JoinRequest(robot, task, force, connection), self.running)
        if self._work is not None:
            text = f"waits for a change of the fleet: {printable(self._what, SHOWN)}"
            connection.send({"told": text})
        elif self._client.state is None:
            connection.send({"told": "waits for the serving node, which says nothing"})

    # Who asks

    def _hear(self, connection: FleetConnection) -> None:
        try:
            message = connection.receive()
        except WireError as error:
            connection.send({"refused": str(error)})
            connection.close()
            message = None
        if message is not None:
            self._do(connection, message)
        if connection.closed:
            self._connections.remove(connection)
            connection.close()
            if connection is self._for:
                self._hung_up()
            self._admissions.withdraw(connection)

    def _do(self, connection: FleetConnection, message: dict[str, Any]) -> None:
        match message.get("do"):
            case "show":
                ended, changes = self._watch.ended, self._what
                told = {"fleet": self.running.to_dict(), "dead": ended, "changes": changes}
                connection.send({**told, "hosts": self._hosts.wrong(self.running)})
            case "apply":
                try:
                    self._begin(connection, message)
                except KairosError as error:
                    connection.send({"refused": str(error)})
            case "join":
                try:
                    self._ask_to_join(connection, message)
                except KairosError as error:
                    connection.send({"refused": str(error)})
            case "cancel" if connection is self._for and not self._committed:
                self._stop("it was interrupted")
            case "cancel" if self._admissions.withdraw(connection):
                connection.send({"refused": "it was interrupted, and nothing was changed"})
            case "cancel" if self._applied:
                connection.send({"done": f"too late: {self._runs} now, and what is old ends"})
            case "cancel":
                pass  # whether it is too late is known, and told, in a moment
            case other:
                connection.send(
                    {"refused": f"{other!r:.40} is none of show, apply, join and cancel"}
                )

    def _begin(self, connection: FleetConnection, message: dict[str, Any]) -> None:
        if self._work is not None:
            seconds = time.monotonic() - self._since_s
            raise KairosError(
                f"another `kairos fleet apply`, or a robot that joins, changes this fleet since "
                f"{seconds:.0f} s: {self._what}; try again when it has ended"
            )
        if message.get("base") != self.running.served.identity:
            raise KairosError(
                f"the fleet runs by {self.running.served.identity} and was changed meanwhile; look "
                "at the new difference with `kairos fleet plan FILE --running`, and try again"
            )
        wanted = planned_fleet(message.get("fleet") or {})
        if not wanted.robots & self.running.robots:
            raise KairosError(
                f"no robot of {wanted.file} is in the running fleet, which is that of "
                f"{self.running.file}: this is the plan of another fleet; run it beside, in "
                "another ROS_DOMAIN_ID or --namespace"
            )
        steps = change(self.running, wanted)
        self._what = f"from {self.running.served.identity} to {wanted.served.identity}"
        self._say(f"apply (process {connection.peer}): {self._what}")
        for text in steps.lines or ("nothing changes",):
            self._say(f"apply: {text}")
        self._kind = "apply"
        self._start(wanted, steps, connection)

    def _go_on(self, work: Iterator[str]) -> None:
        try:
            if text := next(work):
                self._tell({"told": text})
        except StopIteration:
            text = f"{self._runs} now"
            self._say(f"{self._kind}: {text}")
            self._tell({"done": text})
            self._over()
        except KairosError as error:
            self._refused(str(error))

    def _hung_up(self) -> None:
        """Whoever asked for the change has gone."""
        self._for = None
        if self._committed:
            self._say("apply: whoever asked has gone; the change is completed")
        else:
            self._stop("whoever asked for it has gone")

    def _stop(self, why: str) -> None:
        """Undoes the change that is made, at once."""
        work = self._work
        if work is not None and not self._committed:
            work.close()  # type: ignore[attr-defined]  # a generator
            self._joined = None  # a robot that it was for may ask again
            self._refused(f"the change was called off: {why}")

    def _refused(self, why: str) -> None:
        stays = f"{self._runs} now" if self._applied else f"{self._runs}, as before"
        if self._ends:
            stays = "it ends"
        joined = self._joined
        self._say(f"{self._kind}: {why}; {stays}")
        self._tell({"refused": why, "stays": stays})
        self._over()
        if joined is not None and not self._ends:
            self._refuse_after(joined, why)

    def _refuse_after(self, joined: FleetDecision, why: str) -> None:
        """The change for a robot could not be made, and will not be tried again and again."""
        new = joined.fleet.guests.keys() - self.running.guests.keys()
        if new and SERVING not in self._fleet.dead():
            self._join(refuse(self.running, min(new), why))

    @property
    def _runs(self) -> str:
        return f"the fleet runs by {self.running.served.identity}"

    def _over(self) -> None:
        self._work, self._for, self._what, self._joined = None, None, "", None

    def _tell(self, message: Mapping[str, Any]) -> None:
        if self._for is not None:
            self._for.send(message)

    # The change

    def _change(self, wanted: PlannedFleet, steps: Change) -> Iterator[str]:
        """Yields news, mostly empty, about ten times a second."""
        started: list[str] = []
        mine = part_of(wanted, self._hosts.host)
        try:
            check_keys(mine.values())
            self._hosts.check(wanted, self.running)
            self._hosts.tell(wanted, staged=True)
            while not self._hosts.agree(wanted):
                yield ""
            self._hosts.check(wanted, self.running)  # one that fell silent was not waited for
            new = [key for key in steps.start if key in mine]
            for _ in self._watch.start(new, self.running.nodes, mine, started):
                self._check(wanted, started)
                yield ""
            if started:
                yield f"started {', '.join(started)}"
            if SERVING in steps.tell:
                check = partial(self._check, wanted, started)
                yield from self._serving.prepare(wanted, self.running, steps, check)
        except BaseException:
            self._undo(started)
            raise
        self._committed = True
        if SERVING in steps.tell:
            try:
                yield from self._serving.apply(self.running, steps)
            except KairosError:
                self._undo(started)
                raise
        before, self.running, self._applied = self.running, wanted, True
        self._watch.shares.changed(before.nodes, wanted.nodes)
        if self._joined is not None:
            self._admissions.applied(before, self._joined, self._reserved)
        yield from self._serving.settle(wanted)
        self._hosts.tell(wanted)
        yield from self._complete(before, wanted, steps)

    def _undo(self, started: list[str]) -> None:
        for key in started:
            self._fleet.dismiss(key)
        self._hosts.tell(self.running)
        self._serving.tell(self.running)

    def _check(self, wanted: PlannedFleet, started: list[str]) -> None:
        """Raises KairosError where the new plan cannot be had."""
        self._hosts.check(wanted, self.running)
        dead = self._fleet.dead()
        for key in (SERVING, *started):
            if key in dead:
                last = f": {self._fleet.tail(key, 3)}" if dead[key] > 0 else ""
                raise KairosError(f"{key} {how(dead[key])}{last}")

    def _complete(self, before: PlannedFleet, wanted: PlannedFleet, steps: Change) -> Iterator[str]:
        """What is old goes. Nothing stops this any more."""
        yield f"robots are served by {wanted.served.identity}"
        judges = [
            (key, self._client.set(key, values))
            for key, values in steps.tell.items()
            if PLAN not in values and key not in (SERVING, *self.running.standbys)
        ]
        for key in (*steps.stop, *steps.restart):
            if key in self._fleet.processes:
                self._fleet.dismiss(key)
        mine = part_of(wanted, self._hosts.host)
        for key in (*steps.stop, *steps.restart):
            while not self._fleet.is_gone(key):
                yield ""
            if key in steps.restart and key in mine:
                self._fleet.start(wanted.nodes[key])
                yield f"started {key} again"
            elif self._hosts.host in ("", before.nodes[key].host):
                yield f"{key} has stopped"
        for key, setting in judges:
            try:
                while not setting.is_done():
                    yield ""
            except KairosError as error:  # it ended, or an old one: a new start has the robots, too
                yield f"{key} could not be told its robots: {error}"
        until_s = time.monotonic() + SETTLED_S
        while time.monotonic() < until_s:
            state = self._client.state
            if state is None or all(one.state != "ending" for one in state.engines):
                return
            yield ""
