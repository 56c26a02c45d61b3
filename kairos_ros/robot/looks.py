"""What a robot saw lately: the observations that its requests bring."""

import time
from dataclasses import dataclass, replace

from kairos_ros.core.exchange import Observation, Request
from kairos_ros.robot.adapter import RobotAdapter


@dataclass(frozen=True, slots=True)
class _Looked:
    began_ns: int
    shows_ns: int
    """The time that it shows."""
    seen: Observation


class Looks:
    """Looks at the body, and keeps what was seen in the last control periods where a policy reads
    several observations. Times are monotonic nanoseconds."""

    def __init__(self, body: RobotAdapter) -> None:
        self._body = body
        self._kept: list[_Looked] = []  # oldest first

    def keep(self, earlier: int, *, instead: bool = False) -> None:
        """Looks now; of the looks kept before, the newest `earlier` stay. instead: not the newest
        of all."""
        kept = self._kept[: len(self._kept) - instead]
        kept = kept[len(kept) - earlier :]
        self._kept = [*kept, self._look()]

    def put_into(
        self, request: Request, observations: int, *, repeat: bool = True
    ) -> tuple[Request, int]:
        """`request` with what was seen, and the time that the newest of it shows.

        observations: 1: look now. Else those of the last so many looks. repeat: the oldest, for
        those that are missing, as LeRobot does at the start of an episode.
        """
        looks = self._kept if observations > 1 else [self._look()]
        newest, seen = looks[-1], [look.seen for look in looks]
        missing = observations - len(seen) if repeat else 0
        sent = replace(
            request,
            observation=newest.seen,
            observed_ago_ns=time.monotonic_ns() - newest.began_ns,
            earlier=(*[seen[0]] * missing, *seen[:-1]),
        )
        return sent, newest.shows_ns

    def _look(self) -> _Looked:
        began_ns = time.monotonic_ns()
        seen = self._body.observe()
        taken_ns = seen.taken_ns
        return _Looked(began_ns, time.monotonic_ns() if taken_ns is None else taken_ns, seen)
