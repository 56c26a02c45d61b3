"""Which serving node a robot asks, and whose answers it takes: one server and one policy per task.

While the robot is idle it takes an active server whose name patterns are its own. A task begins
with that one and stays with it. Another one may take over only after the first has left, has fallen
silent or says itself that it serves nobody, and only with the same policy; with another policy the
task ends. Nothing is asked before a server is known, so that no answer is ever welcome from whoever
happens to be there.
"""

from collections import Counter

from kairos_ros.core.fit import PolicyInterface, RobotInterface, misfit
from kairos_ros.core.name_patterns import matches
from kairos_ros.core.server_status import ReceivedStatus, ServerState, ServerStatus

GONE = (ServerState.CONFLICT, ServerState.STANDBY, ServerState.LEAVING)
"""States in which a server does not have its robots any more."""
MOST_SERVERS = 64
"""Remembered; a fleet has a handful."""


class ServerBinding:
    """The binding of one robot. Not thread safe; times are monotonic nanoseconds."""

    def __init__(
        self, robot: str, interface: RobotInterface | None = None, policy: str = ""
    ) -> None:
        """interface: what the robot's requests bring, to be held against the server's policy.
        policy: that its tasks ask for unless they say otherwise; empty: the server's default."""
        self.bound = ""
        """Identity of the server that is asked; empty: nobody is."""
        self.other_servers: Counter[str] = Counter()
        """Answers that were dropped, by the identity of the server that gave them."""
        self.rebound = 0
        """Tasks that went on with another server."""
        self._robot, self._interface, self._usual = robot, interface, policy
        self._heard: dict[str, ReceivedStatus] = {}
        self._in_task = False
        self._asked = ""
        self._policy = ""
        """Of the first chunk of this task; empty before it."""

    @property
    def server(self) -> ServerStatus | None:
        """The newest status of the server that is asked; None where it is not known (any more)."""
        heard = self._heard.get(self.bound)
        return heard.status if heard else None

    @property
    def policy(self) -> PolicyInterface | None:
        """What requests are answered by; None where it is not known, or not up."""
        return self.server.interface_of(self.asks_for) if self.server else None

    @property
    def misfit(self) -> str:
        """Why the policy of the server that is asked cannot move this robot; empty if it can, or
        is not known yet."""
        policy = self.policy
        return misfit(self._interface, policy) if self._interface and policy else ""

    def heard(self, status: ServerStatus, now_ns: int) -> None:
        """A server said how it is."""
        if status.state is ServerState.LEAVING:
            self._heard.pop(status.server, None)
        elif matches(status.robots, self._robot):
            self._heard.pop(status.server, None)
            if len(self._heard) < MOST_SERVERS or status.server == self.bound:
                self._heard[status.server] = ReceivedStatus(status, now_ns)
        else:
            self._heard.pop(status.server, None)

    def resumed(self, now_ns: int) -> None:
        """This robot was away itself: that it heard nobody meanwhile says nothing about them."""
        self._heard = {
            server: ReceivedStatus(h.status, now_ns) for server, h in self._heard.items()
        }

    def begin(self, policy: str = "") -> None:
        """A task begins that asks for this policy; empty: the server's default."""
        self._in_task, self._asked, self._policy = True, policy, ""

    def end(self) -> None:
        """The task is over."""
        self._in_task, self._asked, self._policy = False, "", ""

    @property
    def asks_for(self) -> str:
        """The policy that requests name: from the first chunk of a task on that chunk's, by type
        and fingerprint, so that no server gives it another one under the same name."""
        return self._policy or (self._asked if self._in_task else self._usual)

    def look(self, now_ns: int) -> tuple[bool, str]:
        """Chooses the server for now, once per control period.

        Returns whether it is another one than before, and the outcome that the task must end with;
        empty while it may go on.
        """
        before, known = self.bound, self._heard.get(self.bound)
        state = known.status.state if known else ServerState.LEAVING
        silent = known is None or known.is_silent(now_ns)
        if self._in_task and before:
            if known and self._differs(known.status):
                return False, self._other_policy(known.status)
            if not silent and self.misfit:
                return False, f"refused: {self.misfit}"
            if not silent and state not in GONE:
                return False, ""
        elif not silent and state is ServerState.ACTIVE:
            return False, ""
        others = self._active(now_ns)
        same = [s for s in others if not self._policy or s.serves(self._policy)]
        if self._in_task and others and not same:
            return False, self._other_policy(others[0])
        if same:
            self.bound = same[0].server
            self.rebound += bool(self._in_task and before)
        elif not self._in_task:
            self.bound = ""
        return self.bound != before, ""

    def is_from(self, server: str) -> bool:
        """Whether an answer that names `server` is from the one that is asked; counts others."""
        if server and server == self.bound:
            return True
        self.other_servers[server[:64]] += 1
        if len(self.other_servers) > MOST_SERVERS:
            del self.other_servers[next(iter(self.other_servers))]
        return False

    def is_of(self, policy: str) -> bool:
        """Whether a chunk is of this task's policy, which the first one has decided."""
        return self._policy in ("", policy)

    def taken(self, policy: str) -> None:
        """A chunk of this policy is used: those that follow must be of the same one."""
        self._policy = self._policy or policy

    def describe_other_servers(self) -> str:
        """Whose answers were dropped, for people; empty where there were none."""
        return ", ".join(f"{self._name_of(s)}: {count}" for s, count in self.other_servers.items())

    def why_none(self, now_ns: int) -> str:
        """Why nobody is asked, for people."""
        known = [
            f"{h.status} is {'silent' if h.is_silent(now_ns) else h.status.state.name.lower()}"
            for h in self._heard.values()
        ]
        return "; ".join(known) or "none has announced itself for this robot"

    def _name_of(self, server: str) -> str:
        heard = self._heard.get(server)
        return str(heard.status) if heard else server or "unnamed"

    def _active(self, now_ns: int) -> list[ServerStatus]:
        """Those that serve this robot, the one that has done so longest first."""
        heard = [
            h
            for h in self._heard.values()
            if h.status.state is ServerState.ACTIVE and not h.is_silent(now_ns)
        ]
        heard.sort(key=lambda h: (-h.active_for_ns(now_ns), h.status.server))
        return [h.status for h in heard]

    def _differs(self, status: ServerStatus) -> bool:
        """Whether a server has another policy than this task's."""
        return bool(self._policy and status.policy and not status.serves(self._policy))

    def _other_policy(self, status: ServerStatus) -> str:
        return (
            f"failed: the server is now {status} with policy {status.policy}; the task began with "
            f"policy {self._policy}"
        )
