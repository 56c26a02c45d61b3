"""Puts what a fleet says into an `Exchange`: messages to plain data."""

import time
from functools import partial

import numpy as np

from kairos_ros.demo.driver import Driver
from kairos_ros.drill.exchange import Answered, Asked, Exchange, TaskEnd, TaskKey
from kairos_ros.msg import ActionChunk, ChunkRequest, ExecutionInfo, TaskEvent


def overhear(driver: Driver, exchange: Exchange, *, pulses: bool = False) -> None:
    """From now on, while `driver` spins: requests, chunks and task events of its robots, and with
    `pulses` when each told what it executes."""

    def on_request(message: ChunkRequest) -> None:
        state = np.asarray(message.state, np.float32)
        key = TaskKey(message.robot, message.session, message.task)
        asked = Asked(time.monotonic(), key, message.round, message.attempt, state)
        exchange.asked[key].append(asked)

    def on_chunk(message: ActionChunk) -> None:
        actions = np.asarray(message.actions, np.float32)
        if message.kind != ActionChunk.ACTIONS or not message.action_dim:
            return
        key = TaskKey(message.robot, message.session, message.task)
        answered = Answered(
            at_s=time.monotonic(),
            key=key,
            round=message.round,
            attempt=message.attempt,
            actions=actions.reshape(-1, message.action_dim),
            tier=message.tier,
            engine=message.engine,
        )
        exchange.answered[key].append(answered)

    def on_event(message: TaskEvent) -> None:
        key = TaskKey(message.robot, message.session, message.task)
        if message.kind == TaskEvent.STARTED:
            exchange.began_s[key] = time.monotonic()
        if message.kind == TaskEvent.FINISHED:
            exchange.ended[key] = TaskEnd(
                at_s=time.monotonic(),
                key=key,
                outcome=message.outcome,
                success=message.success,
                actions=message.actions,
                dropped=message.dropped,
                executed=tuple(message.round_executed),
            )

    for robot in driver.live.robots:
        if pulses:
            pulse = partial(_pulse, exchange.pulses[robot])
            driver.listen(f"/{robot}/execution_info", ExecutionInfo, pulse)
        driver.listen(f"/{robot}/chunk_request", ChunkRequest, on_request)
        driver.listen(f"/{robot}/action_chunk", ActionChunk, on_chunk)
        driver.listen(f"/{robot}/task_events", TaskEvent, on_event)


def _pulse(times: list[float], _: ExecutionInfo) -> None:
    times.append(time.monotonic())
