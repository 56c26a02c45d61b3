"""What a plan puts on which host, what the hosts tell each other, and what of that is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from host_fleets import JUDGE, three_hosts

from kairos_ros.bringup.fleet_files import runnable
from kairos_ros.bringup.planned.change import change, planned_fleet
from kairos_ros.bringup.planned.hosts.fleet_hosts import FleetHosts
from kairos_ros.bringup.planned.hosts.host_part import ToldPlan, hosts_of, part_of, read_told_plan
from kairos_ros.bringup.planned.hosts.judge_shares import shares
from kairos_ros.bringup.planned.hosts.part_check import check_part
from kairos_ros.bringup.planned.planner import FleetPlanner, PlanChoices, exchanged
from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import ConfigError, KairosError, WireError
from kairos_ros.core.placement.host_status import SILENT_S, HostStatus, digest, read_host_status
from kairos_ros.fleet import host as on_host
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.nodes.serving.parameters import planned_remote
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

PORT = 7431


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    """Plans the three hosts' fleet, with changes of its file."""

    def plan(gpus=4, running=None, change=lambda text: text, **cluster):
        folder = tmp_path_factory.mktemp("fleet")
        file = three_hosts(folder, PORT, **cluster)
        file.write_text(change(file.read_text()))
        return FleetPlanner(str(file), PlanChoices(gpus=gpus, host="a")).plan(running)

    return plan


@pytest.fixture(scope="module")
def fleet(plan_of):
    return plan_of()[0]


def test_a_host_needs_what_its_part_needs(tmp_path, monkeypatch):
    """Host c has simulated robots only."""
    file = three_hosts(tmp_path, PORT)
    installed = {"gymnasium"}
    monkeypatch.setattr(
        on_host, "lacking", lambda module: "" if module in installed else f"{module} is missing"
    )
    assert runnable(file, "c").robots
    for host in ("a", "b", ""):
        with pytest.raises(ConfigError, match="safetensors is missing"):
            runnable(file, host)
    installed.clear()
    with pytest.raises(ConfigError, match="gymnasium is missing"):
        runnable(file, "c")


def test_every_process_of_a_plan_is_on_one_host_and_engines_elsewhere_are_workers(fleet, plan_of):
    parts = {host: part_of(fleet, host) for host in "abc"}
    assert set(parts["a"]) == {"serving", "swing_1", "swing_2"}
    assert set(parts["b"]) == {"gpu1-emulated-swing-7431", "monitor", "monitor_replica_2"}
    assert set(parts["c"]) == {"drive_1", "drive_2"}
    assert sorted(hosts_of(fleet)) == ["a", "b", "c"]
    near, far = fleet.served.engines
    assert (near.host, near.endpoint) == ("a", "")
    assert (far.host, far.endpoint) == ("b", "tcp://127.0.0.1:7431")
    worker = parts["b"]["gpu1-emulated-swing-7431"].arguments
    assert worker[:3] == ("worker", "--listen", "tcp://127.0.0.1:7431")
    assert "--insecure-loopback" in worker
    assert planned_fleet(json.loads(json.dumps(fleet.to_dict()))) == fleet
    made = plan_of()[1].to_dict()
    assert [one["host"] for one in made["servers"]] == ["a", "b", "b", "b"]


def test_beyond_loopback_a_worker_and_its_serving_node_have_keys(plan_of, tmp_path):
    fleet, _ = plan_of(change=lambda text: text.replace("address: 127.0.0.1", "address: 192.0.2.7"))
    (worker,) = (s.arguments for s in part_of(fleet, "b").values() if s.kind is ProcessKind.WORKER)
    assert worker[1:3] == ("--listen", "tcp://0.0.0.0:7431")
    assert worker[-2:] == ("--key", "b")
    far = fleet.served.engines[1]
    values = {"keys": str(tmp_path)}
    with pytest.raises(ConfigError, match="kairos keys new NAME"):
        planned_remote(values, far)
    keys, host = KeyFolder(tmp_path), KeyFolder(tmp_path / "b")
    keys.new("a", Role.CLIENT)
    host.new("b", Role.SERVER)
    keys.trust(host.public("b"))
    assert planned_remote(values, far).security.server == host.public("b")
    near = replace(far, endpoint="tcp://127.0.0.1:7431")
    assert planned_remote(values, near).security is Insecure.LOOPBACK


def test_an_engine_keeps_its_port_and_a_new_one_gets_another(fleet, plan_of):
    more, _ = plan_of(5, fleet)
    assert {e.name: e.endpoint.rpartition(":")[2] for e in more.served.engines} == {
        "gpu0/emulated-swing": "", "gpu1/emulated-swing": "7431", "gpu2/emulated-swing": "7432",
    }  # fmt: skip
    assert "engine gpu2/emulated-swing starts on b, batches up to 4" in change(fleet, more).lines
    again, _ = plan_of(
        4, more, lambda text: text.replace("state=3,dim=1", "state=3,dim=1,load_s=1")
    )  # another policy beside the old one, at a port that is free meanwhile
    assert [e.endpoint.rpartition(":")[2] for e in again.served.engines] == ["", "7433"]


