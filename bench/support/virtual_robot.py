"""Virtual robots: the real generate-execute loop at the real control rate, without a body.

    python -m bench.support.virtual_robot --first 0 --count 8 ...   told by JSON lines on stdin:

    {"start": N}    the first N robots begin a task that never ends; prints "started" once each of
                    them has executed an action, or says which have not within four minutes
    {"measure": S}  prints what happened in the next S seconds, see `Window`
    {"stop": true}  no more requests; waits for the answers that are due and prints `Totals`
    {"come": N}     robot N begins, beside those that run
    {"go": N}       robot N sends no more; it leaves once its answers are there
    {"report": true}  prints a `Report`: of all robots since they began, of the time since the last

A robot asks for the next chunk when half of the last one is left (also LeRobot's own default), and
keeps asking: its stall fraction is the share of control periods in which it had nothing to execute.
"""

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path

import numpy as np

from bench.support.camera import picture
from bench.support.exchange import Exchange, Received
from bench.support.robot_counts import Report, Totals, Window
from bench.support.servers import port
from kairos_ros.core.exchange import Actions, Refetch, Refusal, RequestId
from kairos_ros.core.execution.effects import Act, Finished, Hold, Send
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.task import Task
from kairos_ros.engine.emulated import parse_emulated
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg

RATE_HZ = 30.0
PERIOD_NS = round(1e9 / RATE_HZ)
HALF_OF_THE_CHUNK_NS = 3_600_000_000_000
"""As margin of the loop: it then asks at the earliest moment it ever asks, half a chunk ahead."""
TIMEOUT_NS = 5_000_000_000
START_S = 240.0
"""Within which every robot must have executed an action."""
DRAIN_S = 15.0
"""A serving node answers within 10 s, if only to refuse."""
VIEWS = 4


@dataclass(slots=True)
class _Round:
    sent_ns: int
    marks: list[float] = field(default_factory=list)
    """What identifies the observation of every attempt."""
    refused: bool = False
    """The newest answer was a refusal; the round may be asked for again."""


_RoundKey = tuple[int, int]
"""Number of the task, of the round in it."""


def _key_of(asked: RequestId) -> _RoundKey:
    return int(asked.task) if asked.task.isdecimal() else 0, asked.round


class VirtualRobot:
    """One robot: a loop, a state vector, and what it is waiting for."""

    def __init__(
        self,
        name: str,
        number: int,
        exchange: Exchange,
        spec: RobotSpec,
        views: Iterator[Mapping[str, bytes]],
        task: Task,
        echoed: bool,
    ) -> None:
        self.name = name
        self._number = number
        self._exchange = exchange
        self._spec = spec
        self._views = views
        self._echoed = echoed
        self._rng = np.random.default_rng(number)
        self._rounds: dict[_RoundKey, _Round] = {}
        self._newest = (0, 0)
        self.totals = Totals()
        session = exchange.open(name)
        config = LoopConfig(
            robot=name,
            session=session,
            action_dim=spec.action_dim,
            period_ns=PERIOD_NS,
            margin_ns=HALF_OF_THE_CHUNK_NS,
            timeout_ns=TIMEOUT_NS,
            timeout_max_ns=TIMEOUT_NS,
        )
        self.loop = Loop(config, LatencyEstimate(0, 0))
        self._task = task

    def begin(self) -> bool:
        """Starts the task, unless there is no server yet."""
        if self.loop.task is None and self._exchange.ready(self.name):
            self.loop.start(self._task, time.monotonic_ns())
        return self.loop.task is not None

    def tick(self, now_ns: int, window: Window) -> None:
        for effect in self.loop.tick(now_ns, approve=lambda action: action):
            match effect:
                case Send():
                    self._send(effect)
                case Act():
                    window.acted += 1
                case Hold():
                    window.held += 1
                case Finished():
                    self._next_task(now_ns)

    def receive(self, received: Received, window: Window) -> None:
        answer, totals = received.answer, self.totals
        answered, body = answer.id, answer.body
        key = _key_of(answered)
        asked = self._rounds.get(key)
        ours = (answered.robot, answered.session) == (self.name, self.loop.config.session)
        if asked is None and ours and key <= self._newest:
            totals.repeated += 1  # the loop drops it
        elif asked is None or not ours or answered.attempt >= len(asked.marks):
            totals.wrong += 1
        elif isinstance(body, Refetch):
            totals.refetched += 1
        elif isinstance(body, Refusal):
            if not self._gave_up(key):  # else the server had the later round before this answer
                asked.refused = True
                totals.refused += 1
        else:
            del self._rounds[key]
            totals.actions += 1
            window.round_trip_ms.append((received.now_ns - asked.sent_ns) / 1e6)
            window.cloud += body.tier == "cloud"
            totals.wrong += not self._made_from(body, asked.marks[answered.attempt])
        for effect in self.loop.receive(answer, time.monotonic_ns()):
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Finished):
                self._next_task(received.now_ns)

    def _next_task(self, now_ns: int) -> None:
        self._task = replace(self._task, id=f"{int(self._task.id) + 1}")
        self.loop.start(self._task, now_ns)

    def _made_from(self, body: Actions, mark: float) -> bool:
        """Whether its own observation shows in the actions; only an emulated engine tells."""
        return not self._echoed or bool((body.actions[:, 0] == mark).all())

    @property
    def waiting(self) -> int:
        """Rounds without an answer."""
        return sum(not (round.refused or self._gave_up(n)) for n, round in self._rounds.items())

    def _gave_up(self, key: _RoundKey) -> bool:
        """Whether the robot awaits a later round than this one, which it may still get."""
        return key < self._newest

    def so_far(self) -> Totals:
        """Without the rounds that are under way."""
        self.totals.silences = self.loop.silences
        self.totals.abandoned = sum(
            self._gave_up(n) and not round.refused for n, round in self._rounds.items()
        )
        return self.totals

    def finish(self) -> Totals:
        self.so_far().unanswered = self.waiting
        self._exchange.close(self.name)
        return self.totals

    def _send(self, send: Send) -> None:
        request = send.request
        self.totals.requests += 1
        self.totals.rounds += request.id.attempt == 0
        state = self._rng.standard_normal(self._spec.state_dim).astype(np.float32)
        # float32 holds it exactly: which robot this is, and which of its requests.
        state[0] = self._number * 10_000 + self.totals.requests % 10_000 if self._echoed else 0.0
        self._newest = _key_of(request.id)
        asked = self._rounds.setdefault(self._newest, _Round(time.monotonic_ns()))
        asked.refused = False
        asked.marks.append(float(state[0]))
        self._exchange.send(self.name, request, state, next(self._views))


