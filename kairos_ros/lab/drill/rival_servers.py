"""Faults that are somebody else: a second serving node, and a publisher of chunks that is none."""

import time
import uuid
from functools import partial
from itertools import cycle

import numpy as np

from kairos_ros.lab.drill.drill_testbed import BACK_WITHIN_S, DrillTestbed
from kairos_ros.lab.drill.proof.exchange import SeenServer
from kairos_ros.msg import ActionChunk, ChunkRequest, ServerStatus
from kairos_ros.nodes.qos import EXCHANGE

TOGETHER_S = 8.0
"""How long the rival is there, once it has been noticed."""
NAMED_WITHIN_S = 15.0
OTHER_POLICY = "emulated:latency_ms=1,chunk=50,dim=4,state=39"
"""Reads and answers what the fleet's policy does, and is faster: robots would take it."""
ROGUE_ACTIONS = np.full((10, 4), 0.777, np.float32)
"""Within the limits of the guard, which lets them pass as they are; no policy answers them."""


def second_server(drill: DrillTestbed) -> None:
    drill.until(lambda: drill.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    drill.begins("another serving node starts, with another policy")
    with drill.another_server(policy=OTHER_POLICY) as pid:

        def said() -> SeenServer | None:
            words = [word for word in drill.exchange.servers.values() if word.pid == pid]
            kept_out = (w for w in words if w.state == ServerStatus.CONFLICT)
            return next(kept_out, None)

        took_s = drill.until(said, BACK_WITHIN_S, "waiting for it to say that it is kept out")
        drill.expect("kept out", True, f"it says so after {took_s:.1f} s")
        word = said()
        named = word is not None and f"(pid {drill.serving_pid()})" in word.reason
        drill.expect("names the other", named, word.reason if word else "nothing")
        drill.run_for(TOGETHER_S, "two serving nodes")
        drill.expect("still kept out", said() is not None, "yes" if said() else "no")
    foreign = len(drill.exchange.foreign(drill.begin_s))
    drill.expect("it answers nobody", not foreign, f"{foreign} chunks")
    drill.repaired("it has left")


def rogue_publisher(drill: DrillTestbed) -> None:
    """Answers every request at once and to the letter, as a node that was forgotten might."""
    drill.until(lambda: drill.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    client, robots = drill.testbed.client, list(drill.testbed.live.robots)
    publishers = {
        robot: client.publisher(f"/{robot}/action_chunk", ActionChunk, EXCHANGE) for robot in robots
    }
    identities = cycle(["", uuid.uuid4().hex])

    def answer(robot: str, request: ChunkRequest) -> None:
        if robot not in publishers:
            return  # it has ended
        publishers[robot].publish(
            ActionChunk(
                server=next(identities),
                robot=request.robot,
                session=request.session,
                task=request.task,
                round=request.round,
                attempt=request.attempt,
                kind=ActionChunk.ACTIONS,
                horizon=len(ROGUE_ACTIONS),
                chunk_size=len(ROGUE_ACTIONS),
                action_dim=ROGUE_ACTIONS.shape[1],
                actions=ROGUE_ACTIONS.ravel(),
            )
        )

    for robot in robots:
        client.listen(f"/{robot}/chunk_request", ChunkRequest, partial(answer, robot), EXCHANGE)
    drill.begins("another publisher answers every request, faster than the serving node")
    began_s = time.monotonic()

    def named() -> bool:
        return all("action_chunk" in drill.exchange.strange.get(robot, "") for robot in robots)

    took_s = drill.until(named, NAMED_WITHIN_S, "waiting for every robot to name it")
    found = drill.exchange.strange[robots[0]]
    drill.expect("named by every robot", True, f"after {took_s:.1f} s: {found}")
    drill.run_for(TOGETHER_S, "the rogue publisher answers")
    answered = {chunk.key.robot for chunk in drill.exchange.foreign(began_s)}
    count = len(drill.exchange.foreign(began_s))
    drill.expect("it has answered", answered == set(robots), f"{count} chunks")
    for robot in robots:
        client.withdraw(publishers.pop(robot))
    drill.repaired("it has gone")
