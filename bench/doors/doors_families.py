"""openpi's real client, served by `kairos doors` with a policy of each family.

    python -m bench doors_families [KIND ...]

Tiny random policies of LeRobot's own types, each behind a serving node and `kairos doors` of its
own. Shows the shape of the chunk that the client got, and whether it is the one that the policy
alone computes from that observation. Types whose small weights cannot be loaded outside of the
tests' own process are left out.
"""

import argparse
import contextlib
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.doors.doors import Program
from bench.doors.doors_client import SEED
from bench.support.servers import ROOT, Kairos, environment
from kairos_ros.core.fit import camera_name
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferRequest, InferResult

SUPPORT = ROOT / "test" / "support" / "policies"
SAME = 2e-2
"""Of the unit of an action: computed at another time on another number of threads."""


def main() -> None:
    sys.path.insert(0, str(SUPPORT))
    from tiny_policies import TINY

    kinds = [kind for kind, tiny in TINY.items() if tiny.loaded is contextlib.nullcontext]
    parser = argparse.ArgumentParser(
        prog="python -m bench doors_families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(kinds)} [all]")
    chosen = parser.parse_args().kinds or kinds
    if unknown := set(chosen) - set(kinds):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}; known are {', '.join(kinds)}")
    table = Table("policy", "chunk", "the policy's own", "round trip ms")
    for kind in chosen:
        with tempfile.TemporaryDirectory() as folder:
            row = served(kind, Path(folder))
        print(kind, *row, flush=True)
        table.add_row(kind, *row)
    Console(width=120).print(table)


def served(kind: str, folder: Path) -> tuple[str, str, str]:
    """Shape of the chunk, whether it is the policy's own, and how long it took; or an error."""
    from tiny_policies import ACTION_DIM, INSTRUCTIONS, STATE_DIM, TINY, save_policy

    policy = save_policy(kind, folder)
    cameras = [camera_name(camera) for camera in TINY[kind].cameras]
    seen = {
        "state": np.linspace(-0.5, 0.5, STATE_DIM, dtype=np.float32),
        "prompt": INSTRUCTIONS[0],
        **{camera: picture(n) for n, camera in enumerate(cameras)},
    }
    images = ", ".join(f"{camera}: {{key: {camera}}}" for camera in cameras)
    (folder / "map.yaml").write_text(
        f"dialect: openpi\nrobot: bench\ncontrol_rate_hz: 20\naction_dim: {ACTION_DIM}\n"
        f"state: [{{key: state, size: {STATE_DIM}}}]\nimages: {{{images}}}\n"
    )
    program = str(Path(sys.prefix, "bin", "kairos"))
    command = [program, "doors", str(folder / "map.yaml"), "--listen", "127.0.0.1:0"]
    logs = folder / "logs"
    try:
        with (
            Kairos(logs, environment(), policy=str(policy)),
            Program(logs / "doors.log", command, "doors: serves") as said,
        ):
            found = re.search(r"ws://\S+:\d+", said)
            assert found is not None
            chunk, took_ms = asked(found[0], seen)
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1][-90:], "", ""
    own = alone(policy, cameras, seen)
    same = chunk.shape == own.shape and np.allclose(chunk, own, atol=SAME)
    return str(list(chunk.shape)), "yes" if same else "NO", f"{took_ms:.0f}"


def asked(url: str, seen: dict[str, object]) -> tuple[np.ndarray, float]:
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    client = WebsocketClientPolicy(url)
    reply = client.infer(seen)
    client._ws.close()
    return reply["actions"], reply["server_timing"]["infer_ms"]


def alone(policy: Path, cameras: list[str], seen: dict[str, object]) -> np.ndarray:
    """What the policy computes of the same observation in this process."""
    from tiny_policies import SIZE

    from kairos_ros.doors.observation import seen_of
    from kairos_ros.doors.observation_map import read_map

    read = read_map(policy.parent / "map.yaml")
    engine = load_engine(EngineOptions(str(policy), device="cpu"), lambda said: None)
    sizes = {} if engine.description.any_image_size else dict.fromkeys(cameras, SIZE)
    observation = seen_of(seen, read, sizes).observation
    images = {
        feature: observation.images[camera_name(feature)] for feature in engine.description.images
    }
    request = InferRequest(
        "robot", "session", "1", 1, 0, SEED + 1, str(seen["prompt"]), observation.state, images
    )
    (outcome,) = engine.infer([request])
    if not isinstance(outcome, InferResult):
        raise RuntimeError(f"the policy refused: {outcome}")
    return outcome.chunk


def picture(n: int) -> np.ndarray:
    """uint8 [48, 64, 3], each n another one; smooth, so that JPEG changes little of it."""
    rows, columns = np.mgrid[0:48, 0:64]
    return np.stack([5 * rows, 4 * columns, 0 * rows + 40 * n], axis=2).astype(np.uint8)


if __name__ == "__main__":
    main()
