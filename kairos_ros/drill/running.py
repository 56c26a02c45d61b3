"""A fleet that somebody else has started, under drill: watched, and only touched from outside.

The drill gives it no tasks, kills none of its processes and does not change its links.
"""

import time
from dataclasses import dataclass, field

from kairos_ros.core.errors import ConfigError
from kairos_ros.demo.driver import Driver
from kairos_ros.demo.interrupt import Interrupt
from kairos_ros.demo.live import LiveFleet, LiveRobot
from kairos_ros.drill.door import WorkerDoor
from kairos_ros.drill.exchange import Exchange
from kairos_ros.drill.narrator import Narrator
from kairos_ros.drill.stage import Stage
from kairos_ros.msg import RobotStatus
from kairos_ros.nodes.qos import ROSTER

LOOK_FOR_S = 4.0


@dataclass(slots=True)
class RunningFleet:
    """A context manager. Raises ConfigError on entering where there is no robot."""

    narrator: Narrator
    live: LiveFleet = field(init=False)
    driver: Driver = field(init=False)
    interrupt: Interrupt = field(init=False)

    def __enter__(self) -> "RunningFleet":
        self.interrupt = Interrupt(at_once=lambda: None)
        self.interrupt.__enter__()
        try:
            self.live = LiveFleet({name: LiveRobot() for name in self._look()})
            if not self.live.robots:
                raise ConfigError(
                    f"no robot announced itself within {LOOK_FOR_S:.0f} s; is --domain the ROS "
                    "domain of the fleet, and does discovery reach it?"
                )
            self.driver = Driver(self.live)
        except BaseException:
            self.interrupt.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.driver.__exit__(*error)
        self.interrupt.__exit__(None, None, None)

    def _look(self) -> list[str]:
        found: set[str] = set()

        def on_status(message: RobotStatus) -> None:
            if message.state != RobotStatus.LEAVING:
                found.add(message.robot)

        with Driver(LiveFleet({})) as driver:
            driver.listen("/kairos/robot_status", RobotStatus, on_status, ROSTER)
            until_s = time.monotonic() + LOOK_FOR_S
            while (left_s := until_s - time.monotonic()) > 0 and not self.interrupt.requested:
                self.narrator.progress(f"looking for robots ({left_s:.0f} s)")
                driver.spin(0.1)
        return sorted(found)


class RunningStage(Stage):
    """What can be done to such a fleet."""

    def __init__(
        self, fleet: RunningFleet, exchange: Exchange, narrator: Narrator, door: WorkerDoor | None
    ) -> None:
        self._door = door
        self._prepare(fleet, exchange, narrator)

    def give_tasks(self) -> None:
        """They are given by whoever runs the fleet."""

    def oldest_task_s(self) -> float:
        """As overheard, since tasks are given by others."""
        return self.exchange.oldest_open_s()

    def cloud_in_use(self) -> float:
        """Whether requests overflow is not for the drill to say."""
        return 0.0

    def door(self, name: str) -> WorkerDoor:
        """The one that was named. Raises ConfigError without one."""
        if self._door is None:
            raise ConfigError("which worker? name it with --worker tcp://HOST:PORT")
        return self._door

    def restore(self) -> None:
        """Nothing of the fleet was changed for good."""

    def dead(self) -> dict[str, int]:
        """Its processes are not the drill's."""
        return {}
