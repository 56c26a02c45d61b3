"""What the scheduler knows about every task, kept as running sums.

One row per task in a set of integer columns, updated when a round's interval is learned, so that a
decision reads a few columns of the pending rows and never walks a history.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import KairosError
from kairos_ros.core.scheduling.wait_ratio import Interval, WaitReading

Ints = NDArray[np.int64]

ROUNDS_KEPT = 4
"""Newest rounds of a task whose intervals can still be corrected; older ones are settled."""
KINDS_KEPT = 1000
"""Kinds of task with a history of their own; where kinds are free text, the rest share one."""
NEVER = int(np.iinfo(np.int64).max)
FARTHEST_NS = 2**62

_COLUMNS = (
    "start_ns", "wait_ns", "due_ns", "service_ns", "last_exec_ns",
    "run_out_ns", "rounds", "skipped", "kind",
)  # fmt: skip


@dataclass(slots=True)
class _Round:
    generation: Interval | None = None
    execution: Interval | None = None
    wait_ns: int = 0


@dataclass(slots=True)
class _Task:
    row: int
    l0_ns: int
    rounds: dict[int, _Round] = field(default_factory=dict)
    first: int | None = None
    first_wait_ns: int = 0


class TaskTable:
    """Open tasks by key (any hashable, for example (robot, session, task)).

    Policies read the columns, each int64 indexed by row, and change nothing:
    start_ns, wait_ns (sum of W_j), due_ns (since when the pending round waits, NEVER if unknown),
    service_ns (sum of |G_j|), last_exec_ns (length of the last execution), run_out_ns (when the
    robot has executed all it was given), rounds (generations so far), skipped, kind.
    """

    start_ns: Ints
    wait_ns: Ints
    due_ns: Ints
    service_ns: Ints
    last_exec_ns: Ints
    run_out_ns: Ints
    rounds: Ints
    skipped: Ints
    kind: Ints

    def __init__(self, reading: WaitReading | None = None) -> None:
        self.reading = reading or WaitReading()
        for name in _COLUMNS:
            setattr(self, name, np.zeros(16, np.int64))
        self._free = list(range(15, -1, -1))
        self._tasks: dict[Hashable, _Task] = {}
        self._kinds: dict[str, int] = {}
        self._finished: list[tuple[int, int]] = []  # per kind: tasks, rounds

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._tasks)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    def row(self, key: Hashable) -> int:
        """Row of an open task. Raises KairosError for a task that is not open."""
        return self._task(key).row

    def rows_of(self, keys: Iterable[Hashable]) -> Ints:
        """Rows of open tasks, [n]. Raises KairosError if one is not open."""
        try:
            return np.array([self._tasks[key].row for key in keys], np.int64)
        except KeyError as error:
            raise KairosError(f"task {error.args[0]!r} is not open") from None

    def open(
        self, key: Hashable, now_ns: int, *, kind: str = "", first_exec_ns: int = 0, l0_ns: int = 0
    ) -> int:
        """Starts accounting for a task at its first request and returns its row.

        kind: tasks of one kind share the history of how many rounds they take. first_exec_ns:
        stands for |E_last| until an execution is known (`wait_ratio.first_execution_ns`). l0_ns:
        profiled generation latency of a batch of one. Raises KairosError for an open task.
        """
        if key in self._tasks:
            raise KairosError(f"task {key!r} is open already; close it first")
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._tasks[key] = _Task(row, l0_ns)
        self.start_ns[row] = self.run_out_ns[row] = now_ns
        self.wait_ns[row] = self.service_ns[row] = self.rounds[row] = self.skipped[row] = 0
        self.last_exec_ns[row] = first_exec_ns
        self.due_ns[row] = now_ns if self.reading.init else NEVER
        self.kind[row] = self._kind(kind)
        return row

    def close(self, key: Hashable, *, finished: bool = True) -> None:
        """Forgets a task; a finished one adds its rounds to the history of its kind."""
        row = self._task(key).row
        del self._tasks[key]
        self._free.append(row)
        if finished:
            tasks, rounds = self._finished[self.kind[row]]
            self._finished[self.kind[row]] = (tasks + 1, rounds + int(self.rounds[row]))

    def generation(self, key: Hashable, round_index: int, start_ns: int, end_ns: int) -> None:
        """Records or replaces G_j. Raises KairosError if it ends before it starts or is settled."""
        task = self._task(key)
        record = self._record(task, key, round_index, start_ns, end_ns)
        before = record.generation
        record.generation = (start_ns, end_ns)
        if before is None:
            self.rounds[task.row] += 1
        self.service_ns[task.row] += end_ns - start_ns - (before[1] - before[0] if before else 0)
        if task.first is None:
            task.first = round_index
        if task.first == round_index and self.reading.init:
            wait = self.reading.gap_ns(int(self.start_ns[task.row]), start_ns)
            self.wait_ns[task.row] += wait - task.first_wait_ns
            task.first_wait_ns = wait
        self._settle(task, round_index)

    def execution(self, key: Hashable, round_index: int, start_ns: int, end_ns: int) -> None:
        """Records or replaces E_j; its end may lie ahead (`wait_ratio.running_execution`).

        Raises KairosError if it ends before it starts or is settled.
        """
        task = self._task(key)
        self._record(task, key, round_index, start_ns, end_ns).execution = (start_ns, end_ns)
        self._settle(task, round_index)

    def waits_ns(self, rows: Ints, now_ns: int) -> Ints:
        """Accumulated wait of each row, [len(rows)]; with `ongoing`, including the pending one."""
        waits: Ints = self.wait_ns[rows]
        if not self.reading.ongoing:
            return waits
        due = self.due_ns[rows]
        gap = now_ns - np.minimum(due, now_ns) if self._clamped else now_ns - due
        waits += np.where(due == NEVER, 0, gap)
        return waits

    def wait_ratio(self, key: Hashable, now_ns: int) -> Fraction:
        """Exact accumulated wait over lifetime (Dai et al. eq. 1); 0 for a task that just began."""
        row = self.row(key)
        life = now_ns - int(self.start_ns[row])
        waited = int(self.waits_ns(np.array([row]), now_ns)[0])
        return Fraction(waited, life) if life > 0 else Fraction(0)

    def expected_rounds(self, rows: Ints) -> NDArray[np.float64]:
        """Mean rounds of finished tasks of each row's kind, [len(rows)].

        A kind without history takes the mean of all kinds; 1 before any task has finished.
        """
        tasks = sum(n for n, _ in self._finished)
        fallback = sum(r for _, r in self._finished) / tasks if tasks else 1.0
        mean = np.array([r / n if n else fallback for n, r in self._finished])
        expected: NDArray[np.float64] = np.maximum(mean, 1.0)[self.kind[rows]]
        return expected

    def set_skipped(self, rows: Ints, skipped: Ints) -> None:
        """Takes over a decision's skip counters."""
        self.skipped[rows] = skipped

    @property
    def _clamped(self) -> bool:
        return self.reading.clamp or self.reading.wait == "unified"

    def _task(self, key: Hashable) -> _Task:
        try:
            return self._tasks[key]
        except KeyError:
            raise KairosError(f"task {key!r} is not open") from None

    def _record(
        self, task: _Task, key: Hashable, round_index: int, start_ns: int, end_ns: int
    ) -> _Round:
        if end_ns < start_ns:
            raise KairosError(f"round {round_index} of task {key!r} ends before it starts")
        if max(-start_ns, end_ns) > FARTHEST_NS:
            raise KairosError(
                f"round {round_index} of task {key!r} lies a century away: {start_ns}..{end_ns} ns"
            )
        newest = max(task.rounds, default=round_index)
        if round_index <= newest - ROUNDS_KEPT:
            raise KairosError(f"round {round_index} of task {key!r} is settled, now at {newest}")
        for old in [r for r in task.rounds if r <= round_index - ROUNDS_KEPT]:
            del task.rounds[old]
        return task.rounds.setdefault(round_index, _Round())

    def _kind(self, kind: str) -> int:
        if kind not in self._kinds and len(self._finished) < KINDS_KEPT:
            self._kinds[kind] = len(self._finished)
            self._finished.append((0, 0))
        return self._kinds.get(kind, KINDS_KEPT - 1)

    def _settle(self, task: _Task, changed: int) -> None:
        """Brings the sums up to date: a change of round j moves W_{j-1} and W_j."""
        reading, rounds, row = self.reading, task.rounds, task.row
        for j in (changed - 1, changed):
            record, following = rounds.get(j), rounds.get(j + 1)
            if record is None or record.generation is None or record.execution is None:
                continue
            due, side = reading.due_ns(record.generation, record.execution, task.l0_ns)
            successor = getattr(following, side, None)
            wait = reading.gap_ns(due, successor[0]) if successor else 0
            self.wait_ns[row] += wait - record.wait_ns
            record.wait_ns = wait
        newest = rounds[max(rounds)]
        self.due_ns[row] = NEVER
        if newest.generation and newest.execution:
            self.due_ns[row], _ = reading.due_ns(newest.generation, newest.execution, task.l0_ns)
        executed = [j for j, record in rounds.items() if record.execution]
        if executed:
            start, end = rounds[max(executed)].execution or (0, 0)
            self.last_exec_ns[row] = end - start
            self.run_out_ns[row] = end

    def _grow(self) -> None:
        size = len(self.start_ns)
        for name in _COLUMNS:
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(size, np.int64)]))
        self._free = list(range(2 * size - 1, size - 1, -1))
