"""Photographs a genuine rviz that shows a small fleet at work: docs/images/rviz_*.png.

Needs root, Debian 12 and the network once: rviz 1.14 of ROS 1, whose displays rviz 2 inherited, is
installed into an overlay of this host's files (about 350 MB under build/), which only processes in
a mount namespace of their own ever see. What is on the screen are the messages of our viz node,
field by field, and our config/kairos.rviz with its classes called as ROS 1 calls them.

Ends with exit code 1 where a picture does not show what it should: pixels in the colours of the
paths, that move from picture to picture; red where somebody stands in a cell.

    .venv/bin/python tools/rviz_screenshots.py
"""

import argparse
import base64
import io
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from PIL import Image as Pillow

from kairos_ros.domain import stay_on_this_host

if TYPE_CHECKING:
    from kairos_ros.bringup import NodeSpec

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "rviz python3-rospy python3-rosmaster python3-roslaunch rosout xvfb libgl1-mesa-dri "
    "python3-tf2-msgs python3-visualization-msgs python3-sensor-msgs imagemagick"
)
SIZE = (1600, 1000)
VIEW = (366, 62, 1583, 970)
"""Left, top, right and bottom of what is no panel, in px."""
TABLES = (366, 495, 1583, 630)
"""Where the arms of a fleet work."""
NEAR_HAND = (300, 300, 950, 680)
"""Of that, where the paths are in the picture of one arm."""
SETTLE_S = 5.0
SHOTS = 12
SEEN_WITHIN_S = 90.0
"""On a busy machine without a GPU, rviz draws a picture in seconds."""
PATHS_PX, PATH_PX, EDGES_PX = 150, 300, 2000
"""Fewest of the colour of what shall be seen: paths of a fleet, a path, a zone."""
PATIENCE = 10
"""Markers live so many times longer than the viz node says, for the same reason."""
MOUNT = """
set -e
cd "$1"
mkdir -p upper work merged
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work merged
mount -t proc proc merged/proc
mount --rbind /dev merged/dev
mount -t tmpfs tmpfs merged/tmp
shift
exec chroot merged "$@"
"""
INSTALL = f"""
set -e
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
apt-get update
apt-get install -y --no-install-recommends {PACKAGES}
"""
SKIPPED = {"texture", "texture_resource", "mesh_file", "uv_coordinates", "mesh_resource"}
"""Fields of a marker that ROS 1 lacks, or that none of ours uses."""
TASKS = ("push-v3", "drawer-open-v3", "peg-insert-side-v3", "window-open-v3")
PICTURES = ("fleet", "chunk", "unsafe", "so101", "franka")
UP_WITHIN_S = 180.0
BETWEEN_TASKS_S = 0.3


def main() -> int:
    options = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images")
    options.add_argument(
        "--root", type=Path, default=REPOSITORY / "build" / "rviz_root", help="of rviz's files"
    )
    options.add_argument("--robots", type=int, default=4)
    options.add_argument("--logs", type=Path, default=Path(mkdtemp(prefix="rviz-shots-")))
    options.add_argument("--only", default=",".join(PICTURES), help="pictures, separated by commas")
    given = options.parse_args()
    if os.geteuid() != 0:
        print("an isolated root needs root; nothing was done", file=sys.stderr)
        return 2
    stay_on_this_host()
    root = given.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "upper" / "usr" / "bin" / "rviz").exists():
        print(f"installing rviz into {root}; log in {given.logs}/install.log", flush=True)
        with (given.logs / "install.log").open("wb") as log:
            isolated(root, "sh", "-c", INSTALL, stdout=log, stderr=log).wait()
    wanted = given.only.split(",")
    if unknown := sorted(set(wanted) - set(PICTURES)):
        print(f"there is no picture {unknown[0]!r}; there are {', '.join(PICTURES)}")
        return 2
    with Photographer(root) as photographer:
        album = Album(photographer, given.out)
        if {"fleet", "chunk", "unsafe"} & set(wanted):
            with simulated_fleet(given.robots, given.logs, photographer.pass_on) as stage:
                album.take(stage, [one for one in PICTURES[:3] if one in wanted])
        for arm in ("so101", "franka"):
            if arm in wanted:
                with one_arm(arm, given.logs, photographer.pass_on) as stage:
                    album.take(stage, [arm])
    return int(bool(album.problems))


