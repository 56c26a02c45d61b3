"""Which question a model gets next: obligations with deadlines, one per robot and component. Pure.

A picture that comes while an older one still waits takes its place, and keeps its deadline: nobody
wants yesterday's answer, and nobody loses their turn by sending newer pictures. With the order
`earliest_deadline` an obligation with objective `slo` therefore waits at most

    slo - (smallest slo of all) + (obligations of all robots + 1) * (longest time of one request),

however many others come (test/vlm/test_judgement_queue.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kairos_ros.core.errors import ConfigError


class Requester(NamedTuple):
    """Who waits for the answer: there is one question at a time for each."""

    robot: str
    component: str


@dataclass(frozen=True, slots=True)
class Obligation[Subject]:
    """One answer that somebody waits for."""

    requester: Requester
    subject: Subject
    """What to judge."""
    first_ns: int
    """When the first picture came that this answer is due for; later ones took its place."""
    due_ns: int
    number: int
    """Counts up with every obligation that began to wait."""


Order = Callable[[int, Sequence[Obligation[Any]]], Sequence[Obligation[Any]]]
"""(now_ns, what waits) -> the same, most urgent first: the interface for policies that know more,
such as workflows that share models (Chen et al.) or unequal lengths (Wang et al.)."""


def earliest_deadline(_now_ns: int, waiting: Sequence[Obligation[Any]]) -> list[Obligation[Any]]:
    return sorted(waiting, key=lambda one: (one.due_ns, one.number))


def first_come(_now_ns: int, waiting: Sequence[Obligation[Any]]) -> list[Obligation[Any]]:
    """The baseline."""
    return sorted(waiting, key=lambda one: one.number)


ORDERS: Mapping[str, Order] = {"earliest_deadline": earliest_deadline, "first_come": first_come}


def order_called(name: str) -> Order:
    """Raises ConfigError for a name that is none."""
    if name not in ORDERS:
        raise ConfigError(f"judgement order {name!r} is unknown; choose from {', '.join(ORDERS)}")
    return ORDERS[name]


class JudgementQueue[Subject]:
    """What waits for one model, and what it is busy with. Not thread safe."""

    def __init__(self, order: Order = earliest_deadline) -> None:
        self.replaced: Counter[str] = Counter()
        """Pictures that a newer one took the place of, by component."""
        self._order = order
        self._waiting: dict[Requester, Obligation[Subject]] = {}
        self._asked: set[Requester] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, requester: Requester, subject: Subject, now_ns: int, slo_ns: int) -> None:
        """An answer about `subject` is due within `slo_ns`."""
        older = self._waiting.get(requester)
        if older is not None:
            self.replaced[requester.component] += 1
            due_ns = min(older.due_ns, now_ns + slo_ns)
            self._waiting[requester] = replace(older, subject=subject, due_ns=due_ns)
            return
        self._count += 1
        self._waiting[requester] = Obligation(
            requester, subject, now_ns, now_ns + slo_ns, self._count
        )

    def take(self, now_ns: int, most: int) -> list[Obligation[Subject]]:
        """The next questions, at most `most`, none of them to somebody whose last one is with the
        model: answers come in the order of their pictures. Every one must be `settle`d."""
        ready = [one for one in self._waiting.values() if one.requester not in self._asked]
        taken = list(self._order(now_ns, ready)[:most])
        for one in taken:
            del self._waiting[one.requester]
            self._asked.add(one.requester)
        return taken

    def settle(self, one: Obligation[Subject]) -> None:
        """The model has answered, or failed to."""
        self._asked.discard(one.requester)

    def forget(self, requester: Requester) -> None:
        """Nobody wants to know it any more: the robot is gone, or does something else."""
        self._waiting.pop(requester, None)
