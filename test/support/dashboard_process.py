"""`kairos dashboard` as a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wire import until

KAIROS = Path(sys.prefix, "bin", "kairos")


@contextmanager
def kairos_dashboard(folder: Path) -> Iterator[str]:
    """Its address. At the end it has to stop at SIGINT, without a traceback."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [KAIROS, "dashboard", "--listen", "127.0.0.1:0"],
            stdout=out,
            stderr=out,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    try:
        found = until(lambda: re.search(r"http://\S+", log.read_text()), what="for the dashboard")
        yield found[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, -signal.SIGINT, 130)
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
        print(log.read_text())
