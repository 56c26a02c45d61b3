"""The engines of a serving node: started, stopped, and what they report told to the dispatcher."""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from rclpy.impl.rcutils_logger import RcutilsLogger

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.horizons.policies import AUTO
from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.wire_check import printable
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineDraining,
    EngineEvent,
    EngineLoading,
    EngineReady,
    EngineUnreachable,
    LanguageChanged,
    LinkChanged,
)
from kairos_ros.engine.client.remote_spec import NamedRemote, RemoteSpec
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.loading import memory_needed
from kairos_ros.engine.worker.process import WorkerSpec
from kairos_ros.host.question_endpoint import question_endpoint
from kairos_ros.nodes.serving.parameters import EDGE, engine_options, remote_policy
from kairos_ros.serving.batching import Effect, Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.batches import SlotMemory
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.engines.memory import check_fits

LOAD_S, LOAD_MIB_PER_S = 10.0, 500.0
"""What loading a policy is taken to need before it was ever loaded: so long, and its weights."""


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """An engine of this host that was ended on purpose has gone, and its memory is free."""


class ServingEngines:
    """Their threads only queue events; everything else happens in the thread of `handle_events`."""

    def __init__(
        self,
        values: Mapping[str, Any],
        logger: RcutilsLogger,
        wake: Callable[[], None],
        carry_out: Callable[[list[Effect]], None],
    ) -> None:
        """values: the node's parameters. wake: there are events; called from any thread.
        carry_out: takes what the dispatcher wants done."""
        self._values = values
        self._logger = logger
        self._wake = wake
        self._carry_out = carry_out
        self._clients: dict[str, EngineLink] = {}
        self._profiles: dict[str, str] = {}
        self._events: deque[tuple[str, EngineEvent | EngineEnded]] = deque()
        self._here: dict[str, tuple[str, EngineOptions]] = {}
        """Engine of this host -> its policy."""
        self._ending: list[Thread] = []
        self._leaving: set[str] = set()
        """Engines of this host that end, or have ended by a refusal."""
        self._removed: set[str] = set()
        """Those of them that the dispatcher shall forget."""

    def start(self, dispatcher: Dispatcher, remotes: Sequence[NamedRemote]) -> None:
        """remotes: the engines elsewhere.

        Raises ConfigError or zmq.ZMQError for a link that is impossible.
        """
        self._dispatcher = dispatcher
        self._profiles = {remote.name: remote.profile for remote in remotes}
        asked = {} if self._values["plan"] else engine_options(self._values)
        self._here = {
            f"{EDGE}/{policy}" if policy else EDGE: (policy, options)
            for policy, options in asked.items()
        }
        self._leaving.clear()
        self._removed.clear()
        for name, (policy, options) in self._here.items():
            memory = self._memory(policy, options)
            dispatcher.add_engine(name, "edge", policy=policy, device=EDGE, memory=memory)
        for remote in remotes:
            policy = remote_policy(self._values, remote)
            dispatcher.add_engine(
                remote.name, "cloud", policy=policy, device=remote.device, standby=remote.standby
            )
        dispatcher.check_standby()
        for remote in remotes:
            engine = EngineLink(remote.spec, partial(self._queue, remote.name))
            engine.start()
            self._clients[remote.name] = engine
        for number, name in enumerate(self._here):
            if number == 0 or not dispatcher.memory.budget_mib:
                self._load(name)
            else:
                dispatcher.engines[name].state = "not loaded"

    def add(self, name: str, policy: str, options: EngineOptions, device: str) -> None:
        """Loads a further engine of this host, while others serve. device: what computes its
        batches, one at a time with those of the other engines of this device."""
        self._here[name] = (policy, options)
        self._dispatcher.add_engine(name, "edge", policy=policy, device=device)
        self._load(name)

    def add_elsewhere(self, name: str, engine: RemoteSpec, device: str) -> None:
        """A further engine that a plan has on another host, while others serve. device: as in
        `add`. Raises ConfigError or zmq.ZMQError for a link that is impossible."""
        link = EngineLink(engine, partial(self._queue, name))
        link.start()
        self._dispatcher.add_engine(name, "cloud", policy=engine.policy, device=device)
        self._clients[name] = link

    def remove(self, name: str) -> None:
        """An engine of a plan gets no more batches. On this host it finishes those that
        it has, and ends; on another one it is hung up on, and what it has is queued again."""
        self._dispatcher.engines[name].state = "ending"
        self._removed.add(name)
        if name in self._clients:
            self._end(name)
        elif name not in self._leaving:
            self._queue(name, EngineEnded())

    def stop(self) -> None:
        """May be called at any time."""
        ending = [Thread(target=engine.stop) for engine in self._clients.values()]
        for thread in ending:  # side by side: each worker takes up to a second to end
            thread.start()
        for thread in ending + self._ending:
            thread.join()
        self._clients.clear()
        self._ending.clear()
        self._events.clear()

    def keep_to_budget(self, now_ns: int) -> None:
        """Loads the policy that is needed, and ends those that have to make room for it."""
        plan = self._dispatcher.memory.plan(now_ns)
        if plan.taking_turns and (why := self._dispatcher.memory.contention(now_ns)):
            self._logger.warning(why, throttle_duration_sec=60.0)
        for name in plan.end:
            self._logger.info(f"{name} is unloaded: another policy needs the memory")
            self._end(name)
        if plan.load:
            self._logger.info(f"{plan.load}: loading begins, because requests wait for it")
            self._load(plan.load)

    def _memory(self, policy: str, options: EngineOptions) -> SlotMemory | None:
        """Raises KairosError for a policy that can be refused before it is loaded."""
        budget_mib = self._dispatcher.memory.budget_mib
        if not budget_mib:
            return None
        needs_mib = memory_needed(options)
        check_fits(policy, needs_mib, budget_mib)
        return SlotMemory(needs_mib, round(1e9 * (LOAD_S + needs_mib / LOAD_MIB_PER_S)))

    def _load(self, name: str) -> None:
        """A worker of this host is started; its link tells the rest."""
        policy, options = self._here[name]
        asked = options.language_mib and not self._values["plan"]
        questions = question_endpoint(policy) if asked else ""
        worker = WorkerSupervisor(WorkerSpec(options, questions=questions))
        self._dispatcher.engines[name].state = "starting"
        self._clients[name] = engine = EngineLink(worker, partial(self._queue, name))
        engine.start()

    def _end(self, name: str) -> None:
        """A worker of this host finishes its batch and ends, while others serve on."""
        engine = self._clients.pop(name)
        self._leaving.add(name)

        def end() -> None:
            engine.stop()
            self._queue(name, EngineEnded())

        thread = Thread(target=end, name=f"end-{name}", daemon=True)
        self._ending = [one for one in self._ending if one.is_alive()] + [thread]
        thread.start()

    def can_serve(self) -> bool:
        """The engines of this host are up; where there is none, any."""
        slots = self._dispatcher.engines.values()
        loaded = [s for s in slots if s.tier == "edge" and s.state != "not loaded"]
        here = [slot.state == "ready" for slot in loaded]
        return all(here) if here else any(slot.state == "ready" for slot in slots)

    def submit(self, batch: Submit) -> None:
        """Never blocks; what does not fit on the wire comes back as a failed batch."""
        self._clients[batch.engine].submit(batch.batch, batch.requests, batch.expected_s)

    def handle_events(self) -> tuple[bool, EngineDown | None]:
        """Whether any engine went down, and the newest EngineDown of an engine of this host that
        no other worker follows, else the newest of any of this host, if any.

        Raises ConfigError for a profile of that one that is wrong.
        """
        any_down, edge_down = False, None
        here = {name for name, slot in self._dispatcher.engines.items() if slot.tier == "edge"}
        while self._events:
            name, event = self._events.popleft()
            self._handle(time.monotonic_ns(), name, event)
            if isinstance(event, EngineDown):
                any_down = True
                if name in here and not (edge_down and edge_down.retry_in_s is None):
                    edge_down = event
        return any_down, edge_down

    def _queue(self, engine: str, event: EngineEvent | EngineEnded) -> None:
        self._events.append((engine, event))
        self._wake()

    def _handle(self, now_ns: int, name: str, event: EngineEvent | EngineEnded) -> None:
        dispatcher, logger = self._dispatcher, self._logger
        ended = name not in self._clients
        match event:
            case EngineEnded():
                self._leaving.discard(name)
                if name in self._removed:
                    self._removed.remove(name)
                    self._here.pop(name, None)
                    logger.info(f"{name} has ended")
                    self._carry_out(dispatcher.remove_engine(now_ns, name))
                else:
                    self._carry_out(dispatcher.engine_ended(now_ns, name))
            case EngineLoading() | EngineReady() | EngineDown() if ended:
                pass  # on purpose; what it leaves is queued again once it has gone
            case EngineLoading():
                if dispatcher.engine_not_up(name, "loading", event.stage):
                    logger.info(f"{name}: {event.stage} ({event.seconds:.0f} s)")
            case EngineUnreachable():
                if dispatcher.engine_not_up(name, "unreachable", event.reason):
                    logger.warning(f"{name}: unreachable {event.reason}")
            case EngineReady():
                try:
                    self._ready(now_ns, name, event)
                except ConfigError as error:
                    dispatcher.engine_not_up(name, "refused", str(error))
                    if dispatcher.engines[name].tier == "edge":
                        self._end(name)
                        raise
                    logger.error(f"{name} is not used: {error}")
            case BatchDone():
                slot = dispatcher.engines[name]
                before = slot.state
                self._carry_out(
                    dispatcher.batch_done(
                        now_ns,
                        name,
                        event.batch,
                        event.outcomes,
                        event.compute_s,
                        event.prepare_s,
                    )
                )
                if slot.state != before:  # what it answered is no chunk of the policy
                    logger.error(f"{name} is not used: {slot.last_error}")
            case BatchFailed():
                logger.warning(
                    f"{name}: batch {event.batch} failed: {printable(event.reason, 500)}",
                    throttle_duration_sec=1.0,
                )
                crashed = event.code is not RefusalCode.ENGINE_DOWN
                self._carry_out(
                    dispatcher.batch_failed(
                        now_ns, name, event.batch, event.reason, crashed=crashed
                    )
                )
            case EngineDown():
                again = f"; {len(event.lost)} batches queued again" if event.lost else ""
                logger.error(f"{name} down: {event.reason}{again}")
                dispatcher.engines[name].language = None
                wait_s = event.retry_in_s
                effects = dispatcher.engine_down(
                    now_ns,
                    name,
                    event.reason,
                    crashed=event.crashed,
                    failures=event.failures,
                    retry_ns=None if wait_s is None else now_ns + round(wait_s * 1e9),
                )
                self._carry_out(effects)
            case EngineDraining():
                logger.warning(f"{name} accepts no more batches: {event.reason}")
                dispatcher.engine_draining(now_ns, name, event.reason)
            case LinkChanged():
                self._carry_out(dispatcher.link_changed(now_ns, name, event.state))
            case LanguageChanged():
                dispatcher.engines[name].language = event.load

    def _ready(self, now_ns: int, name: str, event: EngineReady) -> None:
        profile = self._profile(name, event)
        effects = self._dispatcher.engine_ready(
            now_ns, name, event.description, profile, event.seconds
        )
        slot = self._dispatcher.engines[name]
        taken_mib = event.description.memory_mib
        self._logger.info(
            f"{name} ready after {event.seconds:.1f} s: {event.description.policy_id} "
            f"on {event.description.device}, batches up to {len(slot.latency_ns)}, "
            f"{slot.latency_of(1) / 1e6:.1f} ms for one robot"
            + (f", {taken_mib} MiB" if taken_mib else "")
            + self._chosen(name)
        )
        options = self._dispatcher.options
        if unfit := options.unfit_calibration(event.description, slot.policy):
            self._logger.warning(f"{name}: calibrated horizons are refused: {unfit}")
        if options.horizon_policy == AUTO:
            chosen = options.horizon_of("", slot.policy, event.description)
            self._logger.info(f"{name}: requests that name no horizon policy get {chosen}")
        self._carry_out(effects)

    def _chosen(self, name: str) -> str:
        """Which of rtc, compile and language_mib an engine of this host runs with."""
        if name not in self._here:
            return ""
        options = self._here[name][1]
        chosen = {
            "real-time chunking": options.rtc,
            "compiled": options.compile,
            f"{options.language_mib} MiB for questions": options.language_mib,
        }
        return "".join(f", {what}" for what, is_on in chosen.items() if is_on)

    def _profile(self, name: str, ready: EngineReady) -> EngineProfile:
        path = self._profiles.get(name, self._values["profile"])
        if not path:
            return warmup_profile(ready.description)
        try:
            return EngineProfile.from_dict(json.loads(Path(path).read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"profile {path!r} cannot be read: {error}") from error
