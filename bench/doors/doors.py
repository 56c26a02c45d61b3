"""Robots with openpi's and GR00T's clients, served by `kairos doors` and by the design of the
server that each client comes with.

Two policies, each the same on both sides: the demo policy on the CPU, one thread, which takes some
milliseconds; and an engine that takes the time of a larger model and computes nothing
(`TIMED`; that time is an assumption). A robot asks, executes for 250 ms (five
actions at 20 Hz, as openpi's LIBERO client does) and asks again. Blocks alternate between the
sides. Every chunk is computed once more from the observation of the robot that got it: one that
differs was made from another robot's.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.doors.doors_client import EXECUTE_S, INSTRUCTION, SEED, state_of
from bench.support.client_process import ClientProcess
from bench.support.recomputed import Recomputed
from bench.support.report import Result, new_figure
from bench.support.servers import LOADED_WITHIN_S, ROOT, Kairos, environment
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

STATE_DIM, ACTION_DIM = 39, 4
TIMED = f"emulated:latency_ms={{}},state={STATE_DIM},dim={ACTION_DIM}"
DEMO = str(ROOT / "models" / "metaworld_flow")
POLICIES = {
    "demo": (DEMO, DEMO),
    "80 + 35 ms per robot": (TIMED.format("80+35b"), TIMED.format("0")),
}
"""Name -> the policy that is served, and what computes the same chunks for the comparison."""
OURS_IS = "kairos doors"
DESIGNS = {"openpi": "openpi's design", "groot": "GR00T's design"}
"""Dialect -> the other side."""
COUNTS = (1, 8, 32)
QUICK = (1, 8)
BLOCK_S, BLOCKS = 10.0, 3
QUICK_S = 4.0
WARM_UP_S = 2.0
SAME = 1e-3
"""Largest difference of an action that was computed in another batch."""
SAME_MAP = f"robot: bench\ncontrol_rate_hz: 20\naction_dim: {ACTION_DIM}\nexecutes: 5\n"
MAPS = {
    "openpi": f"state: [{{key: observation/state, size: {STATE_DIM}}}]\n",
    "groot": f"state: [{{key: state/all, size: {STATE_DIM}}}]\nprompt: language/task\n"
    f"actions: [{{key: all, size: {ACTION_DIM}}}]\n",
}
PORT = 18_079


@dataclass(slots=True)
class Block:
    """What one side did for some seconds."""

    policy: str
    dialect: str
    side: str
    robots: int
    latency_ms: list[float]
    wrong: int
    errors: list[str]
    seconds: float


class Program:
    """A server of clients as a process, once it says that it serves. A context manager."""

    def __init__(self, log: Path, command: list[str], says: str) -> None:
        self._log, self._command, self._says = log, command, says

    def __enter__(self) -> str:
        """What it has said."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                env=os.environ | environment(PYTHONUNBUFFERED="1"), start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + LOADED_WITHIN_S
        while self._says not in (said := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self._command[1:3]} does not serve:\n{said[-2000:]}")
            time.sleep(0.1)
        return said

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run(folder: Path, *, quick: bool) -> Result:
    blocks: list[Block] = []
    for policy in POLICIES:
        for dialect in DESIGNS:
            place = folder / f"{len(blocks)}"
            blocks += _compare(policy, dialect, place, quick=quick)
    return _result(blocks)


def _compare(policy: str, dialect: str, folder: Path, *, quick: bool) -> list[Block]:
    folder.mkdir(parents=True)
    (folder / "map.yaml").write_text(f"dialect: {dialect}\n{SAME_MAP}{MAPS[dialect]}")
    kairos = str(Path(sys.prefix, "bin", "kairos"))
    ours = [kairos, "doors", str(folder / "map.yaml"), "--listen", "127.0.0.1:0"]
    server = f"bench.support.peers.{dialect}_server"
    served, computed = POLICIES[policy]
    theirs = [sys.executable, "-m", server, str(PORT), served]
    env = environment()
    alone = Recomputed(computed)
    blocks: list[Block] = []
    with (
        Kairos(folder, env, policy=served),
        Program(folder / "doors.log", ours, "doors: serves") as said,
        Program(folder / "theirs.log", theirs, "listens"),
        ClientProcess(
            folder / "clients.log", env, "bench.doors.doors_client", STATE_DIM
        ) as clients,
    ):
        found = re.search(r"(ws|tcp)://\S+:\d+", said)
        assert found is not None
        urls = {OURS_IS: found[0], DESIGNS[dialect]: f"{found[1]}://127.0.0.1:{PORT}"}
        for robots in QUICK if quick else COUNTS:
            for n in range(1 if quick else BLOCKS):
                for side, url in urls.items():
                    if not n:
                        clients.tell([dialect, url, robots, WARM_UP_S])
                        clients.hear()
                    seconds = QUICK_S if quick else BLOCK_S
                    clients.tell([dialect, url, robots, seconds])
                    told = clients.hear()
                    wrong = _wrong(told["chunks"], alone)
                    latency_ms = [latency for _, _, latency, _ in told["chunks"]]
                    block = Block(
                        policy, dialect, side, robots, latency_ms, wrong, told["errors"], seconds
                    )
                    blocks.append(block)
                    _say(blocks[-1])
    return blocks


