"""The other hosts of a planned fleet, as the first one sees and tells them."""

import time
from collections.abc import Mapping

from kairos_ros.bringup.planned.change import PlannedFleet
from kairos_ros.bringup.planned.hosts.host_part import (
    ToldPlan,
    Topics,
    check_sole,
    hosts_of,
    new_session,
    part_of,
    worker_key,
)
from kairos_ros.core.errors import KairosError
from kairos_ros.core.placement.host_status import SILENT_S, HostStatus, digest

TELL_S = 1.0
AGAIN_S = 3.0
"""Between two times that a host is told its plan which has not heard of it."""
LATE_S = 10.0
"""A host that does not run by the plan after so long has a problem."""


class FleetHosts:
    """Of a fleet on one host (empty), which has no others. `look` is to be called often."""

    def __init__(self, host: str = "", topics: Topics | None = None) -> None:
        self.host = host
        self._topics = topics
        self.session = new_session()
        self._told: ToldPlan | None = None
        self._told_s = self._due_s = self._again_s = 0.0

    def tell(self, fleet: PlannedFleet, *, staged: bool = False) -> None:
        """The other hosts run this from now on; staged: besides what they run."""
        told = ToldPlan(self.host, fleet, staged)
        if self._topics is not None and told != self._told:
            self._told, self._told_s = told, time.monotonic()
            self._again_s = self._told_s + AGAIN_S
            self._topics.tell_plan(told.text)

    def look(self, running: PlannedFleet, dead: Mapping[str, str]) -> None:
        """dead: processes of this host that have ended, and how. Raises ConfigError where another
        program runs the part of this host."""
        if self._topics is None:
            return
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + TELL_S
            own = HostStatus(self.host, self.session, running.served.identity, dead)
            self._topics.tell_status(own)
            self._topics.diagnose({self.host: "", **self.wrong(running)})
            self.check_sole()
            if self._told is not None and now_s >= self._again_s and self._unheard(self._told):
                self._again_s = now_s + AGAIN_S
                self._topics.tell_plan(self._told.text)

    def check_sole(self, *, starting: bool = False) -> None:
        """As `host_part.check_sole`."""
        if self._topics is not None:
            check_sole(self._topics, self.host, self.session, starting=starting)

    def wrong(self, running: PlannedFleet) -> dict[str, str]:
        """Host of the plan besides this one -> what is wrong with it; empty: nothing."""
        return {host: self._wrong(host, running) for host in hosts_of(running) if host != self.host}

    def down(self, running: PlannedFleet) -> set[str]:
        """Processes of other hosts that are not there."""
        found: set[str] = set()
        for host in hosts_of(running):
            if host != self.host:
                status = self._status(host)
                part = part_of(running, host).keys()
                found |= part if status is None else part & status.dead.keys()
        return found

    def lives(self, running: PlannedFleet) -> dict[str, str]:
        """Processes of other hosts that are there -> what is another text once one was started
        anew."""
        found: dict[str, str] = {}
        for host in hosts_of(running):
            status = None if host == self.host else self._status(host)
            if status is not None:
                for key in part_of(running, host):
                    found[key] = f"{status.session}/{status.ended.get(key, 0)}"
        return found

    def agree(self, wanted: PlannedFleet) -> bool:
        """Whether all hosts that are there, and that a told plan puts something on, have heard it.
        Raises KairosError where one of them does not follow it."""
        for host in hosts_of(wanted):
            status = None if host == self.host else self._status(host)
            if status and self._told and status.told == digest(self._told.text) and status.problem:
                raise KairosError(f"host {host}: {status.problem}")
        return self._told is None or not self._unheard(self._told)

    def _unheard(self, told: ToldPlan) -> bool:
        mine = digest(told.text)
        statuses = [self._status(host) for host in hosts_of(told.fleet) if host != self.host]
        return any(status is not None and status.told != mine for status in statuses)

    def check(self, wanted: PlannedFleet, running: PlannedFleet) -> None:
        """Raises KairosError where a host that has to start something is not there, or what it has
        started ends again and again."""
        before = {one.name for one in running.served.engines}
        for host in hosts_of(wanted):
            if host == self.host:
                continue
            status = self._status(host)
            new = part_of(wanted, host).keys() - part_of(running, host).keys()
            if new and status is None:
                raise KairosError(f"{', '.join(sorted(new))} cannot start: {self._missing(host)}")
            for one in wanted.served.engines:
                key = worker_key(one)
                if status and one.name not in before and one.host == host and key in status.failed:
                    raise KairosError(
                        f"{one.name} on host {host} {status.failed[key]}; its log is there"
                    )

    def _wrong(self, host: str, running: PlannedFleet) -> str:
        status = self._status(host)
        if status is None:
            return self._missing(host)
        if status.problem:
            return f"host {host}: {status.problem}"
        if status.plan != running.served.identity and time.monotonic() - self._told_s > LATE_S:
            return f"host {host} runs by {status.plan or 'no plan'}"
        ended = {**status.dead, **status.failed}
        return "; ".join(f"{key} on host {host} {why}" for key, why in ended.items())

    def _missing(self, host: str) -> str:
        last = self._last(host)
        since = "was not heard" if last is None else f"has been silent for {last[1]:.0f} s"
        return (
            f"host {host} {since}; start its part with `kairos fleet up FILE --host {host}` there"
        )

    def _status(self, host: str) -> HostStatus | None:
        """None: it is not there."""
        last = self._last(host)
        return last[0] if last and last[1] < SILENT_S else None

    def _last(self, host: str) -> tuple[HostStatus, float] | None:
        heard = self._topics.heard() if self._topics else []
        mine = [one for one in heard if one[0].host == host]
        return min(mine, key=lambda one: one[1], default=None)
