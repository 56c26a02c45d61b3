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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import yaml
from PIL import Image as Pillow

from kairos_ros.domain import stay_on_this_host

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "rviz python3-rospy python3-rosmaster python3-roslaunch rosout xvfb libgl1-mesa-dri "
    "python3-tf2-msgs python3-visualization-msgs python3-sensor-msgs imagemagick"
)
SIZE = (1600, 1000)
VIEW = (366, 62, 1583, 970)
"""Left, top, right and bottom of what is no panel, in px."""
NEAR_HAND = (300, 300, 950, 680)
"""Of that, where the paths are in the picture of one arm."""
SETTLE_S = 10.0
SEEN_WITHIN_S = 30.0
"""By a judge, on a busy machine."""
ZONE_PX = 5_000
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
SCENES = ("push-v3", "drawer-open-v3", "peg-insert-side-v3", "window-open-v3")


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
    options.add_argument("--only", default="", help="one picture: fleet, chunk, unsafe")
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
    with Photographer(root) as photographer, Stage(given.robots, given.logs) as stage:
        return take_pictures(photographer, stage, given.out, given.only)


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
        self._say({"topic": topic, "kind": kind, "message": fields(message)})

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
    """Real nodes: arms at work, a judge of their safety, and the viz node. A context manager.

    Everything of ROS happens in one thread, which also gives the tasks.
    """

    def __init__(self, robots: int, logs: Path) -> None:
        from kairos_ros import bringup
        from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules
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
        arms = {
            "adapter_options": ["images={corner3: [144, 144]}"],
            "request_images": False,
            "camera_rate_hz": 2.0,
            "disturbances": True,
            "rules": rules_text(rules),
        }
        specs = bringup.plan(robots, robot_parameters=arms)
        judge = bringup.vlm("safety", freq_hz=2.0, slo_ms=3000.0)
        self.names = [spec.namespace for spec in specs[1:]]
        self._fleet = bringup.Fleet([*specs, judge, bringup.viz()], logs)
        self._orders: queue.Queue[Callable[[], None]] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.working = threading.Event()
        self.audience: Callable[[str, str, Any], None] = lambda topic, kind, message: None
        """Gets every message for rviz: topic, type, message."""

    def __enter__(self) -> "Stage":
        print("starting the fleet", flush=True)
        self._fleet.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._fleet.stop()

    def disturb(self, robot: str, what: str) -> None:
        """Somebody enters its cell ("intruder"), or leaves ("clear")."""
        from kairos_ros.srv import Disturb

        client = self._driver.client(Disturb, f"/{robot}/disturb")
        self._orders.put(
            lambda: client.call_async(Disturb.Request(robot=robot, what=what, seed=4)) and None
        )

    def _play(self) -> None:
        from kairos_ros.srv import Disturb
        from sensor_msgs.msg import Image
        from tf2_msgs.msg import TFMessage
        from visualization_msgs.msg import MarkerArray

        from kairos_ros.demo.driver import Driver
        from kairos_ros.demo.live import LiveFleet, LiveRobot
        from kairos_ros.demo.workload import jobs
        from kairos_ros.nodes import qos
        from kairos_ros.nodes.viz_node import CAMERA_TOPIC, LAYERS, MARKERS

        with Driver(LiveFleet({name: LiveRobot() for name in self.names})) as self._driver:
            driver = self._driver
            heard = {f"{MARKERS}/{layer.name}": (MarkerArray, qos.EVENTS) for layer in LAYERS}
            heard |= {"/tf_static": (TFMessage, qos.ROSTER), CAMERA_TOPIC: (Image, qos.TELEMETRY)}
            for topic, (kind, profile) in heard.items():
                driver.listen(
                    topic,
                    kind,
                    lambda message, t=topic, k=kind.__name__: self.audience(t, k, message),
                    profile,
                )
            for name in self.names:
                driver.client(Disturb, f"/{name}/disturb")
            tasks = jobs(list(SCENES), 3, None, 0)
            while not self._stop.is_set():
                if len(driver.ready()) == len(self.names) and driver.live.active:
                    for robot in driver.free():
                        driver.give(robot, next(tasks))
                    self.working.set()
                while not self._orders.empty():
                    self._orders.get()()
                driver.spin(0.05)


