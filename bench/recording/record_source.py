"""A client process of the recording benchmark: robots whose requests carry numbers and checksums.

Reads one line {"robots", "per_s", "seconds"}, publishes when every topic has a reader, and answers
with what it sent: {"sent": {topic: messages}, "bytes", "seconds"}.
"""

import json
import os
import sys
import time
import zlib

import rclpy
from kairos_ros.msg import ChunkRequest, ExecutionInfo
from sensor_msgs.msg import CompressedImage

from kairos_ros.nodes import qos

IMAGES = 3
IMAGE_BYTES = 12_000
POOL = 64
MATCH_WITHIN_S = 60.0


def main() -> int:
    order = json.loads(sys.stdin.readline())
    robots, per_s, seconds = order["robots"], order["per_s"], order["seconds"]
    rclpy.init()
    node = rclpy.create_node("record_source")
    topics = [f"/arm_{i}/chunk_request" for i in range(1, robots + 1)]
    publishers = [node.create_publisher(ChunkRequest, topic, qos.EXCHANGE) for topic in topics]
    patience = time.monotonic() + MATCH_WITHIN_S
    while not all(p.get_subscription_count() for p in publishers):
        if time.monotonic() > patience:
            print("not every topic has a reader", file=sys.stderr)
            return 1
        time.sleep(0.05)
    pool = [os.urandom(IMAGE_BYTES) for _ in range(POOL)]
    sent = [0] * robots
    began = time.monotonic()
    total = round(per_s * seconds)
    for number in range(total):
        pause = began + number / per_s - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        robot = number % robots
        sent[robot] += 1
        images = [pool[(number * 7 + i) % POOL] for i in range(IMAGES)]
        publishers[robot].publish(
            ChunkRequest(
                robot=f"arm_{robot + 1}",
                session="bench",
                task="1",
                round=sent[robot],
                instruction="carry numbers",
                image_keys=[f"camera_{i}" for i in range(IMAGES)],
                images=[CompressedImage(format="jpeg", data=image) for image in images],
                execution=ExecutionInfo(control_rate_hz=30.0),
                seed=checksum(images),
            )
        )
    took = time.monotonic() - began
    time.sleep(2.0)  # a reliable writer that leaves takes what it has not delivered with it
    report = {"sent": dict(zip(topics, sent, strict=True)), "seconds": took}
    print(json.dumps(report | {"bytes": total * IMAGES * IMAGE_BYTES}), flush=True)
    sys.stdin.read()
    rclpy.shutdown()
    return 0


def checksum(images: list[bytes]) -> int:
    value = 0
    for image in images:
        value = zlib.crc32(image, value)
    return value


if __name__ == "__main__":
    sys.exit(main())
