"""rviz under a virtual display, in an isolated root that holds rviz and its ROS 1."""

import base64
import io
import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from PIL import Image as Pillow

PACKAGES = (
    "rviz python3-rospy python3-rosmaster python3-roslaunch rosout xvfb libgl1-mesa-dri "
    "python3-tf2-msgs python3-visualization-msgs python3-sensor-msgs imagemagick"
)
SIZE = (1600, 1000)
"""Of the screen, in px."""
PATIENCE = 10
"""Markers live so many times longer than the viz node says, because rviz draws a picture in
seconds without a GPU."""
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


def install(root: Path, log: Path) -> None:
    """Installs rviz below `root`, if it is not there. Raises CalledProcessError."""
    root.mkdir(parents=True, exist_ok=True)
    if (root / "upper" / "usr" / "bin" / "rviz").exists():
        return
    print(f"installing rviz into {root}; log in {log}", flush=True)
    with log.open("wb") as out:
        code = isolated(root, "sh", "-c", INSTALL, stdout=out, stderr=out).wait()
    if code:
        raise subprocess.CalledProcessError(code, "apt-get install rviz")


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
