"""What traces cost: `python -m bench otlp`.

Virtual robots with the robot node's loop at 30 Hz, over DDS, on one emulated engine. Blocks
alternate between nobody who listens, `kairos dashboard`, and `kairos dashboard --otlp`: CPU of the
serving node with its engine, of the robots and of the dashboard, and the robots' round trips. Then
the CPU that it takes to make spans of a round and to send them, with tasks of fifty rounds.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.support.arguments import positive_int
from bench.support.process_cost import cpu_s
from bench.support.servers import Kairos, environment
from bench.support.virtual_fleet import VirtualFleet
from kairos_ros.recording.tasks import BagRound, BagTask
from kairos_ros.telemetry.events import (
    ChunkAnswered,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)
from kairos_ros.tracing.otlp import Trace, TraceSender
from kairos_ros.tracing.spans import task_spans

POLICY = "emulated:latency_ms=20+5b,chunk=50,dim=7,state=7"
ROBOTS, PER_PROCESS = 16, 8
SETTLE_S = 4.0
SIDES = {"nobody": (), "dashboard": (), "dashboard --otlp": ("--otlp",)}
TASKS, ROUNDS = 200, 50
RECEIVER = """
import http.server
class Takes(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Takes)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def _receiver() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _dashboard(side: str, url: str, env: dict[str, str]) -> Iterator[list[int]]:
    """Its process id, once it serves; none where nobody listens."""
    if side == "nobody":
        yield []
        return
    options = [*SIDES[side], url] if SIDES[side] else []
    command = [str(Path(sys.executable).with_name("kairos")), "dashboard", "--listen"]
    process = subprocess.Popen(
        [*command, "127.0.0.1:0", *options],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield [process.pid]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def live(seconds: float, blocks: int) -> list[list[str]]:
    """A row for each side: medians of the blocks."""
    env, folder = environment(), Path(tempfile.mkdtemp(prefix="bench-otlp-"))
    found: dict[str, list[tuple[float, ...]]] = {side: [] for side in SIDES}
    options = ("--server", "kairos", "--policy", POLICY, "--horizon", "static:10")
    with (
        _receiver() as url,
        Kairos(folder / "serving", env, policy=POLICY) as serving,
        VirtualFleet(ROBOTS, folder / "robots", env, PER_PROCESS, *options) as robots,
    ):
        robots.start(ROBOTS)
        pids = serving.pids()
        for block in range(blocks):
            for side in SIDES:
                with _dashboard(side, url, env) as dashboard:
                    robots.measure(SETTLE_S, pids)
                    before_s = cpu_s(dashboard)
                    told = robots.measure(seconds, pids)
                    own = (cpu_s(dashboard) - before_s) / seconds
                found[side].append(
                    (
                        told.chunks_per_s,
                        told.round_trip_p50_ms,
                        told.round_trip_p99_ms,
                        100 * told.server_cpu,
                        100 * told.client_cpu,
                        100 * own,
                    )
                )
                print(f"block {block + 1} of {blocks}: {side}", file=sys.stderr, flush=True)
        robots.stop()
    return [
        [side, *(f"{value:.1f}" for value in np.median(rows, axis=0))]
        for side, rows in found.items()
    ]


def a_task(number: int) -> BagTask:
    """Fifty rounds of a third of a second each."""
    key = TaskKey("arm_1", "session", str(number))
    goal = TaskStartReported(0.0, key, "reach", "reach it", "", 1, "static:10", 30.0)
    begins_s = tuple(k / 3 for k in range(ROUNDS))
    end = TaskEndReported(
        20.0, key, goal, 0.1, True, "succeeded", 17.0, 10 * ROUNDS, 0.0, 0.1, 0, 0, 0,
        (0.1,) * ROUNDS, (10,) * ROUNDS, begins_s, tuple(at + 0.3 for at in begins_s),
    )  # fmt: skip
    chunk = ChunkAnswered(
        0.2, key, 1, 0, False, "longest waited", 10, 50, 7, None, np.ones(10, np.float32), "tail",
        0.01, 0.05, 0.08, 4, "edge", "edge", "emulated-1", "server",
    )  # fmt: skip
    made = BagTask(key, began=goal, ended=end)
    for k in range(ROUNDS):
        made.rounds[k + 1] = BagRound(answers=[replace(chunk, round=k + 1, at_s=0.2 + k / 3)])
    return made


def sending() -> tuple[int, float]:
    """Spans, and microseconds of CPU for each: made, encoded and sent to another process."""
    tasks = [a_task(number) for number in range(TASKS)]
    with _receiver() as url, TraceSender(url) as sender:
        began_s = time.process_time()
        sender.send_all(Trace(task.key, task_spans(task), 0) for task in tasks)
        took_s = time.process_time() - began_s
        if sender.dropped:
            raise RuntimeError(f"the receiver did not take {sender.dropped.total()} spans")
        return sender.sent, 1e6 * took_s / sender.sent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench otlp", description=__doc__)
    parser.add_argument("--seconds", type=positive_int, default=20, help="of each block")
    parser.add_argument("--blocks", type=positive_int, default=3, help="of each side")
    parser.add_argument("--sending-only", action="store_true", help="only the second part")
    arguments = parser.parse_args()
    if not arguments.sending_only:
        table = Table("listens", "chunks/s", "trip p50 ms", "p99", "serving CPU %", "robots CPU %")
        table.add_column("dashboard CPU %")
        for row in live(arguments.seconds, arguments.blocks):
            table.add_row(*row)
        Console().print(table)
    spans, each_us = sending()
    per_round = spans / (TASKS * ROUNDS)
    print(
        f"{spans} spans sent, {each_us:.0f} us of CPU each; {per_round:.2f} spans and "
        f"{each_us * per_round / 1e3:.2f} ms of CPU per round"
    )


if __name__ == "__main__":
    main()
