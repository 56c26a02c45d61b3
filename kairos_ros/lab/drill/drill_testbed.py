"""The fleet under drill: keeps robots busy, makes faults, and notes what comes of them."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState

from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.processes import Fleet
from kairos_ros.engine.paced import PREFIX
from kairos_ros.host.child_processes import children, command_line
from kairos_ros.lab.drill.hostile_clients import WorkerAccess
from kairos_ros.lab.drill.proof.exchange import Exchange, SeenChunk
from kairos_ros.lab.drill.proof.policy_turns import Turn
from kairos_ros.lab.drill.proof.verdict import Check
from kairos_ros.lab.testbed.cloud import NAME, POLICY, WAN, Cloud
from kairos_ros.lab.testbed.display import EventDisplay
from kairos_ros.lab.testbed.processes import FleetError, Interrupted, TookTooLongError, wait_until
from kairos_ros.lab.testbed.testbed import FleetTestbed
from kairos_ros.lab.testbed.workload import Arrivals
from kairos_ros.nodes.serving.parameters import EDGE
from kairos_ros.telemetry.events import EngineReported
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

SLICE_S = 0.02
MAX_ACTIONS = 250
"""Of one task: a drill waits for the tasks that felt a fault to end."""
MOST_WAITING = 50
"""Messages that may have come and not been heard."""
ANSWERS_WITHIN_S = 15.0
CHANGE_STATE = "/kairos/serving/change_state"
EDGE_ENGINE = f"{EDGE}/{POLICY}"
"""The one that serves what the cloud does."""
UP = ("ready", "busy")
BACK_WITHIN_S = 240.0
"""Loading a policy takes most of it, on a busy machine a minute."""


@dataclass(frozen=True, slots=True)
class OwnFleet:
    """What there is, beyond the fleet, where the drill has started it."""

    cloud: Cloud
    arrivals: Arrivals
    serving: dict[str, Any]
    """Parameters of the serving node, for when it is started again."""


class DrillTestbed:
    """What the scripts of faults act on. All times are seconds of this host's monotonic clock."""

    def __init__(
        self, testbed: Any, exchange: Exchange, display: EventDisplay, own: OwnFleet | None = None
    ) -> None:
        """testbed: a fleet with `client`, `live` and `interrupt`; with `own` a `FleetTestbed`."""
        self.testbed: FleetTestbed = testbed
        self.exchange = exchange
        self.display = display
        self._own = own
        self.checks: list[Check] = []
        """What the script of the running fault has found."""
        self.turns: list[Turn] = []
        """Which policy new tasks got since the running fault began, where it was changed."""
        self.begin_s = self.repaired_s = 0.0

    @property
    def own(self) -> OwnFleet:
        """Raises FleetError in a fleet that somebody else has started."""
        if self._own is None:
            raise FleetError("the drill has not started this fleet, so it cannot change it")
        return self._own

    @property
    def cloud(self) -> Cloud:
        """Raises as `own`."""
        return self.own.cloud

    # Time passes

    def step(self, what: str) -> None:
        """A moment: free robots get tasks, messages are heard.

        Raises Interrupted, and FleetError where the serving node is gone.
        """
        self.display.progress(what)
        if self.testbed.interrupt.requested:
            raise Interrupted("interrupted")
        self.check()
        self.give_tasks()
        for _ in range(10):
            self.testbed.client.spin(SLICE_S)

    def give_tasks(self) -> None:
        """Every free robot gets one."""
        client = self.testbed.client
        ready = client.ready()
        for robot in client.free():
            if robot in ready:
                job = self.own.arrivals.take(client.now_s())
                if job is not None:
                    client.give(robot, job, MAX_ACTIONS)

    def run_for(self, seconds: float, what: str) -> None:
        """Lets the fleet go on."""
        until_s = time.monotonic() + seconds
        while (left := until_s - time.monotonic()) > 0:
            self.step(f"{what} ({left:.0f} s)")

    def until(self, true: Callable[[], object], within_s: float, what: str) -> float:
        """Waits; returns the seconds it took. Raises TookTooLongError."""
        return wait_until(true, within_s, what, self.step)

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
            self.testbed.client.spin(0.0)
        self.begin_s = time.monotonic()
        self.display.say(what, "bold")

    def repaired(self, what: str = "") -> None:
        """The fault is gone from now on."""
        self.repaired_s = time.monotonic()
        if what:
            self.display.say(what)

    def expect(self, name: str, ok: bool, found: str) -> None:
        """Notes an expectation, and whether it came true."""
        self.checks.append(Check(name, ok, found))
        self.display.say(f"{name}: {found}", "" if ok else "bold red")

    # What is to be seen

    def engine(self, name: str) -> EngineReported:
        """As the serving node sees it now. Raises TookTooLongError where it does not know it."""
        for engine in self.testbed.live.engines:
            if engine.name == name:
                return engine
        raise TookTooLongError(f"the serving node knows no engine {name!r}")

    @property
    def cloud_up(self) -> bool:
        return any(e.name == NAME and e.state in UP for e in self.testbed.live.engines)

    @property
    def edge_up(self) -> bool:
        return any(e.name == EDGE_ENGINE and e.state in UP for e in self.testbed.live.engines)

    def counter(self, name: str) -> int:
        """Of the serving node."""
        return self.testbed.live.counters.get(name, 0)

    def chunks(self, tier: str, since_s: float) -> list[SeenChunk]:
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
        return self.testbed.client.oldest_s() + self.testbed.client.origin_s

    # Processes

    def access(self, name: str, port: int = 0) -> WorkerAccess:
        """The worker's, or that of another one at `port`, with a new client key that it lets in.

        The secret half stays out of the edge's folder, which has one client key only.
        """
        unique = f"{name}_{time.monotonic_ns()}"
        there, worker = self.cloud.there, self.cloud.worker
        pair = KeyFolder(there.path.with_name(unique)).new(unique, Role.CLIENT)
        there.trust(pair.key)
        at = f"tcp://127.0.0.1:{port or self.cloud.port}"
        return WorkerAccess(at, pair, there.public("cloud"), worker.pid if worker else 0)

    def dead(self) -> dict[str, int]:
        """Exit codes of processes that ended although they should run."""
        return self.testbed.fleet.dead()

    def check(self) -> None:
        """Raises FleetError where the serving node has ended, although it should run."""
        if "serving" in self.dead() and "serving" not in self.testbed.killed:
            raise FleetError(self.testbed.describe_exit("serving"))

    def restore(self) -> None:
        """The link as it was planned, the worker that belongs at its end, and a serving node."""
        if "serving" in self.dead():
            self.testbed.killed.add("serving")
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
        self.testbed.start_serving(self.own.serving)
        self.testbed.killed.discard("serving")

    @contextmanager
    def another_server(self, **parameters: Any) -> Iterator[int]:
        """A serving node beside the fleet's own, while the context lasts; its process id."""
        other = Fleet([], self.testbed.fleet.logs / "another_server")
        with other:
            yield other.start(bringup.serving(**parameters)).pid
            self.meanwhile(other.stop, "the other serving node ends")

    def pause(self) -> None:
        """Robots are refused from now on. Raises TookTooLongError."""
        self._change_state(Transition.TRANSITION_DEACTIVATE, "deactivate")

    def resume(self) -> None:
        """Robots are served again. Raises TookTooLongError."""
        self._change_state(Transition.TRANSITION_ACTIVATE, "activate")

    def _change_state(self, transition: int, what: str) -> None:
        """Asks the serving node for a transition, as a lifecycle manager does."""
        client = self.testbed.client.service_client(ChangeState, CHANGE_STATE)
        self.until(client.service_is_ready, ANSWERS_WITHIN_S, f"waiting for {CHANGE_STATE}")
        request = ChangeState.Request(transition=Transition(id=transition))
        answer = client.call_async(request)
        self.until(answer.done, ANSWERS_WITHIN_S, f"waiting for the serving node to {what}")
        if not answer.result().success:
            raise TookTooLongError(f"the serving node does not {what}; is it configured?")

    def serving_pid(self) -> int:
        return self.testbed.fleet.processes["serving"].pid

    def edge_worker_pid(self) -> int:
        """Of `EDGE_ENGINE`: a child of the serving node. Raises TookTooLongError while there is
        none."""
        for pid in children(self.serving_pid()):
            if PREFIX in command_line(pid):
                return pid
        raise TookTooLongError(f"the serving node has no worker of {EDGE_ENGINE}")
