"""Parameters declared from a table, on a real rclpy node."""

from pathlib import Path

import parameters_page
import pytest
import rclpy
import yaml
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from rclpy.parameter import Parameter

from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.parameters import DOUBLES, NodeParameters, ParameterSpec
from kairos_ros.nodes.recorder.parameters import RECORDER_PARAMETERS
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS
from kairos_ros.nodes.serving.parameters import SERVING_PARAMETERS
from kairos_ros.nodes.viz.parameters import VIZ_PARAMETERS
from kairos_ros.nodes.vlm.parameters import MODEL_PARAMETERS, NAMES, component_parameters

TABLE = (
    ParameterSpec("control_rate_hz", 30.0, "Actions per second.", 1.0, 1000.0),
    ParameterSpec("threads", 1, "Threads.", 1, 8),
    ParameterSpec("mode", "clip", "What to do.", choices=("clip", "refuse")),
    ParameterSpec("limits", DOUBLES, "Limits per dimension."),
    ParameterSpec("threshold", 0.5, "Can change.", 0.0, 1.0, live=True),
)


@pytest.fixture
def declared(domain_id):
    """Declares TABLE on a node that was started with these overrides."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    nodes = []

    def declare_with(node=Node, **overrides):
        node = node(
            "parameters_under_test",
            context=context,
            parameter_overrides=[Parameter(name, value=v) for name, v in overrides.items()],
        )
        nodes.append(node)
        return node, NodeParameters(node, TABLE)

    yield declare_with
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.mark.slow
def test_values_come_from_overrides_and_otherwise_from_the_table(declared):
    _, values = declared(threads=4, limits=[0.5, 1.5])
    assert values == {
        "control_rate_hz": 30.0,
        "threads": 4,
        "mode": "clip",
        "limits": [0.5, 1.5],
        "threshold": 0.5,
    }


@pytest.mark.slow
def test_a_list_that_nobody_set_is_empty(declared):
    assert declared()[1]["limits"] == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"control_rate_hz": 0.0}, "goes from 1.0 to 1000.0"),
        ({"control_rate_hz": 30}, "decimal point"),
        ({"mode": "ignore"}, "choose from clip, refuse"),
        ({"control_rate": 30.0}, "did you mean 'control_rate_hz'"),
    ],
)
@pytest.mark.slow
def test_a_wrong_parameter_stops_the_node_with_what_to_do(declared, overrides, said):
    with pytest.raises(ConfigError, match=said):
        declared(**overrides)


@pytest.mark.slow
def test_only_a_live_parameter_can_be_set_while_the_node_runs(declared):
    node, values = declared()
    live, fixed = node.set_parameters(
        [Parameter("threshold", value=0.7), Parameter("threads", value=2)]
    )
    assert live.successful
    assert values["threshold"] == 0.7
    assert not fixed.successful
    assert fixed.reason == (
        "parameter threads is read at the start of the node; end it, and start it with "
        "-p threads:=..."
    )
    assert (values["threads"], node.get_parameter("threads").value) == (1, 1)


@pytest.mark.slow
def test_values_that_a_node_has_already_can_be_set_as_ros2_param_load_does(declared):
    node, values = declared(limits=[0.5, 1.5])
    results = node.set_parameters([Parameter(name, value=value) for name, value in values.items()])
    assert all(result.successful for result in results)
    node, values = declared()
    (empty,) = node.set_parameters([Parameter("limits", Parameter.Type.BOOL_ARRAY, [])])
    assert (empty.successful, values["limits"]) == (True, []), "as an empty list in a file is read"
    (wrong,) = node.set_parameters([Parameter("threshold", Parameter.Type.BOOL_ARRAY, [])])
    assert not wrong.successful


@pytest.mark.slow
def test_a_lifecycle_node_says_in_which_state_a_parameter_can_be_set(declared):
    node, values = declared(node=LifecycleNode)
    unconfigured = False
    values.open_while(lambda: unconfigured)
    (refused,) = node.set_parameters([Parameter("mode", value="refuse")])
    assert "ros2 lifecycle set /parameters_under_test cleanup" in refused.reason
    unconfigured = True
    (taken,) = node.set_parameters([Parameter("mode", value="refuse")])
    assert taken.successful
    (wrong,) = node.set_parameters([Parameter("mode", value="ignore")])
    assert wrong.reason == "parameter mode is 'ignore'; choose from clip, refuse"
    assert values["mode"] == "refuse"


@pytest.mark.slow
def test_what_a_node_cannot_apply_is_refused_with_its_reason_and_nothing_is_changed(declared):
    node, values = declared()
    seen = []

    def apply(wanted, changed):
        seen.append((wanted["threshold"], values["threshold"], {*changed}))
        if wanted["threshold"] > 0.8:
            raise ConfigError("too much for this robot")

    values.on_change(apply)
    first, second = (
        node.set_parameters([Parameter("threshold", value=value)])[0] for value in (0.7, 0.9)
    )
    assert first.successful
    assert (second.successful, second.reason) == (False, "too much for this robot")
    assert values["threshold"] == node.get_parameter("threshold").value == 0.7
    assert seen == [(0.7, 0.5, {"threshold"}), (0.9, 0.7, {"threshold"})]


CONFIG = Path(__file__).parents[2] / "config"
TABLES = {
    "serving": SERVING_PARAMETERS,
    "robot": ROBOT_PARAMETERS,
    "arm": ROBOT_PARAMETERS,
    "recorder": RECORDER_PARAMETERS,
    "viz": VIZ_PARAMETERS,
    "vlm": (
        *MODEL_PARAMETERS,
        *(p for c in NAMES for p in component_parameters(c, f"{NAMES[c]}.")),
    ),
} | {NAMES[c]: (*MODEL_PARAMETERS, *component_parameters(c)) for c in NAMES}
OF_THE_BODY = "guard."
"""Limits in robot.yaml are the simulated arm's and in arm.yaml a real arm's; a node by itself has
none."""


def test_the_page_of_parameters_is_what_the_code_says():
    assert parameters_page.PAGE.read_text() == parameters_page.page(), (
        "write it again: .venv/bin/python test/support/pages/parameters_page.py"
    )


def test_every_file_of_parameters_is_compared():
    files = {f.stem for f in CONFIG.glob("*.yaml") if "ros__parameters" in f.read_text()}
    assert files == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_a_node_by_itself_has_the_defaults_of_its_file(name):
    (content,) = yaml.safe_load((CONFIG / f"{name}.yaml").read_text()).values()
    written = content["ros__parameters"]
    specs = {spec.name: spec for spec in TABLES[name]}
    assert not written.keys() - specs.keys()
    compared = {key for key in written if not key.startswith(OF_THE_BODY)}
    assert compared
    assert {key: written[key] for key in compared} == {key: specs[key].default for key in compared}
