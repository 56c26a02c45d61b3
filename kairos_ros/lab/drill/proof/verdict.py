"""Pass or fail of one fault, for every robot: pure, from evidence that was collected before."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kairos_ros.lab.drill.proof.evidence import BodyTask, Guard, body_tasks, prove
from kairos_ros.lab.drill.proof.exchange import Exchange
from kairos_ros.lab.drill.proof.motion import (
    SeenCommand,
    commands,
    longest_hold_s,
    longest_silence_s,
    spans,
)
from kairos_ros.lab.drill.proof.policy_turns import Turn, wrong_policy
from kairos_ros.recording.runs.run import Span
from kairos_ros.robot.body_log import BodyEvent

LAST_ACTION_S = 0.05
"""An action's control period, and a little more."""
DONE = ("succeeded", "max_actions", "max_duration")
"""Outcomes of tasks that ended by themselves; whether the arm succeeds is the policy's business."""


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, and whether it came true."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class FaultLimits:
    """What a robot may feel of a fault, in seconds."""

    silence_s: float = 1.0
    """Longest time in which a body is told nothing at all: neither moving nor holding."""
    wait_s: float = 10.0
    """The longest that a round waits for its chunk; of a robot whose own process is ended, from the
    beginning of the fault to the first chunk of the next one."""

    def lively(self, silence_s: float, of_what: str) -> Check:
        """Whether a body was told, or was heard, often enough."""
        found = f"at most {silence_s:.2f} s without {of_what}"
        return Check("moving or holding", silence_s <= self.silence_s, found)

    def served(self, wait_s: float | None) -> Check:
        """Whether every round got its chunk soon enough; None: one never did."""
        if wait_s is None:
            return Check("served again", False, "never")
        return Check("served again", wait_s <= self.wait_s, f"after {wait_s:.2f} s at most")


@dataclass(frozen=True, slots=True)
class Window:
    """When a fault was there, on this host's monotonic clock."""

    begin_s: float
    repaired_s: float
    """Nothing was wrong any more, on purpose at least."""
    end_s: float
    """Every task that had begun by then has ended."""
    turns: tuple[Turn, ...] = ()
    """Which policy new tasks got, where that was changed meanwhile."""


