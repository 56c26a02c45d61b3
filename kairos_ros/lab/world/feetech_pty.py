"""A serial port with simulated servos behind it: a pseudo-terminal that a driver opens as a device.

The link (`~/so101`) stands for `/dev/ttyACM0`. Pulling the cable closes the terminal under the
driver as an unplugged adapter does; the motors keep their power, and go on to their last goal.
"""

import contextlib
import os
import pty
import select
import time
import tty
from collections.abc import Callable
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.world.feetech_sim import Bus

CHUNK = 4096
IDLE_S = 0.5
"""How often a bus that nobody talks to looks whether it shall end."""

Obey = Callable[["BusPort", str], None]
"""Does what one line says."""


class BusPort:
    """The pseudo-terminal of one bus. Raises ConfigError where `link` is something else already."""

    def __init__(self, bus: Bus, link: Path) -> None:
        if link.exists() and not link.is_symlink():
            raise ConfigError(f"{link} exists and is no link; name another path, or remove it")
        self.bus = bus
        self.link = link
        self._ends: tuple[int, int] | None = None

    @property
    def plugged(self) -> bool:
        return self._ends is not None

    def plug(self) -> None:
        """Makes the device and the link to it."""
        if self._ends is not None:
            return
        # our own hold on the device's end keeps it alive while no driver has it open
        ours, device = pty.openpty()
        tty.setraw(device)
        os.set_blocking(ours, False)
        self._ends = (ours, device)
        fresh = self.link.with_name(self.link.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        try:
            fresh.symlink_to(os.ttyname(device))
            fresh.replace(self.link)
        except OSError as error:
            raise ConfigError(f"cannot make the link {self.link}: {error.strerror}") from None

    def pull(self) -> None:
        """The device is gone, for whoever has it open, too."""
        if self._ends is not None:
            with contextlib.suppress(FileNotFoundError):
                self.link.unlink()
            for end in self._ends:
                os.close(end)
            self._ends = None

    def serve(self, commands: int | None, obey: Obey, running: Callable[[], bool]) -> None:
        """Answers the driver until `running()` is false.

        Every line that arrives on the file descriptor `commands` is obeyed; its end is not ours.
        """
        rest = b""
        while running():
            watched = [*(self._ends or ())[:1], *([] if commands is None else [commands])]
            ready, _, _ = select.select(watched, [], [], IDLE_S)
            if self._ends is not None and self._ends[0] in ready:
                self._answer(self._ends[0])
            if commands is not None and commands in ready:
                data = os.read(commands, CHUNK)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    obey(self, line.decode(errors="replace").strip())
                if not data:
                    commands = None

    def _answer(self, ours: int) -> None:
        try:
            data = os.read(ours, CHUNK)
        except OSError:
            return  # the driver has just closed its end
        said = self.bus.receive(data, time.monotonic())
        if said and self.bus.faults.delay_s:
            time.sleep(self.bus.faults.delay_s)
        with contextlib.suppress(BlockingIOError):  # nobody reads: a serial line loses it, too
            os.write(ours, said)
