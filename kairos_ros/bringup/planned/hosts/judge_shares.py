"""Which replica of a judge or planner has which robots: those of one that is down go to the others.

A judge of a planned fleet is a node per server of the plan; each has a share of the robots, which
it can be told while it runs (parameter `robots`).
"""

from collections.abc import Callable, Collection, Mapping

from kairos_ros.bringup.fleet import REPLICA
from kairos_ros.bringup.planned.change import Client, PlannedFleet, Setting
from kairos_ros.bringup.planned.hosts.host_part import JUDGES
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import KairosError

ROBOTS = "robots"


def shares(fleet: PlannedFleet, down: Collection[str]) -> dict[str, list[str]]:
    """Replica that is up -> its robots, in order. down: processes that are not there. Where all
    replicas of a judge are down, nobody has their robots."""
    groups: dict[str, list[ProcessSpec]] = {}
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
        self._lives: dict[str, str] = {}
        self._loading: set[str] = set()
        """Replicas that were down, and have not answered since."""

    def look(self, running: PlannedFleet, down: Collection[str], lives: Mapping[str, str]) -> None:
        """down: processes that are not there. lives: of those that are, what is another text once
        one was started anew: others keep its robots until it answers, having loaded its model."""
        planned = {
            Fleet.key(spec): list(spec.parameters.get(ROBOTS, ()))
            for spec in running.specs
            if spec.executable in JUDGES
        }
        for key in planned:
            if key in down or self._lives.get(key, lives.get(key)) != lives.get(key):
                self._loading.add(key)
                self._told.pop(key, None)
                self._setting.pop(key, None)
        self._lives |= lives
        for known in (self._told, self._setting, self._lives):
            for key in known.keys() - planned.keys():
                del known[key]
        self._loading &= planned.keys()
        wanted = shares(running, {*down, *self._loading})
        wanted |= {key: planned[key] for key in self._loading.difference(down)}
        for key, robots in wanted.items():
            news = key in self._loading or self._told.get(key, planned[key]) != robots
            if news and key not in self._setting:
                self._setting[key] = robots, self._client.set(key, {ROBOTS: robots})
        for key, (robots, setting) in list(self._setting.items()):
            try:
                if not setting.is_done():
                    continue
                self._told[key] = robots
                self._loading.discard(key)
                self._say(f"judges: {key} has {', '.join(robots)}")
            except KairosError as error:
                self._say(f"judges: {key} could not be told its robots: {error}")
            del self._setting[key]

    def changed(self, before: Mapping[str, ProcessSpec], after: Mapping[str, ProcessSpec]) -> None:
        """A change of the fleet has told the replicas whose robots differ."""
        for key in after:
            if key not in before or before[key] != after[key]:
                self._told.pop(key, None)
