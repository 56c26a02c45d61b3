"""A standby engine: no robot waits for a second when the engine that serves it is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from far_worker import Checked, end_all, engine, longest_pause_s
from ports import free_ports
from wire import until, worker_of

from kairos_ros.bringup.plan import serving

POLICY = "emulated:latency_ms=30,chunk=20,state=2,dim=2"
LOAD_S = 8
LONGEST_S = 4.0
"""Without the standby, robots would wait for the engine to load."""


@pytest.fixture(scope="module")
def port():
    return free_ports()


@pytest.fixture(scope="module")
def spare(tmp_path_factory, port):
    """A worker on this host, as on a GPU that is kept for this."""
    program = Path(sys.executable).with_name("kairos")
    where = f"tcp://127.0.0.1:{port}"
    command = [program, "worker", "--listen", where, "--policy", f"pick={POLICY}"]
    with (tmp_path_factory.mktemp("spare") / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--insecure-loopback"], stdout=log, stderr=log)
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def server(start_for_module, wire, spare, port):
    node = start_for_module(
        serving(
            policy=f"{POLICY},load_s={LOAD_S}",
            horizon="static:10",
            stale_after_s=0.0,
            fleet_state_hz=20.0,
            engines=[f"spare=tcp://127.0.0.1:{port},policy=pick,insecure_loopback,standby"],
        )
    )
    wire.serving_since()
    until(lambda: engine(wire, "spare").state == "standby", what="for the standby engine")
    return node


@pytest.fixture
def robots(server, wire):
    robots = [Checked(wire, f"arm_{i}", state=[1.0, 0.0]).begin() for i in range(3)]
    yield robots
    end_all(robots)


def tiers(robots):
    """Of the next answers of each; the very next may have been asked for before."""
    marks = [len(robot.answers) + 1 for robot in robots]
    for robot in robots:
        robot.check(6)
    return {t for robot, mark in zip(robots, marks, strict=True) for t in robot.tiers(mark)}


def test_its_robots_are_served_at_once_and_go_back_when_the_engine_is_up_again(
    server, wire, robots
):
    assert tiers(robots) == {"edge"}

    os.kill(worker_of(server), signal.SIGKILL)
    pause_s = longest_pause_s(wire, robots, LONGEST_S + 0.5)
    print(f"longest wait of a robot: {pause_s:.2f} s")
    assert pause_s < LONGEST_S
    assert {robot.answers[-1].tier for robot in robots} == {"cloud"}
    assert engine(wire, "edge").state in ("down", "starting", "loading")
    until(lambda: wire.counter("served_by_standby") > 0, what="for the counter")

    until(lambda: engine(wire, "edge").state in ("ready", "busy"), what="for the edge engine")
    until(lambda: engine(wire, "spare").state == "standby", what="for the spare to stand by")
    assert tiers(robots) == {"edge"}
