"""Which replica of a judge or planner has which robots: those of one that is down go to the others.

A judge of a planned fleet is a node per server of the plan; each has a share of the robots, which
it can be told while it runs (parameter `robots`).
"""

from collections.abc import Callable, Collection, Mapping

from kairos_ros.bringup.fleet import REPLICA
from kairos_ros.bringup.fleet_change import Client, PlannedFleet, Setting
from kairos_ros.bringup.hosts.host_part import JUDGES
from kairos_ros.bringup.plan import NodeSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import KairosError

ROBOTS = "robots"


def shares(fleet: PlannedFleet, down: Collection[str]) -> dict[str, list[str]]:
    """Replica that is up -> its robots, in order. down: processes that are not there. Where all
    replicas of a judge are down, nobody has their robots."""
    groups: dict[str, list[NodeSpec]] = {}
    for spec in fleet.specs:
        if spec.executable in JUDGES and spec.parameters.get(ROBOTS):
            groups.setdefault(spec.name.partition(REPLICA)[0], []).append(spec)
    found: dict[str, list[str]] = {}
    for replicas in groups.values():
        mine = {Fleet.key(one): list(one.parameters[ROBOTS]) for one in replicas}
        up = {key: robots for key, robots in mine.items() if key not in down}
        orphans = [robot for key, robots in mine.items() if key in down for robot in robots]
        for robot in orphans if up else ():
            min(up.values(), key=len).append(robot)
        found |= up
    return found


class JudgeShares:
    """`look` is to be called often, while no change of the fleet is under way."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self._client, self._say = client, say
        self._told: dict[str, list[str]] = {}
        self._setting: dict[str, tuple[list[str], Setting]] = {}

    def look(self, running: PlannedFleet, down: Collection[str]) -> None:
        """down: processes that are not there."""
        planned = {
            Fleet.key(spec): list(spec.parameters.get(ROBOTS, ()))
            for spec in running.specs
            if spec.executable in JUDGES
        }
        for key in {*self._told, *self._setting}:
            if key in down or key not in planned:  # it starts anew, with what is planned
                self._told.pop(key, None)
                self._setting.pop(key, None)
        for key, robots in shares(running, down).items():
            if key not in self._setting and self._told.get(key, planned[key]) != robots:
                setting = self._client.set(key, {ROBOTS: robots})
                self._setting[key] = robots, setting
        for key, (robots, setting) in list(self._setting.items()):
            try:
                if not setting.is_done():
                    continue
                self._told[key] = robots
                self._say(f"judges: {key} has {', '.join(robots)}")
            except KairosError as error:
                self._say(f"judges: {key} could not be told its robots: {error}")
            del self._setting[key]

    def changed(self, before: Mapping[str, NodeSpec], after: Mapping[str, NodeSpec]) -> None:
        """A change of the fleet has told the replicas whose robots differ."""
        for key in after:
            if key not in before or before[key] != after[key]:
                self._told.pop(key, None)
