"""A planned fleet whose second serving node, on another host, follows the plan and takes over."""

import os
import signal
import time

import pytest
from fleet_on_hosts import Hosts, patiently
from kairos_ros.msg import ServerStatus
from wire import Operator

from kairos_ros.commands.fleets.planned import apply_command

pytestmark = pytest.mark.slow


LOAD_S = 4
"""That every engine takes to load: time for whatever happens meanwhile."""
YIELDS_S = 5.0
"""A server that has served for so long leaves the robots to none that was just started."""


@pytest.fixture(scope="module")
def hosts(wire, tmp_path_factory):
    """Host `a` has the first serving node and an arm that swings, `b` the engines and the second
    serving node."""
    folder = tmp_path_factory.mktemp("hosts")
    hosts = Hosts(folder, wire, gpus=3, arms=("swing_1",), standby=True)
    hosts.file.write_text(hosts.file.read_text().replace("dim=1", f"dim=1,load_s={LOAD_S}"))
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
    old = hosts.active().plan
    apply_command(str(hosts.file), gpus=hosts.gpus + 1)
    changed = lambda plan: (s := hosts.active()) and s.plan != plan and s  # noqa: E731
    state = patiently(lambda: changed(old), what="for the state by the new plan")
    plan, engines = state.plan, {one.engine for one in state.engines}
    began_s = time.monotonic()
    state = second_serves(hosts)
    assert state.plan == plan, "the change was told to both"
    assert {one.engine for one in state.engines} == engines
    hosts.go_on()
    print(f"longest time between two actions: {hosts.gap_s(began_s):.2f} s")  # by pytest -rP
    (swing,) = (one for one in hosts.active().robots if one.robot == "swing_1")
    assert swing.planned_engine in engines
    assert swing.planned_period_s > 0
    # the first one is started again
    while first_serves(hosts):
        second_serves(hosts)
    apply_command(str(hosts.file), gpus=hosts.gpus)
    patiently(lambda: changed(plan), what="for the one that serves to change")
    hosts.go_on()


def test_where_the_first_host_dies_before_a_change_is_made_the_second_keeps_the_old_plan(hosts):
    """After the test before this one, whose second serving node serves."""
    before = hosts.active()
    killed = hosts.child("b", "serving_node")
    os.kill(killed, signal.SIGKILL)
    patiently(
        lambda: hosts.child("b", "serving_node") not in (None, killed), what="for its successor"
    )
    first, second = server_of(hosts, "a"), server_of(hosts, "b")
    staged = lambda: {s.server: s.staged_plan for s in hosts.wire.fleet[-12:] if s.plan}  # noqa: E731
    patiently(lambda: {first, second} <= staged().keys(), what="for both to be heard")
    apply = hosts.applies(hosts.gpus + 1)
    both = lambda: [staged().get(server) for server in (first, second)]  # noqa: E731
    patiently(lambda: all(both()), what="for both to load new engines")
    hosts.processes["a"].kill()
    said = apply.communicate(timeout=120.0)[0].decode()
    assert apply.returncode == 1
    assert (
        "the program that runs the fleet has ended; the second serving node serves robots by "
        f"{before.plan}" in said
    )
    up = lambda: (s := hosts.active()) and s.server != first and s  # noqa: E731
    more = lambda: (s := up()) and len(ready(s)) > len(ready(before)) and s  # noqa: E731
    new = patiently(more, what="for the new engine")
    heard = len(hosts.wire.fleet)
    patiently(lambda: len(hosts.wire.fleet) > heard + 10, what="for further states")
    assert (hosts.active().plan, hosts.active().server) == (before.plan, second)
    assert new.server == second
    # the first host comes back, and a following change is made
    hosts.up("a")
    patiently(lambda: not up().staged_plan and not more(), what="for the new engine to end")
    apply_command(str(hosts.file), gpus=hosts.gpus + 1)
    patiently(lambda: (s := more()) and s.plan != before.plan, what="for the new plan")


def server_of(hosts, host):
    """The name of the serving node that runs on a host now."""
    pid = patiently(lambda: hosts.child(host, "serving_node"), what=f"for that of host {host}")
    told = lambda: next((s.server for s in hosts.wire.servers.values() if s.pid == pid), "")  # noqa: E731
    return patiently(told, what=f"for the state of that of host {host}")


def second_serves(hosts):
    """Kills the first serving node; the state of the second, which takes over."""
    second = server_of(hosts, "b")
    os.kill(hosts.child("a", "serving_node"), signal.SIGKILL)
    took_over = lambda: (s := hosts.active()) and s.server == second and s  # noqa: E731
    return patiently(took_over, what="for the second serving node to serve")


def first_serves(hosts):
    """Whether the first serving node, started again, has the robots back: it stands by, but where
    DDS has not found the second one while it listened."""
    first = patiently(lambda: hosts.child("a", "serving_node"), what="for the first serving node")
    pids = [first, hosts.child("b", "serving_node")]

    def settled():
        told = {s.pid: s for s in hosts.wire.servers.values() if s.pid in pids}
        serves = [pid for pid, s in told.items() if s.active_for_s > YIELDS_S]
        stand_by = [pid for pid, s in told.items() if s.state == ServerStatus.STANDBY]
        return sorted(serves + stand_by) == sorted(pids) and len(serves) == 1 and serves

    return patiently(settled, what="for one to serve and one to stand by") == [first]


def ready(state):
    """Its engines that are up."""
    return [one.engine for one in state.engines if one.state in ("ready", "busy")]
