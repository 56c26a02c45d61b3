"""A real browser without a window: what a page became, what it said, what it asked for."""

import contextlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=30000",
    # nothing gets out, whatever the browser wants for itself
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@dataclass(frozen=True, slots=True)
class Visit:
    dom: str
    """After scripts ran."""
    console: list[str]
    requests: list[str]
    """URLs that the page asked for; not what the browser wants for itself."""


def visit(page: Path | str, work: Path, width: int = 1400) -> Visit:
    """Opens a file or an address in a fresh profile under `work`."""
    log = work / "net.json"
    assert CHROMIUM
    done = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={work / 'profile'}",
            f"--log-net-log={log}",
            f"--window-size={width},1200",
            "--dump-dom",
            page.resolve().as_uri() if isinstance(page, Path) else page,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    events = _events(log.read_text())
    requests = [
        params["url"]
        for params in (event.get("params", {}) for event in events)
        if "url" in params and params.get("initiator", "not an origin") != "not an origin"
    ]
    return Visit(done.stdout, console, [u for u in requests if re.match(r"(https?|wss?|ftp):", u)])


def _events(log: str) -> list[dict]:
    """A browser that ends on a busy host leaves out the end of the list: each line is an event."""
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(log)["events"]
    return json.loads(log[: log.rindex(",\n")] + "]}")["events"]
