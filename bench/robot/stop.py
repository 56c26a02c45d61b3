"""How long from somebody in the cell to an arm that holds: real nodes, rendered people, real judge.

One simulated arm at work under the safety node with the judge that ships. Somebody appears at a
random moment, stays until the arm holds, and goes. Three times are told: from the order to show
them to the word that the arm holds (everything, the ways of a service call and of an event
included), from the judged picture to the hold, and from the verdict's arrival to the hold.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import PipelineEvent
from kairos_ros.srv import Disturb
from rclpy.action import ActionClient
from rclpy.client import Client

from bench.support.report import Result, new_figure
from bench.support.servers import environment
from kairos_ros.bringup.plan import robot, serving, vlm
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules
from kairos_ros.lab.metrics.figure_style import FAINT_INK, OURS
from kairos_ros.nodes import qos
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.robot.supervision.rules_text import rules_text

PEOPLE, QUICK_PEOPLE = 60, 8
SCENE, CAMERA, PX = "push-v3", "corner3", 240
RATE_HZ, JUDGED_HZ = 30.0, 10.0
UP_WITHIN_S = 120.0
SEEN_WITHIN_S = 5.0
"""Somebody who was not seen by then was missed."""
SAFE_AGAIN_WITHIN_S = 30.0
RULES = TaskRules(
    {
        Component.SAFETY: ComponentRules(
            slo_ns=2_000_000_000,
            fallback=Fallback.STOP_AND_RESEND,
            period_ns=round(1e9 / JUDGED_HZ),
        )
    },
    max_task_retries=0,
    on_max_task_retries=Fallback.STOP_AND_CALL_HUMAN,
    max_consecutive_safety_replan=1_000_000,
    max_consecutive_slo_violation=1_000_000,
    on_max_violation=Fallback.STOP_AND_CALL_HUMAN,
)
POLICY = "emulated:latency_ms=20,chunk=20,state=39,dim=4"
STAGES = ("somebody is there", "picture taken", "verdict arrived")


def run(folder: Path, *, quick: bool) -> Result:
    people = QUICK_PEOPLE if quick else PEOPLE
    env = environment()
    arm = robot(
        "arm_1",
        adapter_options=[f"images={{{CAMERA}: [{PX}, {PX}]}}"],
        request_images=False,
        disturbances=True,
        camera_rate_hz=JUDGED_HZ,
        rules=rules_text(RULES),
    )
    nodes = [serving(policy=POLICY), arm, vlm("safety", freq_hz=JUDGED_HZ)]
    with Fleet(nodes, folder / "logs", env), Watch(int(env["ROS_DOMAIN_ID"])) as watch:
        watch.begin()
        stops = [stop for seed in range(people) if (stop := watch.stop(seed)) is not None]
    missed = people - len(stops)
    times_ms = 1e3 * np.array(stops)
    header = ["from ... to an arm that holds", "p50 ms", "p95 ms", "longest ms"]
    rows = [
        [stage, *(f"{value:.0f}" for value in _spread(times_ms[:, i]))]
        for i, stage in enumerate(STAGES)
    ]
    rows.append([f"{missed} of {people} people were missed by the judge", "", "", ""])
    data = {"stages": STAGES, "stops_ms": times_ms.tolist(), "missed": missed, "people": people}
    data["control_period_ms"] = 1e3 / RATE_HZ
    return Result(header, rows, data, lambda path: _plot(path, times_ms))


class Watch:
    """Sees and disturbs one arm. A context manager."""

    def __init__(self, domain: int) -> None:
        self._standalone = StandaloneNode("bench_stop", domain)
        node = self._standalone.node
        self._events: list[tuple[float, PipelineEvent]] = []
        node.create_subscription(
            PipelineEvent,
            "/arm_1/pipeline_events",
            lambda event: self._events.append((time.monotonic(), event)),
            qos.EVENTS,
        )
        self._disturb: Client = node.create_client(Disturb, "/arm_1/disturb")
        self._goals: ActionClient = ActionClient(node, ExecuteTask, "/arm_1/execute_task")
        self._random = random.Random(1)

    def __enter__(self) -> "Watch":
        self._standalone.spin_in_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._standalone.close()

    def begin(self) -> None:
        """Gives the arm a task without an end."""
        if not (self._goals.wait_for_server(UP_WITHIN_S) and self._disturb.wait_for_service(10.0)):
            raise RuntimeError("the robot node does not come up; see its log")
        time.sleep(1.0)  # the servers must have found this client, too
        self._goals.send_goal_async(
            ExecuteTask.Goal(instruction=SCENES[SCENE], scene=SCENE, seed=1)
        )
        self._wait(self._runs, UP_WITHIN_S, "for the arm to run")

    def stop(self, seed: int) -> tuple[float, float, float] | None:
        """Seconds of each stage until the arm holds; None where the judge missed who was there."""
        time.sleep(self._random.uniform(0.3, 1.0))
        self._wait(self._runs, SAFE_AGAIN_WITHIN_S, "for the arm to run again")
        known, began = len(self._events), time.monotonic()
        self._call("intruder", seed)
        until = began + SEEN_WITHIN_S
        stopped: tuple[float, PipelineEvent] | None = None
        while stopped is None and time.monotonic() < until:
            new = self._events[known:]
            stopped = next((one for one in new if one[1].reason.startswith("unsafe")), None)
            time.sleep(0.002)
        self._call("clear", 0)
        if stopped is None:
            print(f"{seed}: not seen", flush=True)
            return None
        heard, event = stopped
        print(f"{seed}: holds {1e3 * (heard - began):.0f} ms later", flush=True)
        return heard - began, event.frame_age_s, event.reacted_s

    def _runs(self) -> bool:
        return bool(self._events) and self._events[-1][1].after == "running"

    def _call(self, what: str, seed: int) -> None:
        asked = self._disturb.call_async(Disturb.Request(robot="arm_1", what=what, seed=seed))
        self._wait(asked.done, SAFE_AGAIN_WITHIN_S, f"for {what}")
        answer = asked.result()
        if answer is None or not answer.ok:
            raise RuntimeError(answer.message if answer else f"no answer to {what}")

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"waited {seconds:.0f} s in vain {what}")
            time.sleep(0.002)


def _spread(values: Any) -> tuple[float, float, float]:
    p50, p95 = np.percentile(values, (50, 95))
    return float(p50), float(p95), float(values.max())


def _plot(path: Path, times_ms: Any) -> None:
    p50 = np.median(times_ms[:, 0])
    title = f"An arm holds {p50:.0f} ms after somebody is in its cell"
    about = f"{len(times_ms)} stops; one control period is {1e3 / RATE_HZ:.0f} ms"
    with new_figure(path, title, about) as axis:
        for i, (stage, width) in enumerate(zip(STAGES, (2.4, 1.6, 1.0), strict=True)):
            values = np.sort(times_ms[:, i])
            share = 100 * np.arange(1, len(values) + 1) / len(values)
            axis.plot(
                values, share, color=OURS, lw=width, alpha=1 - 0.25 * i, label=f"since: {stage}"
            )
        axis.axvline(1e3 / RATE_HZ, color=FAINT_INK, ls=":", lw=1)
        axis.set_xlabel("until the arm holds (ms)")
        axis.set_ylabel("stops (%)")
        axis.set_xlim(left=0)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
