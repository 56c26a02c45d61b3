"""Real policies in real worker processes."""

import dataclasses
import os
import queue
import shutil
import signal
import time

import numpy as np
import pytest
from observations import observation, options
from tiny_policies import STATE_DIM

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import BatchDone, EngineDown, EngineLoading, EngineReady
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor, WorkerTiming
from kairos_ros.engine.worker.process import WorkerSpec

pytestmark = pytest.mark.slow

COMMIT = "0123abcd" * 5
PATIENT = WorkerTiming(silence_s=30.0, stop_s=60.0)


@pytest.fixture
def links():
    return []


@pytest.fixture
def start(links):

    def started(policy, **environment):
        events = queue.Queue()
        spec = WorkerSpec(options(policy), environment=environment)
        supervisor = WorkerSupervisor(spec, PATIENT)
        link = EngineLink(supervisor, events.put)
        links.append((link, supervisor))
        link.start()
        return link, events

    yield started
    for link, _ in links:
        link.stop()


def wait_for(events, kind, seen=None):
    while not isinstance(event := events.get(timeout=120), kind):
        if seen is not None:
            seen.append(event)
        assert isinstance(event, EngineLoading), event
    return event


def test_a_worker_serves_what_the_engine_computes_of_a_policy_that_the_hub_client_finds(
    start, folder_of, engine_of, tmp_path
):
    kind = "act"
    repository = tmp_path / "models--someone--reacher"  # the hub client's cache on disk
    shutil.copytree(folder_of(kind), repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    link, events = start("someone/reacher", HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="1")
    stages = []
    ready = wait_for(events, EngineReady, stages)
    assert {event.stage for event in stages} & {"importing torch", "starting"}
    measured = {"warmup": (), "memory_mib": 0}
    expected = dataclasses.replace(engine_of(kind).description, **measured)
    assert dataclasses.replace(ready.description, **measured) == expected
    assert ready.description.memory_mib > 100
    bad = observation(9, state=np.full(STATE_DIM, np.nan, np.float32))
    link.submit(1, [observation(0), bad, observation(1)])
    first, failed, second = wait_for(events, BatchDone).outcomes
    expected = engine_of(kind).infer([observation(0), observation(1)])
    assert failed.code is RefusalCode.NOT_FINITE
    for outcome, same in zip((first, second), expected, strict=True):
        assert np.array_equal(outcome.chunk, same.chunk)
        assert np.array_equal(outcome.updates, same.updates)


def test_a_policy_without_weights_is_reported_by_name_and_not_retried(start, folder_of, tmp_path):
    (tmp_path / "config.json").write_text((folder_of("flow_mlp") / "config.json").read_text())
    _, events = start(tmp_path)
    down = wait_for(events, EngineDown)
    assert "has no model.safetensors" in down.reason
    assert down.retry_in_s is None


def test_why_a_policy_is_refused_is_an_event_and_no_line_of_worker_or_link_repeats_it(
    links, tmp_path, caplog
):
    events, log = queue.Queue(), tmp_path / "worker.log"
    supervisor = WorkerSupervisor(WorkerSpec(options("/no/such"), log=log), PATIENT)
    link = EngineLink(supervisor, events.put)
    links.append((link, supervisor))
    link.start()
    assert wait_for(events, EngineDown).reason == "there is no policy folder /no/such"
    link.stop()
    assert "/no/such" not in log.read_text()
    assert "/no/such" not in caplog.text


def test_a_worker_killed_while_it_loads_is_replaced(start, links):
    _, events = start("emulated:load_s=3")
    wait_for(events, EngineLoading)
    os.kill(links[0][1].pid, signal.SIGKILL)
    assert wait_for(events, EngineDown).retry_in_s is not None
    wait_for(events, EngineReady)


def test_a_worker_told_to_stop_while_it_loads_leaves(start, folder_of):
    link, events = start(folder_of("flow_mlp"))
    wait_for(events, EngineLoading)
    began = time.monotonic()
    link.stop()
    assert wait_for(events, EngineDown).reason == "stopped"
    assert time.monotonic() - began < PATIENT.stop_s
