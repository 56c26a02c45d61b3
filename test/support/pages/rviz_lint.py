"""What rviz would complain of, or show nothing of: in a display configuration and in markers."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from geometry_msgs.msg import TransformStamped
from rclpy.node import Node
from rclpy.qos import (
    QoSCompatibility,
    QoSDurabilityPolicy,
    QoSProfile,
    QoSReliabilityPolicy,
    qos_check_compatible,
)
from visualization_msgs.msg import Marker, MarkerArray

from kairos_ros.core.errors import ConfigError

GROUP = "rviz_common/Group"
READS: Mapping[str, str] = {
    "rviz_default_plugins/MarkerArray": "visualization_msgs/msg/MarkerArray",
    "rviz_default_plugins/Image": "sensor_msgs/msg/Image",
    "rviz_default_plugins/TF": "",
    "rviz_default_plugins/Grid": "",
}
"""Class of a display -> type of the topic that it reads; empty: it reads none of its own."""
USED = {
    Marker.CUBE: "xyz",
    Marker.SPHERE: "xyz",
    Marker.CYLINDER: "xyz",
    Marker.LINE_STRIP: "x",
    Marker.LINE_LIST: "x",
    Marker.SPHERE_LIST: "xyz",
    Marker.TEXT_VIEW_FACING: "z",
}
"""Type of a marker -> the parts of its scale that rviz uses; it warns where others are not 0."""
FEWEST_POINTS = {Marker.LINE_STRIP: 2, Marker.LINE_LIST: 2, Marker.SPHERE_LIST: 1}


@dataclass(frozen=True, slots=True)
class Display:
    """One display."""

    name: str
    """With its groups: "Chunks/Predicted paths"."""
    kind: str
    enabled: bool
    topic: str
    """Empty: it reads none of its own."""
    reliability: str
    """reliable, best_effort or system_default."""
    durability: str
    """volatile, transient_local or system_default."""
    depth: int


@dataclass(frozen=True, slots=True)
class RvizFile:
    """What a .rviz file says."""

    fixed_frame: str
    displays: tuple[Display, ...]


def read_rviz(path: Path) -> RvizFile:
    """Raises ConfigError for a file that rviz 2 would not understand."""
    try:
        root = yaml.safe_load(path.read_text())["Visualization Manager"]
        frame = root["Global Options"]["Fixed Frame"]
        displays = tuple(_displays(root["Displays"], ""))
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no display configuration of rviz: {error!r}") from error
    return RvizFile(frame, displays)


def _displays(written: list[Mapping[str, Any]], group: str) -> Iterator[Display]:
    for one in written:
        name, kind = f"{group}{one['Name']}", one["Class"]
        if kind == GROUP:
            yield from _displays(one["Displays"], f"{name}/")
            continue
        if kind not in READS:
            raise ConfigError(f"display {name} is a {kind}; known are {', '.join(READS)}")
        topic = one.get("Topic", {})
        yield Display(
            name=name,
            kind=kind,
            enabled=bool(one["Enabled"]),
            topic=_resolved(topic.get("Value", "")),
            reliability=_word(topic.get("Reliability Policy", "")),
            durability=_word(topic.get("Durability Policy", "")),
            depth=int(topic.get("Depth", 0)),
        )


def _resolved(topic: str) -> str:
    """Names without a slash are below the namespace of rviz's node, here the root."""
    return f"/{topic}" if topic and not topic.startswith("/") else topic


def _word(written: str) -> str:
    return written.lower().replace(" ", "_")


def graph_faults(displays: Iterable[Display], node: Node) -> list[str]:
    """What keeps a display from its messages, in the graph as `node` sees it."""
    faults = []
    for display in displays:
        if not display.topic:
            continue
        publishers = node.get_publishers_info_by_topic(display.topic)
        if not publishers:
            faults.append(f"{display.name}: nobody publishes {display.topic}")
        for publisher in publishers:
            if publisher.topic_type != READS[display.kind]:
                faults.append(
                    f"{display.name}: {display.topic} is a {publisher.topic_type}, the display "
                    f"reads {READS[display.kind]}"
                )
            answer = qos_check_compatible(publisher.qos_profile, asked(display))
            if answer[0] == QoSCompatibility.ERROR:
                faults.append(f"{display.name}: {display.topic}: {answer[1]}")
    return faults


