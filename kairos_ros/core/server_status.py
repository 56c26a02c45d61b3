"""What a serving node says about itself, as plain data that both sides of the wire share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from kairos_ros.core.fit import PolicyInterface
from kairos_ros.core.wire_check import printable

SILENT_NS = 3_500_000_000
"""A server that was not heard for so long is gone, unless it says otherwise."""
HEARTBEATS = 3.5
"""In that time."""
LEAST_STANDBY_NS = 1_000_000_000
"""A server that was heard within this time is not gone, however soon a standby wants to serve."""


ENGINE_UP = ("ready", "busy", "standby")
"""States of engines that serve, or would at once (EngineState.msg)."""


class ServerState(IntEnum):
    """Values are those of ServerStatus.msg."""

    STARTING = 0
    ACTIVE = 1
    INACTIVE = 2
    CONFLICT = 3
    LEAVING = 4
    STANDBY = 5


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """One of the policies of a serving node that serves several (see ServedPolicy.msg)."""

    name: str
    interface: PolicyInterface | None
    """Its name is type and fingerprint of the weights. None while no engine of it was up."""
    chunk_size: int
    swapped_for: str = ""
    """Name of the policy that new tasks get in its place; empty: itself."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One serving node (see ServerStatus.msg)."""

    server: str
    """Random, new at every start: no two processes have the same."""
    state: ServerState
    node: str = ""
    """Full name."""
    host: str = ""
    pid: int = 0
    reason: str = ""
    """Why it is not active, for people."""
    robots: tuple[str, ...] = ()
    """Name patterns; empty: all."""
    active_for_ns: int = 0
    silent_after_ns: int = SILENT_NS
    """While it is active: one that was not heard for so long is gone."""
    standby_after_ns: int = 0
    """Not 0: it was started as a standby, and takes over after so long a silence."""
    policy: str = ""
    """Type and fingerprint of the weights; empty before an engine was up."""
    state_dim: int = 0
    action_dim: int = 0
    chunk_size: int = 0
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Camera name without observation.images. -> (height_px, width_px)."""
    any_camera_size: bool = False
    cameras_optional: bool = False
    observations: int = 1
    """That the policy reads, one control period apart, the newest included."""
    keyframe_stride: int = 0
    """As in `PolicyInterface`."""
    policies: tuple[ServedPolicy, ...] = ()
    """Where it serves several. The fields above are of the default one."""

    def serves(self, weights: str) -> bool:
        """Whether one of its policies has this type and fingerprint, or may have it: those of a
        policy of which no engine was up are not known."""
        return weights == self.policy or any(
            one.interface is None or one.interface.name == weights for one in self.policies
        )

    def interface_of(self, asked: str) -> PolicyInterface | None:
        """What a robot must fit whose new task asks for this policy; None where that is not known,
        or not up."""
        named = {one.name: one for one in self.policies}
        if asked in named:
            found = named.get(named[asked].swapped_for or asked)
            return found.interface if found else None
        weights = {one.interface.name: one.interface for one in self.policies if one.interface}
        return weights.get(asked) if asked not in ("", self.policy) else self.interface

    @property
    def interface(self) -> PolicyInterface | None:
        """What a robot must fit that asks for the default; None before an engine was up."""
        if not self.policy:
            return None
        return PolicyInterface(
            self.policy,
            self.state_dim,
            self.action_dim,
            self.cameras,
            self.any_camera_size,
            self.cameras_optional,
            self.observations,
            self.keyframe_stride,
        )

    def __str__(self) -> str:
        return f"{printable(self.node)} on {printable(self.host)} (pid {self.pid})"


@dataclass(slots=True)
class ReceivedStatus:
    """A server's newest status."""

    status: ServerStatus
    at_ns: int
    """Monotonic clock of whoever heard it."""

    def is_silent(self, now_ns: int) -> bool:
        active = self.status.state is ServerState.ACTIVE  # nobody hurries to be rid of another one
        return now_ns - self.at_ns > (self.status.silent_after_ns if active else SILENT_NS)

    def active_for_ns(self, now_ns: int) -> int:
        """How long it has been active by now."""
        return self.status.active_for_ns + now_ns - self.at_ns


class FleetServer:
    """Whose fleet state tools show: a server that is kept out tells its own on the same topic."""

    def __init__(self) -> None:
        self._active = ""
        self._heard_ns = 0

    def shows(self, server: str, now_ns: int, *, active: bool) -> bool:
        """Whether this state is to be shown: not that of an inactive server while another one is
        active."""
        if active:
            self._active, self._heard_ns = server, now_ns
        return server == self._active or now_ns - self._heard_ns > SILENT_NS