def test_a_second_serving_node_follows_the_same_plan(tmp_path):
    file = three_hosts(tmp_path, PORT, standby=True)
    fleet, _ = FleetPlanner(str(file), PlanChoices(host="a")).plan()
    first, second = part_of(fleet, "a")["serving"], part_of(fleet, "b")["serving_standby"]
    assert second.parameters == {**first.parameters, "standby_after_s": 1.0}
    assert all(one.endpoint for one in fleet.served.engines), "both reach all engines"
    more = three_hosts(tmp_path, PORT, standby=True, swings=1)
    after, _ = FleetPlanner(str(more), PlanChoices(host="a")).plan(fleet)
    steps = change(fleet, after)
    assert steps.tell["serving_standby"]["plan"] == steps.tell["serving"]["plan"]
    assert read_told_plan(ToldPlan("a", fleet, staged=False).text).fleet == fleet


def test_a_standby_takes_the_place_of_an_engine_with_its_host(plan_of):
    fleet, plan = plan_of(4, hot_standby=1)
    spare = next(one for one in fleet.served.engines if one.standby)
    dead = fleet.served.engines[0]
    after = exchanged(fleet, plan, dead.name, spare.name).fleet.served
    serves = next(one for one in after.engines if dead.robots == one.robots)
    assert (serves.gpu, serves.host, serves.endpoint) == (spare.gpu, "b", spare.endpoint)
    assert next(one for one in after.engines if one.standby).host == "a"


def test_robots_of_a_replica_that_is_down_go_to_the_others_and_come_back(fleet):
    assert shares(fleet, ()) == {"monitor": ["drive_1"], "monitor_replica_2": ["drive_2"]}
    assert shares(fleet, {"monitor"}) == {"monitor_replica_2": ["drive_2", "drive_1"]}
    assert shares(fleet, {"monitor", "monitor_replica_2"}) == {}


def test_a_judge_at_endpoints_has_a_replica_for_each_of_them(plan_of):
    def at(*urls):
        model = f"models:\n  {JUDGE}: openai:{'|'.join(urls)}\n"
        return plan_of(change=lambda text: text.replace("models:\n", model))[0]

    two = part_of(at("http://x:8000/v1#J", "http://y:8000/v1#J"), "b")
    assert [two[key].parameters["model"] for key in ("monitor", "monitor_replica_2")] == [
        "openai:http://x:8000/v1#J", "openai:http://y:8000/v1#J"
    ]  # fmt: skip
    assert [two[key].parameters["robots"] for key in ("monitor", "monitor_replica_2")] == [
        ["drive_1"], ["drive_2"]
    ]  # fmt: skip
    one = part_of(at("http://x:8000/v1#J"), "b")
    assert one["monitor"].parameters["robots"] == ["drive_1", "drive_2"]
    assert "monitor_replica_2" not in one
    with pytest.raises(ConfigError, match="is no endpoint"):
        at("http://x:8000/v1#J", "y")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gpus: 4", "gpus: 3", "its hosts have 4 GPUs, and num_servers is 5"),
        ("name: c", "name: b", "two hosts are called 'b'"),
        ("host: c", "host: d", "there is no host 'd'; server_cluster.hosts has: a, b, c"),
        ("name: c", "name: c\n    address: 127.0.0.1\n    port: 7431",
         "two hosts are at 127.0.0.1 with port 7431"),
        ("port: 7431", "port: 0", "port"),
        ("address: 127.0.0.1", "address: '1:2'", "address '1:2' of host 'b' is no IPv6 address"),
        ("gpu_type", "standby_server: a\n  gpu_type", "name a host besides the first one: b, c"),
        ("gpu_type", "standby_server: b\n  gpu_type", "'a', which it shall replace: give that"),
        ("name: c", "name: '-'", "name"),
    ],
)  # fmt: skip
def test_hosts_that_make_no_sense_are_refused_where_they_are_written(tmp_path, old, new, says):
    file = three_hosts(tmp_path, PORT)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=says):
        read_fleet(file, Known(("sim",)))


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"host": ""}, "say which one this is, for example --host a"),
        ({"host": "d"}, "has no such host; it has a, b, c"),
        ({"host": "a", "gpus": 9}, "uses 9 GPUs and the hosts of the fleet file have 5"),
    ],
)
def test_a_host_that_the_file_does_not_have_is_refused(tmp_path, choices, says):
    file = three_hosts(tmp_path, PORT, swings=20)
    with pytest.raises(ConfigError, match=says):
        FleetPlanner(str(file), PlanChoices(**choices)).plan()


