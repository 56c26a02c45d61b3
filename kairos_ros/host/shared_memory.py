"""Whether this process still hears what comes through shared memory by Fast DDS, and what is done
if not.

Whoever opens a port of another process checks it. One whose owner does not answer within a second
(`healthy_check_timeout_ms`) is marked as broken and removed, and a new one of the same name is
made, into which everybody writes from then on. The owner, which only had no CPU, sees the mark and
opens the new port, or makes it. But a process that waits for two seconds for the lock of that port
takes the lock for left behind; two that work on one port at once may remove the one that the owner
has just made, without a mark. Then the owner waits for ever at a port that nobody else can open
(`open_port_internal`, `open_or_create_and_lock_named_mutex` of Fast DDS 3.2.2). `keep_ports_open`
sets the mark that is missing.
"""

import logging
import os
import re
import struct
import threading
import time
from functools import cache
from pathlib import Path

LOOK_PERIOD_S = 2.0
LOST_LOOKS = 5
"""In a row, after which a port counts as lost."""
_LOG = logging.getLogger(__name__)
_PROC = Path("/proc/self")
_PORT = re.compile(r"([0-9a-f]+)-([0-9a-f]+) .*/fast(?:dds|rtps)_port(\d+)( \(deleted\))?$")
_READER = "dds.shm."
"""Fast DDS names the thread that reads a port so, with the port's number."""
_PORT_NODE = struct.Struct("=7I")
"""Of `SharedMemGlobal::PortNode`, Fast DDS 2.14 to 3.2: port_id, num_listeners,
healthy_check_timeout_ms, port_wait_timeout_ms, max_buffer_descriptors, waiting_count, flags."""
_FLAGS_OFFSET = _PORT_NODE.size - 4
_OK, _OPENED_FOR_READING = 0b001, 0b100


class PortKeeper:
    """Looks for own ports that have been replaced, and has Fast DDS open the new ones."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        """Ports that stay replaced in spite of that: nobody on this host is heard there."""
        self._seen: dict[tuple[int, range], int] = {}
        """How often each replaced port has been found in a row."""

    def keep(self) -> None:
        while True:
            time.sleep(LOOK_PERIOD_S)
            self.look()

    def look(self) -> None:
        """Once; to be called every LOOK_PERIOD_S."""
        self._seen = {port: self._seen.get(port, 0) + 1 for port in replaced_ports().items()}
        for (port, addresses), looks in self._seen.items():
            if looks > 1 and mark_as_broken(port, addresses):  # not on its way to the new one
                _LOG.warning(
                    "DDS port %d in shared memory was replaced while this process got no CPU, "
                    "and heard nobody; it opens the new one now",
                    port,
                )
            if looks == LOST_LOOKS:
                _LOG.error(
                    "DDS port %d in shared memory was replaced, and nobody on this host is heard "
                    "there any more: restart this program (docs/faults.md)",
                    port,
                )
        self.lost = sorted(port for (port, _), looks in self._seen.items() if looks >= LOST_LOOKS)


@cache
def keep_ports_open() -> PortKeeper:
    """From now on a thread of this process does so. Without effect on other middlewares."""
    keeper = PortKeeper()
    threading.Thread(target=keeper.keep, name="dds ports", daemon=True).start()
    return keeper


def replaced_ports(proc: Path = _PROC) -> dict[int, range]:
    """The process's own ports that have been replaced, and where they are in its memory.

    Empty also for other middlewares.
    """
    with (proc / "maps").open() as lines:  # hundreds of kB as a whole
        found = [_PORT.match(line) for line in lines if "_port" in line]
    ports = [match.groups() for match in found if match]
    there = {port for _, _, port, deleted in ports if not deleted}  # it has the new one, too
    gone = {
        int(port): range(int(begin, 16), int(end, 16))
        for begin, end, port, deleted in ports
        if deleted and port not in there
    }
    own = own_ports(proc) if gone else set()
    return {port: addresses for port, addresses in gone.items() if port in own}


def mark_as_broken(port: int, addresses: range) -> bool:
    """Marks this process's own port as broken, which its reader sees within a third of a second.

    False where it is marked already, or the memory is not what this version knows. Reads and
    writes through the kernel: memory that another thread gives back meanwhile is an error there,
    not a crash.
    """
    try:
        memory = os.open(_PROC / "mem", os.O_RDWR)
    except OSError:
        return False
    try:
        content = os.pread(memory, len(addresses), addresses.start)
        (place,) = _places(port, content)
        flags = content[place + _FLAGS_OFFSET]
        at = addresses.start + place + _FLAGS_OFFSET
        return os.pwrite(memory, bytes([flags & ~_OK]), at) == 1
    except (OSError, ValueError):
        return False
    finally:
        os.close(memory)


def _places(port: int, content: bytes) -> list[int]:
    """Offsets of `PortNode`s of this port that are not marked as broken and have a reader."""
    places = []
    for place in range(0, len(content) - _PORT_NODE.size, 4):
        number, listeners, check_ms, wait_ms, _, _, flags = _PORT_NODE.unpack_from(content, place)
        readable = flags & _OK and flags & _OPENED_FOR_READING and flags < 0b1000
        if number == port and listeners and check_ms and wait_ms == check_ms // 3 and readable:
            places.append(place)
    return places


def own_ports(proc: Path = _PROC) -> set[int]:
    """The ports in shared memory that the process reads."""
    names = []
    for thread in (proc / "task").iterdir():
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:
            continue  # it has just ended
    ports = [name.removeprefix(_READER) for name in names if name.startswith(_READER)]
    return {int(port) for port in ports if port.isdecimal()}
