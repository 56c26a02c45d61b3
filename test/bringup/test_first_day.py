"""docs/first_day.md, typed line by line into terminals, as a new user would."""

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "first_day.md"
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"# terminal (\d+)(?:: (.*))?")
PROMPT = "ready> "
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
PATIENCE_S = 120.0
STOOD_STILL = ("has said nothing new for", "stale camera")
"""A busy machine let a driver or a camera stand still, which ends a task: it is given again."""


class Terminal:
    """An interactive shell in a pseudo-terminal of its own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.heard = ""
        self._read = 0
        """How much of it was looked at."""
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile"], env)
        self.wait_for(PROMPT)

    def type(self, line: str) -> None:
        os.write(self._end, line.encode() + b"\n")
        self.wait_for(line[-20:])  # its echo is not what the command says

    def interrupt(self) -> None:
        os.write(self._end, b"\x03")

    def wait_for(self, text: str, instead: Sequence[str] = ()) -> bool:
        """Until `text` was printed after all that was waited for before, or one of `instead`:
        whether it was `text`."""
        give_up = time.monotonic() + PATIENCE_S
        while (found := self._find(text)) < 0:
            for other in instead:
                if (at := self._find(other)) >= 0:
                    self._read = at + len(_squeezed(other))
                    return False
            left_s = give_up - time.monotonic()
            assert left_s > 0, f"no {text!r} in:\n{self.heard[-3000:]}"
            if select.select([self._end], [], [], min(left_s, 0.5))[0]:
                data = os.read(self._end, 65536)
                self.heard += COLOURS.sub("", data.decode(errors="replace"))
        self._read = found + len(_squeezed(text))
        return True

    def _find(self, text: str) -> int:
        """Where it begins in what was heard, without white space; -1: nowhere."""
        return _squeezed(self.heard).find(_squeezed(text), self._read)

    def close(self) -> None:
        """Ends what the shell still runs, and the shell."""
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
            if self._runs():
                os.killpg(os.tcgetpgrp(self._end), number)
            give_up = time.monotonic() + 10.0
            while self._runs() and time.monotonic() < give_up:
                time.sleep(0.05)
        os.close(self._end)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _runs(self) -> bool:
        return os.tcgetpgrp(self._end) != self.pid


def _squeezed(text: str) -> str:
    """Without white space: terminals break lines where they like."""
    return re.sub(r"\s+", "", text)


def steps(text: str):
    """(terminal, what to do, lines to type, lines to see) of every block of commands."""
    blocks = BLOCK.findall(text)
    for i, (kind, content) in enumerate(blocks):
        if kind == "text":
            continue
        head, *lines = content.splitlines()
        terminal, act = HEAD.fullmatch(head).groups()
        follows = blocks[i + 1] if i + 1 < len(blocks) else ("sh", "")
        yield int(terminal), act, lines, follows[1].splitlines() if follows[0] == "text" else []


@pytest.fixture
def terminals(tmp_path, domain_id):
    env = os.environ | {"HOME": str(tmp_path), "PS1": PROMPT, "TERM": "dumb", "COLUMNS": "200"}
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        env.pop(name)
    opened: dict[int, Terminal] = {}

    def terminal(number: int) -> Terminal:
        if number not in opened:
            opened[number] = Terminal(PAGE.parents[1], env)
        return opened[number]

    yield terminal
    for one in opened.values():
        one.close()


def test_every_line_of_the_first_day_does_what_the_page_says(terminals, domain_id):
    page = PAGE.read_text().replace("ROS_DOMAIN_ID=77", f"ROS_DOMAIN_ID={domain_id}")
    page = page.replace("$PWD/.venv/", f"{sys.prefix}/")
    done = 0
    for number, act, lines, seen in steps(page):
        terminal = terminals(number)
        if act == "Ctrl-C":
            terminal.interrupt()
            terminal.wait_for(PROMPT)
        for i, line in enumerate(lines):
            print(f"terminal {number}: {line}")
            terminal.type(line)
            last = i == len(lines) - 1
            if not (last and seen) and line not in ("pull", "plug"):
                terminal.wait_for(PROMPT)
        for text in seen:
            for _ in range(5):
                if terminal.wait_for(text, STOOD_STILL):
                    break
                terminal.wait_for(PROMPT)
                terminal.type(line)
            else:
                raise AssertionError(f"{line} was given up")
        done += 1
    assert done >= 15