def isolated(root: Path, *command: str, net: bool = True, **io: Any) -> subprocess.Popen:
    """Runs a command that sees this host's files and what is installed in `root` over them."""
    namespaces = ["--mount", "--pid", "--fork", "--kill-child"] + ([] if net else ["--net"])
    return subprocess.Popen(
        ["unshare", *namespaces, "sh", "-c", MOUNT, "sh", str(root), *command],
        **{"stdin": subprocess.DEVNULL, **io},
    )


class Photographer:
    """rviz under a virtual display in its isolated root. A context manager."""

    def __init__(self, root: Path) -> None:
        script = Path(__file__).with_name("rviz_ros1.py").read_text()
        size = [str(number) for number in SIZE]
        self._process = isolated(
            root,
            *("/usr/bin/python3", "-u", "-c", script, *size),
            net=False,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._answer(120)

    def __enter__(self) -> "Photographer":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and with it, all that it started
            self._process.wait()

    def pass_on(self, topic: str, kind: str, message: Any) -> None:
        document = fields(message)
        for marker in document.get("markers", ()):
            marker["lifetime"]["sec"] *= PATIENCE
        self._say({"topic": topic, "kind": kind, "message": document})

    def open(self, config: str) -> None:
        self._say({"open": config})
        self._answer(60)

    def shoot(self) -> Pillow.Image:
        self._say({"shoot": True})
        return Pillow.open(io.BytesIO(base64.b64decode(self._answer(60)["png"]))).convert("RGB")

    def _say(self, document: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)

    def _answer(self, seconds: float) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._answers.get(timeout=seconds))
        if "error" in document:
            raise RuntimeError(document["error"])
        return document


def fields(message: Any) -> dict[str, Any]:
    """A message of rclpy as JSON; bytes in base64."""
    document = {}
    for name in message.get_fields_and_field_types():
        if name in SKIPPED:
            continue
        value = getattr(message, name)
        if hasattr(value, "get_fields_and_field_types"):
            value = fields(value)
        elif getattr(value, "typecode", "") == "B":
            value = base64.b64encode(value).decode()
        elif isinstance(value, list):
            value = [fields(one) if hasattr(one, "get_fields_and_field_types") else one
                     for one in value]  # fmt: skip
        document[name] = value
    return document


class Stage:
    """Real nodes at work, and what their viz node says. A context manager.

    Everything of ROS happens in one thread, which also gives the tasks.

    goals: fields of the next ExecuteTask goal of any robot. `audience` gets every message for rviz:
    topic, type, message.
    """

    def __init__(
        self,
        specs: Sequence["NodeSpec"],
        logs: Path,
        goals: Iterator[Mapping[str, Any]],
        audience: Callable[[str, str, Any], None],
    ) -> None:
        from kairos_ros.bringup import Fleet

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
        from kairos_ros.nodes.viz_node import CAMERA_TOPIC, LAYERS, MARKERS

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


def simulated_fleet(robots: int, logs: Path, audience: Callable[[str, str, Any], None]) -> Stage:
    """Meta-World's arms; the first is watched by a camera and a judge of its safety."""
    from kairos_ros import bringup
    from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules
    from kairos_ros.robot.metaworld_scenes import SCENES
    from kairos_ros.robot.rules_text import rules_text

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


def one_arm(arm: str, logs: Path, audience: Callable[[str, str, Any], None]) -> Stage:
    """A simulated arm behind a ROS 2 driver, with the policy that ships for it."""
    from kairos_ros.arms_plan import arm_plan, shipped_policy

    config = json.loads((shipped_policy(arm) / "config.json").read_text())
    goal = {"instruction": config["instructions"][0], "max_actions": 300}
    return Stage(arm_plan(arm, {"rviz": "true"}), logs, itertools.repeat(goal), audience)


