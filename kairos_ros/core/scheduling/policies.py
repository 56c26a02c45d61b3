"""The scheduling policies. Each is its options; their defaults are documented here only.

Ties are served in order of arrival, then in the order in which the requests were given.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.overflow import Capacity
from kairos_ros.core.scheduling.decision import Decision, Pending, SchedulingPolicy, dispatch
from kairos_ros.core.scheduling.wait_ratio import WaitReading
from kairos_ros.core.spec import build_policy
from kairos_ros.core.tasks import Ints, TaskTable

ENTRY_POINT_GROUP = "kairos_ros.scheduling"


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served."""

    reading: ClassVar[WaitReading] = WaitReading()

    def decide(
        self, now_ns: int, pending: Pending, tasks: TaskTable, capacity: Capacity
    ) -> Decision:
        arrival = pending.arrival_ns

        def explain(i: int) -> str:
            return f"arrived {_seconds(now_ns - arrival[i])} ago"

        return dispatch(_sort(arrival), pending, tasks, capacity, explain)


@dataclass(frozen=True, slots=True)
class LeastService:
    """The task that has had least generation time first, as Autellix does for agents."""

    reading: ClassVar[WaitReading] = WaitReading()

    def decide(
        self, now_ns: int, pending: Pending, tasks: TaskTable, capacity: Capacity
    ) -> Decision:
        service = tasks.service_ns[pending.rows]

        def explain(i: int) -> str:
            return f"has had {_seconds(service[i])} of generation time"

        return dispatch(_sort(service, pending.arrival_ns), pending, tasks, capacity, explain)


@dataclass(frozen=True, slots=True)
class OldestTask:
    """The task that began first, first: new tasks wait, running robots keep moving."""

    reading: ClassVar[WaitReading] = WaitReading()

    def decide(
        self, now_ns: int, pending: Pending, tasks: TaskTable, capacity: Capacity
    ) -> Decision:
        start = tasks.start_ns[pending.rows]

        def explain(i: int) -> str:
            return f"task is {_seconds(now_ns - start[i])} old"

        return dispatch(_sort(start, pending.arrival_ns), pending, tasks, capacity, explain)


@dataclass(frozen=True, slots=True)
class WaitRatio:
    """Algorithm 1: buckets of wait ratio, high first; inside one, longest execution first."""

    buckets: int = 10
    """B: equal parts of the ratio range [0, 1]. Ratios outside it go to the outermost bucket."""
    aging: int | None = 20
    """A: skips after which a request moves up one bucket; none: never. The paper gives no value;
    20 to 50 are best in our study of it (`kairos study aging`)."""
    age: Literal["floor", "ceil"] = "floor"
    """floor: one bucket per A skips, as the text says. ceil: as Algorithm 1 line 8 prints."""
    within: Literal["longest", "arrival", "shortest"] = "longest"
    """Inside a bucket: longest last execution first, as printed, or shortest, or by arrival."""
    wait: Literal["side", "unified"] = "side"
    dominance: Literal["measured", "profile"] = "measured"
    clamp: bool = True
    ongoing: bool = False
    init: bool = False

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise ConfigError(f"wait_ratio: buckets must be at least 1, not {self.buckets}")
        if self.aging is not None and self.aging < 1:
            raise ConfigError(
                f"wait_ratio: aging must be at least 1 skip, or none, not {self.aging}"
            )

    @property
    def reading(self) -> WaitReading:
        return WaitReading(self.wait, self.dominance, self.clamp, self.ongoing, self.init)

    def decide(
        self, now_ns: int, pending: Pending, tasks: TaskTable, capacity: Capacity
    ) -> Decision:
        rows = pending.rows
        waits = tasks.waits_ns(rows, now_ns)
        life = now_ns - tasks.start_ns[rows]
        skipped = tasks.skipped[rows]
        last = tasks.last_exec_ns[rows]
        ratio_bucket = self._bucket(waits, life)
        bucket = self._aged(ratio_bucket, skipped)
        expected = _product(last, skipped + 1)
        inside = {"longest": -expected, "arrival": pending.arrival_ns, "shortest": last}
        order = _sort(-bucket, inside[self.within], pending.arrival_ns)

        def explain(i: int) -> str:
            ratio = waits[i] / life[i] if life[i] > 0 else 0.0
            up = bucket[i] - ratio_bucket[i]
            aged = f", up {up} after {skipped[i]} skips" if up else ""
            aging = f" x {skipped[i] + 1} for its skips" if skipped[i] else ""
            return (
                f"bucket {bucket[i]} (wait ratio {ratio:.2f}{aged}), "
                f"last execution {_seconds(last[i])}{aging}"
            )

        return dispatch(order, pending, tasks, capacity, explain, bucket)

    def _bucket(self, waits: Ints, life: Ints) -> Ints:
        """⌊wait / life · B⌋ in [0, B−1], exact; a task without lifetime is in bucket 0."""
        floor = _product(waits, self.buckets) // np.maximum(life, 1)
        return np.where(life > 0, np.clip(floor, 0, self.buckets - 1), 0).astype(np.int64)

    def _aged(self, bucket: Ints, skipped: Ints) -> Ints:
        if self.aging is None:
            return bucket
        up = skipped // self.aging if self.age == "floor" else -(-skipped // self.aging)
        aged: Ints = np.where(skipped >= self.aging, bucket + up, bucket)
        capped: Ints = np.minimum(aged, self.buckets - 1)
        return capped


