"""A fleet in virtual time around one batching server: runs of any size for tests of reports."""

import heapq
import random
from typing import Literal

from kairos_ros.evaluation.run import FleetRun, RoundRecord, Span, TaskRecord

PERIOD_S = 1 / 30
NETWORK_S = 0.004
CHUNK = 50
SCENES = ("reach-v3", "push-v3", "drawer-open-v3")


def queueing_run(
    robots: int,
    length_s: float,
    order: Literal["oldest", "neediest"],
    *,
    seed: int = 1,
    compute_s: float = 0.06,
    most: int = 4,
) -> FleetRun:
    """Every robot does task after task; the engine serves up to `most` requests at once.

    `oldest` takes requests as they came with chunks cut to 10 actions, `neediest` those first whose
    robot runs dry first, and executes 10 to 40 actions of a chunk.
    """
    names = [f"arm_{i}" for i in range(robots)]
    waiting: list[tuple[float, float, int]] = []  # requested, buffer empty, robot
    arrivals = [(0.01 * i, 0.01 * i, i) for i in range(robots)]
    heapq.heapify(arrivals)
    state = [_Robot(name, i, seed) for i, name in enumerate(names)]
    now_s = 0.0
    while arrivals or waiting:
        while arrivals and arrivals[0][0] + NETWORK_S / 2 <= now_s:
            waiting.append(heapq.heappop(arrivals))
        if not waiting:
            now_s = arrivals[0][0] + NETWORK_S / 2
            continue
        waiting.sort(key=lambda r: r[0] if order == "oldest" else r[1])
        batch, waiting = waiting[:most], waiting[most:]
        started_s = now_s
        now_s += compute_s
        for requested_s, _, i in batch:
            robot = state[i]
            horizon = 10 if order == "oldest" else robot.random.randint(10, 40)
            following = robot.serve(requested_s, started_s, compute_s, horizon, len(batch), order)
            if following[0] < length_s:
                heapq.heappush(arrivals, (*following, i))
    length_s = max([length_s, *(r.exec_end_s for robot in state for r in robot.rounds)])
    return FleetRun(
        tuple(names),
        length_s,
        tuple(sorted((t for r in state for t in r.tasks), key=lambda t: t.number)),
        tuple(Span(name, 0.0, length_s, "executing") for name in names),
        ((0.0, length_s),),
        tuple(r for robot in state for r in robot.rounds),
    )


class _Robot:
    def __init__(self, name: str, index: int, seed: int) -> None:
        self.name = name
        self.index = index
        self.random = random.Random(f"{seed}/{index}")
        self.tasks: list[TaskRecord] = []
        self.rounds: list[RoundRecord] = []
        self._begin()

    def _begin(self) -> None:
        self.number = self.index + 1000 * len(self.tasks)
        self.left = random.Random(self.number).randint(60, 160)
        self.first = len(self.rounds)
        self.executed = 0
        self.free_s = 0.0

    def serve(
        self,
        requested_s: float,
        started_s: float,
        compute_s: float,
        horizon: int,
        batch: int,
        order: str,
    ) -> tuple[float, float]:
        """One round; when the next is requested, and when the buffer is empty then."""
        received_s = requested_s + NETWORK_S / 2
        answered_s = started_s + compute_s + NETWORK_S / 2
        begin_s = max(answered_s, self.free_s)
        executed = min(horizon, self.left)
        end_s = begin_s + executed * PERIOD_S
        self.rounds.append(
            RoundRecord(
                robot=self.name,
                task=f"t{self.number}",
                round=len(self.rounds) - self.first + 1,
                attempts=1,
                requested_s=requested_s,
                answered_s=answered_s,
                exec_start_s=begin_s,
                exec_end_s=end_s,
                requested_at=self.executed,
                observed_at=self.executed,
                horizon=horizon,
                chunk_size=CHUNK,
                executed=executed,
                queued_s=started_s - received_s,
                compute_s=compute_s,
                server_s=started_s + compute_s - received_s,
                batch_size=batch,
                tier="edge",
                engine="edge",
                horizon_reason=f"confidence < 1 from action {horizon} on",
                reason=f"{order} first, 1st of {batch}",
            )
        )
        self.executed += executed
        self.left -= executed
        self.free_s = end_s
        if self.left:
            return max(answered_s, end_s - 3 * PERIOD_S), end_s
        self._end(end_s)
        self._begin()
        return end_s + 0.5, end_s + 0.5

    def _end(self, end_s: float) -> None:
        rounds = self.rounds[self.first :]
        start_s = rounds[0].requested_s
        actions = sum(r.executed for r in rounds)
        success = self.number % 7 != 3
        self.tasks.append(
            TaskRecord(
                number=self.number,
                robot=self.name,
                scene=SCENES[self.number % len(SCENES)],
                seed=self.number,
                wanted_s=start_s,
                given_s=start_s,
                ended_s=end_s,
                outcome="succeeded" if success else "max_actions",
                success=success,
                duration_s=end_s - start_s,
                first_wait_s=rounds[0].exec_start_s - start_s,
                stalled_s=end_s - start_s - actions * PERIOD_S,
                actions=actions,
                round_latency_s=tuple(r.latency_s for r in rounds),
                round_executed=tuple(r.executed for r in rounds),
                task=f"t{self.number}",
            )
        )
