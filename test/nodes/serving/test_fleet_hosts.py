"""A planned fleet on several hosts: a program per host, here all on one, over loopback and DDS."""

import os
import re
import signal
import time
from tempfile import TemporaryDirectory

import pytest
import typer
from fleet_on_hosts import Hosts, patiently
from wire import Operator

from kairos_ros.bringup.planned.planner import PlanChoices
from kairos_ros.commands.fleets.planned import apply_command, up_planned
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames

SWINGS = ("swing_1",)
GPUS = 4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts(wire, tmp_path_factory):
    """Hosts `a` and `b` run, and the arms of `a` swing for longer than these tests take."""
    hosts = Hosts(tmp_path_factory.mktemp("hosts"), wire, GPUS, SWINGS)
    with hosts:
        hosts.up("b")
        hosts.up("a")
        patiently(hosts.active, what="for an active serving node")
        operators = [Operator(wire, robot) for robot in SWINGS]
        for operator in operators:
            operator.give(instruction="go", max_duration_s=900.0)
        yield hosts
        for operator in operators:
            operator.close()


def test_every_host_runs_its_part_and_status_names_the_one_that_is_missing(hosts):
    hosts.go_on()

    def complete():
        """But for host c."""
        status = hosts.status()
        up = all(one["state"] in ("ready", "busy") for one in status["engines"])
        return status["hosts"]["b"] == "there" and up and status

    status = patiently(complete, what="for host b and the engines")
    engines = {one["engine"]: one["host"] for one in status["engines"]}
    assert engines == {"gpu0/emulated-swing": "a", "gpu1/emulated-swing": "b"}
    assert (
        "was not heard; start its part with `kairos fleet up FILE --host c`" in status["hosts"]["c"]
    )
    assert not status["agrees"]
    # the arms of host c are missing, and nothing else
    others = [one for one in status["differences"] if "host c" not in one and "drive_" not in one]
    assert [one for one in others if "more often" not in one] == []
    routes = {one.robot: one.planned_engine for one in hosts.state.robots}
    assert {routes[robot] for robot in SWINGS} == {"gpu1/emulated-swing"}, "of host b"
    assert hosts.child("b", "worker")
    patiently(lambda: hosts.child("b", "monitor_replica_2"), what="for the second monitor")
    assert not hosts.child("b", "serving_node")
    assert not hosts.child("a", "monitor")


def test_a_second_program_for_a_host_that_runs_is_refused(hosts, monkeypatch, tmp_path):
    def refused(host):
        how = PlanChoices(gpus=GPUS, host=host)
        with pytest.raises(ConfigError) as error:
            up_planned(str(hosts.file), how, FleetNames(), tmp_path, record=False, rviz=False)
        return str(error.value)

    assert "runs already" in refused("b")
    with TemporaryDirectory() as folder:  # of a path that is short enough for a socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)  # as on another computer
        assert "another program runs the part of host b already" in refused("b")
        assert "another program runs the part of host a already" in refused("a")


def test_robots_of_a_judge_that_dies_are_judged_by_its_replica_until_it_is_back(hosts):
    both, alone = "judges: monitor has drive_1, drive_2", "judges: monitor has drive_1\n"
    before = hosts.said("a").count(alone)
    os.kill(hosts.child("b", "monitor_replica_2"), signal.SIGKILL)
    patiently(lambda: both in hosts.said("a"), what="for the other one to have its robot")
    patiently(lambda: hosts.said("a").count(alone) > before, what="for its return")
    assert hosts.child("b", "monitor_replica_2")


def test_an_engine_of_another_host_is_added_while_the_arms_go_on(hosts, capfd):
    before = hosts.state.plan
    apply_command(str(hosts.file), gpus=GPUS + 1)
    assert "starts on b" in capfd.readouterr().out
    patiently(lambda: hosts.state.plan != before, what="for the state by the new plan")
    patiently(lambda: f"host b runs by {hosts.state.plan}" in hosts.said("b"), what="for host b")
    up = lambda: {one.engine for one in hosts.state.engines if one.state in ("ready", "busy")}  # noqa: E731
    wanted = {"gpu0/emulated-swing", "gpu1/emulated-swing", "gpu2/emulated-swing"}
    patiently(lambda: up() == wanted, what=f"for {wanted}")
    hosts.go_on()


def test_a_host_that_is_gone_is_named_and_its_robots_are_served_by_what_is_left(hosts, capfd):
    apply_command(str(hosts.file), gpus=GPUS)
    began_s = time.monotonic()
    hosts.processes["b"].kill()
    hosts.processes["b"].wait()
    hosts.go_on()
    gap_s = hosts.gap_s(began_s)
    patiently(lambda: "silent" in hosts.status()["hosts"]["b"], what="for the silence of host b")
    status = hosts.status()
    assert re.search(r"host b has been silent for \d+ s; start", "; ".join(status["differences"]))
    engines = {one["engine"]: one["state"] for one in status["engines"]}
    assert engines["gpu0/emulated-swing"] in ("ready", "busy")
    assert engines["gpu1/emulated-swing"] not in ("ready", "busy")
    # a change that needs it is refused at once, and nothing else changes
    before = hosts.state.plan
    capfd.readouterr()
    with pytest.raises(typer.Exit):
        apply_command(str(hosts.file), gpus=GPUS + 1)
    assert "cannot start: host b has been silent for" in capfd.readouterr().err
    assert hosts.state.plan == before
    hosts.go_on()
    # when it comes again, it takes its part, and the fleet is as planned
    hosts.up("b")
    up = lambda: {e.engine: e.state for e in hosts.state.engines}["gpu1/emulated-swing"]  # noqa: E731
    patiently(lambda: up() in ("ready", "busy"), what="for the engine of host b")
    patiently(lambda: hosts.status()["hosts"]["b"] == "there", what="for host b")
    print(f"longest time between two actions: {gap_s:.2f} s")  # shown by pytest -rP