@dataclass(frozen=True, slots=True)
class RobotVerdict:
    """One robot in one fault."""

    robot: str
    tasks: int
    """That ran while the fault was there."""
    finished: int
    proven: int | None
    """Executed actions of those tasks that are what the robot was answered; None where its body
    keeps no log."""
    wrong: tuple[str, ...]
    chunks: Mapping[str, int]
    """Tier -> chunks while the fault was there."""
    dropped: int
    """Chunks that were not used, of those tasks."""
    hold_s: float
    """Longest time without an action within a task, from the fault to the end."""
    silence_s: float
    wait_s: float | None
    """As in `Limits`; None: never."""
    checks: tuple[Check, ...]
    digests: Mapping[str, str] = field(default_factory=dict)
    """`task/round` -> digest of the chunk that was executed."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Task -> type and fingerprint of the weights that its executed actions are of."""
    spans: tuple[Span, ...] = ()
    """Seconds since the beginning of the fault."""

    @property
    def passed(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class BodyLogs:
    """The logs of one robot, by session, in order."""

    robot: str
    logs: Mapping[str, Sequence[BodyEvent]]


def judge(
    body: BodyLogs,
    exchange: Exchange,
    guard: Guard,
    window: Window,
    limits: FaultLimits,
    *,
    victim: bool = False,
) -> RobotVerdict:
    """Whether one robot came through a fault.

    `victim`: the fault ends the robot's own process, and with it the task that ran there; what its
    next process does is judged.
    """
    tasks = [t for s, log in body.logs.items() for t in body_tasks(body.robot, s, log)]
    here = [t for t in tasks if _overlaps(t, exchange, window)]
    if victim:
        here = [task for task in here if task.key.session == list(body.logs)[-1]]
    proofs = [
        prove(t, exchange.asked[t.key], exchange.answered[t.key], guard, exchange.answered)
        for t in here
    ]
    ended = [exchange.ended[t.key] for t in here if t.key in exchange.ended]
    finished = [end for end in ended if end.outcome in DONE]
    miscounted = [
        f"task {task.key.task}: the robot tells of {end.actions} actions, its body of {acts}"
        for task in here
        if (end := exchange.ended.get(task.key)) and end.actions != (acts := _count(task))
    ]
    lines = [line for proof in proofs for line in proof.wrong]
    lines += [wrong_policy(t, p, window.turns) for t, p in zip(here, proofs, strict=True)]
    wrong = tuple(filter(None, lines))
    proven = sum(proof.proven for proof in proofs)
    told = _commands(body, exchange)
    silence_s = _silence_s(body, window, victim=victim)
    session = list(body.logs)[-1] if victim else ""
    wait_s = longest_wait_s(body.robot, exchange, window, session)
    unfinished = [_unfinished(task, exchange) for task in here if not _is_done(task, exchange)]
    checks = (
        Check("no task lost", bool(here) and not unfinished, "; ".join(unfinished) or "none"),
        Check("no wrong action", proven > 0 and not wrong, first_of(wrong) or f"{proven} proven"),
        Check("counts agree", not miscounted, first_of(miscounted) or "yes"),
        limits.lively(silence_s, "a command"),
        limits.served(wait_s),
    )
    return RobotVerdict(
        robot=body.robot,
        tasks=len(here),
        finished=len(finished),
        proven=proven,
        wrong=wrong,
        chunks=chunks_by_tier(body.robot, exchange, window),
        dropped=sum(end.dropped for end in ended),
        hold_s=longest_hold_s(told, window.begin_s, window.end_s),
        silence_s=silence_s,
        wait_s=wait_s,
        checks=checks,
        digests={f"{p.key.task}/{r}": d for p in proofs for r, d in sorted(p.rounds.items())},
        policies={p.key.task: p.policy for p in proofs},
        spans=spans_since(window.begin_s, spans(body.robot, told), window),
    )


def _overlaps(task: BodyTask, exchange: Exchange, window: Window) -> bool:
    began_s = task.events[0].at_ns / 1e9 if task.events else window.end_s
    end = exchange.ended.get(task.key)
    ended_s = end.at_s if end else window.end_s
    return began_s < window.repaired_s and ended_s > window.begin_s


def _is_done(task: BodyTask, exchange: Exchange) -> bool:
    end = exchange.ended.get(task.key)
    return end is not None and end.outcome in DONE


def _unfinished(task: BodyTask, exchange: Exchange) -> str:
    end = exchange.ended.get(task.key)
    return f"task {task.key.task}: {end.outcome if end else 'never ended'}"


def _count(task: BodyTask) -> int:
    return sum(1 for _ in task.acts)


def _commands(body: BodyLogs, exchange: Exchange) -> list[SeenCommand]:
    return [
        command
        for session, log in body.logs.items()
        for command in commands(log, _ends_s(body_tasks(body.robot, session, log), exchange))
    ]


def _ends_s(tasks: Sequence[BodyTask], exchange: Exchange) -> list[float]:
    """When tasks ended: with their last action, where that is how they ended; else when it was
    heard, which is later where the drill had something else to do."""
    ends = []
    for task in tasks:
        end = exchange.ended.get(task.key)
        if end is None:
            continue
        last = max((act.at_ns for act in task.acts), default=0)
        with_it = last and end.outcome in ("succeeded", "max_actions")
        ends.append(last / 1e9 + LAST_ACTION_S if with_it else end.at_s)
    return ends


def _silence_s(body: BodyLogs, window: Window, *, victim: bool) -> float:
    logs = list(body.logs.values())
    if not victim:
        return longest_silence_s([e for log in logs for e in log], window.begin_s, window.end_s)
    return longest_silence_s(logs[-1], window.begin_s, window.end_s)


def longest_wait_s(
    robot: str, exchange: Exchange, window: Window, session: str = ""
) -> float | None:
    """The longest that a round waited for its chunk, counted from the beginning of the fault, or
    waited in vain until the robot gave it up.

    None without any chunk. With a session: from the beginning to its first chunk.
    """
    begin_s = window.begin_s
    waits, first, newest = [], math.inf, exchange.sessions(robot)[-1:]
    for key, requests in exchange.asked.items():
        if key.robot != robot or (session and key.session != session):
            continue
        came = {a.round: a.at_s for a in reversed(exchange.answers(key))}
        asked = {r.round: r.at_s for r in reversed(requests)}
        both = [(at_s, came[n]) for n, at_s in asked.items() if n in came and came[n] >= begin_s]
        waits += [came_s - max(at_s, begin_s) for at_s, came_s in both]
        first = min([first, *(came_s for _, came_s in both)])
        if key.session in newest:  # an older one was ended with its process
            end = exchange.ended.get(key)
            end_s = min(end.at_s, window.end_s) if end else window.end_s
            waits += [
                asked.get(n + 1, end_s) - max(at_s, begin_s)
                for n, at_s in asked.items()
                if n not in came
            ]
    if first == math.inf:
        return None
    return first - begin_s if session else max(waits)


def chunks_by_tier(robot: str, exchange: Exchange, window: Window) -> dict[str, int]:
    counts: dict[str, int] = {}
    for chunk in exchange.chunks(window.begin_s, window.repaired_s, robot):
        counts[chunk.tier] = counts.get(chunk.tier, 0) + 1
    return counts


def spans_since(origin_s: float, found: Sequence[Span], window: Window) -> tuple[Span, ...]:
    """Those near the window, in seconds since its beginning."""
    margin_s = 3.0
    low, high = window.begin_s - margin_s, window.end_s + margin_s
    return tuple(
        Span(s.robot, max(s.start_s, low) - origin_s, min(s.end_s, high) - origin_s, s.activity)
        for s in found
        if s.end_s > low and s.start_s < high
    )


def first_of(lines: Sequence[str]) -> str:
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return f"{lines[0]}{more}" if lines else ""
