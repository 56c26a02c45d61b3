"""What safety, monitor and planner cost the robots that they watch: actions per second with and
without them, and how many of those count.

Simulated arms at work on an emulated policy, once with nobody around them and once under the three
nodes with the models that ship, as a fleet file starts them. The ways alternate. Everything is
told by the bag: actions executed, those that are qualified under all objectives (Rosa §4.1), and
how each component kept its own; and how busy robot nodes and judging nodes kept the cores, which
other work on the machine changes least.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from kairos_ros.action import ExecuteTask
from kairos_ros.msg import RobotStatus
from rclpy.action import ActionClient

from bench.support.process_cost import cpu_s, with_children
from bench.support.report import Result, new_figure
from bench.support.servers import environment
from kairos_ros.bringup.plan import recorder, robot, serving, vlm
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules
from kairos_ros.lab.metrics.figure_style import BASELINE, FAINT_INK, OURS
from kairos_ros.lab.metrics.obligations import Judgement, judge
from kairos_ros.nodes import qos
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.recording.fleet_run import read_bag
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.robot.supervision.rules_text import rules_text

ROBOTS, QUICK_ROBOTS = (1, 2, 4), (1, 4)
RUNS, QUICK_RUNS = 3, 2
MEASURED_S, QUICK_MEASURED_S = 20.0, 10.0
WARM_S = 2.0
UP_WITHIN_S = 180.0
ENDS_WITHIN_S = 20.0
SCENE, CAMERA, PX, RATE_HZ = "drawer-open-v3", "corner3", 144, 30.0
POLICY = "emulated:latency_ms=20,chunk=20,state=39,dim=4"
HORIZON = "static:12"
MS = 1_000_000
JUDGED_HZ = {Component.SAFETY: 5.0, Component.MONITOR: 1.0}
RULES = TaskRules(
    {
        Component.SYSTEM1: ComponentRules(500 * MS, Fallback.STOP_AND_RESEND),
        Component.SYSTEM2: ComponentRules(1000 * MS, Fallback.USE_LAST_PLAN),
        Component.SAFETY: ComponentRules(500 * MS, Fallback.STOP_AND_REPLAN, 200 * MS),
        Component.MONITOR: ComponentRules(1000 * MS, Fallback.STOP_AND_RESEND, 1000 * MS),
    },
    max_task_retries=1_000_000,
    on_max_task_retries=Fallback.STOP_AND_CALL_HUMAN,
    max_consecutive_safety_replan=1_000_000,
    max_consecutive_slo_violation=1_000_000,
    on_max_violation=Fallback.STOP_AND_CALL_HUMAN,
    system2_ratio=4,
)
ALONE, WATCHED = "alone", "watched"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    way: str
    robots: int
    actions_per_s: float
    """Of one robot; the control rate is the most that there can be."""
    qualified_per_s: float
    """Of one robot, under all objectives of `RULES` that the way has."""
    in_time: dict[str, float]
    """Component -> share."""
    robot_cores: float
    """Cores that one robot node kept busy, its camera and simulator included."""
    judge_cores: float
    """The judging nodes together, per robot."""


def run(folder: Path, *, quick: bool) -> Result:
    seconds = QUICK_MEASURED_S if quick else MEASURED_S
    measured = []
    for robots in QUICK_ROBOTS if quick else ROBOTS:
        for number in range(QUICK_RUNS if quick else RUNS):
            for way in (ALONE, WATCHED):
                one = _measure(folder / f"{robots}_{number}_{way}", way, robots, seconds)
                print(f"{robots} robots, {way}: {one.actions_per_s:.1f} actions/s each", flush=True)
                measured.append(one)
    header = ["robots", "", "actions/s", "qualified/s", "cores, robot", "cores, judges"]
    header.append("safety in time %")
    rows = [
        [str(robots), way, *_row([m for m in measured if (m.robots, m.way) == (robots, way)])]
        for robots in dict.fromkeys(m.robots for m in measured)
        for way in (ALONE, WATCHED)
    ]
    data = {"runs": [asdict(m) for m in measured], "control_rate_hz": RATE_HZ}
    return Result(header, rows, data, lambda path: _plot(path, measured))


def _measure(folder: Path, way: str, robots: int, seconds: float) -> Measured:
    env = environment()
    names = [f"arm_{i + 1}" for i in range(robots)]
    bag = folder / "bag"
    plan = [*_plan(way, names), recorder(bag)]
    with (
        Fleet(plan, folder / "logs", env) as running,
        Goals(int(env["ROS_DOMAIN_ID"]), names) as goals,
    ):
        goals.give()
        time.sleep(WARM_S)
        ours = {
            group: with_children(running.processes[key].pid for key in keys)
            for group, keys in (("robots", names), ("judges", _judges(running)))
        }
        before_s = {group: cpu_s(pids) for group, pids in ours.items()}
        time.sleep(seconds)
        cores = {group: (cpu_s(pids) - before_s[group]) / seconds for group, pids in ours.items()}
        goals.end()
    whole = read_bag(bag)
    begun_s = max(
        min(r.exec_start_s for r in whole.rounds if r.robot == name and r.exec_start_s > 0)
        for name in names
    )
    window = begun_s + WARM_S, begun_s + WARM_S + seconds
    judged = judge(replace(whole, open_s=(window,)))
    return Measured(
        way,
        robots,
        judged.rate.actions_per_s / robots,
        judged.rate.qualified_per_s / robots,
        _shares(judged),
        cores["robots"] / robots,
        cores["judges"] / robots,
    )


def _judges(running: Fleet) -> list[str]:
    return [key for key in running.processes if key in ("safety", "monitor", "planner")]


def _plan(way: str, names: list[str]) -> list[ProcessSpec]:
    arm = {
        "adapter_options": [f"images={{{CAMERA}: [{PX}, {PX}]}}"],
        "request_images": False,
        "control_rate_hz": RATE_HZ,
    }
    if way == ALONE:
        arm["camera_rate_hz"] = 0.0  # nobody looks
        return [serving(policy=POLICY, horizon=HORIZON), *(robot(name, **arm) for name in names)]
    arm |= {"rules": rules_text(RULES), "camera_rate_hz": max(JUDGED_HZ.values())}
    judges = [
        vlm("safety", freq_hz=JUDGED_HZ[Component.SAFETY], slo_ms=500.0),
        vlm("monitor", freq_hz=JUDGED_HZ[Component.MONITOR], slo_ms=1000.0),
        vlm("planner"),
    ]
    return [
        serving(policy=POLICY, horizon=HORIZON),
        *judges,
        *(robot(name, **arm) for name in names),
    ]


class Goals:
    """Keeps every robot at work: whoever is told that a task is over gets the next. A context
    manager."""

    def __init__(self, domain: int, names: list[str]) -> None:
        self._standalone = StandaloneNode("bench_pipeline", domain)
        self._node = self._standalone.node
        self._clients: dict[str, ActionClient] = {
            n: ActionClient(self._node, ExecuteTask, f"/{n}/execute_task") for n in names
        }
        self._moved: set[str] = set()
        self._node.create_subscription(
            RobotStatus, "/kairos/robot_status", self._on_status, qos.ROSTER
        )
        self._handles: dict[str, Any] = {}
        self._working = True

    def __enter__(self) -> "Goals":
        self._standalone.spin_in_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._standalone.close()

    def give(self) -> None:
        """Returns when all robots have moved: scenes are laid out, and judges are awake."""
        for client in self._clients.values():
            if not client.wait_for_server(UP_WITHIN_S):
                raise RuntimeError("a robot node does not come up; see its log")
        time.sleep(2.0)  # the servers must have found these clients, too
        for name in self._clients:
            self._send(name)
        self._wait(lambda: self._moved >= set(self._clients), UP_WITHIN_S, "for robots to move")

    def end(self) -> None:
        """Cancels what runs; the bag then holds the results."""
        self._working = False
        for handle in list(self._handles.values()):
            handle.cancel_goal_async()
        self._wait(lambda: not self._handles, ENDS_WITHIN_S, "for the tasks to end")
        time.sleep(1.0)

    def _on_status(self, status: RobotStatus) -> None:
        if status.actions_executed:
            self._moved.add(status.robot)

    def _send(self, name: str) -> None:
        goal = ExecuteTask.Goal(instruction=SCENES[SCENE], scene=SCENE, seed=1)
        self._clients[name].send_goal_async(goal).add_done_callback(
            lambda future: self._accepted(name, future)
        )

    def _accepted(self, name: str, future: Any) -> None:
        handle = self._handles[name] = future.result()
        handle.get_result_async().add_done_callback(lambda _: self._over(name))

    def _over(self, name: str) -> None:
        del self._handles[name]
        if self._working:
            self._send(name)

    def _wait(self, condition: Any, seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"waited {seconds:.0f} s in vain {what}")
            time.sleep(0.02)


def _shares(judged: Judgement) -> dict[str, float]:
    return {slo.component: attained.share for slo, attained in judged.attained}


def _row(measured: list[Measured]) -> list[str]:
    row = [_spread([m.actions_per_s for m in measured])]
    row.append(_spread([m.qualified_per_s for m in measured]))
    row.append(_spread([m.robot_cores for m in measured], 2))
    row.append(_spread([m.judge_cores for m in measured], 2))
    shares = [100 * m.in_time["safety"] for m in measured if "safety" in m.in_time]
    row.append(_spread(shares) if shares else "")
    return row


def _spread(values: list[float], digits: int = 1) -> str:
    middle, low, high = (f"{x:.{digits}f}" for x in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def _plot(path: Path, measured: list[Measured]) -> None:
    most = max(m.robots for m in measured)
    rates = {
        way: median(m.actions_per_s for m in measured if (m.robots, m.way) == (most, way))
        for way in (ALONE, WATCHED)
    }
    share = 100 * rates[WATCHED] / rates[ALONE]
    title = f"{most} watched arms execute {share:.0f} % of the actions of unwatched ones"
    about = "safety judged 5/s, monitor 1/s, a plan every 4 rounds; medians and ranges"
    with new_figure(path, title, about) as axis:
        for way, colour in ((ALONE, BASELINE), (WATCHED, OURS)):
            mine = [m for m in measured if m.way == way]
            counts = sorted({m.robots for m in mine})
            groups = [[m.actions_per_s for m in mine if m.robots == n] for n in counts]
            middle = [median(group) for group in groups]
            ends = [
                [at - min(group) for at, group in zip(middle, groups, strict=True)],
                [max(group) - at for at, group in zip(middle, groups, strict=True)],
            ]
            axis.errorbar(counts, middle, ends, color=colour, marker="o", capsize=3, label=way)
        axis.axhline(RATE_HZ, color=FAINT_INK, ls=":", lw=1)
        axis.set_xlabel("robots on this machine")
        axis.set_ylabel("actions per second and robot")
        axis.set_ylim(bottom=0)
        axis.set_xticks(sorted({m.robots for m in measured}))
        axis.legend(frameon=False, fontsize=8, loc="lower left")
