"""metadata.yaml of a bag, in the versions that ROS 2 distributions read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2.metadata import dump_qos_v8, dump_qos_v9, parse_qos

VERSIONS = (5, 7, 9)
"""Humble, Iron, and Jazzy and later. Newer distributions read older versions, too."""
METADATA = "metadata.yaml"

__all__ = [
    "METADATA",
    "VERSIONS",
    "Qos",
    "QosDurability",
    "QosHistory",
    "QosLiveliness",
    "QosReliability",
    "QosTime",
    "Topic",
    "bag_information",
    "parse_qos",
    "qos_text",
    "write_metadata",
]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a bag."""

    name: str
    type: str
    rihs01: str
    offered: tuple[Qos, ...] = ()
    """Distinct QoS profiles of its publishers."""


def qos_text(profiles: Sequence[Qos], version: int) -> str:
    """QoS profiles as YAML, as rosbag2 of that metadata version writes them."""
    if version < 9:
        return dump_qos_v8(list(profiles))
    return yaml.safe_dump(dump_qos_v9(list(profiles))).strip() if profiles else ""


def bag_information(
    version: int,
    file: str,
    counts: Mapping[Topic, int],
    span_ns: tuple[int, int],
    custom: Mapping[str, str],
) -> dict[str, Any]:
    """What metadata.yaml says below its only key.

    span_ns: receive times of the first and the last message; (0, 0) without messages.
    """
    start = {"nanoseconds_since_epoch": span_ns[0]}
    duration = {"nanoseconds": span_ns[1] - span_ns[0]}
    total = sum(counts.values())
    information: dict[str, Any] = {
        "version": version,
        "storage_identifier": "mcap",
        "duration": duration,
        "starting_time": start,
        "message_count": total,
        "topics_with_message_count": [
            {"topic_metadata": _topic(topic, version), "message_count": count}
            for topic, count in counts.items()
        ],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": [file],
        "files": [
            {
                "path": file,
                "starting_time": dict(start),
                "duration": dict(duration),
                "message_count": total,
            }
        ],
    }
    if version >= 6:
        information["custom_data"] = dict(custom) or None
    if version >= 8:
        information["ros_distro"] = "kairos_ros"
    return information


def write_metadata(folder: Path, information: Mapping[str, Any]) -> None:
    """Writes `folder`/metadata.yaml, whole or not at all."""
    draft = folder / f"{METADATA}.tmp"
    draft.write_text(
        yaml.safe_dump({"rosbag2_bagfile_information": information}, sort_keys=False), "utf-8"
    )
    draft.replace(folder / METADATA)


def _topic(topic: Topic, version: int) -> dict[str, Any]:
    text = qos_text(topic.offered, version)
    entry: dict[str, Any] = {
        "name": topic.name,
        "type": topic.type,
        "serialization_format": "cdr",
        "offered_qos_profiles": text if version < 9 else yaml.safe_load(text or "[]"),
    }
    if version >= 7:
        entry["type_description_hash"] = topic.rihs01
    return entry
