"""A serving node, its edge engine, and a cloud engine behind a 100 ms link, while things go wrong.

Serving node, workers and link are real processes; the engines' compute time is emulated. Robots
are threads that ask for round after round and check every answer against what they observed.
"""

import os
import re
import signal
import time

import pytest
from far_worker import Checked, Cloud, end_all, engine, longest_pause_s
from wan import PORT, wan
from wire import until, worker_of

from kairos_ros.bringup.plan import serving
from kairos_ros.lab.testbed.link_proxy import Conditions

POLICY = "chunk=20,state=2,dim=2"
EDGE = f"emulated:latency_ms=250,{POLICY}"
CLOUD = f"pick=emulated:latency_ms=60,{POLICY}"


@pytest.fixture(scope="module")
def link():
    with wan(Conditions(delay_s=0.05)) as link:
        yield link


@pytest.fixture(scope="module")
def cloud(link, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cloud")
    cloud = Cloud.with_keys(link, folder, CLOUD)
    cloud.start()
    yield cloud
    cloud.end()


@pytest.fixture(scope="module")
def server(start_for_module, wire, link, cloud):
    node = start_for_module(
        serving(
            policy=EDGE,
            max_batch=1,
            horizon="static:10",
            stale_after_s=0.0,
            fleet_state_hz=20.0,
            keys=str(cloud.here),
            engines=[
                f"cloud={link.here(PORT)},policy=pick",
                f"other={link.here(PORT + 1)}",
            ],
        )
    )
    wire.serving_since()
    return node


@pytest.fixture
def robots(server, wire, link, request):
    link.change(cut="", loss=0.0, jitter_s=0.0, bits_per_s=0.0)
    until(lambda: engine(wire, "cloud").state in ("ready", "busy"), what="for the cloud engine")
    mark = abs(hash(request.node.name)) % 10**6
    robots = [Checked(wire, f"arm_{mark}_{i}", state=[1.0, 0.0]).begin() for i in range(4)]
    yield robots
    end_all(robots)


def served(robots, rounds=2):
    for robot in robots:
        robot.check(rounds)


def served_from(robots, tier, what):
    marks = [len(robot.answers) for robot in robots]
    until(lambda: any(tier in r.tiers(m) for r, m in zip(robots, marks, strict=True)), what=what)


def test_the_cloud_serves_what_would_wait_longer_at_the_edge(wire, robots):
    served(robots, 4)
    served_from(robots, "cloud", "for a chunk from the cloud")
    served_from(robots, "edge", "for a chunk from the edge")
    state = engine(wire, "cloud")
    assert state.rtt_s > 0.095
    assert state.bandwidth_mbps > 0
    assert state.request_bytes > 8
    reasons = {answer.reason for r in robots for answer in r.answers if answer.tier == "cloud"}
    assert any("s there" in reason and "at the edge" in reason for reason in reasons)


@pytest.mark.parametrize("cut", ["both", "out", "back"])
def test_a_link_cut_for_5_s_is_noticed_and_used_again(wire, robots, link, cut):
    served_from(robots, "cloud", "for a chunk from the cloud")
    downs = wire.counter("link_down")
    link.change(cut=cut)
    began = time.monotonic()
    pause_s = longest_pause_s(wire, robots, 5.0)
    until(lambda: wire.counter("link_down") > downs, what="for the loss to be counted")
    until(lambda: engine(wire, "cloud").state in ("down", "unreachable"), what="for its state")
    link.change(cut="")
    back = time.monotonic()
    served_from(robots, "cloud", "for the cloud to serve again")
    print(
        f"cut {cut} for {back - began:.1f} s: longest wait of a robot {pause_s:.2f} s; "
        f"the cloud served {time.monotonic() - back:.2f} s after the link was back"
    )
    served(robots)


def test_loss_and_jitter_slow_the_link_down_and_lose_nothing(wire, robots, link):
    if not link.truthful:
        pytest.skip("a proxy loses no packets")
    link.change(loss=0.03, jitter_s=0.02)
    served(robots, 6)
    until(lambda: engine(wire, "cloud").loss > 0, what="for resent segments to be counted")
    assert engine(wire, "cloud").state in ("ready", "busy")


def test_a_slow_link_is_measured_and_used_only_where_it_is_sooner(wire, robots, link):
    link.change(delay_s=0.3)
    until(lambda: engine(wire, "cloud").rtt_s > 0.55, what="for the round trip to be measured")
    marks = [len(robot.answers) for robot in robots]
    served(robots, 6)
    link.change(delay_s=0.05)
    answers = [a for r, m in zip(robots, marks, strict=True) for a in r.answers[m:]]
    assert any(answer.tier == "edge" for answer in answers)
    for answer in answers:
        if answer.tier == "cloud" and " s at the edge" in answer.reason:
            there, here = re.search(r"\(([\d.]+) s there, ([\d.]+) s at", answer.reason).groups()
            assert float(there) <= float(here)  # as rounded


def test_a_cloud_worker_killed_mid_batch_is_missed_by_nobody(wire, robots, cloud):
    served_from(robots, "cloud", "for a chunk from the cloud")
    downs, queued_again = wire.counter("link_down"), wire.counter("requeued")
    cloud.started[-1].send_signal(signal.SIGSTOP)  # so that a batch is under way when it is killed
    heard = len(wire.fleet)
    until(
        lambda: len(wire.fleet) > heard + 2 and engine(wire, "cloud").state != "ready",
        what="for a batch under way",
    )
    cloud.started[-1].send_signal(signal.SIGKILL)
    until(lambda: wire.counter("link_down") > downs, what="for the loss to be noticed")
    served(robots)
    until(lambda: wire.counter("requeued") > queued_again, what="for the batch to be counted")
    cloud.start()
    served_from(robots, "cloud", "for the new worker to serve")


def test_a_worker_with_another_policy_is_refused_counted_and_never_asked(wire, robots, cloud):
    refused = wire.counter("refused_engine")
    cloud.start("pick=emulated:latency_ms=1,chunk=30,state=2,dim=2", PORT + 1)
    other = cloud.started.pop()
    until(lambda: engine(wire, "other").state == "refused", what="for the refusal")
    other.kill()
    other.wait()
    assert wire.counter("refused_engine") > refused
    assert "'other' serves emulated-" in engine(wire, "other").last_error
    served(robots)
    assert all(answer.engine != "other" for robot in robots for answer in robot.answers)


def test_an_edge_engine_that_dies_leaves_its_robots_to_the_cloud(wire, robots, server):
    served(robots)
    restarts = engine(wire, "edge").restarts
    os.kill(worker_of(server), signal.SIGSTOP)  # hung: the edge is out for 3 s and more
    until(lambda: engine(wire, "edge").restarts > restarts, what="for the edge to be missed")
    served(robots)
    served_from(robots, "cloud", "for a chunk from the cloud")


def test_a_link_cut_for_good_leaves_everybody_to_the_edge(wire, robots, link):
    link.change(cut="both")
    until(lambda: engine(wire, "cloud").state == "unreachable", what="for the loss to be noticed")
    marks = [len(robot.answers) for robot in robots]
    served(robots, 3)
    assert all("cloud" not in r.tiers(m + 1) for r, m in zip(robots, marks, strict=True))
    assert "dialling" in engine(wire, "cloud").last_error
