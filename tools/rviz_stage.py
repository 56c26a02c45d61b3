"""Real nodes at work, for pictures of them."""

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kairos_ros.bringup.process_spec import ProcessSpec

UP_WITHIN_S = 180.0
BETWEEN_TASKS_S = 0.3


TASKS = ("push-v3", "drawer-open-v3", "peg-insert-side-v3", "window-open-v3")
Audience = Callable[[str, str, Any], None]
"""Gets messages: topic, type, message."""


class Stage:
    """Real nodes at work, and what their viz node says. A context manager.

    Everything of ROS happens in one thread, which also gives the tasks.

    goals: fields of the next ExecuteTask goal of any robot. `audience` gets every message for rviz:
    topic, type, message.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        logs: Path,
        goals: Iterator[Mapping[str, Any]],
        audience: Audience,
    ) -> None:
        from kairos_ros.bringup.processes import Fleet

        self.robots = [spec.namespace for spec in specs if spec.executable == "robot_node"]
        self.working = threading.Event()
        self._audience = audience
        self._fleet = Fleet(specs, logs, {"OMP_NUM_THREADS": "1"})
        self._goals = goals
        self._orders: queue.Queue[tuple[str, str]] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> "Stage":
        print(f"starting {', '.join(self.robots)}", flush=True)
        self._fleet.__enter__()
        self._thread.start()
        if not self.working.wait(UP_WITHIN_S):
            self.__exit__()
            raise RuntimeError(f"not up after {UP_WITHIN_S} s; see {self._fleet.logs}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._fleet.stop()

    def disturb(self, robot: str, what: str) -> None:
        """Somebody enters its cell ("intruder"), or leaves ("clear")."""
        self._orders.put((robot, what))

    def _play(self) -> None:
        import rclpy
        from kairos_ros.action import ExecuteTask
        from kairos_ros.msg import FleetState
        from kairos_ros.srv import Disturb
        from rclpy.action import ActionClient
        from rclpy.executors import SingleThreadedExecutor
        from sensor_msgs.msg import Image
        from tf2_msgs.msg import TFMessage
        from visualization_msgs.msg import MarkerArray

        from kairos_ros.nodes import qos
        from kairos_ros.nodes.viz.node import CAMERA_TOPIC, LAYERS, MARKERS

        context = rclpy.Context()
        rclpy.init(args=[], context=context)
        node = rclpy.create_node("screenshots", context=context)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        heard = {f"{MARKERS}/{layer.name}": (MarkerArray, qos.EVENTS) for layer in LAYERS}
        heard |= {"/tf_static": (TFMessage, qos.ROSTER), CAMERA_TOPIC: (Image, qos.TELEMETRY)}

        def passed_on(topic: str, kind: type) -> Callable[[Any], None]:
            return lambda message: self._audience(topic, kind.__name__, message)

        for topic, (kind, profile) in heard.items():
            node.create_subscription(kind, topic, passed_on(topic, kind), profile)
        states: list[FleetState] = []
        node.create_subscription(FleetState, "/kairos/fleet_state", states.append, qos.TELEMETRY)
        arms = {r: ActionClient(node, ExecuteTask, f"/{r}/execute_task") for r in self.robots}
        disturb = {r: node.create_client(Disturb, f"/{r}/disturb") for r in self.robots}
        free_at = dict.fromkeys(self.robots, 0.0)
        running: dict[str, Any] = {}
        ended: set[str] = set()  # who has had a task

        def give(robot: str) -> None:
            asked = arms[robot].send_goal_async(ExecuteTask.Goal(**next(self._goals)))
            running[robot] = asked
            asked.add_done_callback(lambda done: follow(robot, done.result()))

        def follow(robot: str, handle: Any) -> None:
            if not handle.accepted:
                end(robot)
                return
            running[robot] = handle.get_result_async()
            running[robot].add_done_callback(lambda _: end(robot))

        def end(robot: str) -> None:
            running.pop(robot, None)
            ended.add(robot)
            if len(ended) == len(self.robots):
                self.working.set()
            free_at[robot] = time.monotonic() + BETWEEN_TASKS_S

        while not self._stop.is_set():
            served = {one.robot for one in states[-1].robots} if states else set()
            del states[:-1]
            for robot in served - running.keys():
                if time.monotonic() > free_at[robot] and arms[robot].server_is_ready():
                    give(robot)
            while not self._orders.empty():
                robot, what = self._orders.get()
                disturb[robot].call_async(Disturb.Request(robot=robot, what=what, seed=4))
            executor.spin_once(timeout_sec=0.05)
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()


def simulated_fleet(robots: int, logs: Path, audience: Audience) -> Stage:
    """Meta-World's arms; the first is watched by a camera and a judge of its safety."""
    from kairos_ros.bringup import plan as bringup
    from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules
    from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
    from kairos_ros.robot.supervision.rules_text import rules_text

    rules = TaskRules(
        {
            Component.SAFETY: ComponentRules(
                slo_ns=3_000_000_000, fallback=Fallback.STOP_AND_RESEND, period_ns=500_000_000
            )
        },
        max_task_retries=3,
        on_max_task_retries=Fallback.STOP_AND_CALL_HUMAN,
        max_consecutive_safety_replan=1000,
        max_consecutive_slo_violation=1000,
        on_max_violation=Fallback.STOP_AND_CALL_HUMAN,
    )
    watched = bringup.robot(
        "arm_1",
        adapter_options=["images={corner3: [144, 144]}"],
        request_images=False,
        camera_rate_hz=2.0,
        disturbances=True,
        rules=rules_text(rules),
    )
    others = [bringup.robot(f"arm_{i}") for i in range(2, robots + 1)]
    judge = bringup.vlm("safety", freq_hz=2.0, slo_ms=3000.0)
    goals = (
        {"instruction": SCENES[scene], "scene": scene, "seed": seed, "max_actions": 400}
        for seed in itertools.count(300)
        for scene in TASKS
    )
    nodes = [bringup.serving(), watched, *others, judge, bringup.viz()]
    return Stage(nodes, logs, goals, audience)


def one_arm(arm: str, logs: Path, audience: Audience) -> Stage:
    """A simulated arm behind a ROS 2 driver, with the policy that ships for it."""
    from kairos_ros.bringup.arms import arm_plan, shipped_policy

    config = json.loads((shipped_policy(arm) / "config.json").read_text())
    goal = {"instruction": config["instructions"][0], "max_actions": 300}
    return Stage(arm_plan(arm, {"rviz": "true"}), logs, itertools.repeat(goal), audience)
