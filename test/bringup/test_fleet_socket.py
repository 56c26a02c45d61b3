"""Whatever comes by the socket of a running fleet that is wrong is refused, and nothing is lost."""

import json
import socket
from pathlib import Path

import pytest

from kairos_ros.bringup.planned.change import planned_fleet
from kairos_ros.bringup.planned.planner import FleetPlanner, PlanChoices
from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.host.fleet_socket import FleetConnection, FleetListener

EMULATED = Path(__file__).parents[2] / "config" / "fleets" / "emulated.yaml"


@pytest.mark.parametrize("text", [b"hello", b"\xff\xfe", b"[]", b"[" * 100_000, b"1" * 10_000])
def test_what_is_no_message_is_refused_and_the_next_one_is_read(text):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = FleetConnection(ours, 1.0)
        theirs.sendall(text + b"\n" + b'{"do": "show"}\n')
        with pytest.raises(WireError):
            connection.receive()
        assert connection.receive() == {"do": "show"}


@pytest.fixture(scope="module")
def fleet():
    running, _ = FleetPlanner(str(EMULATED), PlanChoices()).plan()
    return json.loads(json.dumps(running.to_dict()))


@pytest.mark.parametrize(
    "changes",
    [
        {"specs": "x"}, {"specs": [1]}, {"specs": [{}]}, {"guests": []}, {"choices": 5},
        {"choices": "ab"}, {"choices": [[1, 2, 3]]}, {"served": 5}, {"served": "[]"},
    ],
)  # fmt: skip
def test_what_is_no_planned_fleet_is_refused(fleet, changes):
    assert planned_fleet(fleet).to_dict() == fleet
    with pytest.raises(ConfigError):
        planned_fleet(fleet | changes)


def test_a_node_whose_parameters_are_no_object_is_refused(fleet):
    with pytest.raises(ConfigError, match="parameters must be an object, not 5"):
        planned_fleet(fleet | {"specs": [one | {"parameters": 5} for one in fleet["specs"]]})


def test_a_folder_whose_path_no_socket_can_have_is_said(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(ConfigError, match=r"nobody can ask .* XDG_RUNTIME_DIR"), FleetListener("k"):
        pass
