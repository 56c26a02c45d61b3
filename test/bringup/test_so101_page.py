"""docs/so101.md, "Without an arm, first": typed line by line, from nothing to motion and back."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wire import PATIENCE_S, until

from kairos_ros.bringup.arms_arguments import ARGUMENTS

PAGE = Path(__file__).parents[2] / "docs" / "so101.md"
AT_ITS_LIMIT = "so101_1: ended at its limit (max_duration)"

pytestmark = pytest.mark.slow


def blocks() -> list[list[str]]:
    """The lines of that section's code blocks, as a shell splits them; HOME stays to be filled."""
    section = PAGE.read_text().split("## Without an arm, first")[1].split("\n## ")[0]
    texts = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [shlex.split(text.replace("\\\n", " ")) for text in texts]


@pytest.fixture
def typed(tmp_path):
    """Runs a line of the page as a user in a fresh home would; ends it after the test."""
    running = []

    def run(words: list[str], log: str, **more) -> subprocess.Popen:
        line = [word.replace("$HOME", str(tmp_path)).replace("~", str(tmp_path)) for word in words]
        if line[:2] == ["ros2", "launch"]:  # the same plan, without the ros2 that is not here
            assert all(one.partition(":=")[0] in ARGUMENTS["so101"] for one in line[4:])
            arm = line[3].removesuffix(".launch.py")
            line = ["kairos", "arm", "up", arm, "--out", str(tmp_path), "--", *line[4:]]
        with (tmp_path / log).open("wb") as out:
            process = subprocess.Popen(
                [Path(sys.prefix, "bin", line[0]), *line[1:]],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
                text=True,
                **more,
            )
        running.append(process)
        return process

    yield run
    for process in reversed(running):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


def test_the_page_leads_from_nothing_to_motion_to_a_pulled_cable_and_on(typed, tmp_path):
    bus_line, launch_line, task_line = blocks()
    bus = typed(bus_line, "bus.log", stdin=subprocess.PIPE)
    until(lambda: "six motors on" in (tmp_path / "bus.log").read_text())

    def say(word: str) -> None:
        bus.stdin.write(f"{word}\n")
        bus.stdin.flush()

    def lift() -> int:
        """Where the motor of shoulder_lift is, in its steps."""
        shown = (tmp_path / "bus.log").read_text().count('"motors"')
        say("show")
        until(lambda: (tmp_path / "bus.log").read_text().count('"motors"') > shown)
        last = (tmp_path / "bus.log").read_text().splitlines()[-1]
        return json.loads(last)["motors"]["shoulder_lift"]["position"]

    def lasted_s(task: int) -> float:
        """From its first to its last line in the log of the robot; longer on a busy machine."""
        line = rf"\[([\d.]+)\] \[so101_1\.robot\]: task {task} (?:begins|ended)"
        begins_s, ended_s = map(float, re.findall(line, (tmp_path / "up.log").read_text()))
        return ended_s - begins_s

    typed(launch_line, "up.log")
    until(lambda: "robot so101_1 is here" in (tmp_path / "up.log").read_text())
    before = lift()
    assert typed(task_line, "first.log").wait(PATIENCE_S) == 0
    assert AT_ITS_LIMIT in (tmp_path / "first.log").read_text()
    assert lasted_s(1) >= 10.0
    assert lift() > before + 500

    task = typed(task_line, "second.log")
    until(lambda: "so101_1 moves" in (tmp_path / "second.log").read_text())
    say("pull")
    assert task.wait(PATIENCE_S) == 1
    assert "so101_1: failed: cable" in (tmp_path / "second.log").read_text()
    say("plug")
    shorter = ["3" if word == "10" else word for word in task_line]
    assert shorter != task_line
    assert typed(shorter, "third.log").wait(PATIENCE_S) == 0
    assert AT_ITS_LIMIT in (tmp_path / "third.log").read_text()
    assert 3.0 <= lasted_s(3) < lasted_s(1)
