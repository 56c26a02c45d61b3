"""A serving, a viz and a recorder node in one process: three threads, an executor each.

`python -m bench.support.composed BAG --ros-args --params-file FILE`
"""

import sys
import threading
import time
from pathlib import Path

import rclpy
from rclpy.executors import SingleThreadedExecutor

from kairos_ros.nodes.process import Stop, begin
from kairos_ros.nodes.recorder.node import record
from kairos_ros.nodes.serving.node import ServingNode
from kairos_ros.nodes.viz.node import VizNode


def draw(stop: Stop) -> None:
    node, executor = VizNode(), SingleThreadedExecutor()
    node.start()
    executor.add_node(node)
    while not stop.is_set():
        began_s = time.monotonic()
        for _ in range(10):
            executor.spin_once(timeout_sec=0)
        node.draw()
        time.sleep(max(0.0, began_s + 1.0 / node.values["rate_hz"] - time.monotonic()))
    executor.shutdown()
    node.close()


def main() -> int:
    node, executor, stop = begin("composed", ServingNode)
    bag = str(Path(sys.argv[1]))
    beside = [
        threading.Thread(target=draw, args=(stop,)),
        threading.Thread(target=record, args=(stop, print), kwargs={"out": bag}),
    ]
    for thread in beside:
        thread.start()
    while not stop.is_set():
        executor.spin_once(timeout_sec=node.wait_s())
        node.tick()
    for thread in beside:
        thread.join()
    executor.shutdown()
    node.close()
    rclpy.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
