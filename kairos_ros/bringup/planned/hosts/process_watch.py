"""Looks after the processes of a planned fleet on its first host, and knows those of the others."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from kairos_ros.bringup.foreground import SERVING, how
from kairos_ros.bringup.planned.change import Client, PlannedFleet
from kairos_ros.bringup.planned.hosts.fleet_hosts import FleetHosts
from kairos_ros.bringup.planned.hosts.host_part import JUDGES, RESTARTED, part_of
from kairos_ros.bringup.planned.hosts.judge_shares import JudgeShares
from kairos_ros.bringup.planned.hosts.restarts import Restarts
from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.address import tcp_address
from kairos_ros.core.errors import KairosError


class ProcessWatch:
    """`look` is to be called often."""

    def __init__(
        self, fleet: Fleet, client: Client, hosts: FleetHosts, say: Callable[[str], None]
    ) -> None:
        self._fleet, self._hosts = fleet, hosts
        self._restarts, self.shares = Restarts(fleet, say), JudgeShares(client, say)

    def start(
        self,
        keys: Sequence[str],
        before: Mapping[str, ProcessSpec],
        after: Mapping[str, ProcessSpec],
        started: list[str],
    ) -> Iterator[None]:
        """Starts these of the processes `after`, adds them to `started`, and waits until a gateway
        among them takes connections. before: what runs. Raises KairosError where something else
        takes connections at the address of a gateway that is new, or changes it."""
        for key in keys:
            while not self._fleet.is_gone(key):  # of a change that was called off
                yield
        for key, spec in after.items():
            at = _address(spec)
            if at and (key not in before or _address(before[key]) != at) and _is_taken(at):
                raise KairosError(f"{key}: {at} is in use; name another port, or free it")
        for key in keys:
            self._fleet.start(after[key])
            started.append(key)
        for at in filter(None, (_address(after[key]) for key in keys)):
            while not _is_taken(at):
                yield

    def look(self, running: PlannedFleet, *, changing: bool) -> None:
        """Judges that end are started again, as are the gateway before their models and, where
        another one stands by, the serving node; meanwhile other judges of their model have their
        robots. changing: the fleet is changed now.

        Raises ConfigError where another program runs this host's part."""
        mine = part_of(running, self._hosts.host)
        dead = {key: how(code) for key, code in self._fleet.dead().items()}
        self._hosts.look(running, dead)
        kinds = RESTARTED if running.standbys else JUDGES
        again = {
            key: spec
            for key, spec in mine.items()
            if spec.kind is ProcessKind.GATEWAY or spec.executable in kinds
        }
        self._restarts.look(again)
        if not changing:
            lives = {key: str(self._restarts.ended[key]) for key in mine}
            lives |= self._hosts.lives(running)
            self.shares.look(running, {*dead, *self._hosts.down(running)}, lives)

    @property
    def ended(self) -> dict[str, str]:
        """Processes of this host that are not there, or that ended again and again, and how."""
        dead = {key: how(code) for key, code in self._fleet.dead().items()}
        return {**dead, **self._restarts.failed}

    def servers(self, running: PlannedFleet) -> list[str]:
        """Serving nodes that follow the plan, without those of hosts that are gone."""
        down = self._hosts.down(running)
        return [SERVING, *(key for key in running.standbys if key not in down)]


def _address(spec: ProcessSpec) -> str:
    """HOST:PORT of a gateway; of anything else: empty."""
    if spec.kind is not ProcessKind.GATEWAY:
        return ""
    return spec.arguments[spec.arguments.index("--listen") + 1]


def _is_taken(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(tcp_address(f"tcp://{address}"), 1):
        return True
    return False
