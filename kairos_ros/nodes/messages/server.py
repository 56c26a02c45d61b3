"""What a serving node says about itself: `core.server_status` to and from messages."""

import math
from collections.abc import Sequence
from typing import Any

from kairos_ros.core.errors import WireError
from kairos_ros.core.fit import PolicyInterface, camera_name
from kairos_ros.core.server_status import (
    LEAST_STANDBY_NS,
    SILENT_NS,
    ServedPolicy,
    ServerState,
    ServerStatus,
)
from kairos_ros.core.wire_check import NAME_CHARS, OBSERVATIONS
from kairos_ros.msg import ServedPolicy as ServedPolicyMessage
from kairos_ros.msg import ServerStatus as ServerStatusMessage
from kairos_ros.transport.messages import EngineDescription

MOST_ENTRIES = 64
"""Name patterns, or cameras."""
LONGEST = 1000
"""Characters of a text."""


def described(engine: EngineDescription) -> dict[str, Any]:
    """What a status says of the policy that an engine serves, by field of `ServerStatus`."""
    return {
        "policy": engine.policy_id,
        "state_dim": engine.state_dim,
        "action_dim": engine.action_dim,
        "chunk_size": engine.chunk_size,
        "cameras": {camera_name(name): size for name, size in engine.images.items()},
        "any_camera_size": engine.any_image_size,
        "cameras_optional": engine.images_optional,
        "observations": engine.observations,
        "keyframe_stride": engine.keyframe_stride,
    }


def _policy_message(policy: ServedPolicy) -> ServedPolicyMessage:
    interface = policy.interface
    if interface is None:
        return ServedPolicyMessage(name=policy.name, swapped_for=policy.swapped_for)
    return ServedPolicyMessage(
        name=policy.name,
        swapped_for=policy.swapped_for,
        policy=interface.name,
        state_dim=interface.state_dim,
        action_dim=interface.action_dim,
        chunk_size=policy.chunk_size,
        cameras=list(map(camera_name, interface.cameras)),
        camera_height_px=[height for height, _ in interface.cameras.values()],
        camera_width_px=[width for _, width in interface.cameras.values()],
        any_camera_size=interface.any_size,
        cameras_optional=interface.optional,
        observations=interface.observations,
        keyframe_stride=interface.keyframe_stride,
    )


def _policy_from(message: ServedPolicyMessage) -> ServedPolicy:
    """Raises WireError."""
    texts = [message.name, message.swapped_for, message.policy, *message.cameras]
    interface = PolicyInterface(
        message.policy,
        message.state_dim,
        message.action_dim,
        _cameras(message, texts),
        message.any_camera_size,
        message.cameras_optional,
        _observations(message),
        message.keyframe_stride,
    )
    known = interface if message.policy else None
    return ServedPolicy(message.name, known, message.chunk_size, message.swapped_for)


def _observations(message: ServerStatusMessage | ServedPolicyMessage) -> int:
    if message.observations > OBSERVATIONS:
        raise WireError(
            f"a server whose policy reads {message.observations} observations; robots take at most "
            f"{OBSERVATIONS}"
        )
    return max(1, int(message.observations))


def _cameras(
    message: ServerStatusMessage | ServedPolicyMessage, texts: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Name -> size. Raises WireError for lists that do not fit together, and texts that are too
    long."""
    lists = [message.cameras, message.camera_height_px, message.camera_width_px]
    if max(map(len, lists)) > MOST_ENTRIES:
        raise WireError(f"a server status with a list of more than {MOST_ENTRIES} entries")
    if max(map(len, texts)) > LONGEST:
        raise WireError(f"a server status with a text of more than {LONGEST} characters")
    if len({len(listed) for listed in lists}) != 1:
        raise WireError("a server status whose cameras are not as many as their sizes")
    sizes = zip(message.camera_height_px, message.camera_width_px, strict=True)
    return dict(zip(message.cameras, sizes, strict=True))


def server_message(status: ServerStatus) -> ServerStatusMessage:
    return ServerStatusMessage(
        server=status.server,
        node=status.node,
        host=status.host,
        pid=status.pid,
        state=status.state,
        reason=status.reason,
        robots=list(status.robots),
        active_for_s=status.active_for_ns / 1e9,
        silent_after_s=status.silent_after_ns / 1e9,
        standby_after_s=status.standby_after_ns / 1e9,
        policy=status.policy,
        state_dim=status.state_dim,
        action_dim=status.action_dim,
        chunk_size=status.chunk_size,
        cameras=list(status.cameras),
        camera_height_px=[height for height, _ in status.cameras.values()],
        camera_width_px=[width for _, width in status.cameras.values()],
        any_camera_size=status.any_camera_size,
        cameras_optional=status.cameras_optional,
        observations=status.observations,
        keyframe_stride=status.keyframe_stride,
        policies=list(map(_policy_message, status.policies)),
    )


def server_from(message: ServerStatusMessage) -> ServerStatus:
    """Raises WireError for a state that is unknown, no identity, and what is too long."""
    if message.state not in set(ServerState):
        raise WireError(f"server state {message.state} is unknown; update one of the peers")
    texts = [message.server, message.node, message.host, message.reason, message.policy]
    if not message.server:
        raise WireError("a server status without the identity of its server")
    if max(len(message.robots), len(message.policies)) > MOST_ENTRIES:
        raise WireError(f"a server status with a list of more than {MOST_ENTRIES} entries")
    if max(map(len, message.robots), default=0) > NAME_CHARS:
        raise WireError(f"a server status with a pattern of more than {NAME_CHARS} characters")
    cameras = _cameras(message, [*texts, *message.cameras])
    for name in ("active_for_s", "silent_after_s", "standby_after_s"):
        seconds = getattr(message, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise WireError(f"{name} is {seconds}; a duration is finite")
    return ServerStatus(
        server=message.server,
        state=ServerState(message.state),
        node=message.node,
        host=message.host,
        pid=message.pid,
        reason=message.reason,
        robots=tuple(message.robots),
        active_for_ns=round(message.active_for_s * 1e9),
        silent_after_ns=_clipped(message.silent_after_s) or SILENT_NS,
        standby_after_ns=_clipped(message.standby_after_s),
        policy=message.policy,
        state_dim=message.state_dim,
        action_dim=message.action_dim,
        chunk_size=message.chunk_size,
        cameras=cameras,
        any_camera_size=message.any_camera_size,
        cameras_optional=message.cameras_optional,
        observations=_observations(message),
        keyframe_stride=message.keyframe_stride,
        policies=tuple(map(_policy_from, message.policies)),
    )


def _clipped(silence_s: float) -> int:
    """In ns, 0 if it is 0; whatever a message claims, nobody is given up after one lost message,
    and nobody is waited for longer than usual."""
    return min(max(round(silence_s * 1e9), LEAST_STANDBY_NS), SILENT_NS) if silence_s else 0
