"""Where chunks were computed, and how long each tier took: plain data, for the view and the end."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from kairos_ros.core.wire_check import printable
from kairos_ros.recording.runs.summary import Spread, spread
from kairos_ros.telemetry.events import ChunkAnswered

_PLACED = re.compile(r"(?:edge|cloud) batch of .*$")


@dataclass(frozen=True, slots=True)
class TierShare:
    """What one tier served."""

    tier: str
    chunks: int
    share: float
    """Of all chunks, 0..1."""
    server_s: Spread
    compute_s: Spread


def placement(reason: str) -> str:
    """The part of a scheduler's reason that says where: `cloud batch of 2 on cloud (...)`."""
    found = _PLACED.search(reason)
    return found.group() if found else reason


def tier_shares(chunks: Iterable[ChunkAnswered]) -> list[TierShare]:
    """Edge first, then cloud; tiers that served nothing are left out."""
    seen = list(chunks)
    shares = []
    for tier in sorted({printable(chunk.tier) for chunk in seen}, reverse=True):
        mine = [chunk for chunk in seen if printable(chunk.tier) == tier]
        server_s = spread([chunk.server_s for chunk in mine])
        compute_s = spread([chunk.compute_s for chunk in mine])
        assert server_s is not None  # there is at least one
        assert compute_s is not None
        share = len(mine) / len(seen)
        shares.append(TierShare(tier, len(mine), share, server_s, compute_s))
    return shares


def tier_document(chunks: Iterable[ChunkAnswered], request_bytes: float) -> dict[str, Any]:
    """For JSON. request_bytes: mean on the wire to the cloud, 0 where nothing was sent there."""
    shares = tier_shares(chunks)
    return {"tiers": [asdict(share) for share in shares], "cloud_request_bytes": request_bytes}


def tier_table(chunks: Iterable[ChunkAnswered], request_bytes: float) -> Table:
    """Share and latency of each tier."""
    title = "where chunks were computed; latency: request received to chunk sent"
    table = Table(box=None, title=title, title_justify="left")
    table.add_column("tier")
    for name in ("share", "chunks", "latency P50", "P95", "compute P50", "bytes/request"):
        table.add_column(name, justify="right")
    for share in tier_shares(chunks):
        sent = f"{request_bytes:.0f}" if share.tier == "cloud" else ""
        table.add_row(
            share.tier,
            f"{share.share:.0%}",
            str(share.chunks),
            f"{1e3 * share.server_s.p50:.0f} ms",
            f"{1e3 * share.server_s.p95:.0f} ms",
            f"{1e3 * share.compute_s.p50:.0f} ms",
            sent,
        )
    return table
