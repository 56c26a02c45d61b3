"""What processes cost: CPU seconds and memory, from /proc."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kairos_ros.host.child_processes import descendants

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def with_children(pids: Iterable[int]) -> list[int]:
    """These processes and all their descendants."""
    return [each for pid in pids for each in (pid, *descendants(pid))]


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used so far, user and system."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def core_waits_s(pids: Iterable[int]) -> float:
    """Seconds that the threads of these processes could have run so far, but had no core."""
    total_ns = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # of a thread that has just ended
                total_ns += int(file.read_text().split()[1])
    return total_ns / 1e9


def memory_mb(pids: Iterable[int]) -> float:
    """Resident memory of a group of processes, file pages that they share counted once.

    Unlike the proportional set size it does not depend on who else maps the same libraries.
    """
    anonymous_kb = 0
    file_kb: Counter[str] = Counter()
    for pid in pids:
        own_kb: Counter[str] = Counter()
        mapped = ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            key, *values = line.split()
            if not key.endswith(":"):
                mapped = values[4] if len(values) > 4 else ""
            elif key == "Rss:":
                own_kb[mapped] += int(values[0])
            elif key == "Anonymous:":
                anonymous_kb += int(values[0])
                own_kb[mapped] -= int(values[0])
        file_kb |= own_kb  # the larger count of each file
    return (anonymous_kb + file_kb.total()) / 1e3
