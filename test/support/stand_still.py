"""Runs a command all of whose processes stand still again and again, as on an overloaded host:

    python test/support/stand_still.py make test

It shows which tests assume a machine that never does. Needs root, and cgroups of version 2.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stop-s", nargs=2, type=float, default=(0.5, 2.0), help="least and most")
    parser.add_argument("--gap-s", nargs=2, type=float, default=(4.0, 11.0), help="least and most")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("give a command, such as `make test`")
    root = next((root for root in ROOTS if (root / "cgroup.procs").exists()), None)
    if root is None:
        parser.error(f"no cgroups of version 2 in {' or '.join(map(str, ROOTS))}")
    group = root / f"stand_still_{os.getpid()}"
    group.mkdir()
    join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    process = subprocess.Popen(["sh", "-c", join, "sh", *options.command])
    stops = 0
    try:
        while (code := ended(process, random.uniform(*options.gap_s))) is None:
            stand_still(group, random.uniform(*options.stop_s))
            stops += 1
    except KeyboardInterrupt:
        code = process.wait()  # it was interrupted, too
    print(f"stood still {stops} times; exit code {code}", file=sys.stderr)
    while left := (group / "cgroup.procs").read_text().split():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)
    group.rmdir()
    return code


def ended(process: subprocess.Popen[bytes], within_s: float) -> int | None:
    """Its exit code; None where it still runs."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def stand_still(group: Path, seconds: float) -> None:
    try:
        (group / "cgroup.freeze").write_text("1")
        time.sleep(seconds)
    finally:
        (group / "cgroup.freeze").write_text("0")


if __name__ == "__main__":
    sys.exit(main())
