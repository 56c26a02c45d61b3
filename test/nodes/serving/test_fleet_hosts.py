"""A planned fleet on several hosts: a program per host, here all on one, over loopback and DDS."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml
from host_fleets import three_hosts
from kairos_ros.msg import FleetState
from wire import Operator, until

from kairos_ros.bringup.fleet_planner import PlanChoices
from kairos_ros.commands.fleets.planned import apply_command, status_command, up_planned
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.robot.body_log import read_body_log

KAIROS = Path(sys.prefix, "bin", "kairos")
SWINGS = ("swing_1", "swing_2")
GPUS = 4

pytestmark = pytest.mark.slow


class Hosts:
    """`kairos fleet up --host` of two hosts; the third one is never started."""

    def __init__(self, folder, wire):
        self.folder, self.wire = folder, wire
        self.bodies = folder / "bodies"
        robot = {"guard.tolerance": 0.0, "body_log": str(self.bodies)}
        (folder / "robot.yaml").write_text(yaml.safe_dump({"/**": {"ros__parameters": robot}}))
        self.file = three_hosts(folder, free_ports(), params=folder / "robot.yaml")
        self.processes = {}

    def up(self, host):
        with self.log(host).open("ab") as log:
            self.processes[host] = subprocess.Popen(
                [KAIROS, "fleet", "up", self.file, "--host", host, "--gpus", str(GPUS),
                 "--out", self.folder],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def log(self, host):
        return self.folder / f"{host}.log"

    def said(self, host):
        return self.log(host).read_text(errors="replace")

    def child(self, host, word):
        """The process of a host whose command line has a word."""
        task = Path(f"/proc/{self.processes[host].pid}/task")
        children = [
            int(pid) for file in task.glob("*/children") for pid in file.read_text().split()
        ]
        found = [pid for pid in children if word in Path(f"/proc/{pid}/cmdline").read_text()]
        return found[0] if found else None

    def status(self):
        """What `kairos fleet status` says."""
        file = self.folder / "status.json"
        with pytest.raises(typer.Exit):
            status_command(json_=file)
        return json.loads(file.read_text())

    @property
    def state(self) -> FleetState:
        return self.wire.fleet[-1]

    def acts(self, robot):
        """How many actions its body has executed."""
        return sum(e.kind == "act" for log in self.bodies.glob(f"{robot}.*")
                   for e in read_body_log(log))  # fmt: skip

    def gap_s(self, began_s):
        """The longest time between two executed actions of any arm that swings since then."""
        gaps = []
        for robot in SWINGS:
            (log,) = self.bodies.glob(f"{robot}.*")
            times = [e.at_ns / 1e9 for e in read_body_log(log) if e.kind == "act"]
            times = [began_s, *(at for at in times if at > began_s)]
            gaps += [b - a for a, b in pairwise(times)]
        return max(gaps)

    def go_on(self):
        """Waits until every arm that swings has executed more actions."""
        before = {robot: self.acts(robot) for robot in SWINGS}
        until(lambda: all(self.acts(r) > n + 15 for r, n in before.items()), what="for actions")


def free_ports(wanted=8):
    """The first of some ports in a row that nobody listens at."""
    for first in range(21_000 + os.getpid() % 5000, 60_000, wanted):
        try:
            for port in range(first, first + wanted):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def hosts(wire, tmp_path_factory):
    """Hosts `a` and `b` run, and the arms of `a` swing for longer than these tests take."""
    hosts = Hosts(tmp_path_factory.mktemp("hosts"), wire)
    operators = []
    try:
        hosts.up("b")
        hosts.up("a")
        wire.serving_since()
        for robot in SWINGS:
            operators.append(Operator(wire, robot))
            operators[-1].give(instruction="go", max_duration_s=900.0)
        yield hosts
    finally:
        for operator in operators:
            operator.close()
        for process in hosts.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for host, process in hosts.processes.items():
            process.wait(60.0)
            print(f"--- {host}\n{hosts.said(host)[-4000:]}")


def test_every_host_runs_its_part_and_status_names_the_one_that_is_missing(hosts):
    hosts.go_on()
    until(lambda: hosts.status()["hosts"]["b"] == "there", what="for host b")
    status = hosts.status()
    engines = {one["engine"]: (one["host"], one["state"]) for one in status["engines"]}
    assert engines.keys() == {"gpu0/emulated-swing", "gpu1/emulated-swing"}
    assert [host for host, _ in engines.values()] == ["a", "b"]
    assert all(state in ("ready", "busy") for _, state in engines.values())
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
    assert hosts.child("b", "monitor_replica_2")
    assert not hosts.child("b", "serving_node")
    assert not hosts.child("a", "monitor")


def test_a_host_that_is_wrong_or_runs_already_is_refused(hosts, monkeypatch, tmp_path):
    def refused(host):
        how = PlanChoices(gpus=GPUS, host=host)
        with pytest.raises(ConfigError) as error:
            up_planned(str(hosts.file), how, FleetNames(), tmp_path, record=False, rviz=False)
        return str(error.value)

    assert "has no such host; it has a, b, c" in refused("d")
    assert "say which one this is, for example --host a" in refused("")
    assert "runs already" in refused("b")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # as on another computer
    assert "another program runs the part of host b already" in refused("b")
    assert "another program runs the part of host a already" in refused("a")


def test_robots_of_a_judge_that_dies_are_judged_by_its_replica_until_it_is_back(hosts):
    os.kill(hosts.child("b", "monitor_replica_2"), signal.SIGKILL)
    until(lambda: "judges: monitor has drive_1, drive_2" in hosts.said("a"), what="for the other")
    until(lambda: hosts.said("a").count("judges: monitor has drive_1\n"), what="for its return")
    assert hosts.child("b", "monitor_replica_2")


def test_an_engine_of_another_host_is_added_while_the_arms_go_on(hosts, capfd):
    before = hosts.state.plan
    apply_command(str(hosts.file), gpus=GPUS + 1)
    assert "starts on b" in capfd.readouterr().out
    assert hosts.state.plan != before
    until(lambda: f"host b runs by {hosts.state.plan}" in hosts.said("b"), what="for host b")
    assert {one.engine for one in hosts.state.engines if one.state in ("ready", "busy")} == {
        "gpu0/emulated-swing", "gpu1/emulated-swing", "gpu2/emulated-swing"
    }  # fmt: skip
    hosts.go_on()


def test_a_host_that_is_gone_is_named_and_its_robots_are_served_by_what_is_left(hosts, capfd):
    apply_command(str(hosts.file), gpus=GPUS)
    began_s = time.monotonic()
    hosts.processes["b"].kill()
    hosts.processes["b"].wait()
    hosts.go_on()
    print(f"longest time between two actions: {hosts.gap_s(began_s):.2f} s")  # by pytest -rP
    until(lambda: "silent" in hosts.status()["hosts"]["b"], what="for the silence of host b")
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
    until(lambda: up() in ("ready", "busy"), what="for the engine of host b")
    until(lambda: hosts.status()["hosts"]["b"] == "there", what="for host b")