def test_a_host_name_for_a_file_without_hosts_is_refused(tmp_path):
    file = three_hosts(tmp_path, PORT, hosts=[])
    file.write_text(file.read_text().replace("  host: c\n", ""))
    with pytest.raises(ConfigError, match="names no hosts"):
        FleetPlanner(str(file), PlanChoices(host="a"))


def test_a_told_plan_is_read_and_one_that_starts_anything_else_is_refused(fleet):
    told = ToldPlan("a", fleet, staged=True)
    assert read_told_plan(told.text) == told
    for bad in (
        ProcessSpec("kairos", "x", host="b", arguments=("worker",), kind=ProcessKind.WORKER),
        ProcessSpec("rviz2", "x", host="b", package="rviz2"),
        ProcessSpec("recorder_node", "x", host="b"),
        ProcessSpec("robot_node", "x", host="b", arguments=("--y",)),
    ):
        evil = replace(fleet, specs=(*fleet.specs, bad))
        with pytest.raises(ConfigError, match="hosts start robot_node"):
            read_told_plan(ToldPlan("a", evil, staged=False).text)


def refused(fleet, host, says, file=None):
    """A host that was started with a file of its own does not follow this plan."""
    with pytest.raises(ConfigError, match=says):
        check_part(ToldPlan("a", fleet, staged=False), host, file or Path(fleet.file))


def changed(fleet, key, **parameters):
    """A plan that has other parameters of one node."""
    specs = [
        replace(spec, parameters={**spec.parameters, **parameters}) if name == key else spec
        for name, spec in fleet.nodes.items()
    ]
    return replace(fleet, specs=tuple(specs))


def test_a_host_starts_robots_judges_and_models_only_as_its_own_file_has_them(fleet, tmp_path):
    for host in "bc":
        check_part(ToldPlan("a", fleet, staged=False), host, Path(fleet.file))
    for other in ({"control_rate_hz": 99.0}, {"adapter": "lerobot"}, {"body_log": "/tmp"}):
        says = r"host a and .* on host c do not agree about drive_1"
        refused(changed(fleet, "drive_1", **other), "c", says)
    refused(changed(fleet, "monitor", model="openai:http://192.0.2.7/v1#spy"), "b", "about monitor")
    check_part(ToldPlan("a", changed(fleet, "monitor", robots=["x"]), False), "b", Path(fleet.file))
    for node in (
        ProcessSpec("robot_node", "robot", "drive_9", host="c"),
        replace(fleet.nodes["swing_1"], host="c"),
        replace(fleet.nodes["serving"], host="c"),
        replace(fleet.nodes["monitor"], name="../../monitor", host="c"),
    ):
        refused(replace(fleet, specs=(*fleet.specs, node)), "c", f"about {Fleet.key(node)}")
    for options in ({"policy": "/tmp/x"}, {"allowed_steps": "os.system"}, {"pool": "ray"}):
        policies = {name: {**had, **options} for name, had in fleet.served.policies.items()}
        other = replace(fleet, served=replace(fleet.served, policies=policies))
        refused(other, "b", "about policy emulated-swing")
        check_part(ToldPlan("a", other, staged=False), "c", Path(fleet.file))  # which has none
    engine = fleet.served.engines[1]
    more = [replace(engine, gpu=f"gpu{i}", robots=(), endpoint=f"tcp://127.0.0.1:{i}")
            for i in (7, 8)]  # fmt: skip
    served = replace(fleet.served, engines=(*fleet.served.engines, *more))
    refused(replace(fleet, served=served), "b", "has 5 models on host b, which has 4 GPUs")
    refused(fleet, "b", "in the same folder on both hosts", tmp_path / "fleet.yaml")


def test_a_second_serving_node_is_started_only_where_the_own_file_has_it(tmp_path):
    file = three_hosts(tmp_path, PORT, standby=True)
    fleet, _ = FleetPlanner(str(file), PlanChoices(host="a")).plan()
    check_part(ToldPlan("a", fleet, staged=False), "b", file)
    refused(changed(fleet, "serving_standby", max_robots=7), "b", "about serving_standby")
    file.write_text(file.read_text().replace("standby_server: b", "standby_server: c"))
    refused(fleet, "b", "about serving_standby")


@pytest.mark.parametrize("text", ["", "5", "[]", "{}", "[" * 100_000, '{"host": "a", "fleet": 5}'])
def test_what_is_no_message_of_a_host_is_refused(text):
    with pytest.raises(ConfigError):
        read_told_plan(text)
    with pytest.raises(WireError):
        read_host_status(text)


