"""The fault in which one policy takes the place of another, in the middle of tasks, and is taken
back."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from kairos_ros.lab.drill.drill_testbed import BACK_WITHIN_S, EDGE_ENGINE, UP, DrillTestbed
from kairos_ros.lab.drill.proof.policy_turns import Turn, mislabelled
from kairos_ros.lab.testbed.cloud import POLICY
from kairos_ros.nodes.clients.policy_swaps import change_swaps
from kairos_ros.nodes.serving.parameters import EDGE

OTHER = "other"
OFFSET = 0.25
"""Small, so that the guard lets most actions pass as they are: what it clips looks like others."""
OTHER_POLICY = f"emulated:latency_ms=20+5b,chunk=50,dim=4,state=39,offset={OFFSET}"
"""Served beside the fleet's policy by every drill; tasks get it during this fault only."""
OTHER_ENGINE = f"{EDGE}/{OTHER}"


def policy_swap(drill: DrillTestbed) -> None:
    """What `kairos policy swap` and `kairos policy restore` do, while robots have tasks."""

    def up() -> bool:
        return drill.edge_up and drill.engine(OTHER_ENGINE).state in UP

    drill.until(up, BACK_WITHIN_S, "waiting for both policies")
    own, other = (drill.engine(name).policy for name in (EDGE_ENGINE, OTHER_ENGINE))
    drill.turns.append(Turn(own))
    drill.begins(f"kairos policy swap {POLICY}={OTHER}, in the middle of tasks")
    try:
        _give(drill, {POLICY: OTHER}, other, "swapped")
        _expect_new_tasks_get(drill, OTHER, other)
        drill.display.say(f"kairos policy restore {POLICY}, in the middle of tasks", "bold")
    finally:
        _give(drill, {}, own, "restored")
    _expect_new_tasks_get(drill, POLICY, own)
    drill.repaired()
    wrong = list(mislabelled(drill.exchange, other, OFFSET, drill.begin_s))
    found = "; ".join(wrong[:3]) or "all, by their values"
    drill.expect("chunks are of the policy that they name", not wrong, found)


def _give(drill: DrillTestbed, swaps: dict[str, str], policy: str, what: str) -> None:
    """Has new tasks get `policy`, at a moment in which half of the robots have a task of another
    one. The client has found the serving node by then, so that the tasks do not end meanwhile."""
    before = drill.turns[-1].policy
    half = (len(drill.testbed.live.robots) + 1) // 2
    found, go = Event(), Event()

    def change(_: dict[str, str]) -> dict[str, str]:
        found.set()
        go.wait()
        return swaps

    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(change_swaps, change)
        try:
            drill.until(lambda: found.is_set() or doing.done(), BACK_WITHIN_S, "reading swaps")
            drill.until(
                lambda: doing.done() or len(_moved_by(drill, before)) >= half,
                BACK_WITHIN_S,
                "waiting for tasks",
            )
            count = len(_moved_by(drill, before))
            asked_s = time.monotonic()
        finally:
            go.set()
        drill.until(doing.done, 2 * BACK_WITHIN_S, "setting policy_swaps")
        doing.result()
    drill.turns.append(Turn(policy, asked_s, time.monotonic()))
    drill.expect(f"{what} in the middle of tasks", count > 0, f"of {count} robots")


def _moved_by(drill: DrillTestbed, policy: str) -> set[str]:
    """Robots in the middle of a task of this policy."""
    exchange = drill.exchange
    newest = {key.robot: key for key in exchange.asked}
    return {
        robot
        for robot, key in newest.items()
        if key not in exchange.ended
        and any(chunk.policy == policy for chunk in exchange.answered.get(key, ()))
    }


def _expect_new_tasks_get(drill: DrillTestbed, name: str, policy: str) -> None:
    """Waits until every robot was answered by the policy of this name, which is `policy`."""
    since_s, robots = time.monotonic(), set(drill.testbed.live.robots)

    def served() -> bool:
        chunks = drill.exchange.chunks(since_s, math.inf)
        return {chunk.key.robot for chunk in chunks if chunk.policy == policy} >= robots

    took_s = drill.until(served, BACK_WITHIN_S, f"waiting for tasks of {name}")
    drill.expect(f"new tasks get {name}", True, f"every robot after {took_s:.1f} s")
