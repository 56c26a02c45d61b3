"""Engine workers that die or hang under a real serving node: no robot is lost.

The engine is emulated, its process and the link to it are not.
"""

import os
import signal
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk
from wire import Bystander, WireRobot, until, worker_of

from kairos_ros.bringup.plan import serving
from kairos_ros.core.errors import RefusalCode

ENGINE = "kairos serving: edge"
OBSERVATION = {"state": [0.5, 0.0]}


def with_engine(latency_ms: int):
    return serving(
        policy=f"emulated:latency_ms={latency_ms},chunk=20,state=2,dim=2",
        horizon="static:10",
        stale_after_s=0.0,
        fleet_state_hz=20.0,
    )


@pytest.fixture(scope="module")
def server(start_for_module, wire):
    node = start_for_module(with_engine(300))
    wire.serving_since()
    return node


@pytest.fixture
def robots(server, wire, request):
    mark = abs(hash(request.node.name)) % 10**6
    robots = [Bystander(wire, f"arm_{mark}_{i}", **OBSERVATION).begin() for i in range(3)]
    yield robots
    for robot in robots:
        robot.end()


def end_mid_batch(wire, server, how: signal.Signals, restarts: int) -> int:
    """Sends a signal to the worker of that many restarts while it computes; returns its pid."""
    heard = 0

    def busy() -> bool:
        engine = wire.fleet[-1].engines[0]
        return len(wire.fleet) > heard and (engine.state, engine.restarts) == ("busy", restarts)

    until(busy, what="for a running batch")
    worker = worker_of(server)
    os.kill(worker, signal.SIGSTOP)  # the batch may have ended since: the next one will not
    heard = len(wire.fleet) + 1
    until(busy, what="for a batch that does not end")
    os.kill(worker, how)
    return worker


@pytest.mark.parametrize(
    ("how", "reason"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "no heartbeat for 3 s")]
)
def test_a_worker_that_dies_or_hangs_mid_batch_is_replaced_and_its_requests_served(
    wire, server, robots, how, reason
):
    for robot in robots:
        robot.check(rounds=1)
    downs, restarts = wire.counter("engine_down"), wire.fleet[-1].engines[0].restarts
    queued_again = wire.counter("requeued")

    worker = end_mid_batch(wire, server, how, restarts)
    until(lambda: wire.counter("engine_down") == downs + 1, what="for the death to be noticed")
    for robot in robots:
        robot.check(rounds=2)  # every round is answered, and with actions

    until(lambda: wire.counter("requeued") > queued_again, what="for its batch to be counted")
    until(lambda: wire.fleet[-1].engines[0].restarts == restarts + 1, what="for the restart")
    assert not Path(f"/proc/{worker}").exists()
    assert worker_of(server) != worker
    errors = [text for name, level, text in [*wire.said] if (name, level) == (ENGINE, b"\x02")]
    assert any(reason in text for text in errors)
    # three robots without a pause may saturate the new worker, which is a warning
    until(lambda: wire.reports[ENGINE].level != DiagnosticStatus.ERROR, what="for a live engine")
    assert wire.diagnostic(ENGINE, "restarts") == str(restarts + 1)
    assert server.process.poll() is None


def test_a_request_that_two_engines_died_on_is_refused_and_may_be_sent_again(wire, server, start):
    """Last, beside no other server: one request has to be met twice while it is computed."""
    server.stop()
    # no whole seconds: the robot repeats its first request each second, and one that arrives just
    # after the answer is computed as well
    server = start(with_engine(3500))
    wire.serving_since()
    robot = WireRobot(wire, "suspect", **OBSERVATION).join()

    def idle() -> bool:
        state = wire.fleet[-1]
        return state.engines[0].state == "ready" and not any(one.pending for one in state.robots)

    until(idle, what="for what it asked when it joined")
    before = wire.counter("refused_engine_failed")
    answered, restarts = len(robot.answers), wire.fleet[-1].engines[0].restarts
    robot.requests.publish(robot.request(2))
    end_mid_batch(wire, server, signal.SIGKILL, restarts)
    end_mid_batch(wire, server, signal.SIGKILL, restarts + 1)

    answer = until(lambda: robot.answers[answered:], what="for the refusal")[0]
    assert answer.refusal == RefusalCode.ENGINE_FAILED
    assert "2 engines died" in answer.reason
    assert answer.retry_after_s > 0
    until(lambda: wire.counter("refused_engine_failed") == before + 1)
    assert robot.ask(2, attempt=1).kind == ActionChunk.ACTIONS
    robot.leave()
