"""What a serving node says about itself, as `kairos doors` hands it on to robots without ROS."""

from collections.abc import Mapping
from typing import Any

from kairos_ros.core.errors import WireError
from kairos_ros.core.fit import PolicyInterface, Size
from kairos_ros.core.server_status import ServedPolicy, ServerState, ServerStatus
from kairos_ros.core.wire_check import LONGEST_S, OBSERVATIONS
from kairos_ros.transport.field_checks import checks_of, count, is_text, list_of, text
from kairos_ros.transport.frames import Message, check_all_taken

MOST_ENTRIES = 64
"""Name patterns, cameras or policies."""
_STATUS = checks_of(ServerStatus)
_INTERFACE = checks_of(PolicyInterface)


def server_message(status: ServerStatus) -> Message:
    fields: dict[str, Any] = {name: getattr(status, name) for name in _STATUS}
    fields["state"] = int(status.state)
    fields["robots"] = list(status.robots)
    fields["cameras"] = _sizes(status.cameras)
    fields["policies"] = [_policy(one) for one in status.policies]
    return Message("server", fields)


def read_server(message: Message) -> ServerStatus:
    """Raises WireError."""
    fields = message.fields
    check_all_taken(iter(message.arrays))
    state = count(fields, "state")
    if state not in set(ServerState):
        raise WireError(f"server state {state} is unknown; update one of the peers")
    plain = _plain(_STATUS, fields)
    if not plain["server"]:
        raise WireError("a server status without the identity of its server")
    for name, value in plain.items():
        if name.endswith("_ns") and value > LONGEST_S * 1e9:
            raise WireError(f"{name} is {value}; a duration is at most {LONGEST_S:g} s")
    robots = list_of(fields, "robots", is_text, "texts")
    policies = list_of(fields, "policies")
    if max(len(robots), len(policies)) > MOST_ENTRIES:
        raise WireError(f"a server status with a list of more than {MOST_ENTRIES} entries")
    return ServerStatus(
        **plain,
        state=ServerState(state),
        robots=tuple(robots),
        cameras=_read_sizes(fields),
        policies=tuple(map(_read_policy, policies)),
    )


def _policy(one: ServedPolicy) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": one.name, "swapped_for": one.swapped_for}
    fields["chunk_size"] = one.chunk_size
    if one.interface is not None:
        plain: dict[str, Any] = {name: getattr(one.interface, name) for name in _INTERFACE}
        fields["interface"] = plain | {"cameras": _sizes(one.interface.cameras)}
    return fields


def _read_policy(told: Any) -> ServedPolicy:
    if not isinstance(told, dict):
        raise WireError("a policy that is no map")
    interface, known = told.get("interface"), None
    if interface is not None:
        if not isinstance(interface, dict):
            raise WireError("the interface of a policy is no map")
        plain = _plain(_INTERFACE, interface)
        known = PolicyInterface(**plain, cameras=_read_sizes(interface))
    return ServedPolicy(
        text(told, "name"), known, count(told, "chunk_size"), text(told, "swapped_for")
    )


def _plain(checks: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: check(fields, name) for name, check in checks.items()}
    if not 1 <= plain["observations"] <= OBSERVATIONS:
        raise WireError(f"observations is {plain['observations']}; it goes to {OBSERVATIONS}")
    return plain


def _sizes(cameras: Mapping[str, Size]) -> dict[str, list[int]]:
    return {name: list(size) for name, size in cameras.items()}


def _read_sizes(fields: Mapping[str, Any]) -> dict[str, Size]:
    cameras = fields.get("cameras")
    if not isinstance(cameras, dict) or len(cameras) > MOST_ENTRIES:
        raise WireError(f"cameras is no map of at most {MOST_ENTRIES} cameras")
    for name, size in cameras.items():
        if (
            not isinstance(name, str)
            or not isinstance(size, list)
            or len(size) != 2
            or not all(type(n) is int and 0 < n < 2**31 for n in size)
        ):
            raise WireError("cameras is no map of name to [height_px, width_px]")
    return {name: (height, width) for name, (height, width) in cameras.items()}
