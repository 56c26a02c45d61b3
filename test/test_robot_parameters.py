"""Parameters declared from a table, on a real rclpy node."""

import pytest
import rclpy
from rclpy.parameter import Parameter

from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.parameters import DOUBLES, ParameterSpec, declare

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

    def declare_with(**overrides):
        node = rclpy.create_node(
            "parameters_under_test",
            context=context,
            parameter_overrides=[Parameter(name, value=v) for name, v in overrides.items()],
        )
        nodes.append(node)
        return node, declare(node, TABLE)

    yield declare_with
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


def test_values_come_from_overrides_and_otherwise_from_the_table(declared):
    _, values = declared(threads=4, limits=[0.5, 1.5])
    assert values == {
        "control_rate_hz": 30.0,
        "threads": 4,
        "mode": "clip",
        "limits": [0.5, 1.5],
        "threshold": 0.5,
    }


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
def test_a_wrong_parameter_stops_the_node_with_what_to_do(declared, overrides, said):
    with pytest.raises(ConfigError, match=said):
        declared(**overrides)


def test_only_a_live_parameter_can_be_set_while_the_node_runs(declared):
    node, _ = declared()
    live, fixed = node.set_parameters(
        [Parameter("threshold", value=0.7), Parameter("threads", value=2)]
    )
    assert live.successful
    assert not fixed.successful