@dataclass(frozen=True, slots=True)
class View:
    """Where the eye is (rviz's Orbit view)."""

    distance: float
    focus: tuple[float, float, float]
    yaw: float
    pitch: float
    frame: str = "<Fixed Frame>"

    def of(self, robot: str) -> "View":
        """The same, of one robot's cell."""
        return replace(self, frame=f"{robot}/base")


VIEWS = {
    "chunk": View(1.55, (0.0, 0.62, 0.16), 2.15, 0.5),
    "unsafe": View(2.6, (0.0, 0.6, 0.05), 1.75, 0.5),
    "so101": View(0.85, (0.12, 0.0, 0.10), 1.0, 0.35),
    "franka": View(1.9, (0.25, 0.0, 0.35), 1.0, 0.3),
}


def translated(config: Path, view: View) -> str:
    """Our configuration for rviz 1: other names for classes and topics; and one view of it."""
    root = yaml.safe_load(config.read_text())
    manager = root["Visualization Manager"]
    manager["Displays"] = [_translated(display) for display in manager["Displays"]]
    manager["Global Options"]["Frame Rate"] = 5  # the processor draws, and it has other work
    manager["Tools"] = [{"Class": "rviz/MoveCamera"}]
    manager.pop("Transformation")
    x, y, z = view.focus
    manager["Views"] = {
        "Current": {
            "Class": "rviz/Orbit",
            "Name": "Current View",
            "Target Frame": view.frame,
            "Value": "Orbit (rviz)",
            "Distance": view.distance,
            "Focal Point": {"X": x, "Y": y, "Z": z},
            "Focal Shape Size": 0.01,
            "Near Clip Distance": 0.01,
            "Yaw": view.yaw,
            "Pitch": view.pitch,
        },
        "Saved": None,
    }
    panel = root["Panels"][0]
    panel["Class"] = "rviz/Displays"
    root["Panels"] = [panel]
    root["Window Geometry"] = {
        "Width": SIZE[0],
        "Height": SIZE[1],
        "X": 0,
        "Y": 0,
        "Hide Right Dock": True,
    }
    return yaml.safe_dump(root, sort_keys=False)


def _translated(display: Mapping[str, Any]) -> dict[str, Any]:
    kind = display["Class"].split("/")[1]
    changed = {**display, "Class": f"rviz/{kind}"}
    if "Displays" in display:
        changed["Displays"] = [_translated(one) for one in display["Displays"]]
    if "Topic" in display:
        changed.pop("Topic")
        name = {"MarkerArray": "Marker Topic", "Image": "Image Topic"}[kind]
        changed[name] = display["Topic"]["Value"]
        changed["Queue Size"] = 1000  # rviz 1 counts markers, not messages
    return changed


def coloured(picture: Pillow.Image, colour: tuple[float, ...], within: float = 40.0) -> np.ndarray:
    """bool [height, width]: pixels of about that colour, 0 to 1, however shaded."""
    pixels = np.asarray(picture, np.float32)
    wanted = 255 * np.array(colour[:3], np.float32)
    brightness = np.maximum(pixels.max(axis=2, keepdims=True), 1.0) / wanted.max()
    return (np.abs(pixels / brightness - wanted).max(axis=2) < within) & (brightness[..., 0] > 0.45)


