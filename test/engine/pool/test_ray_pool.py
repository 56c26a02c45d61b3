"""A worker whose replicas are Ray actors. Real Ray, private to the worker, on this host."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ports import free_ports
from watched_link import WatchedLink
from wire import Bystander, until

from kairos_ros.bringup.plan import serving
from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.engine.client.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineDraining,
    EngineLoading,
    EngineReady,
    EngineUnreachable,
    LinkChanged,
)
from kairos_ros.engine.client.link_monitor import LinkTiming
from kairos_ros.engine.client.remote_spec import RemoteSpec
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.pool.demand import ReplicaCount
from kairos_ros.engine.pool.ray_pool import RayPlan, ray_replicas
from kairos_ros.engine.worker.process import WorkerExit
from kairos_ros.host.child_processes import command_line, descendants
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.messages import InferRequest

pytest.importorskip("ray", reason="the pool needs kairos_ros[cluster]")

TWO = ReplicaCount(2, 2)
PATIENT = LinkTiming(silence_s=8.0)
"""A busy machine must not look like a lost worker."""
BATCH_S = 2.5
START_S = 300.0
"""Ray starts eight processes that import it; on a busy machine that takes a while."""
pytestmark = pytest.mark.slow
KAIROS = Path(sys.executable).with_name("kairos")


class PoolOfTwo:
    """`kairos worker --pool ray`, a link to it, and what the link reported."""

    def __init__(self, log: Path, policy: str) -> None:
        self.endpoint = f"tcp://127.0.0.1:{free_ports()}"
        self.log = log
        command = [KAIROS, "worker", "--listen", self.endpoint, "--insecure-loopback"]
        options = ["--policy", policy, "--pool", "ray", "--replicas", "2", "--report-s", "0.2"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *options], stdout=out, stderr=out, start_new_session=True
            )
        self.events = queue.Queue()
        spec = RemoteSpec(self.endpoint, security=Insecure.LOOPBACK)
        self.link = WatchedLink(spec, self.events.put, PATIENT)
        self.link.start()

    def next(self, *kinds, timeout_s=60.0):
        end = time.monotonic() + timeout_s
        while True:
            event = self.events.get(timeout=max(0.01, end - time.monotonic()))
            if isinstance(event, kinds):
                return event
            assert isinstance(event, EngineLoading | EngineUnreachable | LinkChanged), event

    def until_replicas(self, count):
        """Of which it is told from now on."""
        for _ in range(self.events.qsize()):
            self.next(LinkChanged)
        what = f"for {count} replicas"
        until(lambda: self.next(LinkChanged).state.replicas == count, START_S, what)

    def end(self) -> None:
        self.link.stop()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self.process.kill()
        self.process.wait()
        print(self.log.read_text(errors="replace"))


def replica_pids(pid):
    """Of the replicas below a worker."""
    replica = "ray::EngineActor"
    return sorted(each for each in descendants(pid) if command_line(each).startswith(replica))


def listening(pids):
    """(address, port) as the kernel writes them, of TCP sockets that these processes listen on."""
    held = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                held.add(os.readlink(descriptor))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                yield tuple(fields[1].split(":"))


def batches_of(pool, replica):
    lines = re.findall(rf"metrics: replica={replica} batches=(\d+)", pool.log.read_text())
    return sum(map(int, lines))


def request(tag=0.5):
    return InferRequest("arm_1", "s1", "t1", 1, 0, 1, "", np.full(7, tag, np.float32))


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Two replicas that need 2.5 s for a batch. Tests leave both ready and nothing under way."""
    running = PoolOfTwo(
        tmp_path_factory.mktemp("pool") / "worker.log",
        f"s=emulated:latency_ms={1000 * BATCH_S:.0f},chunk=20,dim=3,steps=4",
    )
    try:
        running.next(EngineReady, timeout_s=START_S)
        running.until_replicas(2)
        yield running
    finally:
        running.end()


def test_two_replicas_share_what_one_client_sends(pool):
    tags = {batch: batch / 8 for batch in range(1, 7)}
    for batch, tag in tags.items():
        pool.link.submit(batch, [request(tag)], expected_s=BATCH_S)
    ends = [pool.next(BatchDone) for _ in tags]
    assert {end.batch for end in ends} == set(tags)
    for done in ends:
        assert done.outcomes[0].chunk.shape == (20, 3)
        assert (done.outcomes[0].chunk[:, 0] == tags[done.batch]).all()
    # told in the log now and then
    until(lambda: min(batches_of(pool, 1), batches_of(pool, 2)) >= 2, what="for what they did")


def test_a_replica_that_dies_costs_its_batch_only_and_is_started_again(pool):
    before = replica_pids(pool.process.pid)
    assert len(before) == 2
    for batch in (11, 12):
        pool.link.submit(batch, [request()], expected_s=BATCH_S)
    pool.link.wait_until_it_computes(11, 12, for_s=0.5)
    os.kill(before[0], signal.SIGKILL)
    ends = [pool.next(BatchDone, BatchFailed) for _ in range(2)]
    failed, done = sorted(ends, key=lambda end: isinstance(end, BatchDone))
    assert isinstance(done, BatchDone)
    assert failed.code is RefusalCode.ENGINE_FAILED  # the request may be why: it counts a crash
    assert "the replica died" in failed.reason
    assert {failed.batch, done.batch} == {11, 12}
    pool.link.submit(13, [request()], expected_s=BATCH_S)
    assert pool.next(BatchDone).batch == 13
    # it may be back before a heartbeat could tell that it was gone
    until(lambda: len(set(replica_pids(pool.process.pid)) - {before[0]}) == 2, START_S)
    assert before[1] in replica_pids(pool.process.pid)
    pool.until_replicas(2)


