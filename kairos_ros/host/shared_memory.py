"""Whether this process still hears what comes through shared memory, by Fast DDS.

Whoever opens another process's port checks it. One whose owner does not answer within a second
(`healthy_check_timeout_ms`) is taken for broken: it is removed, and a new one of the same name is
made, into which everybody writes from then on. The owner, which only had no CPU, mostly notices and
opens the new one. On a host that was busy for long one did not, and heard nobody any more.
"""

import re
from pathlib import Path

_PORT = re.compile(
    r"/fastdds_port(\d+) \(deleted\)$|/fastrtps_port(\d+) \(deleted\)$", re.MULTILINE
)
_READER = "dds.shm."
"""Fast DDS names the thread that reads a port so, with the port's number."""


def replaced_ports(proc: Path = Path("/proc/self")) -> list[int]:
    """The process's own ports that have been replaced. Empty also for other middlewares."""
    maps = (proc / "maps").read_text()
    gone = {int(new or old) for new, old in _PORT.findall(maps)}
    return sorted(gone & _own_ports(proc)) if gone else []


def _own_ports(proc: Path) -> set[int]:
    names = []
    for thread in (proc / "task").iterdir():
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:
            continue  # it has just ended
    ports = [name.removeprefix(_READER) for name in names if name.startswith(_READER)]
    return {int(port) for port in ports if port.isdecimal()}
