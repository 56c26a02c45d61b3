"""A robot process that is frozen in the middle of a chunk, and wakes up."""

import signal
import time
from itertools import pairwise

from announced import AnnouncedServer
from kairos_ros.msg import ActionChunk, ChunkRequest
from wire import Operator, in_executor, until

from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.nodes import qos
from kairos_ros.robot.body_log import read_body_log

FROZEN_S = 4.0
CHUNK = 200
"""10 s: the robot is frozen in the first one, however late its status is heard."""


def test_what_was_left_of_a_chunk_is_not_executed_after_a_pause(start, wire, tmp_path):
    server = AnnouncedServer(wire.node)
    chunks = wire.node.create_publisher(ActionChunk, "/bob/action_chunk", qos.EXCHANGE)
    asked: list[ChunkRequest] = []

    def answer(request: ChunkRequest) -> None:
        asked.append(request)
        echo = {n: getattr(request, n) for n in ("server", "robot", "session", "task", "round")}
        numbered = [0.001 * request.round] * CHUNK
        chunks.publish(
            ActionChunk(
                **echo, attempt=request.attempt, horizon=CHUNK, action_dim=1, actions=numbered
            )
        )

    requests = wire.node.create_subscription(
        ChunkRequest, "/bob/chunk_request", answer, qos.EXCHANGE
    )
    body = {"adapter_options": ["env_id=Pendulum-v1"], "body_log": str(tmp_path)}
    robot = start(ProcessSpec("robot_node", "robot", "bob", body | {"control_rate_hz": 20.0}))
    operator = Operator(wire, "bob")
    try:
        goal = operator.give(instruction="swing", max_actions=CHUNK + 20)
        until(lambda: wire.status_of("bob").actions_executed >= 20)
        robot.send(signal.SIGSTOP)
        time.sleep(FROZEN_S)
        robot.send(signal.SIGCONT)
        result = operator.result(goal)
        assert (result.outcome, result.actions) == ("max_actions", CHUNK + 20)

        (log,) = tmp_path.glob("bob.*")
        events = [e for e in read_body_log(log) if e.kind in ("act", "hold", "observe")]
        gaps = [
            (after.at_ns - before.at_ns, i) for i, (before, after) in enumerate(pairwise(events))
        ]
        gap_ns, last = max(gaps)
        assert gap_ns > 0.9 * FROZEN_S * 1e9
        awake = events[last + 1 :]
        first_act = next(i for i, event in enumerate(awake) if event.kind == "act")
        kinds = [event.kind for event in awake[:first_act]]
        assert "observe" in kinds, "it moved before it had looked"
        assert "hold" in kinds
        before = {round(float(e.action[0]), 3) for e in events[: last + 1] if e.kind == "act"}
        fresh = {round(float(e.action[0]), 3) for e in awake if e.kind == "act"}
        assert before
        assert not fresh & before, "it went on with the old chunk"
        key = "control loop stood still"
        # a starved machine may have made more pauses of half a second
        until(lambda: int(wire.diagnostic("kairos: bob", key) or 0) >= 1)
        assert any("stood still for" in text for name, _, text in [*wire.said] if "bob" in name)
    finally:
        server.leave()
        operator.close()
        in_executor(wire.executor, lambda: wire.node.destroy_subscription(requests))
