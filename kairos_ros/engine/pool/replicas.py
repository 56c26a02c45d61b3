"""Several engines behind one worker: each replica lives in a process of its own, maybe elsewhere.

Every replica has a thread here, which takes batches from the worker's one queue and waits for it.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kairos_ros.core.errors import KairosError, PolicyError
from kairos_ros.engine.interface import EngineLostError
from kairos_ros.engine.pool.demand import ReplicaCount, ReplicaDemand
from kairos_ros.engine.worker.link import WorkerLink
from kairos_ros.engine.worker.process import WorkerExit
from kairos_ros.engine.worker.work_loop import WorkReport, one_by_one, work
from kairos_ros.transport.messages import EngineDescription, InferOutcome, InferRequest

log = logging.getLogger(__name__)

BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
"""A life of a replica without a finished batch is followed by a wait: BACKOFF_S, twice that, and so
on up to BACKOFF_MAX_S."""
LOOK_S = 0.1
"""How often it is looked how many replicas compute."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What of a registry a replica serves, by name, and why not the rest."""

    served: Mapping[str, EngineDescription]
    refused: Mapping[str, str]


class Replica(Protocol):
    """An engine in another process, which whoever runs it starts again when it died."""

    def load(self, given_up: Callable[[], bool]) -> Loaded | None:
        """Waits until it runs (again) and has loaded its policies; None when `given_up` before.

        Raises PolicyError or ConfigError when it serves none, EngineLostError when it died.
        """
        ...

    def infer(self, policy: str, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """As `Engine.infer`. Raises EngineLostError when it died or hangs, and nothing else."""
        ...

    def end(self) -> None:
        """It is not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class _Refusal:
    replica: int
    reason: str


class Pool:
    """The replicas of one worker, from when they load until the last is done."""

    def __init__(
        self,
        link: WorkerLink,
        new_replica: Callable[[], Replica],
        count: ReplicaCount,
        report_s: float,
    ) -> None:
        self._link = link
        self._new_replica = new_replica
        self._count = count
        self._report_s = report_s
        self._lock = threading.Lock()
        self._served: Mapping[str, EngineDescription] = {}
        """What the first that was ready serves, and all others have to."""
        self._refusals: list[_Refusal] = []
        self._started = 0
        link.replicas = 0

    def run(self) -> WorkerExit:
        """Until the worker is told to stop, or every replica refused the policies."""
        link, demand = self._link, ReplicaDemand(self._count)
        link.loading(f"waiting for the first of {self._count.least} replicas")
        threads = [self._begin() for _ in range(self._count.least)]
        target = len(threads)
        while threads:
            time.sleep(LOOK_S)
            threads = [thread for thread in threads if thread.is_alive()]
            ready = link.replicas
            wanted = demand.wanted(time.monotonic(), link.computing, ready)
            if not target == len(threads) == ready or link.stopping or self._refusals:
                continue  # somebody comes or goes already
            if wanted > ready:
                threads.append(self._begin())
            elif wanted < ready:
                link.dismiss()
            target = wanted
        return WorkerExit.STOPPED if link.stopping else WorkerExit.REFUSED

    def _begin(self) -> threading.Thread:
        self._started += 1
        args = (self._started, self._new_replica())
        thread = threading.Thread(
            target=self._live, args=args, name=f"replica-{self._started}", daemon=True
        )
        thread.start()
        return thread

    @property
    def refusal(self) -> str:
        """Why there is no replica."""
        return "; ".join(f"replica {r.replica}: {r.reason}" for r in self._refusals)

    def _live(self, number: int, replica: Replica) -> None:
        """A replica's lives, one after the other."""
        link, useless, served = self._link, 0, False
        report = WorkReport(self._report_s, f"replica={number}")
        while not link.stopping:
            started, before = time.monotonic(), report.batches
            try:
                loaded = self._load(replica, served)
                if loaded is None:
                    break
                self._joins(number, loaded, time.monotonic() - started)
                served = True
                try:
                    work(one_by_one(replica.infer, link), link, report)
                finally:
                    self._counts(-1)
                if not link.stopping:
                    log.info("replica %d is not needed any more", number)
                break
            except EngineLostError as error:
                log.error("replica %d is lost, and started again: %s", number, error)
            except KairosError as error:
                log.error("replica %d is refused: %s", number, error)
                self._refusals.append(_Refusal(number, str(error)))
                break
            useless = 0 if report.batches > before else useless + 1
            self._wait(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (useless - 1)) if useless else 0.0)
        report.last()
        replica.end()

    def _load(self, replica: Replica, served: bool) -> Loaded | None:
        """As `Replica.load`. One that has served before can serve: what keeps it from it now, a
        folder that is not mounted yet or a GPU that is not back, passes."""
        try:
            loaded = replica.load(lambda: self._link.stopping)
            if loaded is not None:
                missing = sorted(self._served.keys() & loaded.refused.keys())
                if missing:
                    raise PolicyError("; ".join(f"{p}: {loaded.refused[p]}" for p in missing))
            return loaded
        except EngineLostError:
            raise
        except KairosError as error:
            if not served:
                raise
            raise EngineLostError(f"it cannot load its policies at present: {error}") from error

    def _joins(self, number: int, loaded: Loaded, seconds: float) -> None:
        """Raises PolicyError where it serves something else than those before it."""
        descriptions = loaded.served
        with self._lock:
            first = not self._served
            for name, described in descriptions.items():
                if described.keyframe_stride and self._count.most > 1:
                    raise PolicyError(
                        f"{described.policy_id} keeps a state of every task, which other replicas "
                        "do not have; start it with one replica"
                    )
                before = self._served.get(name, described)
                if _model(described) != _model(before):
                    raise PolicyError(
                        f"it serves {described.policy_id}, the others {before.policy_id}: every "
                        "host of the cluster needs the same policy"
                    )
            if first:
                self._served = dict(descriptions)
        self._counts(+1)
        device = next(iter(descriptions.values())).device
        log.info("replica %d is ready on %s after %.1f s", number, device, seconds)
        if first:
            self._link.ready(descriptions, loaded.refused)

    def _counts(self, change: int) -> None:
        with self._lock:
            self._link.replicas += change
        if not self._link.replicas and not self._link.stopping:
            self._link.refuse_waiting("all replicas are being started again")

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._link.stopping and time.monotonic() < until:
            time.sleep(0.1)


def _model(described: EngineDescription) -> EngineDescription:
    """What must be the same in all replicas: not the GPU, its speed, or what is taken of it."""
    return replace(described, device="", warmup=(), eager=(), memory_mib=0)