@dataclass(frozen=True, slots=True)
class Admit:
    """Running tasks first, then new ones by age^alpha / expected rounds of their kind."""

    alpha: float = 1.0
    """0: the shortest new task first (best average); large: the oldest (best P95)."""
    running: Literal["run_out", "remaining"] = "run_out"
    """Among running tasks, first the robot whose actions run out first, or the one with the fewest
    expected rounds to go."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ConfigError(f"admit: alpha must be finite and not negative, not {self.alpha}")

    reading: ClassVar[WaitReading] = WaitReading()

    def decide(
        self, now_ns: int, pending: Pending, tasks: TaskTable, capacity: Capacity
    ) -> Decision:
        rows = pending.rows
        done = tasks.rounds[rows]
        new = done == 0
        age = now_ns - tasks.start_ns[rows]
        rounds = tasks.expected_rounds(rows)
        run_out = tasks.run_out_ns[rows]
        # log(age^alpha / rounds) orders alike and cannot overflow
        merit = self.alpha * np.log(np.maximum(age, 1)) - np.log(rounds)
        to_go = np.maximum(rounds - done, 1.0)
        among_running = to_go if self.running == "remaining" else np.zeros(len(rows))
        order = _sort(
            new, np.where(new, -merit, among_running), np.where(new, 0, run_out), pending.arrival_ns
        )

        def explain(i: int) -> str:
            if new[i]:
                return f"new for {_seconds(age[i])}, about {rounds[i]:.0f} rounds expected"
            left = run_out[i] - now_ns
            buffer = f"runs out in {_seconds(left)}" if left > 0 else f"idle for {_seconds(-left)}"
            to_go_text = f", about {to_go[i]:.0f} rounds to go"
            return f"running, {buffer}{to_go_text if self.running == 'remaining' else ''}"

        return dispatch(order, pending, tasks, capacity, explain)


BUILTIN: dict[str, Callable[..., SchedulingPolicy]] = {
    "fifo": Fifo,
    "least_service": LeastService,
    "wait_ratio": WaitRatio,
    "oldest_task": OldestTask,
    "admit": Admit,
}


def parse_scheduling(text: str) -> SchedulingPolicy:
    """Builds the policy named by, for example, `fifo` or `wait_ratio:buckets=10,aging=5,age=floor`.

    Names that are not built in are looked up in entry point group `kairos_ros.scheduling`.
    Raises ConfigError.
    """
    return cast(SchedulingPolicy, build_policy(text, BUILTIN, ENTRY_POINT_GROUP))


def _sort(*keys: NDArray[np.generic]) -> Ints:
    """Stable ascending order by the first key, then the next. Large integers stay exact."""
    order: Ints = np.lexsort([_sortable(key) for key in reversed(keys)])
    return order


def _sortable(key: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.unique(key, return_inverse=True)[1] if key.dtype == object else key


def _product(a: Ints, b: Ints | int) -> Ints:
    """a · b, exact: in Python integers where 64 bits might overflow."""
    if a.size and int(np.abs(a).max()) * int(np.max(b)) > np.iinfo(np.int64).max:
        return cast(Ints, a.astype(object) * b)
    product: Ints = a * b
    return product


def _seconds(ns: int | np.integer) -> str:
    return f"{ns / 1e9:.2f} s"
