"""The robots of a site, what they ask, and what becomes of it, in virtual time."""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.calls.call import Call, Caller
from kairos_ros.core.calls.dispatch import Instance, dispatch_called
from kairos_ros.core.calls.orders import order_called
from kairos_ros.core.calls.queue import CallQueue
from kairos_ros.core.pipeline import Component
from kairos_ros.lab.gateway.virtual_server import ServerModel, VirtualServer, Work

MODEL = "vlm"


class Asker(BaseModel):
    """One component of every robot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_robot: int = Field(1, ge=0)
    """So many of them; 0: only what follows from another's answer."""
    period_s: float = Field(1.0, gt=0)
    """Each asks so often; one whose last question is not answered yet leaves one out."""
    prompt: float = Field(gt=0)
    """Mean tokens."""
    output: float = Field(ge=1)
    """Mean tokens of the answer, exponentially distributed."""
    slo_s: float = Field(gt=0)
    then: dict[str, float] = {}
    """What follows from its answer, with how high a probability."""


class System(BaseModel):
    """One way to serve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    order: str
    dispatch: str
    places: int = Field(ge=1)
    knows_memory: bool = True
    """The gateway knows the room of each server's cache."""
    obligations_first: bool = True
    """False: safety is a component like others, as in the papers."""


@dataclass(slots=True)
class Tally:
    """Of one component."""

    latency_s: list[float] = field(default_factory=list)
    in_time: int = 0
    due: int = 0
    """Questions that should have been asked in the time that counts."""


@dataclass(slots=True)
class SiteResult:
    """What came of it, after the time to warm up."""

    components: dict[str, Tally]
    workflows_s: list[float]
    """From the first question of a workflow to its last answer."""
    preemptions: int


@dataclass(frozen=True, slots=True)
class Question:
    """What a robot wants to know."""

    robot: int
    component: str
    workflow: str
    upstream: str
    began_ns: int
    """When the first question of its workflow was asked."""
    seat: int
    """Which of the robot's askers it is; -1: it follows from an answer."""
    counts: bool


