"""The calls that wait and the calls that run: one queue before all instances.

Obligations go first whatever the order is, the one that is due first before the others, and one of
two and more places of every instance is kept for them. With `k` callers of obligations, at most
`MOST_PER_CALLER` calls of each, `p` places of the instances that are up, and no call longer than
`T`, an obligation therefore waits at most

    (ceil(MOST_PER_CALLER * k / p) + 1) * T,

however many other calls there are and in whatever order (test/core/calls/test_calls_queue.py).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from kairos_ros.core.calls.call import NEVER, Call, Caller, Ended
from kairos_ros.core.calls.dispatch import Dispatch, Instance, RunningCall, fewest_calls
from kairos_ros.core.calls.orders import (
    Learned,
    Order,
    Ordered,
    earliest_deadline,
    latest_start,
)
from kairos_ros.core.errors import KairosError

MOST_PER_CALLER = 8
"""Calls of one component of one robot that may wait or run at a time."""
MOST_WAITING = 1024
WAIT_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the buckets in which waits are counted."""


class FullError(KairosError):
    """A call is not taken: too many of its caller's, or of all, wait already."""


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A call that its instance is given now."""

    call: Call
    instance: Instance
    reason: str


def standing(run: RunningCall) -> str:
    """How a call stands when its instance is given it: `obligation`; else `in_time` or `late`, by
    how long calls of its component take; else `no_objective`."""
    if run.call.caller.is_obligation:
        return "obligation"
    if run.call.due_ns == NEVER:
        return "no_objective"
    return "in_time" if run.began_ns + run.expected_ns <= run.call.due_ns else "late"


@dataclass(slots=True)
class CallCounters:
    """Counters of one component."""

    answered: int = 0
    in_time: int = 0
    """Of those with an SLO."""
    late: int = 0
    unanswered: int = 0
    """Refused, failed or given up."""
    waited_ns: int = 0
    """Of all answered calls together."""
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BOUNDS_S) + 1))
    """Answered calls by how long they waited: up to each of WAIT_BOUNDS_S, and longer."""

    def waited(self, wait_ns: int) -> None:
        """An answered call."""
        self.answered += 1
        self.waited_ns += wait_ns
        self.waits[bisect_left(WAIT_BOUNDS_S, wait_ns / 1e9)] += 1


@dataclass(slots=True)
class CallQueue:
    """Not thread safe."""

    instances: dict[str, Instance]
    order: Order = latest_start
    dispatch: Dispatch = fewest_calls
    learned: Learned = field(default_factory=Learned)
    served: dict[str, CallCounters] = field(default_factory=dict)
    """By component."""
    held: str = ""
    """Why calls that wait were not given to an instance, when `start` was last called."""
    choices: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(instance, standing) -> calls that it was given; see `standing`."""
    _waiting: dict[int, Call] = field(default_factory=dict)
    _running: dict[int, tuple[Instance, RunningCall]] = field(default_factory=dict)
    _not_at: dict[int, Collection[str]] = field(default_factory=dict)
    """Of calls that wait again: number -> instances that failed at it."""
    _of: Counter[tuple[str, str]] = field(default_factory=Counter)
    _count: int = 0
    _busy_since_ns: int = 0

    def put(self, caller: Caller, model: str, prompt_tokens: int, slo_ns: int, now_ns: int) -> Call:
        """A call that waits from now on. slo_ns: 0 for none.

        Raises FullError.
        """
        own = self._of[caller.robot, caller.component]
        if own >= MOST_PER_CALLER:
            self._of_component(caller).unanswered += 1
            who = f"{caller.component or 'this client'} of {caller.robot or 'no robot'}"
            raise FullError(f"{own} calls of {who} are not answered yet; wait for one of them")
        if len(self._waiting) >= MOST_WAITING and not caller.is_obligation:
            self._of_component(caller).unanswered += 1
            raise FullError(f"{len(self._waiting)} calls wait already")
        self._count += 1
        began_ns = self.learned.workflows.began_ns(caller, now_ns)
        due_ns = now_ns + slo_ns if slo_ns else NEVER
        call = Call(self._count, caller, model, now_ns, due_ns, max(1, prompt_tokens), began_ns)
        self._waiting[call.number] = call
        self._of[caller.robot, caller.component] += 1
        return call

    def start(self, now_ns: int) -> list[StartedCall]:
        """The calls that are given to instances now, in order. Each has to end by one of the
        methods below."""
        started: list[StartedCall] = []
        self.held = "every server is busy"
        if not any(one.has_any_place(now_ns) for one in self.instances.values()):
            return started
        held: dict[tuple[str, str], int] = {}
        for ordered in self._ordered(now_ns):
            tried = (self._start(call, ordered.explain, now_ns, held) for call in ordered.calls)
            started.extend(one for one in tried if one is not None)
        return started

    def ordered(self, now_ns: int) -> list[tuple[Call, str]]:
        """The calls that wait and why they are where they are: obligations by their deadlines, then
        the others in the order."""
        return [(call, one.explain(call)) for one in self._ordered(now_ns) for call in one.calls]

    def _ordered(self, now_ns: int) -> tuple[Ordered, Ordered]:
        waiting = list(self._waiting.values())
        first = [one for one in waiting if one.caller.is_obligation]
        rest = [one for one in waiting if not one.caller.is_obligation]
        obligations = earliest_deadline(now_ns, first, self.learned)
        explain = obligations.explain
        return (
            Ordered(obligations.calls, lambda call: f"obligation, {explain(call)}"),
            self.order(now_ns, rest, self.learned),
        )

    def _start(
        self,
        call: Call,
        explain: Callable[[Call], str],
        now_ns: int,
        held: dict[tuple[str, str], int],
    ) -> StartedCall | None:
        """Gives the call to an instance, if one may have it now. held: (component, model) -> tokens
        of the shortest prompt that the dispatch has held back now; with longer ones it is not asked
        again, since instances only get fuller while calls start."""
        alike = call.caller.component, call.model
        if call.prompt_tokens >= held.get(alike, NEVER):
            return None
        not_at = self._not_at.get(call.number, ())
        free = [
            one
            for one in self.instances.values()
            if one.name not in not_at and one.has_place(call, now_ns)
        ]
        if not free:
            return None
        run = RunningCall(
            call,
            now_ns,
            round(self.learned.expected_s(call) * 1e9),
            self.learned.expected_tokens(call),
        )
        chosen = self.dispatch(run, free, now_ns)
        if chosen.instance is None:
            self.held = chosen.reason
            if not not_at:
                held[alike] = call.prompt_tokens
            return None
        del self._waiting[call.number]
        self._not_at.pop(call.number, None)
        if not self._running:
            self._busy_since_ns = now_ns
        self._running[call.number] = chosen.instance, run
        chosen.instance.running[call.number] = run
        chosen.instance.given += 1
        self.choices[chosen.instance.name, standing(run)] += 1
        reason = f"{explain(call)}; {chosen.instance.name}: {chosen.reason}"
        return StartedCall(call, chosen.instance, reason)

    def answered(self, call: Call, now_ns: int, completion_tokens: int = 0) -> None:
        """Its instance has answered. completion_tokens: 0 where it does not say."""
        run = self._left(call, now_ns)
        if run is None:
            return
        self.learned.answered(Ended(call, run.began_ns, now_ns, completion_tokens))
        served = self._of_component(call.caller)
        served.waited(run.began_ns - call.arrived_ns)
        if call.due_ns != NEVER:
            served.in_time += now_ns <= call.due_ns
            served.late += now_ns > call.due_ns

    def gone(self, call: Call, now_ns: int) -> None:
        """It has no answer and gets none: it failed, or nobody waits for it any more."""
        waiting = self._waiting.pop(call.number, None)
        self._not_at.pop(call.number, None)
        if waiting is not None:
            self._forget(call.caller)
        elif self._left(call, now_ns) is None:
            return
        self.learned.workflows.gone(call, now_ns)
        self._of_component(call.caller).unanswered += 1

    def again(self, call: Call, now_ns: int, not_at: Collection[str] = ()) -> None:
        """Its instance failed before it said anything: the call waits again, as old as it is.
        not_at: names of instances that are not given it."""
        if self._left(call, now_ns) is not None:
            self._of[call.caller.robot, call.caller.component] += 1
            self._waiting[call.number] = call
            self._not_at[call.number] = not_at

    def running_at(self, call: Call) -> tuple[Instance, RunningCall] | None:
        """Where it runs; None: nowhere."""
        return self._running.get(call.number)

    @property
    def waiting(self) -> list[Call]:
        """In the order of their arrival."""
        return list(self._waiting.values())

    @property
    def running(self) -> Iterable[tuple[Instance, RunningCall]]:
        return self._running.values()

    def _left(self, call: Call, now_ns: int) -> RunningCall | None:
        instance, run = self._running.pop(call.number, (None, None))
        if instance is None or run is None:
            return None
        del instance.running[call.number]
        self._forget(call.caller)
        self.learned.busy(now_ns - self._busy_since_ns)
        self._busy_since_ns = now_ns
        return run

    def _forget(self, caller: Caller) -> None:
        key = caller.robot, caller.component
        self._of[key] -= 1
        if not self._of[key]:
            del self._of[key]

    def _of_component(self, caller: Caller) -> CallCounters:
        return self.served.setdefault(
            self.learned.workflows.known(caller.component), CallCounters()
        )
