"""The wire as a test sees it: robots that are nothing but their topics, and who watches the fleet.

Everything here is real: DDS messages to and from real node processes. What is not here is an arm.
"""

import itertools
import threading
import time
import uuid
from collections.abc import Callable

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ExecutionInfo,
    FleetState,
    RobotStatus,
    ServerStatus,
)
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from light_node import LightNode
from rcl_interfaces.msg import Log
from rclpy.action import ActionClient
from rclpy.client import Client
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from rclpy.task import Future

from kairos_ros.core.errors import RefusalCode
from kairos_ros.host.child_processes import children
from kairos_ros.host.dds_deadlock import changing_entities
from kairos_ros.nodes import qos
from kairos_ros.nodes.timers import every

PATIENCE_S = 180.0
ROSOUT = QoSProfile(depth=1000, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
SILENCE_S, REPETITIONS = 8.0, 5
LATE_S = 3.0
"""Longer than an answer takes that is not waited for in vain."""


def until(condition: Callable, timeout_s: float = PATIENCE_S, what: str = ""):
    """Waits for `condition()` to hold, and returns its value. Looks less often the longer it takes:
    what a condition reads costs the processes that it waits for their CPU."""
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"waited in vain {what}"
        time.sleep(min(0.05, 0.01 + waited_s / 50))
    return value


def done(future):
    until(future.done)
    return future.result()


def answered(client: Client, request):
    """What a service answers. Asks again where an answer got lost: that of a server that has not
    found the client's reader yet goes to nobody. Only for what may be asked twice.
    """
    assert client.wait_for_service(PATIENCE_S)
    for _ in range(round(PATIENCE_S / LATE_S)):
        answer = client.call_async(request)
        try:
            until(answer.done, LATE_S)
            return answer.result()
        except AssertionError:
            continue
    raise AssertionError(f"{client.srv_name} does not answer")


def meet(client: ActionClient, executor: Executor) -> None:
    """Waits until the robot's action server is there and has found this client, too.

    A server that has not found the client's reader yet accepts a goal whose answer nobody hears.
    What it answers, if it can, is a refusal: no goal is without an instruction.
    """
    assert client.wait_for_server(PATIENCE_S)
    for _ in range(round(PATIENCE_S)):
        refusal = in_executor(executor, lambda: client.send_goal_async(ExecuteTask.Goal()))
        try:
            until(refusal.done, 1.0)
        except AssertionError:
            continue
        assert not refusal.result().accepted
        return
    raise AssertionError("the robot does not answer goals")


def in_executor[T](executor: Executor, act: Callable[[], T]) -> T:
    """Runs `act` in the thread that spins, and returns what it returns.

    That thread dies of what is destroyed beside it; in Jazzy, an action client drops an answer that
    comes before the thread which asked has noted that it asked.
    """
    return done(executor.create_task(act))


class Spinner:
    """Spins a node in a thread of its own until it is closed, with the node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.executor = SingleThreadedExecutor(context=node.context)
        self.executor.add_node(node)
        # wakes the executor if rmw_fastrtps lost a trigger of another thread (executor_call.py)
        every(node, 0.5, lambda: None)
        self._over = Future()
        self._thread = threading.Thread(
            target=self.executor.spin_until_future_complete, args=[self._over], daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._over.set_result(None)
        self._thread.join()
        self.executor.shutdown()  # beside a thread that spins, it ends that with an error in Jazzy
        with changing_entities():
            self._node.destroy_node()


class Wire:
    """One ROS node that everything in a test talks through; watches the whole fleet."""

    def __init__(self, context: rclpy.Context) -> None:
        self.node = LightNode("onlooker", context)
        self.fleet: list[FleetState] = []
        self.statuses: list[RobotStatus] = []
        self.servers: dict[str, ServerStatus] = {}
        """Newest status of every serving node, by its identity."""
        self.reports: dict[str, DiagnosticStatus] = {}
        """Newest diagnostic status by name."""
        self.said: set[tuple[str, bytes, str]] = set()
        """(name, level, message) of every diagnostic status so far."""
        self.stamps: dict[str, float] = {}
        """Wall clock of the sender minus ours when its diagnostic arrived, in seconds, by name."""
        subscribe = self.node.create_subscription
        subscribe(FleetState, "/kairos/fleet_state", self.fleet.append, qos.TELEMETRY)
        subscribe(RobotStatus, "/kairos/robot_status", self.statuses.append, qos.ROSTER)
        subscribe(ServerStatus, "/kairos/server_status", self._on_server, qos.ROSTER)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.DIAGNOSTICS)
        self._lifecycle = self.node.create_client(ChangeState, "/kairos/serving/change_state")
        self._state = self.node.create_client(GetState, "/kairos/serving/get_state")
        self._spinner = Spinner(self.node)
        self.executor = self._spinner.executor
        self.close = self._spinner.close

    def action_client(self, action: str) -> ActionClient:
        """Made in the thread that spins: the node knows it before it is whole, and a thread that
        spins beside dies of it."""
        return in_executor(self.executor, lambda: ActionClient(self.node, ExecuteTask, action))

    def rosout(self) -> list[tuple[str, str]]:
        """(level, message) of all that nodes have logged lately and will log, as it comes."""
        logged: list[tuple[str, str]] = []
        names = {Log.INFO: "INFO", Log.WARN: "WARN", Log.ERROR: "ERROR"}

        def hear(log: Log) -> None:
            logged.append((names.get(log.level, "other"), log.msg))

        self.node.create_subscription(Log, "/rosout", hear, ROSOUT)
        return logged

    def counter(self, name: str) -> int:
        """Newest value of a counter of the serving node; 0 while there is none."""
        newest = self.fleet[-1] if self.fleet else FleetState()
        return dict(zip(newest.counter_names, newest.counter_values, strict=True)).get(name, 0)

    def diagnostic(self, name: str, key: str) -> str:
        """Newest value of `key` in the diagnostic status `name`; empty while there is none."""
        values = self.reports[name].values if name in self.reports else []
        return next((v.value for v in values if v.key == key), "")

    def serving_since(self, server: str = "") -> str:
        """Waits until a serving node other than `server` is active, and returns its id. What was
        heard before the call counts for nothing: it may be of a node that has ended. A policy of
        torch's takes a minute to load on a busy machine."""
        heard = len(self.fleet)

        def active() -> str:
            newest = self.fleet[-1] if len(self.fleet) > heard else FleetState()
            return newest.server if newest.active and newest.server != server else ""

        return until(active, 2 * PATIENCE_S, what="for an active serving node")

    def engine_state(self) -> str:
        return self.fleet[-1].engines[0].state if self.fleet else ""

    def transition(self, transition: int) -> bool:
        """Asks the serving node for a lifecycle transition, as a lifecycle manager does."""
        assert self._lifecycle.wait_for_service(PATIENCE_S)
        answered(self._state, GetState.Request())  # whose reader was announced after ours
        request = ChangeState.Request(transition=Transition(id=transition))
        return done(self._lifecycle.call_async(request)).success

    def status_of(self, robot: str) -> RobotStatus:
        """Newest status that a robot published."""
        mine = lambda: [s for s in self.statuses if s.robot == robot]  # noqa: E731
        return until(mine, what=f"for a status of {robot}")[-1]

    def until_left(self, node: str) -> None:
        """Waits until a lifecycle node's services are gone. Its name may stay in ROS's graph, which
        adds a node again if it reads the node's last message after DDS reported that it left."""
        left = lambda: not self.node.count_services(f"{node}/get_state")  # noqa: E731
        until(left, what=f"for {node} to leave")

    def _on_server(self, status: ServerStatus) -> None:
        self.servers[status.server] = status

    def _on_diagnostics(self, array: DiagnosticArray) -> None:
        ahead_s = array.header.stamp.sec + array.header.stamp.nanosec / 1e9 - time.time()
        for status in array.status:
            self.reports[status.name] = status
            self.said.add((status.name, status.level, status.message))
            self.stamps[status.name] = ahead_s


class WireRobot:
    """A robot without an arm: announces itself every half second, asks when told to."""

    def __init__(self, wire: Wire, name: str, session: str = "", **observation) -> None:
        self.wire, self.name = wire, name
        self.session = session or uuid.uuid4().hex
        self.observation = observation
        self.answers: list[ActionChunk] = []
        self.task = "1"
        self._status = wire.node.create_publisher(
            RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT
        )
        self.requests = wire.node.create_publisher(
            ChunkRequest, f"/{name}/chunk_request", qos.EXCHANGE
        )
        self.chunks = wire.node.create_subscription(
            ActionChunk, f"/{name}/action_chunk", self.answers.append, qos.EXCHANGE
        )
        self._heartbeat = wire.node.create_timer(0.5, self.announce)
        self._heartbeat.cancel()

    def announce(self, state: int = RobotStatus.RUNNING) -> None:
        self._status.publish(
            RobotStatus(robot=self.name, session=self.session, state=state, task=self.task)
        )

    def join(self) -> "WireRobot":
        """Announces itself until the serving node has opened its topics in both directions."""
        self._heartbeat.reset()
        self.announce()
        until(
            lambda: self.requests.get_subscription_count() and self.chunks.get_publisher_count(),
            what=f"for the topics of {self.name}",
        )
        round_one = itertools.count()
        while True:  # the server's writer may still be about to find our reader
            asked = self.request(1, attempt=next(round_one))
            self.requests.publish(asked)
            try:
                until(lambda: self.answers, 1.0)
                return self
            except AssertionError:
                assert asked.attempt < 30, f"{self.name} gets no answers"

    def fall_silent(self) -> None:
        """No more heartbeats."""
        self._heartbeat.cancel()

    def leave(self) -> None:
        self.fall_silent()
        self.announce(RobotStatus.LEAVING)

    def request(self, round: int, **changes) -> ChunkRequest:
        fields = {
            "robot": self.name,
            "session": self.session,
            "task": self.task,
            "round": round,
            "instruction": "reach",
            "execution": ExecutionInfo(control_rate_hz=30.0),
            **self.observation,
        }
        return ChunkRequest(**(fields | changes))

    def ask(
        self, round: int, patience_s: float = PATIENCE_S, *, or_older: bool = False, **changes
    ) -> ActionChunk:
        """Sends one request and waits for its one answer.

        or_older: actions for an earlier attempt of the round will do. A newer observation that
        comes too late has no answer of its own.
        """
        asked = self.request(round, **changes)
        before = len(self.answers)
        self.requests.publish(asked)

        def mine() -> list[ActionChunk]:
            key = asked.task, asked.round, asked.attempt
            new = [a for a in self.answers[before:] if (a.task, a.round, a.attempt) == key]
            served = (asked.task, asked.round, ActionChunk.ACTIONS)
            older = [a for a in self.answers if or_older and (a.task, a.round, a.kind) == served]
            return new or older

        return until(mine, patience_s, f"for the answer to round {round} of {self.name}")[0]


ATTEMPTS = itertools.count(100_000)


def worker_of(server) -> int:
    """Process id of the serving node's only child."""
    (pid,) = children(server.process.pid)
    return pid


def until_served(robot: WireRobot, round: int) -> ActionChunk:
    """Asks as a robot does, which holds meanwhile: again and again, until there are actions."""

    def actions():
        answer = robot.ask(round, or_older=True, attempt=next(ATTEMPTS))
        if answer.kind == ActionChunk.ACTIONS:
            return answer
        if answer.kind == ActionChunk.REFUSED:
            assert answer.refusal == RefusalCode.ENGINE_DOWN, answer.reason
            time.sleep(0.2)
        return None

    return until(actions, what=f"for {robot.name} to be served")


class Bystander(WireRobot):
    """Asks for round after round in a thread of its own; nothing that others do may hurt it.

    As a robot, it repeats in silence what it asked.
    """

    def begin(self, pause_s: float = 0.05) -> "Bystander":
        self.join()
        self.served = 0
        self.harm: list[str] = []
        """What went wrong so far."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(pause_s,), daemon=True)
        self._thread.start()
        return self

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.leave()

    def check(self, rounds: int = 3) -> None:
        """It was served all the time without a refusal, and still is, for some more rounds."""
        goal = self.served + rounds
        until(lambda: self.harm or self.served >= goal, what="for the bystander to be served")
        assert not self.harm, self.harm

    def _live(self, pause_s: float) -> None:
        for round in itertools.count(2):
            if self._stop.wait(pause_s):
                return
            answer = self._repeat(round)
            if answer is None:
                self.harm.append(f"round {round} is not answered")
                return
            if answer.kind != ActionChunk.ACTIONS:
                self.harm.append(f"round {round}: {RefusalCode(answer.refusal)!r} {answer.reason}")
            self.served += 1

    def _repeat(self, round: int) -> ActionChunk | None:
        attempt = 0
        for _ in range(REPETITIONS):
            try:
                answer = self.ask(round, SILENCE_S, or_older=attempt > 0, attempt=attempt)
                if answer.kind != ActionChunk.REFETCH:
                    return answer
                attempt += 1
            except AssertionError:
                print(f"{self.name} asks for round {round} again")
        return None


class Operator:
    """Gives one robot its tasks, as a task driver does."""

    def __init__(self, wire: Wire, robot: str) -> None:
        self._executor = wire.executor
        self._client = wire.action_client(f"/{robot}/execute_task")

    def give(self, **goal):
        """Sends a goal when the robot is there; returns the future of its result."""
        meet(self._client, self._executor)
        send = lambda: self._client.send_goal_async(ExecuteTask.Goal(**goal))  # noqa: E731
        handle = done(in_executor(self._executor, send))
        assert handle.accepted
        return in_executor(self._executor, handle.get_result_async)

    def result(self, future) -> ExecuteTask.Result:
        return done(future).result

    def close(self) -> None:
        in_executor(self._executor, self._client.destroy)