@dataclass(frozen=True, slots=True)
class View:
    """Where the eye is (rviz's Orbit view)."""

    distance: float
    focus: tuple[float, float, float]
    yaw: float
    pitch: float
    frame: str = "<Fixed Frame>"
    panels: bool = False


def translated(config: Path, view: View) -> str:
    """Our configuration for rviz 1: other names for classes and topics; and one view of it."""
    root = yaml.safe_load(config.read_text())
    manager = root["Visualization Manager"]
    manager["Displays"] = [_translated(display) for display in manager["Displays"]]
    manager["Global Options"]["Frame Rate"] = 8  # the processor draws, and it has other work
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
        "Hide Left Dock": not view.panels,
        "Hide Right Dock": True,
        "Displays": {"collapsed": not view.panels},
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


def take_pictures(photographer: Photographer, stage: Stage, out: Path, only: str) -> int:
    """Returns the exit code."""
    from kairos_ros.viz import colours

    stage.audience = photographer.pass_on
    if not stage.working.wait(180):
        raise RuntimeError("the fleet did not come up")
    config = REPOSITORY / "config" / "kairos.rviz"
    problems: list[str] = []

    def look(name: str, view: View) -> Pillow.Image:
        print(f"opening rviz for {name}", flush=True)
        photographer.open(translated(config, view))
        time.sleep(SETTLE_S)
        return photographer.shoot()

    def keep(name: str, picture: Pillow.Image) -> None:
        picture.save(out / f"rviz_{name}.png", optimize=True)

    def expect(true: object, what: str) -> None:
        print(f"{'ok' if true else 'WRONG'}: {what}", flush=True)
        if not true:
            problems.append(what)

    if only in ("", "fleet"):
        picture = look("fleet", View(6.9, (0.0, -0.2, -0.05), 1.5708, 0.42))
        count = int(coloured(picture, colours.TO_COME).sum())
        expect(count > 500, f"paths to come and running robots are seen ({count} px)")
        keep("fleet", picture)
    if only in ("", "chunk"):
        view = View(1.55, (0.0, 0.62, 0.16), 2.15, 0.5, f"{stage.names[0]}/base")
        shots = [look("chunk", view).crop(VIEW)]
        for _ in range(15):
            time.sleep(0.4)
            shots.append(photographer.shoot().crop(VIEW))
        hands = [one.crop(NEAR_HAND) for one in shots]
        to_come = [coloured(one, colours.TO_COME) for one in hands]
        done = [coloured(one, colours.EXECUTED) for one in hands]
        seen = [int(min(a.sum(), 4 * b.sum())) for a, b in zip(to_come, done, strict=True)]
        best = int(np.argmax(seen))
        expect(to_come[best].sum() > 200, f"a path to come ({int(to_come[best].sum())} px)")
        expect(done[best].sum() > 100, f"what was executed of it ({int(done[best].sum())} px)")
        moved = [int((a ^ b).sum()) for a, b in itertools.pairwise(to_come)]
        changes = sum(count > 200 for count in moved)
        expect(changes > 10, f"{changes} of {len(moved)} pictures differ from the one before")
        keep("chunk", shots[best])
    if only in ("", "unsafe"):
        robot = stage.names[0]
        view = View(2.6, (0.0, 0.6, 0.05), 1.75, 0.5, f"{robot}/base")
        picture = look("unsafe", view)
        calm = red = int(coloured(picture, colours.UNSAFE).sum())
        stage.disturb(robot, "intruder")
        end = time.monotonic() + SEEN_WITHIN_S
        while red <= calm + ZONE_PX and time.monotonic() < end:
            time.sleep(0.5)
            picture = photographer.shoot()
            red = int(coloured(picture, colours.UNSAFE).sum())
        expect(red > calm + ZONE_PX, f"a cell with somebody in it turns red ({calm} to {red} px)")
        keep("unsafe", picture)
        stage.disturb(robot, "clear")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
