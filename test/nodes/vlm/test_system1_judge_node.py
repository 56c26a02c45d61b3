"""A monitor node that asks the policy of a serving node, as real processes over DDS."""

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from kairos_ros.msg import ActionChunk, RobotStatus, TaskProgress
from observations import observation
from sensor_msgs.msg import CompressedImage
from tiny_pi_workers import tiny_pi_workers
from tiny_policies import CAMERA, INSTRUCTIONS, save_policy
from wire import WireRobot, until

from kairos_ros.bringup.plan import serving, vlm
from kairos_ros.nodes import qos

pytestmark = pytest.mark.slow


class Looked(WireRobot):
    """A robot with one camera, which judges see, too."""

    def __init__(self, wire, name):
        seen = observation(0)
        image = CompressedImage(format="jpeg", data=seen.images[CAMERA])
        super().__init__(
            wire,
            name,
            state=seen.state.tolist(),
            image_keys=[CAMERA],
            images=[image],
            instruction=INSTRUCTIONS[0],
        )
        self.progress = []
        node = wire.node
        self._camera = node.create_publisher(
            CompressedImage, f"/{name}/camera/top/compressed", qos.SENSOR
        )
        node.create_subscription(
            TaskProgress, f"/{name}/task_progress", self.progress.append, qos.EXCHANGE
        )
        self._frame = image

    def announce(self, state=RobotStatus.RUNNING):
        self._status.publish(
            RobotStatus(
                robot=self.name,
                session=self.session,
                state=state,
                task=self.task,
                instruction=INSTRUCTIONS[0],
                image_keys=["top"],
            )
        )

    def show(self, number):
        self._frame.header.stamp = Time(sec=number)
        self._camera.publish(self._frame)


def test_a_monitor_asks_the_policy_about_what_it_sees(start, wire, tmp_path):
    policy = save_policy("pi05", tmp_path)
    tokenizer = str(tmp_path / "tokenizer")
    start(
        serving(policy=str(policy), tokenizer=tokenizer, max_batch=2, language_mib=1),
        env=tiny_pi_workers(tmp_path),
    )
    start(vlm("monitor", model="system1", freq_hz=5.0, slo_ms=20_000.0, timeout_s=30.0))
    wire.serving_since()
    robot = Looked(wire, "arm_1").join()
    chunks = []
    for number in range(1, 300):
        robot.show(number)
        chunks.append(robot.ask(number + 1))
        if robot.progress:
            break
    assert robot.progress, wire.diagnostic("/kairos/monitor", "failures")
    assert all(chunk.kind == ActionChunk.ACTIONS for chunk in chunks)
    (told, *_) = robot.progress
    assert told.model == "system1"
    assert told.state in (TaskProgress.ONGOING, TaskProgress.DONE, TaskProgress.FAILED)
    assert 1 / 3 <= told.probability <= 1.0
    assert told.task == robot.task
    assert np.isfinite(told.latency_s)
    report = "kairos serving: edge"
    waiting = until(lambda: wire.diagnostic(report, "questions waiting"), what="for diagnostics")
    assert int(waiting) <= 1, "one robot, one monitor"


def test_a_safety_node_does_not_ask_the_policy(start):
    node = start(vlm("safety", model="system1"))
    assert node.process.wait(60.0) == 1
    assert "safety needs a judge that looks at its cameras" in node.log.read_text()