def test_when_no_replica_is_left_batches_are_handed_back_until_one_is(pool):
    for batch in range(21, 25):
        pool.link.submit(batch, [request()], expected_s=BATCH_S)
    pool.link.wait_until_it_computes(21, 22, for_s=0.5)
    killed = set(replica_pids(pool.process.pid))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    ends = {}
    for _ in range(4):
        end = pool.next(BatchDone, BatchFailed)
        ends[end.batch] = end
    assert sorted(ends) == [21, 22, 23, 24]
    lost = [end for end in ends.values() if isinstance(end, BatchFailed)]
    assert [end.code for end in lost].count(RefusalCode.ENGINE_FAILED) == 2
    until(lambda: len(set(replica_pids(pool.process.pid)) - killed) == 2, START_S)
    pool.until_replicas(2)
    pool.link.submit(25, [request()], expected_s=BATCH_S)
    assert pool.next(BatchDone).batch == 25


def test_robots_are_served_by_both_replicas_through_the_serving_node(pool, start, wire):
    before = [batches_of(pool, replica) for replica in (1, 2)]
    start(
        serving(
            policy="",
            max_batch=1,
            horizon="static:10",
            stale_after_s=0.0,
            engines=[f"pool={pool.endpoint},insecure_loopback"],
        )
    )
    wire.serving_since()
    robots = [Bystander(wire, f"arm_{n}", state=[0.5] * 7).begin() for n in range(4)]
    until(lambda: all(robot.harm or robot.served >= 2 for robot in robots), what="for two rounds")
    for robot in robots:
        robot.end()
        assert not robot.harm
        assert {answer.tier for answer in robot.answers} == {"cloud"}
    for replica, count in zip((1, 2), before, strict=True):
        until(lambda r=replica, n=count: batches_of(pool, r) >= n + 3, what=f"for {replica}")


def test_a_private_ray_is_reachable_from_this_host_only(pool):
    found = list(listening([pool.process.pid, *descendants(pool.process.pid)]))
    assert len(found) > 3
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert {address for address, _ in found} <= loopback


def test_a_private_ray_runs_nothing_for_those_without_its_token(pool):
    gcs = next(
        re.search(r"--gcs-address=(\S+)", line)[1]
        for pid in descendants(pool.process.pid)
        if "--gcs-address" in (line := command_line(pid).replace("\0", " "))
    )
    script = (
        "from ray._raylet import GcsClient\n"
        f"GcsClient(address={gcs!r}).internal_kv_keys(b'', namespace=None, timeout=60)"
    )
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed" * 5}
    stranger = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=120
    )
    assert b"AuthenticationError" in stranger.stderr


def test_told_to_stop_a_pool_finishes_what_runs_and_leaves_nothing_behind(pool):
    below = descendants(pool.process.pid)
    for batch in (31, 32, 33):
        pool.link.submit(batch, [request()], expected_s=BATCH_S)
    pool.link.wait_until_it_computes(31, 32, for_s=0.5)
    pool.process.terminate()
    pool.next(EngineDraining)
    ends = {}
    for _ in range(3):
        end = pool.next(BatchDone, BatchFailed)
        ends[end.batch] = type(end)
    assert ends == {31: BatchDone, 32: BatchDone, 33: BatchFailed}
    assert pool.process.wait(60) == WorkerExit.STOPPED
    assert pool.next(EngineDown).lost == ()
    until(lambda: not any(map(alive, below)), what="for all that it started to end")


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_policy_that_every_replica_refuses_ends_the_worker_with_the_reason(tmp_path):
    refusing = PoolOfTwo(tmp_path / "worker.log", "s=emulated:latency=80")
    try:
        reason = refusing.next(EngineDown, timeout_s=START_S).reason
        assert re.match(r"replica \d: .*unknown option 'latency=80'", reason)
        assert refusing.process.wait(60) == WorkerExit.REFUSED
    finally:
        refusing.end()


@pytest.mark.parametrize(
    ("plan", "device", "says"),
    [
        (RayPlan(TWO), "cuda:1", "in a pool Ray chooses the GPU"),
        (RayPlan(TWO, "127.0.0.1"), "cpu", "write HOST:PORT, or auto"),
        (RayPlan(TWO, "127.0.0.1:1"), "cpu", "no Ray answers there"),
        (RayPlan(TWO, "ray://head:10001"), "cpu", "run the worker on a host of the cluster"),
    ],
)
def test_options_that_a_pool_cannot_have_are_refused_before_ray_starts(plan, device, says):
    with (
        pytest.raises(ConfigError, match=says),
        ray_replicas(plan, {"": EngineOptions("p", device)}),
    ):
        pass