class Album:
    """Takes pictures of a stage and keeps those that show what they should."""

    def __init__(self, photographer: Photographer, out: Path) -> None:
        self.problems: list[str] = []
        self._photographer = photographer
        self._out = out

    def take(self, stage: Stage, names: Sequence[str]) -> None:
        for name in names:
            if name == "fleet":
                self._fleet()
            elif name == "unsafe":
                self._unsafe(stage)
            else:
                self._paths(name, stage)

    def _fleet(self) -> None:
        from kairos_ros.viz import colours

        self._open("fleet", View(6.6, (0.0, -0.2, 0.3), 1.5708, 0.42))
        shots = self._shoot_until(
            lambda seen: sum(n > PATHS_PX for n in seen) >= SHOTS,
            lambda picture: int(coloured(picture.crop(TABLES), colours.TO_COME).sum()),
        )
        best = max(shots, key=lambda shot: shot[1])
        self._expect(best[1] > PATHS_PX, f"paths over the tables ({best[1]} px)")
        self._keep("fleet", best[0])

    def _paths(self, name: str, stage: Stage) -> None:
        """The best of many pictures of one arm: much to come and much executed."""
        from kairos_ros.viz import colours

        def near(picture: Pillow.Image, colour: tuple[float, ...]) -> np.ndarray:
            return coloured(picture.crop(VIEW).crop(NEAR_HAND), colour)

        def both(picture: Pillow.Image) -> int:
            to_come, done = (near(picture, c).sum() for c in (colours.TO_COME, colours.EXECUTED))
            return int(min(to_come, 4 * done))

        self._open(name, VIEWS[name].of(stage.robots[0]))
        shots = self._shoot_until(lambda seen: sum(n > PATH_PX for n in seen) >= SHOTS, both)
        picture, pixels = max(shots, key=lambda shot: shot[1])
        self._expect(pixels > PATH_PX, f"what was executed, and what is to come ({pixels} px)")
        paths = [near(shot, colours.TO_COME) for shot, _ in shots]
        moved = sum((a ^ b).sum() > PATH_PX / 2 for a, b in itertools.pairwise(paths))
        self._expect(moved > SHOTS / 2, f"the path moved {moved} times in {len(shots)} pictures")
        self._keep(name, picture.crop(VIEW))

    def _unsafe(self, stage: Stage) -> None:
        from kairos_ros.viz import colours

        def pixels(picture: Pillow.Image, colour: tuple[float, ...]) -> int:
            return int(coloured(picture.crop(VIEW), colour).sum())

        robot = stage.robots[0]
        self._open("unsafe", VIEWS["unsafe"].of(robot))
        calm = self._shoot_until(
            lambda seen: seen[-1] > EDGES_PX, lambda picture: pixels(picture, colours.SAFE)
        )[-1][0]
        stage.disturb(robot, "intruder")
        before = pixels(calm, colours.UNSAFE)
        shots = self._shoot_until(
            lambda seen: sum(n > before + EDGES_PX for n in seen) >= 3,
            lambda picture: pixels(picture, colours.UNSAFE),
        )
        picture, red = max(shots, key=lambda shot: shot[1])
        self._expect(
            red > before + EDGES_PX, f"a cell with somebody in it turns red ({before} to {red} px)"
        )
        self._keep("unsafe", picture)
        stage.disturb(robot, "clear")

    def _open(self, name: str, view: View) -> None:
        print(f"opening rviz for {name}", flush=True)
        self._photographer.open(translated(REPOSITORY / "config" / "kairos.rviz", view))
        time.sleep(SETTLE_S)

    def _shoot_until(
        self, enough: Callable[[list[int]], object], count: Callable[[Pillow.Image], int]
    ) -> list[tuple[Pillow.Image, int]]:
        """Picture after picture, and what `count` says of each, until it is enough or too late."""
        shots: list[tuple[Pillow.Image, int]] = []
        end = time.monotonic() + SEEN_WITHIN_S
        while not shots or (
            not enough([counted for _, counted in shots]) and time.monotonic() < end
        ):
            picture = self._photographer.shoot()
            shots.append((picture, count(picture)))
            time.sleep(0.4)
        return shots

    def _keep(self, name: str, picture: Pillow.Image) -> None:
        picture.save(self._out / f"rviz_{name}.png", optimize=True)

    def _expect(self, true: object, what: str) -> None:
        print(f"{'ok' if true else 'WRONG'}: {what}", flush=True)
        if not true:
            self.problems.append(what)


if __name__ == "__main__":
    sys.exit(main())
