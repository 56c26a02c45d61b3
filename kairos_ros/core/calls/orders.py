"""Which call goes first. Each order also says why, for whoever looks at the queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.core.calls.call import NEVER, Call, Ended
from kairos_ros.core.calls.workflows import Workflows
from kairos_ros.core.errors import ConfigError

HALVED_EVERY_NS = 30_000_000_000
"""What was measured of the models' speed counts half after so long."""
PATIENCE_NS = 10_000_000_000
"""Taken as the SLO of a call that has none, by orders that divide by it."""


@dataclass(slots=True)
class Learned:
    """What was learned from the calls so far."""

    workflows: Workflows = field(default_factory=Workflows)
    _tokens: float = 0.0
    _busy_ns: float = 0.0
    _since_ns: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens that all instances together work off while they are busy; 0: not known."""
        return self._tokens / (self._busy_ns / 1e9) if self._busy_ns > 0 else 0.0

    def busy(self, duration_ns: int) -> None:
        """For so long there was at least one call with a model."""
        self._busy_ns += duration_ns

    def answered(self, ended: Ended) -> None:
        self.workflows.answered(ended)
        self._tokens += ended.call.prompt_tokens
        if ended.ended_ns - self._since_ns > HALVED_EVERY_NS:
            self._since_ns = ended.ended_ns
            self._tokens /= 2
            self._busy_ns /= 2

    def expected_s(self, call: Call) -> float:
        """How long a model takes for a call: the mean of its component, else of all; else 1 s."""
        known = self.workflows.single
        one = known.get(self.workflows.known(call.caller.component))
        if one is not None:
            return one.mean
        return float(np.mean([other.mean for other in known.values()])) if known else 1.0

    def expected_tokens(self, call: Call) -> float:
        """How many tokens a model answers with: the mean of the call's component, else 64."""
        one = self.workflows.tokens.get(self.workflows.known(call.caller.component))
        return 64.0 if one is None else one.mean


@dataclass(frozen=True, slots=True)
class Ordered:
    """Calls that wait, first the one to serve first."""

    calls: list[Call]
    explain: Callable[[Call], str]
    """Why a call is where it is."""


Order = Callable[[int, Sequence[Call], Learned], Ordered]
"""(now_ns, calls that wait in the order of their arrival, what was learned). Pure."""


def first_come(now_ns: int, waiting: Sequence[Call], _learned: Learned) -> Ordered:
    """In the order in which they arrived: the baseline of Chen et al. and Wang et al."""
    return Ordered(
        sorted(waiting, key=lambda one: one.number),
        lambda call: f"has waited {(now_ns - call.arrived_ns) / 1e9:.2f} s",
    )


def earliest_deadline(now_ns: int, waiting: Sequence[Call], _learned: Learned) -> Ordered:
    """The call whose answer is due first; those without an SLO last."""

    def explain(call: Call) -> str:
        return "no SLO" if call.due_ns == NEVER else f"due in {(call.due_ns - now_ns) / 1e9:.2f} s"

    return Ordered(sorted(waiting, key=lambda one: (one.due_ns, one.number)), explain)


def latest_start(now_ns: int, waiting: Sequence[Call], learned: Learned) -> Ordered:
    """The call that has to start first to be in time, as long as its component takes on average, of
    those that still can be; the others follow, the newest first: an old question is worth least.

    Under more load than the servers bear, `earliest_deadline` serves calls that have just become
    late and makes the next ones late, too; this one gives up some and keeps the rest in time. And
    it does not let a long call wait until it is too late because short ones are due before it.
    """
    component_of = {one.caller.component: one for one in waiting}
    takes_ns = {name: learned.expected_s(one) * 1e9 for name, one in component_of.items()}

    def slack_ns(call: Call) -> float:
        return call.due_ns - takes_ns[call.caller.component] - now_ns

    def key(call: Call) -> tuple[bool, float, int]:
        slack = slack_ns(call)
        return (True, -call.arrived_ns, 0) if slack < 0 else (False, slack, call.number)

    def explain(call: Call) -> str:
        if call.due_ns == NEVER:
            return "no SLO"
        slack_s = slack_ns(call) / 1e9
        if slack_s < 0:
            return "cannot be in time any more"
        return f"has to start within {slack_s:.2f} s"

    return Ordered(sorted(waiting, key=key), explain)


def workflow(now_ns: int, waiting: Sequence[Call], learned: Learned) -> Ordered:
    """Components whose workflows are nearest to their end first, then the older workflow.

    Chen et al. §5. A component of which nothing was learned yet ranks in the middle of the others.
    """
    components = {one.caller.component for one in waiting}
    ranks = {name: learned.workflows.rank(name) for name in components}
    known = [rank for rank in ranks.values() if rank is not None]
    middle = float(np.median(known)) if known else 0.0
    placed = {name: middle if rank is None else rank for name, rank in ranks.items()}

    def explain(call: Call) -> str:
        age = f"workflow is {(now_ns - call.workflow_began_ns) / 1e9:.2f} s old"
        rank = ranks[call.caller.component]
        if rank is None:
            return f"component not learned yet; {age}"
        return f"about {rank:.2f} s of its workflow left; {age}"

    ordered = sorted(
        waiting,
        key=lambda one: (placed[one.caller.component], one.workflow_began_ns, one.number),
    )
    return Ordered(ordered, explain)


def urgency(now_ns: int, waiting: Sequence[Call], learned: Learned) -> Ordered:
    """The largest normalised urgency first: what would be left of its SLO if the queue were worked
    off as it arrived, as a share of the SLO, over the length of its prompt (Wang et al., eq. 1 and
    Algorithm 1).

    Calls that would miss their SLO so have a negative urgency and go last, the longest first.
    """
    by_arrival = sorted(waiting, key=lambda one: one.number)
    speed = learned.tokens_per_s
    finish_ns = float(now_ns)
    urgencies: dict[int, float] = {}
    for call in by_arrival:
        finish_ns += call.prompt_tokens / speed * 1e9 if speed else 0.0
        slo_ns = PATIENCE_NS if call.due_ns == NEVER else max(1, call.due_ns - call.arrived_ns)
        slack = (slo_ns - (finish_ns - call.arrived_ns)) / slo_ns
        urgencies[call.number] = slack / call.prompt_tokens

    def explain(call: Call) -> str:
        return (
            f"urgency {1e3 * urgencies[call.number]:.3g}/1000 tokens, {call.prompt_tokens} tokens"
        )

    return Ordered(sorted(by_arrival, key=lambda one: -urgencies[one.number]), explain)


ORDERS: Mapping[str, Order] = {
    "latest_start": latest_start,
    "earliest_deadline": earliest_deadline,
    "first_come": first_come,
    "workflow": workflow,
    "urgency": urgency,
}


def order_called(name: str) -> Order:
    """Raises ConfigError for a name that is none."""
    if name not in ORDERS:
        raise ConfigError(f"order {name!r} is unknown; choose from {', '.join(ORDERS)}")
    return ORDERS[name]
