"""A request on its way through the serving side."""

from dataclasses import dataclass

from kairos_ros.core.horizon import HorizonPolicy
from kairos_ros.core.wait_ratio import Interval, running_execution
from kairos_ros.serving.exchange import Execution, Query
from kairos_ros.serving.sessions import Session
from kairos_ros.transport.messages import InferRequest


@dataclass(slots=True)
class Entry:
    """One pending or running round of one robot."""

    query: Query
    """The newest attempt; in an engine, the one that is computed."""
    session: Session
    horizon: HorizonPolicy
    received_ns: int
    """When the first attempt of the round came."""
    asked_ns: int
    """When the attempt of `query` came."""
    observed_ns: int
    """When the newest observation was taken, on the server's clock."""
    deadline_ns: int
    newer: tuple[Query, int] | None = None
    """An attempt that came while an older one was computed, and when: what is said about the round
    but its chunk is said to this one, and it is computed if the older one has to be again."""
    hold_until_ns: int = 0
    """A newer observation was asked for; until then it is worth waiting for."""
    refetched_for: int = 0
    """The batch that observation was asked for, whenever its turn comes."""
    crashes: int = 0
    """Engines that died with this request in their batch."""
    copies: int = 0
    """In flight: 1, or 2 where it was hedged."""
    hedged_on: str = ""
    """Engine of the second copy."""
    answered: bool = False
    """What else comes is dropped."""
    dispatched_ns: int = 0
    reason: str = ""
    """Of the decision that dispatched it."""

    def renew(self, query: Query, now_ns: int) -> None:
        """Another attempt came."""
        self.query, self.asked_ns = query, now_ns
        self.observed_ns = now_ns - round(query.observed_ago_s * 1e9)

    @property
    def key(self) -> str:
        return self.session.task_key

    def history_moves_to(self, engine: str) -> bool:
        """Whether the task has a history, and another engine than this one has it."""
        return self.session.served_by not in ("", engine)

    def is_current(self) -> bool:
        """Whether the robot still works on the task and round that this request is for."""
        return (
            self.query.task == self.session.task and self.query.round == self.session.newest_round
        )


def executed(now_ns: int, execution: Execution) -> Interval:
    """E_j of the round that a robot reports, on the server's clock; its end may lie ahead."""
    period_ns = round(1e9 / execution.control_rate_hz)
    start, end = running_execution(
        now_ns, round(execution.started_ago_s * 1e9), execution.actions_remaining, period_ns
    )
    if execution.actions_remaining == 0:
        end = now_ns - round(execution.ended_ago_s * 1e9)
    return start, max(start, end)


def infer_request(query: Query) -> InferRequest:
    """What an engine gets of `query`. The noise is seeded by the robot's seed and the round."""
    return InferRequest(
        robot=query.robot,
        session=query.session,
        task=query.task,
        round=query.round,
        attempt=query.attempt,
        seed=(query.seed * 1_000_003 + query.round) % 2**63,
        instruction=query.instruction,
        state=query.state,
        images=query.images,
    )
