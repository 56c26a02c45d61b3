"""Other serving nodes that want the same robots: at most one of them serves. Pure.

Every server tells its state each second. One that is active keeps the robots until it leaves or
falls silent; of two that are active, as after a network was split, the one that has been so longer
goes on. Whoever is in doubt serves nobody: robots hold for a second, and never get two answers.

A standby takes over sooner than others would: it says after how much silence, and the server that
has the robots then tells its state more often.
"""

from collections.abc import Sequence

from kairos_ros.core.name_patterns import overlap
from kairos_ros.core.server_status import SILENT_NS, ReceivedStatus, ServerState, ServerStatus

TIE_NS = 1_000_000_000
"""Two that became active within this time did so at once: the smaller identity goes on."""
DOUBT_NS = 1_000_000_000
"""More than a status is ever under way. The larger identity goes on only where it has been active
longer by so much more, so that the two sides, whose measurements differ by the delay, never both
go on."""
PROBATION_NS = 5_000_000_000
"""A server that has served for so long leaves its robots to nobody who was not heard to be active
for so long: what a message claims about its sender's age is only a claim."""
MOST_SERVERS = 64
"""Remembered; a fleet has a handful. Further ones are not heard."""
TURN_NS = 3_000_000_000
"""Several that wait take their turn: the smallest identity at once, the others after this."""
WAITING = (ServerState.CONFLICT, ServerState.STANDBY)


class OtherServers:
    """What the other servers of a fleet say. Not thread safe."""

    def __init__(self, server: str, robots: Sequence[str], standby_after_ns: int = 0) -> None:
        """robots: name patterns of one's own robots; empty: all. standby_after_ns: not 0: this one
        is a standby, and takes over after so long a silence."""
        self._server = server
        self._robots = tuple(robots)
        self._standby_after_ns = standby_after_ns
        self._had_owner = False
        """Another server was heard to serve the robots."""
        self._heard: dict[str, ReceivedStatus] = {}
        self._active_since: dict[str, int] = {}
        """When a server that is active was first heard to be so."""
        self._overlapping: dict[str, bool] = {}
        """Whether a server's name patterns overlap with one's own."""
        self._owners: set[str] = set()
        """Were heard to be active, and have not given the robots up since."""
        self._free_ns: int | None = None
        """Since when no other server has the robots; None while one does."""

    @property
    def known(self) -> int:
        """How many other servers were heard and have not left or fallen silent since."""
        return len(self._heard)

    @property
    def silent_after_ns(self) -> int:
        """After so long a silence of this server it is gone: sooner where a standby waits for it,
        or where it is one itself."""
        wished = [self._standby_after_ns]
        wished += [h.status.standby_after_ns for h in self._overlapping_ones()]
        return min([SILENT_NS, *filter(None, wished)])

    def may_have_taken_over(self, untold_ns: int) -> bool:
        """Whether a standby may serve this server's robots by now.

        untold_ns: for how long this server has not told its state. A standby counts its silence
        from there, and not from the moment at which this server stood still.
        """
        has_standby = self.silent_after_ns < SILENT_NS
        return has_standby and untold_ns > self.silent_after_ns

    def stood_still(self, now_ns: int, for_ns: int) -> None:
        """The caller could hear nobody for so long; what others said meanwhile comes late."""
        for heard in self._heard.values():
            heard.at_ns = min(now_ns, heard.at_ns + for_ns)

    def heard(self, status: ServerStatus, now_ns: int) -> None:
        """A status arrived; one's own is ignored."""
        if status.server == self._server:
            return
        if status.state is ServerState.LEAVING:
            self._forget(status.server)
            return
        if status.server not in self._heard and len(self._heard) >= MOST_SERVERS:
            return
        self._heard[status.server] = ReceivedStatus(status, now_ns)
        self._overlapping[status.server] = overlap(self._robots, status.robots)
        if status.state is ServerState.ACTIVE:
            self._active_since.setdefault(status.server, now_ns)
            self._owners.add(status.server)
        else:
            self._active_since.pop(status.server, None)
            if status.state is not ServerState.INACTIVE:
                self._owners.discard(status.server)

    def before(self, now_ns: int, active_since_ns: int | None) -> ServerStatus | None:
        """The server that this one must leave the robots to; None: it may serve.

        active_since_ns: since when this one has served them; None while it does not.
        """
        self._forget_silent(now_ns)
        overlapping = self._overlapping_ones()
        owner = next(
            (h.status for h in overlapping if self._keeps(h, now_ns, active_since_ns)), None
        )
        self._had_owner |= owner is not None
        if owner is None and self._standby_after_ns and not self._had_owner:
            owner = next((h.status for h in overlapping if _is_about_to_serve(h.status)), None)
        if owner is not None:
            self._free_ns = None
            return owner
        if active_since_ns is not None:
            return None
        if self._free_ns is None:
            self._free_ns = now_ns
        if now_ns - self._free_ns >= TURN_NS:
            return None
        return next((h.status for h in overlapping if self._is_before_us_in_turn(h.status)), None)

    def waiting(self, now_ns: int) -> list[ServerStatus]:
        """Servers that want robots of this one, and have to leave them to it."""
        self._forget_silent(now_ns)
        return [
            heard.status
            for heard in self._heard.values()
            if heard.status.state in WAITING and self._overlapping[heard.status.server]
        ]

    def _overlapping_ones(self) -> list[ReceivedStatus]:
        return [h for h in self._heard.values() if self._overlapping[h.status.server]]

    def _forget(self, server: str) -> None:
        for known in (self._heard, self._active_since, self._overlapping):
            known.pop(server, None)
        self._owners.discard(server)

    def _forget_silent(self, now_ns: int) -> None:
        for server in [s for s, heard in self._heard.items() if heard.is_silent(now_ns)]:
            self._forget(server)

    def _keeps(self, heard: ReceivedStatus, now_ns: int, active_since_ns: int | None) -> bool:
        """Whether the other one goes on, and not this one."""
        status = heard.status
        if active_since_ns is None:
            return status.server in self._owners  # also one that was deactivated: it has the robots
        if status.state is not ServerState.ACTIVE:
            return False
        heard_for_ns = now_ns - self._active_since[status.server]
        if now_ns - active_since_ns > PROBATION_NS > heard_for_ns:
            return False
        older_ns = heard.active_for_ns(now_ns) - (now_ns - active_since_ns)
        if self._server < status.server:
            return older_ns > TIE_NS
        return older_ns > -(TIE_NS + DOUBT_NS)

    def _is_before_us_in_turn(self, status: ServerStatus) -> bool:
        """It waits as well, could serve at once, and is no standby, or has the smaller identity."""
        waits = status.state in WAITING and status.policy
        before = bool(status.standby_after_ns), status.server
        return bool(waits) and before < (bool(self._standby_after_ns), self._server)


def _is_about_to_serve(status: ServerStatus) -> bool:
    """It loads, and is no standby: a standby that was started with it leaves the robots to it."""
    return status.state is ServerState.STARTING and not status.standby_after_ns
