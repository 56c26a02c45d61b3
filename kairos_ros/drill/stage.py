"""The fleet under drill: keeps robots busy, makes faults, and notes what comes of them."""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kairos_ros import bringup
from kairos_ros.core.errors import KairosError
from kairos_ros.demo.cloud import NAME, WAN, Cloud
from kairos_ros.demo.live import LiveEngine
from kairos_ros.demo.session import Session
from kairos_ros.demo.workload import Arrivals
from kairos_ros.drill.door import WorkerDoor
from kairos_ros.drill.exchange import Answered, Exchange
from kairos_ros.drill.narrator import Narrator
from kairos_ros.drill.verdict import Check
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

SLICE_S = 0.02
MAX_ACTIONS = 250
"""Of one task: a drill waits for the tasks that felt a fault to end."""
MOST_WAITING = 50
"""Messages that may have come and not been heard."""
UP = ("ready", "busy")
BACK_WITHIN_S = 240.0
"""Loading a policy takes most of it, on a busy machine a minute."""


class TookTooLongError(KairosError):
    """Something that a fault needs, or should bring about, did not come in time."""


class Interrupted(KairosError):  # noqa: N818 - it is none
    """Ctrl-C."""


class Stage:
    """What the scripts of faults act on. All times are seconds of this host's monotonic clock."""

    def __init__(
        self,
        session: Session,
        cloud: Cloud,
        exchange: Exchange,
        arrivals: Arrivals,
        narrator: Narrator,
        serving: dict[str, Any],
    ) -> None:
        """serving: parameters of the serving node, for when it is started again."""
        self._prepare(session, exchange, narrator)
        self.cloud = cloud
        self._arrivals = arrivals
        self._serving = serving

    def _prepare(self, session: Any, exchange: Exchange, narrator: Narrator) -> None:
        """What every stage has. session: a fleet with `driver`, `live` and `interrupt`."""
        self.session = session
        self.exchange = exchange
        self.narrator = narrator
        self.checks: list[Check] = []
        """What the script of the running fault has found."""
        self.begin_s = self.repaired_s = 0.0
        self.meant: set[str] = set()
        """Processes that are meant to be dead now."""

    # Time passes

    def step(self) -> None:
        """A moment: free robots get tasks, messages are heard.

        Raises Interrupted, and TookTooLongError where the serving node is gone.
        """
        if self.session.interrupt.requested:
            raise Interrupted("interrupted")
        if "kairos" in self.dead() and "kairos" not in self.meant:
            words = self.session.fleet.tail("kairos", 3)
            raise TookTooLongError(f"the serving node has ended; its last words: {words}")
        self.give_tasks()
        for _ in range(10):
            self.session.driver.spin(SLICE_S)

    def give_tasks(self) -> None:
        """Every free robot gets one."""
        driver = self.session.driver
        ready = driver.ready()
        for robot in driver.free():
            if robot in ready:
                job = self._arrivals.take(driver.now_s())
                if job is not None:
                    driver.give(robot, job, MAX_ACTIONS)

    def run_for(self, seconds: float, what: str) -> None:
        """Lets the fleet go on."""
        until_s = time.monotonic() + seconds
        while (left := until_s - time.monotonic()) > 0:
            self.narrator.progress(f"{what} ({left:.0f} s)")
            self.step()

    def until(self, true: Callable[[], object], within_s: float, what: str) -> float:
        """Waits; returns the seconds it took. Raises TookTooLongError."""
        began = time.monotonic()
        while not true():
            waited_s = time.monotonic() - began
            if waited_s > within_s:
                raise TookTooLongError(f"{what}: not after {within_s:.0f} s")
            self.narrator.progress(f"{what} ({waited_s:.0f} s)")
            self.step()
        return time.monotonic() - began

    def meanwhile[T](self, work: Callable[[], T], what: str) -> T:
        """Does something that takes a while, in a thread, and lets the fleet go on."""
        with ThreadPoolExecutor(1) as pool:
            doing = pool.submit(work)
            self.until(doing.done, 2 * BACK_WITHIN_S, what)
        return doing.result()

    # The fault

    def begins(self, what: str) -> None:
        """The fault is there from now on. What came before it has been heard by then."""
        for _ in range(MOST_WAITING):
            self.session.driver.spin(0.0)
        self.begin_s = time.monotonic()
        self.narrator.say(what, "bold")

    def repaired(self, what: str = "") -> None:
        """The fault is gone from now on."""
        self.repaired_s = time.monotonic()
        if what:
            self.narrator.say(what)

    def expect(self, name: str, ok: bool, found: str) -> None:
        """Notes an expectation, and whether it came true."""
        self.checks.append(Check(name, ok, found))
        self.narrator.say(f"{name}: {found}", "" if ok else "bold red")

    # What is to be seen

    def engine(self, name: str) -> LiveEngine:
        """As the serving node sees it now. Raises TookTooLongError where it does not know it."""
        for engine in self.session.live.engines:
            if engine.name == name:
                return engine
        raise TookTooLongError(f"the serving node knows no engine {name!r}")

    @property
    def cloud_up(self) -> bool:
        return any(e.name == NAME and e.state in UP for e in self.session.live.engines)

    @property
    def edge_up(self) -> bool:
        return any(e.tier == "edge" and e.state in UP for e in self.session.live.engines)

    def counter(self, name: str) -> int:
        """Of the serving node."""
        return self.session.live.counters.get(name, 0)

    def chunks(self, tier: str, since_s: float) -> list[Answered]:
        """Chunks that came from a tier."""
        found = self.exchange.chunks(since_s, float("inf"))
        return [chunk for chunk in found if chunk.tier == tier]

    def until_served_by(self, tier: str, within_s: float) -> float:
        """Waits for a chunk from a tier for a request made from now on; returns the seconds."""
        since_s = time.monotonic()
        return self.until(
            lambda: self.chunks(tier, since_s), within_s, f"waiting for a chunk from the {tier}"
        )

    def cloud_in_use(self) -> float:
        """Waits for a chunk from the cloud; returns the seconds."""
        return self.until_served_by("cloud", BACK_WITHIN_S)

    def oldest_task_s(self) -> float:
        """When the oldest task began that has not ended; infinite without one."""
        return self.session.driver.oldest_s() + self.session.driver.origin_s

    # Processes

    def door(self, name: str, port: int = 0) -> WorkerDoor:
        """The worker's, or that of another one at `port`, with a new client key that it lets in.

        The secret half stays out of the edge's folder, which has one client key only.
        """
        unique = f"{name}_{time.monotonic_ns()}"
        there, worker = self.cloud.there, self.cloud.worker
        pair = KeyFolder(there.path.with_name(unique)).new(unique, Role.CLIENT)
        there.trust(pair.key)
        at = f"tcp://127.0.0.1:{port or self.cloud.port}"
        return WorkerDoor(at, pair, there.public("cloud"), worker.pid if worker else 0)

    def dead(self) -> dict[str, int]:
        """Exit codes of processes that ended although they should run."""
        return self.session.fleet.dead()

    def restore(self) -> None:
        """The link as it was planned, the worker that belongs at its end, and a serving node."""
        if "kairos" in self.dead():
            self.meant.add("kairos")
            self.start_serving()
            self.until(lambda: self.edge_up, 2 * BACK_WITHIN_S, "waiting for the serving node")
        cloud = self.cloud
        cloud.change(**asdict(WAN))
        if cloud.as_planned:
            return
        if "cloud" in cloud.dead():
            cloud.start()
        cloud.lead_to(cloud.port)
        cloud.end_others()
        self.until(lambda: not self.cloud_up, 10.0, "waiting for the worker to be missed")
        self.until(lambda: self.cloud_up, BACK_WITHIN_S, "waiting for the cloud engine")

    def start_serving(self) -> None:
        """The serving node, again."""
        self.session.live.active = False
        self.session.live.engines = ()
        self.session.fleet.start(bringup.serving(**self.session.parameters(self._serving)))
        self.meant.discard("kairos")

    def serving_pid(self) -> int:
        return self.session.fleet.processes["kairos"].pid

    def edge_worker_pid(self) -> int:
        """The serving node's child. Raises TookTooLongError while there is none."""
        tasks = Path(f"/proc/{self.serving_pid()}/task").glob("*/children")
        children = [int(pid) for pid in itertools.chain(*(t.read_text().split() for t in tasks))]
        if not children:
            raise TookTooLongError("the serving node has no engine worker")
        return children[0]