def _wrong(chunks: list[list[Any]], alone: Recomputed) -> int:
    """How many were made from another observation than that of the robot that got them."""
    asked = [(state_of(robot, n, STATE_DIM), SEED + n) for robot, n, *_ in chunks]
    own = alone.chunks(asked, INSTRUCTION)
    return sum(
        not np.allclose(first, chunk[0], atol=SAME)
        for (*_, first), chunk in zip(chunks, own, strict=True)
    )


def _say(block: Block) -> None:
    p50, p99 = np.percentile(block.latency_ms, (50, 99))
    text = (
        f"{block.policy}: {block.side:16} {block.robots:3} robots: {len(block.latency_ms)} chunks, "
    )
    print(f"{text}p50 {p50:.1f}, p99 {p99:.1f} ms, {block.wrong} wrong", *block.errors, flush=True)


def _result(blocks: list[Block]) -> Result:
    rows, summary = [], []
    keys = dict.fromkeys((b.policy, b.dialect, b.robots, b.side) for b in blocks)
    for policy, dialect, robots, side in keys:
        key = policy, dialect, robots, side
        own = [b for b in blocks if (b.policy, b.dialect, b.robots, b.side) == key]
        of_blocks = np.array([np.percentile(b.latency_ms, (50, 99)) for b in own])
        p50, p99 = np.median(of_blocks, axis=0)
        chunks, waited_ms = sum(len(b.latency_ms) for b in own), sum(sum(b.latency_ms) for b in own)
        one: dict[str, Any] = {
            "policy": policy,
            "dialect": dialect,
            "robots": robots,
            "side": side,
            "chunks": chunks,
            "chunks_per_s": chunks / sum(b.seconds for b in own),
            "p50_ms": float(p50),
            "p99_ms": float(p99),
            "p99_ms_of_blocks": of_blocks[:, 1].tolist(),
            "stalled": waited_ms / (waited_ms + chunks * EXECUTE_S * 1e3),
            "wrong": sum(b.wrong for b in own),
            "errors": [text for b in own for text in b.errors],
        }
        summary.append(one)
        numbers = [f"{number:.1f}" for number in (one["chunks_per_s"], p50, p99)]
        counted = [f"{one['stalled']:.0%}", f"{one['wrong']} of {chunks}", f"{len(one['errors'])}"]
        rows.append([policy, dialect, f"{robots}", side, *numbers, *counted])
    header = ["policy", "client", "robots", "", "chunks/s", "p50 ms", "p99 ms", "stalled"]
    return Result(
        [*header, "wrong", "errors"], rows, {"summary": summary}, lambda path: _plot(path, summary)
    )


def _plot(path: Path, summary: list[dict[str, Any]]) -> None:
    most = max(one["robots"] for one in summary)
    slow = list(POLICIES)[-1]
    last = {
        one["side"]: one["p50_ms"]
        for one in summary
        if (one["policy"], one["robots"]) == (slow, most)
    }
    theirs = ", ".join(f"{name} {last[name] / 1e3:.1f} s" for name in DESIGNS.values())
    title = f"{most} robots, slow policy: p50 {last[OURS_IS] / 1e3:.1f} s, {theirs}"
    about = "observation sent to chunk received; solid p50, dotted p99; medians of blocks"
    with new_figure(path, title, about, len(POLICIES)) as panels:
        for axes, policy in zip(panels, POLICIES, strict=True):
            for dialect, design in DESIGNS.items():
                marker = "o" if dialect == "openpi" else "s"
                for side, colour in ((design, BASELINE), (OURS_IS, OURS)):
                    key = policy, dialect, side
                    own = [o for o in summary if (o["policy"], o["dialect"], o["side"]) == key]
                    counts = [one["robots"] for one in own]
                    p50, p99 = ([one[q] for one in own] for q in ("p50_ms", "p99_ms"))
                    label = f"{side}, {dialect} client" if side == OURS_IS else side
                    axes.plot(counts, p50, color=colour, marker=marker, label=label)
                    axes.plot(counts, p99, color=colour, marker=marker, ls=":")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(counts, map(str, counts))
            axes.set_xlabel(f"robots, policy: {policy}")
        panels[0].set_ylabel("ms")
        panels[0].legend(frameon=False, fontsize=8)
