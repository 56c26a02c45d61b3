"""Fifty robots on one serving node: 2.5 requests/s each, 3 × 224 px JPEG, an instant engine."""

from dataclasses import asdict
from pathlib import Path

from bench.support.camera import CAMERAS, SIZE
from bench.support.report import Result, new_figure
from bench.support.servers import Kairos, environment
from bench.support.virtual_fleet import VirtualFleet
from kairos_ros.lab.metrics.figure_style import OURS

ROBOTS = 50
PER_PROCESS = 10
IMAGES = "|".join(f"{camera}@{SIZE}x{SIZE}" for camera in CAMERAS)
POLICY = f"emulated:latency_ms=0,chunk=50,dim=7,state=7,images={IMAGES}"
HORIZON = "static:24"
"""Half of it is executed before the next request leaves: 30 Hz / 12 = 2.5 requests/s."""
COUNTS = (1, 10, 25, ROBOTS)


def fifty_robots(folder: Path) -> tuple[Kairos, VirtualFleet]:
    """The serving node and the (idle) robots, both to be entered."""
    env = environment()
    server = Kairos(folder / "logs", env, policy=POLICY)
    clients = VirtualFleet(
        ROBOTS, folder / "logs", env, PER_PROCESS, "--policy", POLICY, "--horizon", HORIZON
    )
    return server, clients


def run(folder: Path, *, quick: bool) -> Result:
    seconds = 5.0 if quick else 20.0
    rows, data = [], []
    server, clients = fifty_robots(folder)
    with server, clients:
        for robots in COUNTS:
            clients.start(robots)
            measured = clients.measure(seconds, server.pids())
            totals = clients.stop()
            lost = sum(robot.unanswered for robot in totals)
            wrong = sum(robot.wrong for robot in totals)
            requests = sum(robot.requests for robot in totals)
            data.append(
                {"robots": robots, "requests": requests, "lost": lost, "wrong": wrong}
                | asdict(measured)
            )
            rows.append(
                [
                    f"{robots}",
                    f"{measured.chunks_per_s:.1f}",
                    f"{requests}",
                    f"{lost}",
                    f"{wrong}",
                    f"{measured.round_trip_p50_ms:.1f}",
                    f"{measured.round_trip_p99_ms:.1f}",
                    f"{100 * measured.stall_fraction:.2f}",
                    f"{100 * measured.server_cpu:.0f}",
                    f"{100 * measured.client_cpu:.0f}",
                ]
            )
    header = ["robots", "chunks/s", "requests", "lost", "wrong", "trip p50", "p99 ms"]
    header += ["stalled %", "CPU %", "clients"]
    return Result(header, rows, {"counts": data}, lambda path: _plot(path, data))


def _plot(path: Path, data: list[dict]) -> None:
    last = data[-1]
    title = (
        f"{last['robots']} robots, {last['chunks_per_s']:.0f} requests/s: "
        f"{last['round_trip_p50_ms']:.0f} ms round trip, {last['lost']} lost"
    )
    about = "3 × 224 px JPEG per request, instant engine; robots and server share two cores"
    with new_figure(path, title, about, panels=2) as (trips, cpu):
        robots = [point["robots"] for point in data]
        for q, style in ((99, "--"), (50, "-")):
            values = [point[f"round_trip_p{q}_ms"] for point in data]
            trips.plot(robots, values, style, marker="o", color=OURS, label=f"p{q}")
        trips.set(xlabel="robots", ylabel="round trip (ms)", ylim=(0, None))
        trips.legend(frameon=False)
        cpu.plot(robots, [100 * point["server_cpu"] for point in data], marker="o", color=OURS)
        cpu.set(xlabel="robots", ylabel="CPU of the server (% of a core)", ylim=(0, None))
