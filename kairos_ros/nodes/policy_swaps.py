"""Which policies stand in for others at a serving node: read and set from outside."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient

from kairos_ros.core.errors import KairosError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.nodes.vlm.side_node import SideNode

SERVING = "serving"
PARAMETER = "policy_swaps"
FOUND_WITHIN_S = 15.0
SETTLE_S = 0.5
"""A node that has just been found may not have found this client yet: its answer would be lost."""
ANSWER_WITHIN_S = 10.0


def change_swaps(
    change: Callable[[dict[str, str]], dict[str, str]],
    domain: int | None = None,
    names: FleetNames = ROOT,
) -> dict[str, str]:
    """Replaces the swaps, name -> name of the policy that new tasks get in its place, by what
    `change` makes of them, and returns those.

    domain: ROS domain; None for that of the environment. names: of the fleet. Raises KairosError
    where there is no serving node, and with its words where it refuses.
    """
    side = SideNode(f"policy_client_{uuid.uuid4().hex[:8]}", domain, names)
    serving = names.common(SERVING)
    try:
        client = AsyncParameterClient(side.node, serving)
        if not _spin_until(side, client.services_are_ready, FOUND_WITHIN_S):
            raise KairosError(f"there is no serving node {serving} in this ROS domain")
        _spin_until(side, lambda: False, SETTLE_S)
        (found,) = _answer(side, serving, client.get_parameters([PARAMETER])).values
        before = dict(text.split("=", 1) for text in found.string_array_value)
        after = change(before)
        texts = [f"{old}={new}" for old, new in after.items()]
        asked = Parameter(PARAMETER, Parameter.Type.STRING_ARRAY, texts)
        (result,) = _answer(side, serving, client.set_parameters([asked])).results
        if not result.successful:
            raise KairosError(f"{serving}: {result.reason}")
        return after
    finally:
        side.close()


def _answer(side: SideNode, serving: str, future: Any) -> Any:
    if not _spin_until(side, future.done, ANSWER_WITHIN_S):
        raise KairosError(f"{serving} does not answer; nothing may have been changed")
    return future.result()


def _spin_until(side: SideNode, condition: Callable[[], bool], within_s: float) -> bool:
    give_up = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        side.spin(0.1)
    return True
