"""A client process of the judges benchmark: cells that are nothing but their pictures.

Its argument is a JPEG file. Reads lines {"robots", "seconds", "camera_hz"}; for each, shows the
picture at every cell and answers with what came back, per component: {"safety": [[[sent, heard],
...] per robot], "monitor": ...}, seconds of its own clock since the cells began.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import rclpy
from builtin_interfaces.msg import Time
from kairos_ros.msg import RobotStatus, SafetyVerdict, TaskProgress
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage

from kairos_ros.nodes import qos

CAMERA = "corner3"
INSTRUCTION = "push the puck to the target"
MATCH_WITHIN_S = 60.0
WARM_S = 3.0


class Cell:
    """One robot on the wire."""

    def __init__(self, node: Node, name: str, jpeg: bytes, began: float) -> None:
        self.name, self._jpeg, self._began = name, jpeg, began
        self.sent: dict[int, float] = {}
        self.heard: dict[str, list[tuple[float, float]]] = {"safety": [], "monitor": []}
        publish, subscribe = node.create_publisher, node.create_subscription
        self._status = publish(RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT)
        self.camera = publish(CompressedImage, f"/{name}/camera/{CAMERA}/compressed", qos.SENSOR)
        self._subscriptions = [
            subscribe(
                SafetyVerdict, f"/{name}/safety_verdict", self._on_answer("safety"), qos.EXCHANGE
            ),
            subscribe(
                TaskProgress, f"/{name}/task_progress", self._on_answer("monitor"), qos.EXCHANGE
            ),
        ]

    def announce(self, state: int = RobotStatus.RUNNING) -> None:
        self._status.publish(
            RobotStatus(
                robot=self.name,
                session="bench",
                state=state,
                task="1",
                instruction=INSTRUCTION,
                image_keys=[CAMERA],
            )
        )

    def show(self, number: int) -> None:
        message = CompressedImage(format="jpeg", data=self._jpeg)
        message.header.stamp = Time(sec=number)
        self.sent[number] = time.monotonic() - self._began
        self.camera.publish(message)

    def close(self, node: Node) -> None:
        self.announce(RobotStatus.LEAVING)
        time.sleep(0.05)
        for subscription in self._subscriptions:
            node.destroy_subscription(subscription)
        node.destroy_publisher(self._status)
        node.destroy_publisher(self.camera)

    def _on_answer(self, component: str) -> Callable[[SafetyVerdict | TaskProgress], None]:
        def on_answer(message: SafetyVerdict | TaskProgress) -> None:
            sent = self.sent.get(message.frame.sec)
            if sent is not None:
                self.heard[component].append((sent, time.monotonic() - self._began))

        return on_answer


def main() -> int:
    jpeg = Path(sys.argv[1]).read_bytes()
    rclpy.init()
    node = rclpy.create_node("judged_cells")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    threading.Thread(target=executor.spin, daemon=True).start()
    for run, line in enumerate(sys.stdin):
        order = json.loads(line)
        began = time.monotonic()
        cells = [Cell(node, f"cell_{run}_{i}", jpeg, began) for i in range(order["robots"])]
        patience = began + MATCH_WITHIN_S
        while not all(cell.camera.get_subscription_count() for cell in cells):
            if time.monotonic() > patience:
                print("not every camera is looked at", file=sys.stderr)
                return 1
            for cell in cells:
                cell.announce()
            time.sleep(0.2)
        from_s = _show(cells, order["camera_hz"], order["seconds"] + WARM_S) + WARM_S
        time.sleep(1.0)
        for cell in cells:
            cell.close(node)
        told = {
            component: [
                [pair for pair in cell.heard[component] if pair[0] >= from_s - began]
                for cell in cells
            ]
            for component in ("safety", "monitor")
        }
        print(json.dumps(told), flush=True)
    executor.shutdown()
    rclpy.shutdown()
    return 0


def _show(cells: list[Cell], hz: float, seconds: float) -> float:
    """Every cell's picture at this rate, one cell after the other. Returns when it began."""
    began = time.monotonic()
    for number in range(round(seconds * hz)):
        for i, cell in enumerate(cells):
            at = began + (number + i / len(cells)) / hz
            time.sleep(max(0.0, at - time.monotonic()))
            if number % round(hz) == 0:
                cell.announce()
            cell.show(number + 1)
    return began


if __name__ == "__main__":
    sys.exit(main())