class Heard:
    """Topics on which everything has been said."""

    plan = ""

    def __init__(self, *statuses):
        self.statuses, self.told = statuses, []

    def heard(self):
        return list(self.statuses)

    def tell_plan(self, text):
        self.told.append(read_told_plan(text))

    def tell_status(self, status):
        assert read_host_status(status.text) == status

    def diagnose(self, wrong):
        self.wrong = wrong


def status(host, fleet, session="1", **fields):
    return HostStatus(host, session, fleet.served.identity, **fields)


@pytest.mark.parametrize(
    "engine",
    [
        {"batch": 1e999}, {"endpoint": "tcp://[::1"}, {"endpoint": "tcp://x:../../y"},
        {"endpoint": "tcp://x:0"}, {"endpoint": "tcp://*:7411"}, {"endpoint": "tcp://x:*"},
    ],
)  # fmt: skip
def test_numbers_and_addresses_that_are_none_are_refused(fleet, engine):
    data = json.loads(ToldPlan("a", fleet, staged=False).text)
    served = json.loads(data["fleet"]["served"])
    served["engines"][1] |= engine
    data["fleet"]["served"] = json.dumps(served)
    with pytest.raises(ConfigError, match=r"no plan|engine endpoint"):
        read_told_plan(json.dumps(data))
    with pytest.raises(WireError):
        read_host_status(json.dumps({**json.loads(HostStatus("a", "", "").text),
                                     "ended": {"x": 1e999}}))  # fmt: skip


def test_the_first_host_knows_who_is_missing_and_what_has_died(fleet):
    dead = {"monitor": "was killed by SIGKILL"}
    failed = {"monitor_replica_2": "ended with exit code 1 (3 times in a row)"}  # and runs again
    topics = Heard(
        (status("b", fleet, dead=dead, failed=failed), 1.0), (status("c", fleet), SILENT_S + 3)
    )
    hosts = FleetHosts("a", topics)
    hosts.look(fleet, {})
    assert topics.wrong == {
        "a": "",
        "b": "monitor on host b was killed by SIGKILL; monitor_replica_2 on host b ended with exit "
        "code 1 (3 times in a row)",
        "c": "host c has been silent for 9 s; start its part with `kairos fleet up FILE --host c` "
        "there",
    }
    assert hosts.down(fleet) == {"monitor", "drive_1", "drive_2"}
    hosts.tell(fleet)
    hosts.tell(fleet)
    assert [told.staged for told in topics.told] == [False], "told once"


def test_a_plan_is_told_again_until_hosts_have_heard_it_and_one_that_refuses_it_is_named(
    fleet, monkeypatch
):
    monkeypatch.setattr("kairos_ros.bringup.planned.hosts.fleet_hosts.AGAIN_S", 0.0)
    topics = Heard((status("b", fleet, told="of a stranger"), 1.0))
    hosts = FleetHosts("a", topics)
    hosts.tell(fleet)
    mine = digest(topics.told[0].text)
    assert not hosts.agree(fleet)
    hosts.look(fleet, {})
    assert len(topics.told) == 2
    topics.statuses = ((status("b", fleet, told=mine), 1.0),)
    assert hosts.agree(fleet), "c is not there"
    hosts.look(fleet, {})
    assert len(topics.told) == 2
    topics.statuses = ((status("b", fleet, told=mine, problem="has another file"), 1.0),)
    with pytest.raises(KairosError, match="host b: has another file"):
        hosts.agree(fleet)


def test_a_change_is_called_off_where_a_host_cannot_make_its_part(fleet, plan_of):
    more, _ = plan_of(5, fleet)
    FleetHosts("a", Heard((status("b", fleet), 1.0))).check(more, fleet)
    with pytest.raises(KairosError, match="gpu2-emulated-swing-7432 cannot start: host b was not"):
        FleetHosts("a", Heard()).check(more, fleet)
    failed = {"gpu2-emulated-swing-7432": "ended with exit code 1 (2 times in a row)"}
    with pytest.raises(KairosError, match="gpu2/emulated-swing on host b ended with exit code 1"):
        FleetHosts("a", Heard((status("b", fleet, failed=failed), 1.0))).check(more, fleet)
    FleetHosts("a", Heard()).check(fleet, fleet)  # nothing is to be started there


def test_of_two_programs_for_one_host_the_later_one_ends(fleet):
    first = Heard((status("a", fleet, session="0000 process 5 on x"), 1.0))
    with pytest.raises(ConfigError, match=r"runs the part of host a already \(process 5 on x\)"):
        FleetHosts("a", first).check_sole()
    later = Heard((status("a", fleet, session="9" * 25), 1.0))
    FleetHosts("a", later).check_sole()
    with pytest.raises(ConfigError, match="already"):  # whose clock is behind
        FleetHosts("a", later).check_sole(starting=True)
    gone = Heard((status("a", fleet, session="0000"), SILENT_S + 1))
    FleetHosts("a", gone).check_sole()
