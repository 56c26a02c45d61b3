"""The Foxglove layout names topics that exist, fields that they have, and panels with a place."""

import json
import re
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray
from kairos_ros.msg import EngineState, FleetState, PipelineEvent, RobotState
from sensor_msgs.msg import Image
from visualization_msgs.msg import MarkerArray

from kairos_ros.core.fleet_names import ROOT
from kairos_ros.nodes.viz.node import CAMERA_TOPIC, FRAME, LAYERS, MARKERS

LAYOUT = json.loads(Path(__file__).parents[2].joinpath("config/foxglove_layout.json").read_text())
PANELS = LAYOUT["configById"]
NESTED = {"robots": RobotState, "engines": EngineState}
TOPICS = {
    "/kairos/fleet_state": FleetState,
    "/arm_1/pipeline_events": PipelineEvent,
    "/diagnostics": DiagnosticArray,
    ROOT.common(CAMERA_TOPIC): Image,
    **{ROOT.common(f"{MARKERS}/{layer.name}"): MarkerArray for layer in LAYERS},
}


def leaves(node):
    return [node] if isinstance(node, str) else leaves(node["first"]) + leaves(node["second"])


def field_paths():
    for panel in PANELS.values():
        yield from (path["value"] for path in panel.get("paths", ()))
        if "topicPath" in panel:
            yield panel["topicPath"]


def test_every_panel_has_one_place():
    assert sorted(leaves(LAYOUT["layout"])) == sorted(PANELS)


def test_every_path_leads_to_a_field_of_the_message_on_its_topic():
    for path in field_paths():
        topic, *fields = path.replace("[:]", "").split(".")
        kind = TOPICS[topic]
        for field in fields:
            assert field in kind.get_fields_and_field_types(), f"{path}: {kind} has no {field}"
            kind = NESTED.get(field)


def test_the_3d_panel_shows_every_layer_of_markers_in_their_frame():
    shown = PANELS["3D!cell"]
    assert set(shown["topics"]) == {ROOT.common(f"{MARKERS}/{layer.name}") for layer in LAYERS}
    assert shown["followTf"] == FRAME
    assert PANELS["Image!cameras"]["imageMode"]["imageTopic"] == ROOT.common(CAMERA_TOPIC)
    assert PANELS["DiagnosticSummary!health"]["topicToRender"] in TOPICS
    assert not re.search(r"https?://", json.dumps(LAYOUT))
