"""A cloud whose clocks are hours off, of another boot, or jump, serves as one that is right.

A serving node, its edge engine and a cloud engine behind a 100 ms link, all real processes. The
worker's wall clock is moved by a preloaded library, its monotonic clock by a time namespace.
"""

import itertools
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from statistics import median

import pytest
from clocks import ahead, another_boot, robot_host, wall_clock_library
from far_worker import Checked, Cloud, end_all, engine, longest_pause_s
from wan import PORT, wan
from wire import Operator, until

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.lab.testbed.link_proxy import Conditions

pytestmark = pytest.mark.slow

POLICY = "chunk=20,state=3,dim=1"
HOURS = 5
HOUR_S = 3600
MOST_S = 5.0
"""By which times differ on a busy machine, each of whose processes may stand still for a while."""
BAD = ("late_batch", "link_down", "requeued", "refused_deadline", "engine_down")


@dataclass(frozen=True)
class Seen:
    """How a fleet of four was served for a while."""

    rtt_s: float
    bandwidth_mbps: float
    cloud_share: float
    server_s: float
    """Mean share of the server in an answer of the cloud."""
    expected_s: float
    """What placement expected of the cloud: median."""
    pause_s: float


@pytest.fixture(scope="module")
def wall_clock(tmp_path_factory):
    return wall_clock_library(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def link():
    with wan(Conditions(delay_s=0.05)) as link:
        yield link


@pytest.fixture(scope="module")
def cloud(link, tmp_path_factory):
    cloud = Cloud.with_keys(
        link, tmp_path_factory.mktemp("cloud"), f"pick=emulated:latency_ms=60,{POLICY}"
    )
    yield cloud
    cloud.end()


@pytest.fixture(scope="module")
def server(start_for_module, wire, link, cloud):
    node = start_for_module(
        serving(
            policy=f"emulated:latency_ms=250,{POLICY}",
            max_batch=1,
            horizon="static:10",
            stale_after_s=0.0,
            fleet_state_hz=20.0,
            keys=str(cloud.here),
            engines=[f"cloud={link.here(PORT)}"],
        )
    )
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def robots(server, wire):
    fields = {"state": [1.0, 0.0, 0.0], "deadline_s": 60.0}
    robots = [Checked(wire, f"arm_{i}", **fields).begin() for i in range(4)]
    yield robots
    end_all(robots)


@pytest.fixture(scope="module")
def usual(wire, robots, cloud):
    """How they are served by a cloud whose clocks are right."""
    return served_by(wire, robots, cloud, host=())


def test_the_clocks_are_really_off(wall_clock):
    """Guards the tests below: what runs on such a host sees its clocks."""
    look = "import time; print(time.time(), time.monotonic())"

    def seen(prefix, env):
        line = [*prefix, *preloaded(env), sys.executable, "-c", look]
        out = subprocess.run(line, capture_output=True, check=True, text=True).stdout.split()
        return [float(out[0]) - time.time(), float(out[1]) - time.monotonic()]

    assert seen([], ahead(wall_clock, HOURS * HOUR_S))[0] == pytest.approx(HOURS * HOUR_S, abs=5)
    jumping = ahead(wall_clock, HOUR_S, jumps=True)
    assert abs(seen([], jumping)[0]) == pytest.approx(HOUR_S, abs=5)
    if prefix := another_boot(HOURS * HOUR_S):
        assert seen(prefix, {})[1] == pytest.approx(HOURS * HOUR_S, abs=5)


def test_a_cloud_whose_clocks_are_hours_off_serves_as_any_other(
    wire, robots, cloud, wall_clock, usual
):
    began = time.time()
    host = [*another_boot(HOURS * HOUR_S), *preloaded(ahead(wall_clock, HOURS * HOUR_S))]
    off = served_by(wire, robots, cloud, host)
    said = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", cloud.log(), re.MULTILINE)[-1]
    assert datetime.fromisoformat(said).timestamp() - began == pytest.approx(HOURS * HOUR_S, abs=60)
    alike(off, usual)


def test_a_cloud_whose_wall_clock_jumps_every_second_serves_as_any_other(
    wire, robots, cloud, wall_clock, usual
):
    host = preloaded(ahead(wall_clock, HOURS * HOUR_S, jumps=True))
    alike(served_by(wire, robots, cloud, host), usual)


def test_a_robot_of_another_boot_is_served_with_a_cloud_whose_clock_is_behind(
    wire, robots, cloud, wall_clock, start
):
    served_by(wire, robots, cloud, preloaded(ahead(wall_clock, -HOURS * HOUR_S)), end=False)
    before = engine(wire, "cloud").requests
    name = "arm_of_another_boot"
    other_host = robot_host(wall_clock, HOURS * HOUR_S)
    body = {"adapter_options": ["env_id=Pendulum-v1"], "max_pause_s": 30.0}
    start(
        ProcessSpec("robot_node", "robot", name, body), prefix=another_boot(86_400), env=other_host
    )
    operator = Operator(wire, name)
    result = operator.result(operator.give(instruction="swing", max_actions=60))
    operator.close()
    assert (result.outcome, result.actions) == ("max_actions", 60)
    assert result.refusals == result.dropped == 0
    assert max(result.round_latency_s) < HOUR_S
    assert wire.stamps[f"kairos: {name}"] == pytest.approx(HOURS * HOUR_S, abs=60)
    assert engine(wire, "cloud").requests > before
    cloud.kill()


def preloaded(env):
    """A command prefix that sets environment variables, of what runs far away only."""
    return ["env", *(f"{key}={value}" for key, value in env.items())]


def served_by(wire, robots, cloud, host, *, end=True):
    """Starts a worker on such a host, and sees how it serves some rounds of everybody."""
    cloud.start(host=host)
    until(lambda: engine(wire, "cloud").state in ("ready", "busy"), what="for the cloud")
    before = {name: wire.counter(name) for name in BAD}
    marks = [len(robot.answers) for robot in robots]
    pause_s = longest_pause_s(wire, robots, 1.5)
    for robot in robots:
        robot.check(rounds=6)
    state = engine(wire, "cloud")
    answers = list(
        itertools.chain(*(r.answers[mark:] for r, mark in zip(robots, marks, strict=True)))
    )
    far = [answer for answer in answers if answer.tier == "cloud"]
    assert far
    # one that gets no processor for 1.5 s is given up; clocks that are off would end each batch
    assert sum(wire.counter(name) - before[name] for name in BAD) < len(answers) / 4
    expected = [float(s) for a in far for s in re.findall(r"([\d.]+) s there", a.reason)]
    if end:
        cloud.kill()
        until(
            lambda: engine(wire, "cloud").state in ("down", "unreachable"), what="for it to be gone"
        )
    return Seen(
        rtt_s=state.rtt_s,
        bandwidth_mbps=state.bandwidth_mbps,
        cloud_share=len(far) / len(answers),
        server_s=sum(answer.server_s for answer in far) / len(far),
        expected_s=median(expected),
        pause_s=pause_s,
    )


def alike(off, usual):
    """An hour would show in any of these; what a busy machine does to them does not."""
    print(f"off: {off}\nusual: {usual}")
    assert 0.095 < off.rtt_s < usual.rtt_s + MOST_S
    assert off.bandwidth_mbps > 0
    assert off.cloud_share == pytest.approx(usual.cloud_share, abs=0.35)
    assert off.server_s == pytest.approx(usual.server_s, abs=MOST_S)
    assert off.expected_s == pytest.approx(usual.expected_s, abs=MOST_S)
    assert off.pause_s < usual.pause_s + MOST_S
