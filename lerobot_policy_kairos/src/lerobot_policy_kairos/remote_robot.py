"""One robot of the fleet: an environment, or an arm, whose actions a serving node decides.

It runs the loop of a robot node (`core.execution.loop`): a control period is one call for
an action. While it waits for actions, nothing is executed and no time passes for what it sees.
"""

import logging
import threading
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.exchange import Answer, Execution, Refusal, Request, no_actions
from kairos_ros.core.execution.effects import Act, Effect, Finished, Observe, Send
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import Task
from kairos_ros.core.fit import PolicyInterface, RobotInterface
from kairos_ros.core.robot_state import RobotState
from kairos_ros.transport.robot_link.messages import (
    Announce,
    RobotReport,
    announce_message,
    report_message,
    request_message,
)
from lerobot_policy_kairos.configuration_kairos import KairosConfig
from lerobot_policy_kairos.door_link import DoorLink
from lerobot_policy_kairos.features import Seen, check_fit
from lerobot_policy_kairos.leftover import Committed, LeftOver, rows_left

LOG = logging.getLogger(__name__)
NETWORK_S, ENGINE_S = 0.02, 0.1
"""Of a request, until it was measured; as those of robot nodes."""
SILENCE_S, LONGEST_SILENCE_S = 1.0, 4.0
"""Without an answer, a request is sent again after this; it doubles."""
REPORT_S = 1.0
"""Between two reports of a robot that goes on as it did."""
HOLD_S = 0.05
"""A robot that waits for less than this is not reported as holding."""
WAIT_S = 0.02
"""Between two looks at what has come, at most."""
AGAIN_S = 0.5
"""Between two tries to connect again."""
NEVER_NS = 10**18
ROW_SEEDS = 2**32
"""Between the seeds of two rows."""