class Process:
    """The robots of this process, ticking in turn from one thread."""

    def __init__(self, exchange: Exchange, spec: RobotSpec, arguments: argparse.Namespace) -> None:
        self._exchange = exchange
        self._spec = spec
        self._arguments = arguments
        self._commands: queue.SimpleQueue[dict[str, float] | None] = queue.SimpleQueue()
        self._views = _views(spec)
        self.robots: dict[str, VirtualRobot] = {}
        self._window = Window()
        self._next_ns: list[tuple[int, str]] = []
        self._coming: list[str] = []
        self._leaving: dict[str, float] = {}
        """Robot -> when it leaves, whether its answers are there or not, in monotonic seconds."""
        self._gone = Totals()

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        while (command := self._commands.get()) is not None:
            if "start" in command:
                self._start(int(command["start"]))
                self._step_until(self._all_execute, START_S)
                _say("started" if self._all_execute() else self._without_actions())
                self._step_until(lambda: not self._commands.empty(), 600.0)
            elif "measure" in command:
                self._window = Window()
                self._step_until(lambda: False, command["measure"])
                _say(asdict(self._window))
                self._step_until(lambda: not self._commands.empty(), 600.0)
            elif "stop" in command:
                _say([asdict(totals) for totals in self._stop()])
            else:
                if "come" in command:
                    self._coming.append(self._open(int(command["come"])))
                elif "go" in command:
                    self._let_go(robot_name(int(command["go"])))
                else:
                    _say(asdict(self._report()))
                self._step_until(lambda: not self._commands.empty(), 600.0)

    def _open(self, number: int) -> str:
        arguments, name = self._arguments, robot_name(number)
        task = Task(
            "1",
            arguments.instruction,
            horizon_policy=arguments.horizon,
            max_actions=arguments.task_actions,
        )
        echoed = arguments.policy.startswith("emulated:")
        self.robots[name] = VirtualRobot(
            name, number, self._exchange, self._spec, self._views, task, echoed
        )
        return name

    def _let_go(self, name: str) -> None:
        self._next_ns = [(due_ns, robot) for due_ns, robot in self._next_ns if robot != name]
        self._coming = [robot for robot in self._coming if robot != name]
        self._leaving[name] = time.monotonic() + DRAIN_S

    def _come_and_go(self) -> None:
        for name in [name for name in self._coming if self.robots[name].begin()]:
            self._coming.remove(name)
            self._next_ns.append((time.monotonic_ns(), name))
            self._next_ns.sort()
        for name, until_s in list(self._leaving.items()):
            if not self.robots[name].waiting or time.monotonic() > until_s:
                del self._leaving[name]
                self._gone += self.robots.pop(name).finish()

    def _report(self) -> Report:
        window, self._window = self._window, Window()
        totals = sum((robot.so_far() for robot in self.robots.values()), self._gone)
        return Report(window, totals, len(self.robots))

    def _start(self, count: int) -> None:
        arguments = self._arguments
        for i in range(arguments.first, arguments.first + count):
            self._open(i)
        while self._commands.empty():
            begun = [robot.begin() for robot in self.robots.values()]
            if all(begun):
                break
            self._receive()
            time.sleep(0.05)
        now_ns = time.monotonic_ns()
        self._next_ns = [
            (now_ns + PERIOD_NS * i // count, name) for i, name in enumerate(self.robots)
        ]

    def _all_execute(self) -> bool:
        executed = all(robot.loop.executed for robot in self.robots.values())
        return executed or not self._commands.empty()

    def _without_actions(self) -> str:
        idle = [name for name, robot in self.robots.items() if not robot.loop.executed]
        return f"no actions within {START_S:.0f} s: {', '.join(idle)}"

    def _stop(self) -> list[Totals]:
        until = time.monotonic() + DRAIN_S
        while any(r.waiting for r in self.robots.values()) and time.monotonic() < until:
            self._receive()
            time.sleep(0.01)
        totals = [robot.finish() for robot in self.robots.values()]
        self._gone = sum(totals, self._gone)
        self.robots.clear()
        self._leaving.clear()
        self._coming.clear()
        return totals

    def _step_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Control periods until `done()`. Absolute deadlines, like the robot node's."""
        until_ns = time.monotonic_ns() + round(seconds * 1e9)
        while self.robots and not done():
            if self._coming or self._leaving:
                self._come_and_go()
            if not self._next_ns:  # all of them come or leave
                self._receive()
                time.sleep(0.01)
                continue
            due_ns, name = self._next_ns.pop(0)
            if due_ns > until_ns:
                self._next_ns.insert(0, (due_ns, name))
                return
            if (left := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            self._receive()
            now_ns = time.monotonic_ns()
            self._window.late_ms.append((now_ns - due_ns) / 1e6)
            self.robots[name].tick(now_ns, self._window)
            missed = max(0, (now_ns - due_ns) // PERIOD_NS)
            self._next_ns.append((due_ns + (1 + missed) * PERIOD_NS, name))
            if missed:
                self._next_ns.sort()

    def _receive(self) -> None:
        for received in self._exchange.poll():
            robot = self.robots.get(received.answer.id.robot)
            if robot is not None:
                robot.receive(received, self._window)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put(None)


def robot_name(number: int) -> str:
    return f"virtual_{number}"


def _views(spec: RobotSpec) -> Iterator[Mapping[str, bytes]]:
    """JPEG pictures of every camera, again and again."""
    return cycle(
        [
            {
                key: jpeg(picture(VIEWS * i + n, size[0]), size)
                for i, (key, size) in enumerate(spec.images.items())
            }
            for n in range(VIEWS)
        ]
    )


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", choices=("kairos", "lerobot"), default="kairos")
    parser.add_argument("--policy", required=True, help="policy folder or emulated:...")
    parser.add_argument("--first", type=int, default=0, help="number of the first robot")
    parser.add_argument("--count", type=int, default=8, help="robots of this process, at most")
    parser.add_argument("--horizon", default="static:10")
    parser.add_argument("--instruction", default="")
    parser.add_argument(
        "--task-actions", type=int, default=0, help="actions of a task, then the next; 0: no end"
    )
    arguments = parser.parse_args()
    spec = _spec(arguments.policy)
    Process(_connect(spec, arguments), spec, arguments).run()


def _spec(policy: str) -> RobotSpec:
    if policy.startswith("emulated:"):
        emulated = parse_emulated(policy)
        return RobotSpec(emulated.state, emulated.dim, RATE_HZ, emulated.images)
    config = json.loads((Path(policy) / "config.json").read_text())
    state = config["input_features"]["observation.state"]["shape"][0]
    return RobotSpec(state, config["output_features"]["action"]["shape"][0], RATE_HZ)


def _connect(spec: RobotSpec, arguments: argparse.Namespace) -> Exchange:
    if arguments.server == "kairos":
        from bench.support.ros_exchange import RosExchange

        return RosExchange(spec)
    from bench.support.peers.lerobot_exchange import LeRobotExchange

    numbers = range(arguments.first, arguments.first + arguments.count)
    ports = {robot_name(number): port(number) for number in numbers}
    policy = Path(arguments.policy)
    kind = json.loads((policy / "config.json").read_text())["type"]
    horizon = int(arguments.horizon.removeprefix("static:"))
    return LeRobotExchange(spec, policy, kind, horizon, ports, background=True)


if __name__ == "__main__":
    main()
