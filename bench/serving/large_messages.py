"""What a large request costs a node, as bytes and as objects: `python -m bench large_messages`."""

import functools
import sys
import time
from array import array
from collections.abc import Callable

from kairos_ros.msg import ChunkRequest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage

from kairos_ros.core.errors import WireError
from kairos_ros.nodes.bounded import read

LIMIT = 8_020_000
"""Bytes, as the serving node's defaults have it."""
BYTES = 30_000_000
CASES = {
    "a usual request, two pictures of 50 kB": ChunkRequest(
        robot="arm_1",
        state=array("f", [0.0] * 7),
        image_keys=["front", "wrist"],
        images=[CompressedImage(data=array("B", bytes(50_000)))] * 2,
    ),
    "an instruction": ChunkRequest(instruction="x" * BYTES),
    "a picture": ChunkRequest(images=[CompressedImage(data=array("B", bytes(BYTES)))]),
    "camera names": ChunkRequest(image_keys=["camera"] * (BYTES // 12)),
    "empty pictures": ChunkRequest(images=[CompressedImage()] * (BYTES // 28)),
    "empty pictures, within the limit": ChunkRequest(images=[CompressedImage()] * (LIMIT // 29)),
}


def _best_ms(act: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        spent.append(time.perf_counter() - began)
    return 1e3 * min(spent)


def _bounded(raw: bytes) -> str:
    try:
        read(raw, ChunkRequest, LIMIT)
    except WireError:
        return "refused"
    return "read"


def main() -> int:
    print(f"{'':34} {'MB':>6} {'deserialised, ms':>17} {'bounded, ms':>12}")
    for what, message in CASES.items():
        raw = serialize_message(message)
        times = 3 if len(raw) > 1_000_000 else 200
        whole = _best_ms(functools.partial(deserialize_message, raw, ChunkRequest), times)
        bounded = _best_ms(functools.partial(_bounded, raw), times)
        print(f"{what:34} {len(raw) / 1e6:6.1f} {whole:17.2f} {bounded:9.2f} {_bounded(raw)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
