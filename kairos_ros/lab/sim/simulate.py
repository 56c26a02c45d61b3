"""A fleet in virtual time: virtual robots, the real dispatcher, profiled engines. No clock."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.exchange import Announcement, Answer, Observation
from kairos_ros.lab.sim.arrivals import TraceTask
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.outcome import recorded_result, require_judgeable
from kairos_ros.lab.sim.retrim import as_replayed
from kairos_ros.lab.sim.sim_engine import SimEngine
from kairos_ros.lab.sim.sim_link import SimLink
from kairos_ros.lab.sim.virtual_robot import Assignment, Ended, Send, VirtualRobot, with_idle
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, Span, TaskRecord
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.serving.batching import Effect, Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import EngineDescription, InferRequest, InferResult

HEARTBEAT_NS = 1_000_000_000
OBSERVATION = Observation(np.zeros(1, np.float32))
"""Nothing looks at what a simulated robot observes."""

Progress = Callable[[int, float], None]
"""Told how many tasks have ended, and the virtual time in seconds."""


def simulate(
    jobs: Iterable[TraceTask],
    fleet: FleetOptions,
    serving: ServingOptions,
    engines: Sequence[SimEngine],
    seed: int,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> FleetRun:
    """What the fleet does with the jobs; equal arguments give equal runs.

    jobs: in order of arrival; may be endless where `fleet.open_s` ends the run. stop: asked between
    events; running tasks are then canceled. Raises ConfigError for traces that the engines or the
    horizon policy cannot serve, also where that is found on the way.
    """
    run = _Simulation(jobs, fleet, serving, engines, seed)
    run.live(progress or (lambda tasks, now_s: None), stop or (lambda: False))
    return run.result()


class _Kind(IntEnum):
    """At the same instant, in this order: an answer counts before the control period begins."""

    ANSWER = 0
    BATCH = 1
    CONFIRMED = 2
    REQUEST = 3
    STATUS = 4
    SERVER = 5
    ROBOT = 6
    JOB = 7
    HEARTBEAT = 8


@dataclass(slots=True)
class _Robot:
    virtual: VirtualRobot
    due_ns: int | None = None
    """Of the one event in the heap that counts."""
    sent: dict[tuple[str, int, int], Send] = field(default_factory=dict)
    """By task, round and attempt: those of the newest round, and of the newest one before."""
    sent_before: dict[tuple[str, int, int], Send] = field(default_factory=dict)
    trace: Trace | None = None
    status: str = ""


class _Simulation:
    """One run: a heap of events, robots, dispatcher, engines."""

    def __init__(
        self,
        jobs: Iterable[TraceTask],
        fleet: FleetOptions,
        serving: ServingOptions,
        engines: Sequence[SimEngine],
        seed: int,
    ) -> None:
        if not engines or len({engine.name for engine in engines}) < len(engines):
            raise ConfigError("a simulation needs at least one engine, each with its own name")
        self._fleet = fleet
        self._jobs: Iterator[TraceTask] = iter(jobs)
        self._next_job: TraceTask | None = next(self._jobs, None)
        if self._next_job is None:
            raise ConfigError("there are no tasks to simulate")
        self._like = self._next_job.trace
        self._engines = {engine.name: engine for engine in engines}
        self._links = {engine.name: SimLink(engine) for engine in engines}
        self._draws = {name: random.Random(f"{seed}/engine/{name}") for name in self._engines}
        self._stalls = {name: random.Random(f"{seed}/stall/{name}") for name in self._engines}
        self._delays = random.Random(f"{seed}/network")
        self._starts = random.Random(f"{seed}/starts")
        self._prepared: dict[int, tuple[Trace, Trace]] = {}
        self._dispatcher = Dispatcher(serving)
        names = [f"robot_{i:0{len(str(fleet.robots - 1))}}" for i in range(fleet.robots)]
        self._robots = {n: _Robot(VirtualRobot(n, "virtual", fleet.rules)) for n in names}
        self._free = deque(self._robots.values())
        self._waiting: deque[TraceTask] = deque()
        self._busy = 0
        self._heap: list[tuple[int, int, int, Any]] = []
        self._pushed = 0
        self._server_due_ns: int | None = None
        self._now_ns = 0
        self._last_given_ns = 0
        self._tasks: list[TaskRecord] = []
        self._rounds: list[RoundRecord] = []
        self._spans: list[Span] = []
        self._open_servers()

    def live(self, progress: Progress, stop: Callable[[], bool]) -> None:
        """Until all tasks are over."""
        handle: dict[_Kind, Callable[[Any], object]] = {
            _Kind.ANSWER: self._on_answer,
            _Kind.BATCH: self._on_batch,
            _Kind.CONFIRMED: self._on_confirmed,
            _Kind.REQUEST: lambda asked: self._serve(self._dispatcher.request(self._now_ns, asked)),
            _Kind.STATUS: lambda status: self._dispatcher.announce(self._now_ns, status),
            _Kind.SERVER: self._on_server,
            _Kind.ROBOT: self._on_robot,
            _Kind.JOB: self._on_job,
            _Kind.HEARTBEAT: self._on_heartbeat,
        }
        handlers = [handle[kind] for kind in _Kind]
        told = 0
        self._push(0, _Kind.JOB, None)
        self._push(HEARTBEAT_NS, _Kind.HEARTBEAT, None)
        while (self._busy or self._waiting or self._next_job is not None) and not stop():
            self._now_ns, kind, _, payload = heapq.heappop(self._heap)
            handlers[kind](payload)
            if len(self._tasks) > told:
                told = len(self._tasks)
                progress(told, self._now_ns / 1e9)
        for robot in self._robots.values():
            self._apply(robot, robot.virtual.cancel(self._now_ns), more=False)

    def result(self) -> FleetRun:
        length_s = self._now_ns / 1e9
        open_s = self._fleet.open_s
        opened = self._last_given_ns / 1e9 if open_s is None else min(open_s, length_s)
        return FleetRun(
            robots=tuple(self._robots),
            length_s=length_s,
            tasks=tuple(sorted(self._tasks, key=lambda t: t.number)),
            spans=with_idle(tuple(self._robots), self._spans, length_s),
            open_s=((0.0, opened),),
            rounds=tuple(sorted(self._rounds, key=lambda r: (r.robot, r.requested_s))),
        )

    def _open_servers(self) -> None:
        steps = next((len(r.step_norms) for r in self._like.rounds if r.step_norms is not None), 1)
        scale = self._like.scale
        for engine in self._engines.values():
            profile = engine.profile
            description = EngineDescription(
                policy_id=profile.policy_id,
                policy_type="simulated",
                state_dim=len(OBSERVATION.state),
                images={},
                action_dim=self._like.action_dim,
                chunk_size=self._like.chunk_size,
                steps=steps,
                instructions=None,
                device=profile.device,
                dtype=profile.dtype,
                max_batch=profile.batch_sizes[-1],
                action_scale=None if scale is None else tuple(scale.tolist()),
                history_bytes=self._fleet.history_bytes,
            )
            network_ns = engine.network_ns(self._fleet.observation_bytes)
            self._dispatcher.add_engine(engine.name, engine.tier, network_ns)
            if engine.linked:
                self._tell_link(engine)
            self._dispatcher.engine_ready(0, engine.name, description, profile)
        for name in self._robots:
            self._dispatcher.announce(0, Announcement(name, "virtual", ""))

    # Events

    def _on_job(self, _: None) -> None:
        """The next task arrives; those without a time of their own are always there."""
        while (job := self._next_job) is not None:
            wanted_ns = 0 if job.wanted_s is None else round(job.wanted_s * 1e9)
            if self._closed(max(wanted_ns, self._now_ns)):
                self._next_job = None
                break
            if wanted_ns > self._now_ns:
                self._push(wanted_ns, _Kind.JOB, None)
                break
            if job.wanted_s is None and not self._free:
                break
            self._waiting.append(job)
            self._next_job = next(self._jobs, None)
            self._give()
        if self._next_job is None and self._closed(self._now_ns):
            self._waiting.clear()

    def _on_robot(self, robot: _Robot) -> None:
        if robot.due_ns == self._now_ns:
            robot.due_ns = None
            self._apply(robot, robot.virtual.advance(self._now_ns))

    def _on_answer(self, answer: Answer) -> None:
        robot = self._robots[answer.id.robot]
        self._apply(robot, robot.virtual.receive(answer, self._now_ns))

    def _on_batch(self, done: tuple[Submit, int, list[InferResult]]) -> None:
        submit, compute_ns, results = done
        self._serve(
            self._dispatcher.batch_done(
                self._now_ns, submit.engine, submit.batch, results, compute_ns / 1e9
            )
        )
        slots = self._dispatcher.engines.values()
        if all(slot.state == "refused" for slot in slots):  # nobody finds them again here
            why = "; ".join(f"{slot.name}: {slot.last_error}" for slot in slots)
            raise ConfigError(
                f"after {self._now_ns / 1e9:.3f} s no engine is left, all were refused ({why}); "
                "check the chunks and updates of the traces"
            )

    def _on_confirmed(self, confirmed: tuple[SimEngine, int]) -> None:
        engine, size_bytes = confirmed
        self._links[engine.name].confirm(size_bytes)
        self._tell_link(engine)

    def _on_server(self, _: None) -> None:
        if self._server_due_ns == self._now_ns:
            self._server_due_ns = None
            self._serve(self._dispatcher.tick(self._now_ns))

    def _on_heartbeat(self, _: None) -> None:
        """All robots are alive, also those that wait for a task or for an answer."""
        for session in [*self._dispatcher.sessions.values()]:
            alive = Announcement(session.robot, session.session, session.announced_task)
            self._dispatcher.announce(self._now_ns, alive)
        self._push(self._now_ns + HEARTBEAT_NS, _Kind.HEARTBEAT, None)

    # Robots

    def _give(self) -> None:
        """The oldest task to the robot that has been free for longest."""
        while self._waiting and self._free:
            if self._closed(self._now_ns):
                self._waiting.clear()
                return
            self._start(self._free.popleft(), self._waiting.popleft())

    def _start(self, robot: _Robot, job: TraceTask) -> None:
        trace = robot.trace = self._prepare(job.trace)
        period_s = 1 / trace.control_rate_hz
        # fleets do not step in lockstep: the first task begins anywhere in a control period
        first = not self._now_ns and job.wanted_s is None
        late_ns = round(self._starts.random() * period_s * 1e9) if first else 0
        at_ns = self._now_ns + late_ns
        wanted_s = at_ns / 1e9 if job.wanted_s is None else job.wanted_s
        robot.virtual.start(Assignment(str(job.number), job.number, trace, wanted_s), at_ns)
        self._busy += 1
        self._last_given_ns = at_ns
        self._tell(robot, str(job.number))
        self._schedule(robot)

    def _apply(self, robot: _Robot, effects: Sequence[Send | Ended], more: bool = True) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(robot, effect)
                continue
            self._busy -= 1
            self._tasks.append(effect.task)
            self._rounds += effect.rounds
            self._spans += effect.spans
            self._free.append(robot)
            if more:
                self._give()
                if self._next_job is not None and self._next_job.wanted_s is None:
                    self._on_job(None)
            if robot.virtual.task is None:
                self._tell(robot, "")
        self._schedule(robot)

    def _schedule(self, robot: _Robot) -> None:
        due_ns = robot.virtual.next_event_ns()
        if due_ns is not None and due_ns != robot.due_ns:
            self._push(due_ns, _Kind.ROBOT, robot)
        robot.due_ns = due_ns

    def _send(self, robot: _Robot, send: Send) -> None:
        asked = send.request.id
        if asked.attempt == 0:
            robot.sent_before, robot.sent = robot.sent, {}
        robot.sent[asked.task, asked.round, asked.attempt] = send
        request = replace(send.request, observation=OBSERVATION)
        self._push(self._now_ns + self._delay_ns(), _Kind.REQUEST, request)

    def _tell(self, robot: _Robot, task: str) -> None:
        """The robot's status reaches the server; its end of a task ends the task there."""
        status = Announcement(robot.virtual.name, robot.virtual.session, task)
        self._push(self._now_ns + self._delay_ns(), _Kind.STATUS, status)

    # Server and engines

    def _serve(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Submit):
                self._infer(effect)
            else:
                self._push(self._now_ns + self._delay_ns(), _Kind.ANSWER, effect)
        wake_ns = self._dispatcher.wakeup_ns(self._now_ns)
        if wake_ns is not None:
            wake_ns = max(wake_ns, self._now_ns + 1)
            if self._server_due_ns is None or wake_ns < self._server_due_ns:
                self._push(wake_ns, _Kind.SERVER, None)
                self._server_due_ns = wake_ns

    def _infer(self, submit: Submit) -> None:
        engine = self._engines[submit.engine]
        observations = len(submit.requests) * self._fleet.observation_bytes
        size_bytes = observations + submit.history_bytes
        compute_ns = engine.compute_ns(len(submit.requests), self._draws[engine.name])
        results = [self._result(request) for request in submit.requests]
        trip = self._links[engine.name].send(self._now_ns, size_bytes, compute_ns)
        if engine.linked:
            self._push(trip.confirmed_ns, _Kind.CONFIRMED, (engine, size_bytes))
        answered_ns = trip.answered_ns + engine.stall_ns(self._stalls[engine.name])
        self._push(answered_ns, _Kind.BATCH, (submit, compute_ns, results))

    def _tell_link(self, engine: SimEngine) -> None:
        state = self._links[engine.name].state(self._fleet.observation_bytes)
        self._serve(self._dispatcher.link_changed(self._now_ns, engine.name, state))

    def _result(self, request: InferRequest) -> InferResult:
        robot = self._robots[request.robot]
        key = (request.task, request.round, request.attempt)
        send = robot.sent.get(key) or robot.sent_before[key]
        assert robot.trace is not None
        return recorded_result(robot.trace, send.observed, send.ahead)

    # Inside

    def _prepare(self, trace: Trace) -> Trace:
        """The trace as the rules want it, checked once."""
        known = self._prepared.get(id(trace))
        if known is not None:
            return known[1]
        if trace.actions < 1:
            raise ConfigError(f"trace {trace.name!r} executed no actions; leave it out")
        for name in ("chunk_size", "action_dim", "policy"):
            if getattr(trace, name) != getattr(self._like, name):
                raise ConfigError(
                    f"traces of one run are of one policy, but {name} is "
                    f"{getattr(trace, name)!r} in trace {trace.name!r}, and "
                    f"{getattr(self._like, name)!r} in {self._like.name!r}"
                )
        rules = self._fleet.rules
        require_judgeable(trace, rules)
        prepared = as_replayed(trace, rules, self._expected_ns())
        self._prepared[id(trace)] = (trace, prepared)
        return prepared

    def _expected_ns(self) -> int:
        """From a request to its answer, in a fleet without load."""
        first = next(iter(self._engines.values()))
        engine_ns = first.profile.latencies_ns(1)[0]
        network_ns = first.network_ns(self._fleet.observation_bytes)
        return round(self._fleet.network_s * 1e9) + network_ns + engine_ns

    def _closed(self, at_ns: int) -> bool:
        return self._fleet.open_s is not None and at_ns >= self._fleet.open_s * 1e9

    def _delay_ns(self) -> int:
        half_ns = self._fleet.network_s * 5e8
        if self._fleet.network_spread:
            half_ns *= self._delays.lognormvariate(0.0, self._fleet.network_spread)
        return round(half_ns)

    def _push(self, at_ns: int, kind: _Kind, payload: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_ns, kind, self._pushed, payload))
