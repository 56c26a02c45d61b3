"""A planned fleet whose second serving node, on another host, follows the plan and takes over."""

import os
import signal
import time

import pytest
from fleet_on_hosts import Hosts, patiently
from wire import Operator

from kairos_ros.commands.fleets.planned import apply_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def hosts(wire, tmp_path):
    """Host `a` has the first serving node and an arm that swings, `b` the engines and the second
    serving node."""
    hosts = Hosts(tmp_path, wire, gpus=3, arms=("swing_1",), standby=True)
    with hosts:
        hosts.up("b")
        hosts.up("a")
        patiently(hosts.active, what="for an active serving node")
        operator = Operator(wire, "swing_1")
        operator.give(instruction="go", max_duration_s=900.0)
        yield hosts
        operator.close()


def test_the_second_serving_node_takes_over_with_the_plan_and_its_changes(hosts):
    hosts.go_on()
    patiently(lambda: hosts.child("b", "serving_node"), what="for the second serving node")
    first = hosts.active().server
    apply_command(str(hosts.file), gpus=hosts.gpus + 1)
    plan, engines = hosts.active().plan, {one.engine for one in hosts.active().engines}
    began_s = time.monotonic()
    os.kill(hosts.child("a", "serving_node"), signal.SIGKILL)
    took_over = lambda: (s := hosts.active()) and s.server != first and s  # noqa: E731
    state = patiently(took_over, what="for the second serving node to serve")
    assert state.plan == plan, "the change was told to both"
    assert {one.engine for one in state.engines} == engines
    hosts.go_on()
    print(f"longest time between two actions: {hosts.gap_s(began_s):.2f} s")  # by pytest -rP
    (swing,) = (one for one in hosts.active().robots if one.robot == "swing_1")
    assert swing.planned_engine in engines
    assert swing.planned_period_s > 0
    # the first one is started again, and stands by
    patiently(lambda: hosts.child("a", "serving_node"), what="for the first serving node")
    second = state.server
    apply_command(str(hosts.file), gpus=hosts.gpus)
    state = patiently(hosts.active)
    assert state.server == second
    assert state.plan != plan, "the one that serves has changed"
    hosts.go_on()
