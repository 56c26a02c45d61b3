"""What a robot observed lately: the observations that its requests bring."""

import time
from dataclasses import dataclass, replace

from kairos_ros.core.exchange import Observation, Request
from kairos_ros.robot.adapter import RobotAdapter


@dataclass(frozen=True, slots=True)
class _Observed:
    began_ns: int
    shows_ns: int
    """The time that it shows."""
    observation: Observation


class ObservationHistory:
    """Observes the body, and keeps the observations of the last control periods where a policy
    reads several. Times are monotonic nanoseconds."""

    def __init__(self, body: RobotAdapter) -> None:
        self._body = body
        self._kept: list[_Observed] = []  # oldest first

    def keep(self, earlier: int, *, instead: bool = False) -> None:
        """Observes now; of those kept before, the newest `earlier` stay. instead: not the newest
        of all."""
        kept = self._kept[: len(self._kept) - instead]
        kept = kept[len(kept) - earlier :]
        self._kept = [*kept, self._observe()]

    def put_into(
        self, request: Request, observations: int, *, repeat: bool = True
    ) -> tuple[Request, int]:
        """`request` with what was observed, and the time that the newest of it shows.

        observations: 1: observe now. Else the last so many that were kept. repeat: the oldest, for
        those that are missing, as LeRobot does at the start of an episode.
        """
        observed = self._kept if observations > 1 else [self._observe()]
        newest, seen = observed[-1], [one.observation for one in observed]
        missing = observations - len(seen) if repeat else 0
        sent = replace(
            request,
            observation=newest.observation,
            observed_ago_ns=time.monotonic_ns() - newest.began_ns,
            earlier=(*[seen[0]] * missing, *seen[:-1]),
        )
        return sent, newest.shows_ns

    def _observe(self) -> _Observed:
        began_ns = time.monotonic_ns()
        seen = self._body.observe()
        taken_ns = seen.taken_ns
        return _Observed(began_ns, time.monotonic_ns() if taken_ns is None else taken_ns, seen)