class Site:
    """Runs one site once. Deterministic for a seed."""

    def __init__(
        self, askers: dict[str, Asker], system: System, servers: int, model: ServerModel, seed: int
    ) -> None:
        self._askers = askers
        self._system = system
        self._model = model
        self._servers = {f"gpu{k}": VirtualServer(model) for k in range(servers)}
        memory = model.memory_tokens if system.knows_memory else 0
        self._queue = CallQueue(
            {
                name: Instance(name, frozenset({MODEL}), system.places, memory)
                for name in self._servers
            },
            order_called(system.order),
            dispatch_called(system.dispatch),
        )
        self._rng = np.random.default_rng(seed)
        self._events: list[tuple[int, int, str, int, int]] = []
        """(time, number, component of the asker, robot, seat)"""
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[Question, Call]] = {}
        self._busy: set[tuple[int, str, int]] = set()
        """Askers whose question is not answered yet."""
        self._result = SiteResult(defaultdict(Tally), [], 0)
        self._from_ns = self._until_ns = 0
        self._open: dict[str, int] = defaultdict(int)
        """Workflow -> questions that are not answered yet."""

    def run(self, robots: int, warm_up_s: float, seconds: float) -> SiteResult:
        self._from_ns = round(warm_up_s * 1e9)
        self._until_ns = round((warm_up_s + seconds) * 1e9)
        for component, asker in self._askers.items():
            for robot, seat in itertools.product(range(robots), range(asker.per_robot)):
                first_ns = round(self._rng.uniform(0, asker.period_s) * 1e9)
                self._push(first_ns, component, robot, seat)
        while True:
            asks_ns = self._events[0][0]
            name, ends_ns = self._next_server()
            if min(asks_ns, ends_ns) >= self._until_ns:
                break
            if ends_ns <= asks_ns:
                ended = self._servers[name].end(ends_ns)
                for work in ended:
                    self._answered(work, ends_ns)
                if ended:  # as the gateway, which looks when a call comes or ends
                    self._start(ends_ns)
            else:
                _, _, component, robot, seat = heapq.heappop(self._events)
                self._tick(asks_ns, component, robot, seat)
                self._start(asks_ns)
        self._result.preemptions = sum(one.preemptions for one in self._servers.values())
        return self._result

    def _next_server(self) -> tuple[str, int]:
        ends = {n: one.ends_ns for n, one in self._servers.items() if one.ends_ns is not None}
        if not ends:
            return "", self._until_ns
        name = min(ends, key=lambda one: (ends[one], one))
        return name, ends[name]

    def _push(self, at_ns: int, component: str, robot: int, seat: int) -> None:
        heapq.heappush(self._events, (at_ns, next(self._numbers), component, robot, seat))

    def _tick(self, now_ns: int, component: str, robot: int, seat: int) -> None:
        asker = self._askers[component]
        self._push(now_ns + round(asker.period_s * 1e9), component, robot, seat)
        counts = self._counts(now_ns, asker)
        self._result.components[component].due += counts
        if (robot, component, seat) in self._busy:
            return
        self._busy.add((robot, component, seat))
        workflow = f"{robot}/{component}/{next(self._numbers)}"
        self._ask(Question(robot, component, workflow, "", now_ns, seat, counts), now_ns)

    def _counts(self, now_ns: int, asker: Asker) -> bool:
        """Whether it was asked in the time that counts, and has time for its answer."""
        return self._from_ns <= now_ns < self._until_ns - 2 * asker.slo_s * 1e9

    def _ask(self, question: Question, now_ns: int) -> None:
        asker = self._askers[question.component]
        prompt = max(1, round(asker.prompt * self._rng.uniform(0.8, 1.2)))
        component = question.component
        if component == Component.SAFETY and not self._system.obligations_first:
            component = "(safety)"
        # Each asker is a caller of its own, as each node is.
        caller = Caller(
            f"{question.robot}.{question.seat}", component, "", question.workflow, question.upstream
        )
        call = self._queue.put(caller, MODEL, prompt, round(asker.slo_s * 1e9), now_ns)
        self._open[question.workflow] += 1
        self._asked[call.number] = question, call

    def _start(self, now_ns: int) -> None:
        for start in self._queue.start(now_ns):
            question, call = self._asked[start.call.number]
            mean = self._askers[question.component].output
            output = 1 + int(self._rng.exponential(max(0.0, mean - 1)) + 0.5)
            work = Work(call.number, call.prompt_tokens, output)
            self._servers[start.instance.name].give(work, now_ns)

    def _answered(self, work: Work, now_ns: int) -> None:
        question, call = self._asked.pop(work.number)
        self._queue.answered(call, now_ns, work.made)
        tally = self._result.components[question.component]
        if question.counts:
            tally.latency_s.append((now_ns - call.arrived_ns) / 1e9)
            tally.in_time += now_ns <= call.due_ns
        for component, chance in self._askers[question.component].then.items():
            if self._rng.random() < chance:
                counts = self._counts(now_ns, self._askers[component])
                self._result.components[component].due += counts
                self._ask(
                    Question(
                        question.robot, component, question.workflow, call.caller.component,
                        question.began_ns, question.seat, counts,
                    ),
                    now_ns,
                )  # fmt: skip
        self._open[question.workflow] -= 1
        if not self._open[question.workflow]:
            del self._open[question.workflow]
            first = question.workflow.split("/")[1]
            self._busy.discard((question.robot, first, question.seat))
            if self._askers[first].then and self._from_ns <= question.began_ns:
                self._result.workflows_s.append((now_ns - question.began_ns) / 1e9)


def percentile(values: Sequence[float], q: float) -> float | None:
    """None without values."""
    return float(np.percentile(values, q)) if len(values) else None
