"""A request on its way through the serving side."""

from dataclasses import dataclass

from kairos_ros.core.horizon import HorizonPolicy
from kairos_ros.serving.exchange import Query
from kairos_ros.serving.sessions import Session


@dataclass(slots=True)
class Entry:
    """One pending or running round of one robot."""

    query: Query
    """The newest attempt."""
    session: Session
    horizon: HorizonPolicy
    received_ns: int
    """When the first attempt of the round came."""
    observed_ns: int
    """When the newest observation was taken, on the server's clock."""
    deadline_ns: int
    hold_until_ns: int = 0
    """A newer observation was asked for; until then it is worth waiting for."""
    crashes: int = 0
    """Engines that died with this request in their batch."""
    dispatched_ns: int = 0
    reason: str = ""
    """Of the decision that dispatched it."""

    @property
    def key(self) -> str:
        return self.session.task_key

    def is_current(self) -> bool:
        """Whether the robot still works on the task and round that this request is for."""
        return (
            self.query.task == self.session.task and self.query.round == self.session.newest_round
        )
