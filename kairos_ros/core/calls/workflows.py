"""Workflows, rebuilt from their calls, and what they teach (Chen et al. §4.2, §4.3)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kairos_ros.core.calls.call import Call, Caller, Ended
from kairos_ros.core.calls.distributions import Distribution, ranked

MOST_CALLS = 64
"""Of one workflow; one that goes on is learned from and begun anew."""
MOST_OPEN = 1024
"""Workflows at a time; the one that was quiet longest is ended for a new one."""
QUIET_NS = 30_000_000_000
"""A workflow without a call for so long has ended."""
MOST_COMPONENTS = 64
"""Components that are told apart; further ones are taken together."""
OTHERS = "(others)"
RANKED_EVERY = 16
"""Calls learned from between two rankings of the components."""

Key = tuple[str, str]
"""Robot and workflow: two robots that use one id do not share a workflow."""


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call of a workflow, while it was with a model."""

    component: str
    upstream: str
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class CallStep:
    """One call, with the calls that its answer led to."""

    span: CallSpan
    stages: list[list["CallStep"]] = field(default_factory=list)
    """One after the other; the calls of one stage overlap."""

    def remaining_ns(self) -> int:
        """Time with models from the start of this call to the end of what it led to; waiting and
        whatever else a robot does in between left out."""
        rest = sum(max(step.remaining_ns() for step in stage) for stage in self.stages)
        return self.span.ended_ns - self.span.began_ns + rest


def rebuilt(spans: Sequence[CallSpan]) -> list[CallStep]:
    """The calls that nothing led to, with all that followed from each.

    A call belongs to the newest earlier answer of its upstream component. Calls that one answer led
    to are of one stage where they overlap, which a sweep over their beginnings tells, and of
    stages one after the other where they do not.
    """
    first: list[CallStep] = []
    done: list[CallStep] = []
    children: dict[int, list[CallStep]] = {}
    for span in sorted(spans, key=lambda one: (one.began_ns, one.ended_ns)):
        step = CallStep(span)
        causes = [
            one
            for one in done
            if one.span.component == span.upstream and one.span.ended_ns <= span.began_ns
        ]
        if span.upstream and causes:
            cause = max(causes, key=lambda one: one.span.ended_ns)
            children.setdefault(id(cause), []).append(step)
        else:
            first.append(step)
        done.append(step)
    for step in done:
        step.stages = _stages(children.get(id(step), []))
    return first


def _stages(steps: Sequence[CallStep]) -> list[list[CallStep]]:
    """Steps in the order of their beginnings, parted where all before have ended."""
    stages: list[list[CallStep]] = []
    until = 0
    for step in steps:
        if stages and step.span.began_ns < until:
            stages[-1].append(step)
        else:
            stages.append([step])
        until = max(until, step.span.ended_ns)
    return stages


@dataclass(slots=True)
class _Open:
    began_ns: int
    active_ns: int
    waiting: int = 0
    """Calls that have no end yet."""
    spans: list[CallSpan] = field(default_factory=list)


class Workflows:
    """What is known of the calls of each component. Not thread safe."""

    def __init__(self) -> None:
        self.single: dict[str, Distribution] = {}
        """Seconds of one call with its model, by component."""
        self.remaining: dict[str, Distribution] = {}
        """Seconds with models from the start of a call to the end of its workflow."""
        self.tokens: dict[str, Distribution] = {}
        """Completion tokens of one call."""
        self.edges: Counter[tuple[str, str, bool]] = Counter()
        """(from, to, in parallel with others) of all workflows that ended."""
        self.ended: Counter[str] = Counter()
        """Why workflows ended: quiet, long (more than `MOST_CALLS`), many (`MOST_OPEN`)."""
        self._known: set[str] = set()
        self._open: dict[Key, _Open] = {}
        self._ranks: dict[str, float] = {}
        self._unranked = 0

    def began_ns(self, caller: Caller, now_ns: int) -> int:
        """When the workflow of a call that arrives now began; it has one more call to wait for."""
        if not caller.workflow:
            return now_ns
        self.expire(now_ns)
        key = (caller.robot, caller.workflow)
        workflow = self._open.get(key)
        if workflow is None:
            if len(self._open) >= MOST_OPEN:
                oldest = min(self._open, key=lambda one: self._open[one].active_ns)
                self._end(oldest, "many")
            workflow = self._open[key] = _Open(now_ns, now_ns)
        workflow.active_ns = now_ns
        workflow.waiting += 1
        return workflow.began_ns

    def gone(self, call: Call, now_ns: int) -> None:
        """A call got no answer, or nobody waits for it any more: nothing is learned from it."""
        self._left(call.caller, now_ns)

    def answered(self, ended: Ended) -> None:
        caller = ended.call.caller
        component = self.known(caller.component)
        self.single.setdefault(component, Distribution()).add(
            (ended.ended_ns - ended.began_ns) / 1e9
        )
        if ended.completion_tokens:
            self.tokens.setdefault(component, Distribution()).add(ended.completion_tokens)
        span = CallSpan(component, self.known(caller.upstream), ended.began_ns, ended.ended_ns)
        if not caller.workflow:
            self._learn([span])
            return
        workflow = self._left(caller, ended.ended_ns)
        if workflow is None:
            return
        workflow.spans.append(span)
        if len(workflow.spans) >= MOST_CALLS:
            self._learn(workflow.spans)
            self.ended["long"] += 1
            workflow.spans = []

    def expire(self, now_ns: int) -> None:
        """Ends the workflows that have been quiet for long."""
        quiet = [
            key
            for key, one in self._open.items()
            if not one.waiting and now_ns - one.active_ns > QUIET_NS
        ]
        for key in quiet:
            self._end(key, "quiet")

    @property
    def open(self) -> int:
        """Workflows that go on."""
        return len(self._open)

    def rank(self, component: str) -> float | None:
        """How long the calls of a component still have to go, for the order of components among
        each other; None: not learned yet."""
        return self._ranks.get(self.known(component))

    def known(self, component: str) -> str:
        """The name under which a component is learned of."""
        if component not in self._known and len(self._known) >= MOST_COMPONENTS:
            return OTHERS
        self._known.add(component)
        return component

    def _left(self, caller: Caller, now_ns: int) -> _Open | None:
        workflow = self._open.get((caller.robot, caller.workflow)) if caller.workflow else None
        if workflow is not None:
            workflow.waiting = max(0, workflow.waiting - 1)
            workflow.active_ns = now_ns
        return workflow

    def _end(self, key: Key, why: str) -> None:
        self.ended[why] += 1
        self._learn(self._open.pop(key).spans)

    def _learn(self, spans: Sequence[CallSpan]) -> None:
        todo = rebuilt(spans)
        while todo:
            step = todo.pop()
            remaining = self.remaining.setdefault(step.span.component, Distribution())
            remaining.add(step.remaining_ns() / 1e9)
            for stage in step.stages:
                for one in stage:
                    edge = (step.span.component, one.span.component, len(stage) > 1)
                    self.edges[edge] += 1
                    todo.append(one)
        self._unranked += len(spans)
        if self._unranked >= RANKED_EVERY:
            self._unranked = 0
            self._rank()

    def _rank(self) -> None:
        ready = {name: one.samples for name, one in self.remaining.items() if one.converged}
        self._ranks = dict(zip(ready, map(float, ranked(list(ready.values()))), strict=True))
