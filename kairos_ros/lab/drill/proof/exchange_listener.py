"""Puts what a fleet says into an `Exchange`: messages to plain data."""

import time
from functools import partial

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray

from kairos_ros.lab.drill.proof.exchange import (
    Exchange,
    SeenChunk,
    SeenRequest,
    SeenServer,
    TaskEnd,
)
from kairos_ros.lab.testbed.testbed_client import TestbedClient
from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ExecutionInfo,
    PipelineEvent,
    ServerStatus,
    TaskEvent,
)
from kairos_ros.nodes.qos import DIAGNOSTICS, ROSTER
from kairos_ros.robot.supervision.state_table import Effect
from kairos_ros.telemetry.decode import chunk_answered
from kairos_ros.telemetry.events import TaskKey


def listen_to_exchange(client: TestbedClient, exchange: Exchange, *, words: bool = False) -> None:
    """From now on, while `client` spins: requests, chunks and task events of its robots, and with
    `words` what those without a body log are judged by: when each told what it executes, and when
    it called a human."""

    def on_request(message: ChunkRequest) -> None:
        state = np.asarray(message.state, np.float32)
        key = TaskKey(message.robot, message.session, message.task)
        asked = SeenRequest(
            time.monotonic(), key, message.round, message.attempt, state, message.server
        )
        exchange.asked[key].append(asked)

    def on_chunk(message: ActionChunk) -> None:
        chunk = chunk_answered(message, "", time.monotonic())
        if chunk is None or chunk.actions is None:
            return
        answered = SeenChunk(
            at_s=chunk.at_s,
            key=chunk.key,
            round=chunk.round,
            attempt=chunk.attempt,
            actions=chunk.actions,
            tier=chunk.tier,
            engine=chunk.engine,
            server=chunk.server,
            policy=chunk.policy,
        )
        exchange.answered[chunk.key].append(answered)

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

    def on_transition(message: PipelineEvent) -> None:
        if Effect.CALL_HUMAN in message.effects:
            exchange.calls[message.robot].append((time.monotonic(), message.reason))

    def on_server(message: ServerStatus) -> None:
        exchange.servers[message.server] = SeenServer(
            time.monotonic(), message.pid, message.state, message.reason, message.policy
        )

    def on_diagnostics(message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == f"kairos: {status.hardware_id}":
                values = {value.key: value.value for value in status.values}
                exchange.strange[status.hardware_id] = values.get("strange publishers", "")

    client.listen("/kairos/server_status", ServerStatus, on_server, ROSTER)
    client.listen("/diagnostics", DiagnosticArray, on_diagnostics, DIAGNOSTICS)
    for robot in client.live.robots:
        if words:
            pulse = partial(_pulse, exchange.pulses[robot])
            client.listen(f"/{robot}/execution_info", ExecutionInfo, pulse)
            client.listen(f"/{robot}/pipeline_events", PipelineEvent, on_transition)
        client.listen(f"/{robot}/chunk_request", ChunkRequest, on_request)
        client.listen(f"/{robot}/action_chunk", ActionChunk, on_chunk)
        client.listen(f"/{robot}/task_events", TaskEvent, on_event)


def _pulse(times: list[float], _: ExecutionInfo) -> None:
    times.append(time.monotonic())
