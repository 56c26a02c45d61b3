"""A fleet that somebody else has started, under drill: watched, and only touched from outside.

The drill gives it no tasks, kills none of its processes and does not change its links.
"""

import time
from dataclasses import dataclass, field

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.interrupt import Interrupt
from kairos_ros.lab.drill.drill_testbed import DrillTestbed
from kairos_ros.lab.drill.hostile_clients import WorkerAccess
from kairos_ros.lab.drill.proof.exchange import Exchange
from kairos_ros.lab.testbed.display import EventDisplay
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.testbed_client import TestbedClient
from kairos_ros.msg import RobotStatus
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.qos import ROSTER
from kairos_ros.telemetry.fleet_view import RobotView

LOOK_FOR_S = 4.0


@dataclass(slots=True)
class RunningFleet:
    """A context manager. Raises ConfigError on entering where there is no robot."""

    display: EventDisplay
    live: LiveFleet = field(init=False)
    client: TestbedClient = field(init=False)
    interrupt: Interrupt = field(init=False)

    def __enter__(self) -> "RunningFleet":
        self.interrupt = Interrupt(at_once=lambda: None)
        self.interrupt.__enter__()
        try:
            self.live = LiveFleet({name: RobotView(name) for name in self._look()})
            if not self.live.robots:
                raise ConfigError(
                    f"no robot announced itself within {LOOK_FOR_S:.0f} s; is --domain the ROS "
                    "domain of the fleet, and does discovery reach it?"
                )
            self.client = TestbedClient(self.live)
        except BaseException:
            self.interrupt.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.client.__exit__(*error)
        self.interrupt.__exit__(None, None, None)

    def _look(self) -> list[str]:
        found: set[str] = set()

        with TestbedClient(LiveFleet({})) as client:
            announcements = Announcements(client.logger)

            def on_status(message: RobotStatus) -> None:
                read = announcements.read(message, found)
                if read is not None and read.state != RobotStatus.LEAVING:
                    found.add(read.robot)

            client.listen("/kairos/robot_status", RobotStatus, on_status, ROSTER)
            until_s = time.monotonic() + LOOK_FOR_S
            while (left_s := until_s - time.monotonic()) > 0 and not self.interrupt.requested:
                self.display.progress(f"looking for robots ({left_s:.0f} s)")
                client.spin(0.1)
        return sorted(found)


class RunningDrillTestbed(DrillTestbed):
    """What can be done to such a fleet."""

    def __init__(
        self,
        fleet: RunningFleet,
        exchange: Exchange,
        display: EventDisplay,
        access: WorkerAccess | None,
    ) -> None:
        super().__init__(fleet, exchange, display)
        self._access = access

    def give_tasks(self) -> None:
        """They are given by whoever runs the fleet."""

    def oldest_task_s(self) -> float:
        """By the messages received, since tasks are given by others."""
        return self.exchange.oldest_open_s()

    def cloud_in_use(self) -> float:
        """Whether requests overflow is not for the drill to say."""
        return 0.0

    def access(self, name: str, port: int = 0) -> WorkerAccess:
        """The one that was named. Raises ConfigError without one."""
        if self._access is None:
            raise ConfigError("which worker? name it with --worker tcp://HOST:PORT")
        return self._access

    def restore(self) -> None:
        """Nothing of the fleet was changed for good."""

    def dead(self) -> dict[str, int]:
        """Its processes are not the drill's."""
        return {}

    def check(self) -> None:
        """Nor are they the drill's to look after."""
