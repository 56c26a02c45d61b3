"""Which processes a process has started. All of them may end while somebody looks."""

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of the children that any thread of `pid` has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has just ended
            found += map(int, task.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of the children, of their children, and so on."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def command_line(pid: int) -> str:
    """Its words, with NUL after each; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
