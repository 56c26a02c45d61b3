"""Serving overhead: what a round trip costs besides the model, next to LeRobot's own server.

One robot with 3 cameras of 224 px and the same policy on both sides. A request begins with pixels
on the robot and ends with actions there; the model's own time is measured inside each server by
the policy itself and subtracted. Ours encodes JPEG, sends it over DDS and decodes it at the engine;
LeRobot sends raw pixels. Blocks of requests alternate between the two.
"""

import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.camera_policy import CHUNK, PLUGIN
from bench.support.client_process import ClientProcess
from bench.support.report import Result, new_figure
from bench.support.servers import ROOT, Kairos, PolicyServers, environment
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

SIDES = {"kairos": "kairos_ros", "lerobot": "LeRobot PolicyServer"}
BLOCK = 100
QUANTILES = (50, 99)
WARM_UP = 30


@dataclass(frozen=True, slots=True)
class Block:
    """Milliseconds of one block of requests on one side, per request."""

    side: str
    round_trip: list[float]
    model: list[float]
    overhead: list[float]
    """Round trip minus model."""
    encoding: list[float]
    """JPEG on the robot; part of the overhead."""
    outside: list[float]
    """Round trip minus the serving node's share: encoding, messages and DDS. Ours only."""


def run(folder: Path, *, quick: bool) -> Result:
    blocks = 3 if quick else 15
    policy = folder / "policy"
    subprocess.run(
        [sys.executable, "-m", "bench.support.camera_policy", policy], check=True, cwd=ROOT
    )
    laps = {side: folder / f"{side}.laps" for side in SIDES}
    env = {side: environment(modules=PLUGIN, KAIROS_STOPWATCH=str(laps[side])) for side in SIDES}
    with (
        Kairos(folder / "logs", env["kairos"], policy=str(policy), horizon=f"static:{CHUNK}"),
        PolicyServers(folder / "logs", env["lerobot"]) as peer,
        _client("kairos", policy, folder) as ours,
    ):
        peer.grow(1)
        with _client("lerobot", policy, folder) as theirs:
            clients = {"kairos": ours, "lerobot": theirs}
            for client in clients.values():
                client.hear()  # connected
                client.tell(WARM_UP)
                client.hear()
            measured = []
            for _ in range(blocks):
                for side, client in clients.items():
                    client.tell(BLOCK)
                    measured.append(_block(side, client.hear(), laps[side]))
    return _result(measured)


def _client(side: str, policy: Path, folder: Path) -> ClientProcess:
    log = folder / "logs" / f"client_{side}.log"
    return ClientProcess(log, environment(), "bench.serving.overhead_client", side, policy)


def _block(side: str, requests: list[dict[str, Any]], laps: Path) -> Block:
    """Joins each request with the one prediction that was made while it was under way."""
    predictions = list(struct.iter_unpack("<qq", laps.read_bytes()))[-3 * len(requests) :]
    block = Block(side, [], [], [], [], [])
    for request in requests:
        sent, received = request["sent_ns"], request["received_ns"]
        inside = [end - begin for begin, end in predictions if sent < begin and end < received]
        if len(inside) != 1:
            raise RuntimeError(f"{len(inside)} predictions for one request of {side}")
        block.round_trip.append((received - sent) / 1e6)
        block.model.append(inside[0] / 1e6)
        block.overhead.append((received - sent - inside[0]) / 1e6)
        block.encoding.append((request["encoded_ns"] - sent) / 1e6)
        block.outside.append((received - sent) / 1e6 - request["server_s"] * 1e3)
    return block


def _result(blocks: list[Block]) -> Result:
    sides = {side: [block for block in blocks if block.side == side] for side in SIDES}
    summary = {side: _summary(own) for side, own in sides.items()}
    ours, theirs = summary["kairos"], summary["lerobot"]
    shown = [f"{part}_p{q}_ms" for part in ("overhead", "round_trip", "model") for q in QUANTILES]
    ratio = {key: ours[key] / theirs[key] for key in [*shown, "overhead_p99_all_ms"]}
    header = ["ms", *(key.removesuffix("_ms").replace("_", " ") for key in shown)]
    rows = [
        *([name, *(f"{summary[side][key]:.2f}" for key in shown)] for side, name in SIDES.items()),
        ["ratio", *(f"{ratio[key]:.2f}" for key in shown)],
    ]
    data = {"summary": summary, "ratio": ratio, "blocks": [asdict(block) for block in blocks]}
    return Result(header, rows, data, lambda path: _plot(path, sides, summary))


def _summary(blocks: list[Block]) -> dict[str, float]:
    """The median over blocks of each quantile: a burst of other work spoils single blocks only.
    And the quantiles of all requests together, bursts included."""
    summary = {}
    for part in ("round_trip", "model", "overhead", "encoding", "outside"):
        values = np.array([getattr(block, part) for block in blocks])
        for q in QUANTILES:
            summary[f"{part}_p{q}_ms"] = float(np.median(np.percentile(values, q, axis=1)))
            summary[f"{part}_p{q}_all_ms"] = float(np.percentile(values, q))
    return summary


def _plot(path: Path, sides: dict[str, list[Block]], summary: dict[str, dict[str, float]]) -> None:
    title = (
        f"Serving adds {summary['kairos']['overhead_p50_ms']:.1f} ms to the model, "
        f"LeRobot's server {summary['lerobot']['overhead_p50_ms']:.1f} ms"
    )
    about = "one robot, 3 × 224 px, same policy; dotted: median p50 and p99 of blocks"
    with new_figure(path, title, about) as axes:
        for side, colour in (("lerobot", BASELINE), ("kairos", OURS)):
            values = np.sort(np.concatenate([block.overhead for block in sides[side]]))
            share = np.arange(1, len(values) + 1) / len(values)
            axes.plot(values, share, color=colour, label=SIDES[side])
            for q in QUANTILES:
                axes.axvline(summary[side][f"overhead_p{q}_ms"], color=colour, ls=":", lw=0.8)
        axes.set_xlim(0, 1.5 * max(own["overhead_p99_ms"] for own in summary.values()))
        axes.set_xlabel("round trip minus model time (ms)")
        axes.set_ylabel("share of requests")
        axes.legend(frameon=False, loc="lower right")