class RemoteRobot:
    """Not thread safe. Raises ConnectionError where there is no server, or it refuses this robot;
    RuntimeError where no action comes; ValueError for an observation that the policy cannot read.
    After an error the next observation begins a new task."""

    def __init__(self, config: KairosConfig, name: str, token: str, row: int) -> None:
        """row: of the batch; every one draws other noise."""
        self._config, self._token, self._row = config, token, row
        self._arrived = threading.Event()
        self._link = DoorLink(config.server, name, token, self._arrived)
        self.name = self._link.robot
        self._interface: RobotInterface | None = None
        """What it announced on this connection."""
        self._loop: Loop | None = None
        self._tasks = 0
        self._kept: list[Seen] = []
        """Of the last calls, oldest first, where the policy reads several observations."""
        self._seen: Seen | None = None
        self._seen_ns = 0
        self._observed = False
        """At what is seen now."""
        self._refusal = ""
        self._reported: tuple[object, ...] = (None, None)
        self._reported_ns = 0
        self._pauses = 0
        """That were told."""
        self._inferred = False
        self._chunk, self._chunk_ns = no_actions(), 0
        """The last whole chunk, and when it was handed out."""
        self._committed: Committed | None = None
        """While its caller waits for a chunk and has said what is left of the last one."""
        self._stalled_ns = 0
        """In this task, of a robot whose caller says what is left."""

    def served_policy(self) -> PolicyInterface:
        """What will answer, once a serving node is active. Raises RuntimeError after `answer_s`."""
        binding = ServerBinding(self.name, None, self._config.served_policy)
        end_s = time.monotonic() + self._config.answer_s
        for heard in self._link.servers():
            binding.heard(heard.status, heard.at_ns)
        while True:
            for heard in self._link.take_news():
                binding.heard(heard.status, heard.at_ns)
            binding.look(time.monotonic_ns())
            if binding.server is not None and binding.policy is not None:
                return binding.policy
            if self._link.ended:
                raise ConnectionError(self._link.ended)
            if time.monotonic() > end_s:
                raise RuntimeError(self._no_server(binding, time.monotonic_ns()))
            self._pause(WAIT_S)

    def end_task(self) -> None:
        """Whatever comes next begins a new task; nothing that was answered before is executed."""
        if self._loop is not None and self._loop.task is not None:
            self._loop.finish("reset", time.monotonic_ns())
            self._report(time.monotonic_ns())
        self._kept, self._refusal = [], ""

    def begin(self, seen: Seen, instruction: str, policy: PolicyInterface) -> None:
        """A control period begins; `step` until there is an action.

        policy: what is served, as `served_policy`.
        """
        if self._link.ended and (self._loop is None or self._loop.task is None):
            self._connect_again()
        if self._loop is None:
            self._announce(seen, policy)
        assert self._loop is not None
        interface = seen.interface(policy.action_dim, self._config.absent_cameras)
        if interface != self._interface:
            raise ValueError(f"the robot was {self._interface} and is now {interface}")
        now_ns = time.monotonic_ns()
        task = self._loop.task
        if task is not None and task.instruction != instruction:
            self.end_task()
            task = None
        self._seen, self._seen_ns, self._observed = seen, now_ns, False
        self._inferred, self._committed = False, None
        if task is None:
            self._tasks += 1
            self._chunk, self._stalled_ns = no_actions(), 0
            config = self._config
            self._loop.start(
                Task(
                    str(self._tasks),
                    instruction,
                    instruction,
                    config.horizon,
                    seed=config.seed + self._tasks + self._row * ROW_SEEDS,
                    policy=config.served_policy,
                ),
                now_ns,
            )

    def step(self) -> NDArray[np.float32] | None:
        """The action of this control period, float32 [action_dim]; None: it has not come yet."""
        loop = self._loop
        assert loop is not None  # `begin` was called
        self._take_news(loop)
        now_ns = time.monotonic_ns()
        ask = not self._config.synchronous or not loop.execution(now_ns).remaining
        action = self._apply(loop.tick(now_ns, _unguarded, ask=ask))
        self._note_pause(loop)
        self._report(now_ns)
        if action is None:
            self._check_time(loop, now_ns)
        return action

    def wait(self) -> None:
        """Until something has come, or it is time to look again."""
        self._pause(min(WAIT_S, 1 / self._config.control_rate_hz))

    def begin_chunk(
        self, seen: Seen, instruction: str, policy: PolicyInterface, told: LeftOver | None
    ) -> None:
        """Asks for a whole chunk from what is seen; `step_chunk` until it has come.

        told: what is left of the last one. Who does not say it, or tells of another chunk: the
        actions of the last one are counted as executed for as long as they took, and marked as
        inferred.
        """
        self.begin(seen, instruction, policy)
        loop, now_ns = self._loop, self._seen_ns
        assert loop is not None
        period_ns, left = loop.config.period_ns, None
        by_clock = max(0, len(self._chunk) + (self._chunk_ns - now_ns) // period_ns)
        if told is not None:
            left = rows_left(self._chunk, told, by_clock)
        self._inferred = told is None or (left is None and len(self._chunk) > 0)
        count = max(0, len(loop.upcoming) - (by_clock if left is None else left))
        from_ns = max(self._chunk_ns, now_ns - count * period_ns)
        loop.was_reset(from_ns)
        for number in range(count):
            loop.tick(from_ns + number * (now_ns - from_ns) // count, _unguarded, ask=False)
        if told is not None and left is not None:
            rows = self._chunk[len(self._chunk) - left :][: told.delay]
            self._committed = Committed(left, now_ns, rows, self._stalled_ns)
        loop.was_reset(now_ns)
        loop.stop()

    def step_chunk(self) -> NDArray[np.float32] | None:
        """float32 [horizon, action_dim]; None: it has not come yet."""
        loop = self._loop
        assert loop is not None
        self._take_news(loop)
        now_ns = time.monotonic_ns()
        self._apply(loop.tick(now_ns, _unguarded, move=False))
        self._report(now_ns)
        actions = loop.upcoming
        if len(actions):
            if self._committed is not None:
                self._stalled_ns += self._committed.stalls_ns(loop.config.period_ns, now_ns)
            self._chunk, self._chunk_ns, self._committed = actions, now_ns, None
            return actions
        self._check_time(loop, now_ns)
        return None

    def close(self) -> None:
        """It leaves the fleet."""
        self._link.close()

    def _announce(self, seen: Seen, policy: PolicyInterface) -> None:
        """What it is, now that it is known. Raises ValueError where the policy cannot read it."""
        config = self._config
        interface = seen.interface(policy.action_dim, config.absent_cameras)
        check_fit(interface, policy)
        binding = ServerBinding(self.name, interface, config.served_policy)
        for heard in self._link.servers():
            binding.heard(heard.status, heard.at_ns)
        self._loop = Loop(
            LoopConfig(
                robot=self._link.robot,
                session=self._link.session,
                action_dim=policy.action_dim,
                period_ns=round(1e9 / config.control_rate_hz),
                margin_ns=round(config.latency_margin_s * 1e9),
                timeout_ns=round(SILENCE_S * 1e9),
                timeout_max_ns=round(LONGEST_SILENCE_S * 1e9),
                max_pause_ns=NEVER_NS if config.synchronous else round(config.max_pause_s * 1e9),
            ),
            LatencyEstimate(round(NETWORK_S * 1e9), round(ENGINE_S * 1e9)),
            binding,
        )
        announce = Announce(interface, config.control_rate_hz, config.served_policy)
        self._link.send(announce_message(announce))
        self._interface = interface

    def _connect_again(self) -> None:
        """A new session, after the last one was lost. Its name may be taken for a while: a
        connection that was cut is noticed within half a minute."""
        LOG.warning("%s connects again: %s", self.name, self._link.ended)
        self._link.close()
        end_s = time.monotonic() + self._config.answer_s
        while True:
            try:
                self._link = DoorLink(self._config.server, self.name, self._token, self._arrived)
                break
            except ConnectionError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(AGAIN_S)
        self._loop, self._interface = None, None

    def _take_news(self, loop: Loop) -> None:
        """Raises RuntimeError where an answer ends the task."""
        assert loop.binding is not None
        for heard in self._link.take_news():
            loop.binding.heard(heard.status, heard.at_ns)
        loop.dropped["malformed"] += self._link.take_unreadable()
        for answer in self._link.take_answers():
            self._note(answer)
            self._apply(loop.receive(answer, time.monotonic_ns()))

    def _note(self, answer: Answer) -> None:
        if isinstance(answer.body, Refusal):
            self._refusal = f"the server refused: {answer.body.reason}"
        else:
            self._refusal = ""

    def _apply(self, effects: list[Effect]) -> NDArray[np.float32] | None:
        """The action among the effects, if any. Raises RuntimeError where the task has ended."""
        action = None
        for effect in effects:
            match effect:
                case Observe():
                    self._observe(effect)
                case Send():
                    self._send(effect)
                case Act():
                    action = effect.action
                case Finished(result):
                    self._report(time.monotonic_ns())
                    raise RuntimeError(f"{self.name}: the task has ended: {result.outcome}")
        return action

    def _observe(self, observe: Observe) -> None:
        """Keeps what is seen now, once."""
        assert self._seen is not None
        instead = observe.instead or self._observed
        kept = self._kept[:-1] if instead else self._kept
        kept = kept[max(0, len(kept) - observe.earlier) :]
        self._kept, self._observed = [*kept, self._seen], True

    def _send(self, send: Send) -> None:
        loop, seen, form = self._loop, self._seen, self._config.picture_format
        assert loop is not None
        assert seen is not None
        shown = self._kept[-send.observations :] if send.observations > 1 else [seen]
        if send.repeat:
            shown = [*[shown[0]] * (send.observations - len(shown)), *shown]
        *earlier, newest = [one.observation(form) for one in shown]
        now_ns = time.monotonic_ns()
        request: Request = replace(
            send.request,
            observation=newest,
            earlier=tuple(earlier),
            observed_ago_ns=now_ns - self._seen_ns,
            execution=self._doing(send.request.execution, now_ns),
        )
        if self._committed is not None:
            request = replace(request, committed=self._committed.rows)
        self._link.send(request_message(request))
        loop.observed(self._seen_ns)

    def _doing(self, told: Execution, now_ns: int) -> Execution:
        """told: by the loop, which does not know what others execute of a whole chunk."""
        told = replace(told, inferred=self._inferred)
        return self._committed.execution(told, now_ns) if self._committed is not None else told

    def _check_time(self, loop: Loop, now_ns: int) -> None:
        """Raises RuntimeError or ConnectionError where there is nothing to wait for any more."""
        waited_ns = now_ns - self._seen_ns
        if self._link.ended:
            self._give_up(loop, now_ns)
            raise ConnectionError(f"{self.name}: {self._link.ended}")
        if waited_ns > self._config.answer_s * 1e9:
            binding = loop.binding
            assert binding is not None
            silent = f"{binding.server} does not answer" if binding.server else ""
            why = self._refusal or silent or self._no_server(binding, now_ns)
            self._give_up(loop, now_ns)
            raise RuntimeError(
                f"{self.name}: no action within --policy.answer_s={self._config.answer_s:g}: {why}"
            )

    def _note_pause(self, loop: Loop) -> None:
        if loop.pauses > self._pauses:
            LOG.warning(
                "%s: nobody asked for an action for %.1f s, so that what was left of the chunk was "
                "dropped; a simulator with such steps needs a larger --policy.max_pause_s",
                self.name,
                loop.paused_ns / 1e9,
            )
        self._pauses = loop.pauses

    def _give_up(self, loop: Loop, now_ns: int) -> None:
        if loop.task is not None:
            loop.finish("failed: no action came", now_ns)
        self._report(now_ns)

    def _no_server(self, binding: ServerBinding, now_ns: int) -> str:
        asked, server = self._config.served_policy, binding.server
        if server is None:
            return f"{self._link.where} knows no active serving node: {binding.why_none(now_ns)}"
        names = [one.name for one in server.policies] or [server.policy]
        if asked in names or not asked:
            return f"{server} has not loaded policy {asked or server.policy!r} yet"
        return (
            f"{server} does not serve policy {asked!r}, it serves {', '.join(names)}; set "
            "--policy.served_policy"
        )

    def _report(self, now_ns: int) -> None:
        """At once where something has changed that people see, else once a second."""
        loop = self._loop
        if loop is None or self._link.ended:
            return
        task, binding = loop.task, loop.binding
        doing = self._doing(loop.execution(now_ns), now_ns)
        assert binding is not None
        begun = task is not None and task.id != self._reported[1]
        holds = doing.holding and (begun or now_ns - self._seen_ns > HOLD_S * 1e9)
        state = RobotState.IDLE
        if task is not None:
            state = RobotState.HOLDING if holds else RobotState.RUNNING
        shown = state, task and task.id, binding.bound
        if shown == self._reported and now_ns - self._reported_ns < REPORT_S * 1e9:
            return
        self._reported, self._reported_ns = shown, now_ns
        report = RobotReport(
            state,
            task.id if task else "",
            loop.instruction,
            doing.round,
            doing.remaining,
            doing.stalled_ns,
            loop.horizon,
            self._tasks - (task is not None),
            loop.executed,
            sum(loop.dropped.values()),
            loop.silences,
            binding.bound,
            binding.asks_for,
        )
        self._link.send(report_message(report))

    def _pause(self, most_s: float) -> None:
        self._arrived.wait(most_s)
        self._arrived.clear()


def _unguarded(action: NDArray[np.float32]) -> NDArray[np.float32]:
    """LeRobot's robots and environments have limits of their own."""
    return action
