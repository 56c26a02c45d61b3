"""Fleet files whose judges and planners ask the fleet's own gateway."""

import socket
import time
from pathlib import Path

import pytest
import yaml
from ports import free_ports

from kairos_ros.bringup.fleet import fleet_plan
from kairos_ros.bringup.plan import gateway
from kairos_ros.bringup.planned.change import PlannedFleet, change
from kairos_ros.bringup.planned.hosts.fleet_hosts import FleetHosts
from kairos_ros.bringup.planned.hosts.process_watch import ProcessWatch
from kairos_ros.bringup.process_spec import command
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import KairosError
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.document.faults import FaultyFileError
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.host import obstacles
from kairos_ros.fleet.reading import read_fleet

FACTORY = Path(__file__).parents[2] / "config" / "fleets" / "factory.yaml"
JUDGE = "embedded:factory_judge"
SERVED = ServedPlan(
    "factory", {"p": {"policy": "p"}}, (PlannedEngine("gpu0", "cpu", "p", 1, ()),), {}
)


@pytest.fixture
def fleet_of(tmp_path):
    """The factory with a section gateway, and models by component in all tasks."""

    def fleet(gateway, **models):
        data = yaml.safe_load(FACTORY.read_text())
        if gateway is not None:
            data["gateway"] = gateway
        for task in (one for one in data.values() if "components" in one):
            for component, model in models.items():
                if component in task["components"]:
                    task["components"][component] = {
                        **task["components"][component],
                        "model": model,
                    }
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return read_fleet(path, Known(adapters={"sim"}))

    return fleet


def test_the_gateway_is_a_process_of_the_site_and_nodes_ask_it(fleet_of, tmp_path):
    section = {"servers": [JUDGE], "order": "urgency", "dispatch": "lowest_peak", "port": 9100}
    fleet = fleet_of(section, safety=f"gateway:{JUDGE}", monitor=f"gateway:{JUDGE}")
    assert not list(obstacles(fleet, tmp_path))
    specs = fleet_plan(fleet, tmp_path)
    (own,) = [spec for spec in specs if spec.name == "gateway"]
    program, *arguments = command(own)
    assert program.endswith("/kairos")
    assert arguments == [
        *("gateway", JUDGE, "--listen", "127.0.0.1:9100"),
        *("--order", "urgency", "--dispatch", "lowest_peak"),
    ]
    asking = [
        spec.parameters for spec in specs if spec.executable in ("safety_node", "monitor_node")
    ]
    assert {one["model"] for one in asking} == {f"openai:http://127.0.0.1:9100/v1#{JUDGE}"}
    # a question may wait in the gateway's queue for as long as its answer is of use
    assert all(one["timeout_s"] == one["slo_ms"] / 1e3 for one in asking)
    assert all(one["in_flight"] > 1 for one in asking)
    planners = [spec.parameters for spec in specs if spec.executable == "planner_node"]
    assert {one["model"] for one in planners} == {"embedded:planner"}


def test_models_of_the_file_may_be_behind_the_gateway(fleet_of, tmp_path):
    section = {"servers": ["http://gpu-1:8000/v1", "http://gpu-2:8000/v1"]}
    fleet = fleet_of(section, system2="gateway:qwen3-vl")
    assert not list(obstacles(fleet, tmp_path))
    planners = [s.parameters for s in fleet_plan(fleet, tmp_path) if s.executable == "planner_node"]
    assert {one["model"] for one in planners} == {"openai:http://127.0.0.1:8380/v1#qwen3-vl"}


@pytest.mark.parametrize(
    ("gateway", "models", "says"),
    [
        ({"servers": [JUDGE]}, {}, "gateway: no component asks it"),
        (None, {"safety": "gateway:m"}, "the file has no section gateway"),
        ({"servers": []}, {"safety": "gateway:m"}, "gateway.servers"),
        ({"servers": [JUDGE], "order": "best"}, {}, "gateway.order: 'best' is not allowed"),
        ({"servers": [JUDGE]}, {"safety": "gateway:qwen"}, "the gateway has no model 'qwen'"),
        (
            {"servers": ["http://h:1/v1"]},
            {"safety": f"gateway:{JUDGE}"},
            f"the gateway has no model '{JUDGE}'",
        ),
        ({"servers": ["h:1"]}, {"safety": "gateway:m"}, "'h:1' is no server"),
        ({"servers": ["embedded:judge"]}, {}, "there is no judge 'embedded:judge'"),
        (
            {"servers": ["http://h/v1", "http://h:80/v1/"]},
            {"safety": "gateway:m"},
            "'http://h:80/v1/' is given twice",
        ),
        ({"servers": [JUDGE, JUDGE]}, {"safety": f"gateway:{JUDGE}"}, "is given twice"),
        ({"servers": [JUDGE]}, {"system2": f"gateway:{JUDGE}"}, "cannot be a system2"),
        ({"servers": [JUDGE]}, {"system1": f"gateway:{JUDGE}"}, "cannot be system1"),
    ],
)
def test_a_gateway_that_does_not_fit_is_refused(fleet_of, gateway, models, says):
    with pytest.raises(FaultyFileError) as raised:
        fleet_of(gateway, **models)
    assert says in str(raised.value)


def test_a_change_of_the_gateway_restarts_it_and_no_robot(fleet_of, tmp_path):
    def planned(**section):
        fleet = fleet_of({"servers": [JUDGE], **section}, safety=f"gateway:{JUDGE}")
        return PlannedFleet("factory", tuple(fleet_plan(fleet, tmp_path)), SERVED)

    before = planned()
    assert change(before, planned(order="urgency")).lines == ("restarts gateway",)
    # their address is the gateway's
    assert change(before, planned(port=9100)).lines == ("restarts gateway, safety",)


@pytest.mark.slow
def test_a_planned_fleet_has_its_gateway_before_its_judges_and_again_when_it_ends(tmp_path):
    port = free_ports()
    with socket.create_server(("127.0.0.1", port)):
        running = PlannedFleet("factory", (gateway([JUDGE], port=port),), SERVED)
        with Fleet([], tmp_path) as fleet:
            watch = ProcessWatch(fleet, None, FleetHosts(), print)
            elsewhere = {"gateway": gateway([JUDGE], port=1)}
            for keys, before in ((["gateway"], {}), ([], elsewhere)):
                with pytest.raises(KairosError, match=f"gateway: 127.0.0.1:{port} is in use"):
                    list(watch.start(keys, before, running.nodes, []))
            assert not list(watch.start([], running.nodes, running.nodes, [])), "it is its own"
            assert not fleet.processes

    with Fleet([], tmp_path) as fleet:
        watch, started = ProcessWatch(fleet, None, FleetHosts(), print), []
        for _ in watch.start(["gateway"], {}, running.nodes, started):
            assert not fleet.dead(), fleet.tail("gateway")
            time.sleep(0.1)
        socket.create_connection(("127.0.0.1", port)).close()
        assert started == ["gateway"]
        first = fleet.processes["gateway"]
        first.kill()
        first.wait()
        until_s = time.monotonic() + 60
        while fleet.processes["gateway"] is first and time.monotonic() < until_s:
            watch.look(running, changing=False)
            time.sleep(0.1)
        assert fleet.processes["gateway"] is not first
