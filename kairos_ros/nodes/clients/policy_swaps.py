"""Which policies stand in for others at a serving node: read and set from outside."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient

from kairos_ros.core.errors import KairosError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.nodes.clients.standalone_node import StandaloneNode

SERVING = "serving"
PARAMETER = "policy_swaps"
FOUND_WITHIN_S = 15.0
SETTLE_S = 0.5
"""A node that has just been found may not have found this client yet: its answer would be lost. And
another client that read the swaps before this one has set them has set them as well by then."""
ANSWER_WITHIN_S = 10.0
MOST_TRIES = 10


def change_swaps(
    change: Callable[[dict[str, str]], dict[str, str]],
    domain: int | None = None,
    names: FleetNames = ROOT,
) -> dict[str, str]:
    """Replaces the swaps, name -> name of the policy that new tasks get in its place, by what
    `change` makes of them, and returns those. Again, where another client that did so at the same
    time has undone it.

    domain: ROS domain; None for that of the environment. names: of the fleet. Raises KairosError
    where there is no serving node, with its words where it refuses, and where another client gives
    the same tasks something else.
    """
    standalone = StandaloneNode(f"policy_client_{uuid.uuid4().hex[:8]}", domain, names)
    serving = names.common(SERVING)
    try:
        client = AsyncParameterClient(standalone.node, serving)
        if not _spin_until(standalone, client.services_are_ready, FOUND_WITHIN_S):
            raise KairosError(f"there is no serving node {serving} in this ROS domain")
        _spin_until(standalone, lambda: False, SETTLE_S)
        before = _read(standalone, serving, client)
        for _ in range(MOST_TRIES):
            after = change(before)
            texts = [f"{old}={new}" for old, new in after.items()]
            asked = Parameter(PARAMETER, Parameter.Type.STRING_ARRAY, texts)
            (result,) = _answer(standalone, serving, client.set_parameters([asked])).results
            if not result.successful:
                raise KairosError(f"{serving}: {result.reason}")
            _spin_until(standalone, lambda: False, SETTLE_S)
            now = _read(standalone, serving, client)
            changed = [o for o in before | after if before.get(o) != after.get(o)]
            if all(now.get(old) == after.get(old) for old in changed):
                return now
            if any(now.get(old) not in (before.get(old), after.get(old)) for old in changed):
                break
            before = now
        told = ", ".join(f"{old} gets {new}" for old, new in now.items()) or "nothing is swapped"
        raise KairosError(f"another client has changed the swaps at the same time; now {told}")
    finally:
        standalone.close()


def _read(standalone: StandaloneNode, serving: str, client: AsyncParameterClient) -> dict[str, str]:
    """Asks again in silence: an answer is lost where that node has not found this client yet."""
    for _ in range(MOST_TRIES):
        future = client.get_parameters([PARAMETER])
        if _spin_until(standalone, future.done, ANSWER_WITHIN_S / MOST_TRIES):
            break
    (found,) = _answer(standalone, serving, future).values
    return dict(text.split("=", 1) for text in found.string_array_value)


def _answer(standalone: StandaloneNode, serving: str, future: Any) -> Any:
    if not _spin_until(standalone, future.done, ANSWER_WITHIN_S):
        raise KairosError(f"{serving} does not answer; whether anything was changed is not known")
    return future.result()


def _spin_until(standalone: StandaloneNode, condition: Callable[[], bool], within_s: float) -> bool:
    give_up = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        standalone.spin(0.1)
    return True