def asked(display: Display) -> QoSProfile:
    """The QoS with which a display subscribes."""
    return QoSProfile(
        depth=display.depth,
        reliability=QoSReliabilityPolicy[display.reliability.upper()],
        durability=QoSDurabilityPolicy[display.durability.upper()],
    )


def array_faults(array: MarkerArray) -> list[str]:
    """What is wrong with one message."""
    faults = [fault for marker in array.markers for fault in marker_faults(marker)]
    keys = [(marker.ns, marker.id) for marker in array.markers if marker.action != Marker.DELETEALL]
    faults += [f"{key} twice in one message" for key in set(keys) if keys.count(key) > 1]
    return faults


def marker_faults(marker: Marker) -> Iterator[str]:
    """What is wrong with one marker by itself."""
    name = f"{marker.ns} {marker.id}"
    if not marker.header.frame_id or marker.header.frame_id.startswith("/"):
        yield f"{name}: frame {marker.header.frame_id!r}"
    if marker.action in (Marker.DELETE, Marker.DELETEALL):
        return
    if marker.action != Marker.ADD or marker.type not in USED:
        yield f"{name}: action {marker.action}, type {marker.type}"
        return
    at, turn = marker.pose.position, marker.pose.orientation
    numbers = [at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w]
    numbers += [value for point in marker.points for value in (point.x, point.y, point.z)]
    if not all(map(math.isfinite, numbers)):
        yield f"{name}: not finite"
    elif abs(math.hypot(turn.x, turn.y, turn.z, turn.w) - 1) > 1e-3:
        yield f"{name}: no unit quaternion"
    for axis in "xyz":
        size, used = getattr(marker.scale, axis), axis in USED[marker.type]
        if (used and not (math.isfinite(size) and size > 0)) or (not used and size != 0):
            yield f"{name}: scale.{axis} is {size}"
    colours = [marker.color, *marker.colors]
    if any(not all(0 <= part <= 1 for part in (c.r, c.g, c.b)) for c in colours):
        yield f"{name}: a colour is not from 0 to 1"
    if any(not 0 < c.a <= 1 for c in colours):
        yield f"{name}: nobody can see it, alpha is {marker.color.a}"
    if len(marker.points) < FEWEST_POINTS.get(marker.type, 0):
        yield f"{name}: {len(marker.points)} points"
    if marker.type == Marker.LINE_LIST and len(marker.points) % 2:
        yield f"{name}: a line list of {len(marker.points)} points"
    if marker.colors and len(marker.colors) != len(marker.points):
        yield f"{name}: {len(marker.colors)} colours for {len(marker.points)} points"
    if (marker.type == Marker.TEXT_VIEW_FACING) != bool(marker.text):
        yield f"{name}: text {marker.text!r}"
    if marker.lifetime.sec + marker.lifetime.nanosec <= 0:
        yield f"{name}: stays when its node has died"


def frame_faults(
    fixed: str, transforms: Iterable[TransformStamped], frames: Iterable[str]
) -> list[str]:
    """Which of `frames` cannot be reached from the fixed frame, and what is wrong with the tree."""
    parents: dict[str, str] = {}
    faults = []
    for one in transforms:
        child, parent, turn = one.child_frame_id, one.header.frame_id, one.transform.rotation
        if parents.setdefault(child, parent) != parent:
            faults.append(f"{child} has two parents, {parents[child]} and {parent}")
        if abs(math.hypot(turn.x, turn.y, turn.z, turn.w) - 1) > 1e-3:
            faults.append(f"{child}: no unit quaternion")
    lost = [one for one in sorted(set(frames)) if _root(one, parents) != _root(fixed, parents)]
    return faults + [f"frame {one} cannot be reached from {fixed}" for one in lost]


def _root(frame: str, parents: Mapping[str, str]) -> str:
    for _ in range(len(parents) + 1):
        if frame not in parents:
            return frame
        frame = parents[frame]
    return "a circle"
