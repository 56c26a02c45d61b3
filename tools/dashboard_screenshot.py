"""Photographs `kairos dashboard` over a small fleet at work: docs/images/dashboard.png.

Needs chromium. Ends with exit code 1 where the page does not show every robot with its pictures.

    .venv/bin/python tools/dashboard_screenshot.py
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from kairos_ros.host.domain import stay_on_this_host

REPOSITORY = Path(__file__).parents[1]
FLEET = ("fleet", "demo", "factory", "--events", "intruder:arm_1", "--no-view")
KAIROS = Path(sys.prefix, "bin", "kairos")
WITHIN_S = 180.0


def main() -> int:
    options = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options.add_argument("--out", type=Path, default=REPOSITORY / "docs/images/dashboard.png")
    options.add_argument("--size", default="1640,900", help="of the window, px")
    given = options.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("there is no chromium on PATH; nothing was done", file=sys.stderr)
        return 2
    stay_on_this_host()
    with TemporaryDirectory() as work, ExitStack() as stack:
        started(stack, [*FLEET, "--out", work], Path(work, "fleet.log"), "running|ready")
        listen = ["dashboard", "--listen", "127.0.0.1:0"]
        address = started(stack, listen, Path(work, "dashboard.log"), r"http://\S+")
        return photographed(browser, address, given.out, given.size)


def started(stack: ExitStack, line: list[str], log: Path, says: str) -> str:
    """Starts `kairos LINE` until the stack ends it; returns what it said first that matches.

    Raises RuntimeError if it does not.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            [KAIROS, *line], stdout=out, stderr=out, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    give_up = time.monotonic() + WITHIN_S
    while not (found := re.search(says, log.read_text())):
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"{line} did not say what was hoped for:\n{log.read_text()}")
        time.sleep(0.2)
    return found[0]


def photographed(browser: str, address: str, out: Path, size: str) -> int:
    """Waits until every robot moves and was seen, then takes the picture."""
    give_up = time.monotonic() + WITHIN_S
    while time.monotonic() < give_up:
        html = httpx.get(f"{address}fleet", timeout=30).text
        robots = re.findall(r'id="robot-\w+" data-state="(\w+)"', html)
        cameras = re.findall(r'data-camera="(camera/[^"]+)"', html)
        seen = [httpx.get(address + camera, timeout=30).content for camera in cameras]
        if robots and cameras and all(seen) and set(robots) <= {"running"}:
            break
        time.sleep(0.5)
    else:
        print(f"not every robot is seen at work: {robots}, {len(cameras)} cameras", file=sys.stderr)
        return 1
    with TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--virtual-time-budget=6000",
                f"--user-data-dir={profile}",
                f"--window-size={size}",
                f"--screenshot={out.resolve()}",
                address,
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    print(out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
