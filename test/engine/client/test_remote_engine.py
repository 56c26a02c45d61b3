"""Workers of their own behind tcp and keys, and the serving side's link. All real processes."""

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from ports import free_ports
from watched_link import WatchedLink
from wire import until

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.engine.client.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineDraining,
    EngineLoading,
    EngineReady,
    EngineUnreachable,
    LinkChanged,
)
from kairos_ros.engine.client.link_monitor import LinkTiming
from kairos_ros.engine.client.remote_spec import RemoteSpec, parse_remote
from kairos_ros.engine.client.wan_image import PerCamera, WanImages, for_link
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.registry import read_registry, registry_of, with_own_options
from kairos_ros.engine.worker.process import WorkerExit
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.link_estimate import UNKNOWN_BYTES_PER_S
from kairos_ros.transport.messages import InferRequest
from kairos_ros.transport.sockets import CurveClient, ListenKeys

pytestmark = pytest.mark.slow

SLOW = "slow=emulated:latency_ms=300,chunk=20,dim=3,steps=4"
FAST = "fast=emulated:latency_ms=5,chunk=30,dim=3,steps=4"
PATIENT = LinkTiming(silence_s=20.0, overdue_s=30.0)
"""For tests that are not about silence: a busy machine must not look like a lost worker."""
NOTICES = replace(PATIENT, silence_s=4.0)
"""For those that are."""


class Hosts:
    """Keys of an edge and of a cloud host that know each other, both ways."""

    def __init__(self, folder: Path) -> None:
        self.edge, self.cloud = KeyFolder(folder / "edge"), KeyFolder(folder / "cloud")
        for keys in (self.edge, self.cloud):
            name = keys.path.name
            keys.new(f"{name}_dials", Role.CLIENT)
            keys.new(f"{name}_serves", Role.SERVER)
        for own, other in ((self.edge, self.cloud), (self.cloud, self.edge)):
            for pair in own.own_keys():
                other.trust(pair.key)

    def towards(self) -> CurveClient:
        return CurveClient(self.edge.own(Role.CLIENT), self.edge.server())

    def at_home(self) -> ListenKeys:
        return ListenKeys(self.edge.own(Role.SERVER), self.edge, "cloud_dials")


class Worker:
    """A `kairos worker` process."""

    def __init__(self, log: Path, *options: str) -> None:
        self.log = log
        program = Path(sys.executable).with_name("kairos")
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [program, "worker", *options], stdout=out, stderr=out, start_new_session=True
            )

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        print(self.log.read_text(errors="replace"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    return Hosts(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def worker(tmp_path, hosts):
    """Starts workers with the cloud's keys."""
    with contextlib.ExitStack() as stack:

        def start(*options):
            log = tmp_path / "worker.log"
            started = Worker(log, *options, "--keys", str(hosts.cloud.path), "--report-s", "0.2")
            stack.callback(started.end)
            return started

        yield start


@pytest.fixture
def link():
    """Opens links; each comes with a queue of its events."""
    with contextlib.ExitStack() as stack:

        def start(spec, timing=PATIENT):
            events = queue.Queue()
            engine = WatchedLink(spec, events.put, timing)
            engine.start()
            stack.callback(engine.stop)
            return engine, events

        yield start


def endpoint():
    return f"tcp://127.0.0.1:{free_ports()}"


def next_of(events, *kinds, timeout_s=60.0):
    """The next event of these kinds; progress and link news in between are let by."""
    end = time.monotonic() + timeout_s
    while True:
        event = events.get(timeout=max(0.01, end - time.monotonic()))
        if isinstance(event, kinds):
            return event
        assert isinstance(event, EngineLoading | EngineUnreachable | LinkChanged), event


def request(tag=0.5, round=1, **changes):
    fields = {
        "robot": "arm_1",
        "session": "s1",
        "task": "t1",
        "round": round,
        "attempt": 0,
        "seed": 1,
        "instruction": "",
        "state": np.full(7, tag, np.float32),
    }
    return InferRequest(**(fields | changes))


def test_a_listening_worker_serves_each_client_the_policy_it_names(worker, link, hosts):
    at = endpoint()
    process = worker("--listen", at, "--policy", SLOW, "--policy", FAST)
    links = [link(RemoteSpec(at, name, hosts.towards())) for name in ("slow", "fast")]
    for (engine, events), chunk in zip(links, (20, 30), strict=True):
        assert next_of(events, EngineReady).description.chunk_size == chunk
        engine.submit(1, [request(chunk / 8)])  # both number their batches alike
    for (_, events), chunk in zip(links, (20, 30), strict=True):
        done = next_of(events, BatchDone)
        assert done.batch == 1
        assert done.outcomes[0].chunk.shape == (chunk, 3)
        assert (done.outcomes[0].chunk[:, 0] == chunk / 8).all()
        assert done.round_trip_s > done.compute_s
    process.send(signal.SIGTERM)
    assert process.process.wait(60) == 0
    assert "metrics: batches=" in process.log.read_text()


def test_a_policy_that_is_not_in_the_registry_is_refused_by_name(worker, link, hosts):
    at = endpoint()
    worker("--listen", at, "--policy", SLOW, "--policy", FAST)
    for name, says in (("/etc/passwd", "'/etc/passwd' is not in"), ("", "name the policy")):
        engine, events = link(RemoteSpec(at, name, hosts.towards()))
        down = next_of(events, EngineDown)
        assert says in down.reason
        assert "fast, slow" in down.reason
        assert not down.crashed
        assert engine.description is None


def test_one_bad_policy_of_a_registry_is_refused_alone(worker, link, hosts, tmp_path):
    (tmp_path / "config.json").write_text('{"type": "tdmpc"}')
    at = endpoint()
    process = worker("--listen", at, "--policy", f"bad={tmp_path}", "--policy", FAST)
    _, good = link(RemoteSpec(at, "fast", hosts.towards()))
    assert next_of(good, EngineReady).description.chunk_size == 30
    for name, says in (
        ("bad", "policy 'bad' is refused: policies of type 'tdmpc' are not"),
        ("", "name"),
    ):
        _, bad = link(RemoteSpec(at, name, hosts.towards()))
        assert says in next_of(bad, EngineDown).reason
    assert process.process.poll() is None


def test_a_worker_without_any_good_policy_leaves_with_all_reasons(worker, tmp_path):
    (tmp_path / "config.json").write_text('{"type": "tdmpc"}')
    bad = ["--policy", f"a={tmp_path}", "--policy", "b=/no/such/folder"]
    process = worker("--listen", endpoint(), *bad)
    assert process.process.wait(60) == WorkerExit.REFUSED
    log = process.log.read_text()
    assert "policy a is refused: policies of type" in log
    assert "policy b is refused: there is no policy folder" in log
    assert "Traceback" not in log


def test_a_worker_behind_nat_dials_in_and_is_served_through_what_it_dialled(worker, link, hosts):
    at = endpoint()
    engine, events = link(RemoteSpec(at, security=hosts.at_home(), listen=True), NOTICES)
    process = worker("--connect", at, "--policy", FAST)
    next_of(events, EngineReady)
    engine.submit(1, [request(0.25)])
    assert (next_of(events, BatchDone).outcomes[0].chunk[:, 0] == 0.25).all()
    process.send(signal.SIGKILL)
    assert "no sign of life" in next_of(events, EngineDown).reason
    worker("--connect", at, "--policy", FAST)
    next_of(events, EngineReady)
    engine.submit(2, [request()])
    assert next_of(events, BatchDone).batch == 2


def test_a_worker_killed_mid_batch_loses_it_at_most_once_and_the_next_one_is_found(
    worker, link, hosts
):
    at = endpoint()
    policy = "s=emulated:latency_ms=3000"
    first = worker("--listen", at, "--policy", policy)
    engine, events = link(RemoteSpec(at, security=hosts.towards()), NOTICES)
    next_of(events, EngineReady)
    engine.submit(1, [request()])
    engine.submit(2, [request()])
    next_of(events, BatchDone)
    first.send(signal.SIGKILL)
    down = next_of(events, EngineDown)
    assert down.lost == (2,)
    assert not down.crashed
    engine.submit(3, [request()])
    assert next_of(events, BatchFailed).code is RefusalCode.ENGINE_DOWN
    worker("--listen", at, "--policy", policy)
    next_of(events, EngineReady)
    engine.submit(4, [request()])
    assert next_of(events, BatchDone).batch == 4


def test_a_worker_told_to_stop_finishes_what_runs_and_says_that_it_takes_no_more(
    worker, link, hosts
):
    at = endpoint()
    process = worker("--listen", at, "--policy", "s=emulated:latency_ms=4000")
    engine, events = link(RemoteSpec(at, security=hosts.towards()), NOTICES)
    next_of(events, EngineReady)
    for batch in (1, 2):
        engine.submit(batch, [request()])
    engine.wait_until_it_computes(1)
    process.send(signal.SIGTERM)
    assert "told to stop" in next_of(events, EngineDraining).reason
    engine.submit(3, [request()])
    assert (next_of(events, BatchFailed).batch) == 3
    assert next_of(events, BatchDone).batch == 1
    assert (next_of(events, BatchFailed).batch) == 2
    assert process.process.wait(60) == 0
    assert next_of(events, EngineDown).lost == ()


def test_what_a_client_that_left_had_waiting_is_not_computed(worker, link, hosts):
    at = endpoint()
    process = worker("--listen", at, "--policy", "s=emulated:latency_ms=1000")
    leaves, events = link(RemoteSpec(at, security=hosts.towards()))
    next_of(events, EngineReady)
    for batch in range(1, 21):
        leaves.submit(batch, [request()])
    next_of(events, BatchDone)
    leaves.stop()
    stays, events = link(RemoteSpec(at, security=hosts.towards()))
    next_of(events, EngineReady)
    stays.submit(1, [request(0.25)])
    assert (next_of(events, BatchDone).outcomes[0].chunk[:, 0] == 0.25).all()
    process.send(signal.SIGTERM)
    assert process.process.wait(60) == 0
    computed, dropped = (
        sum(int(n) for n in re.findall(rf"metrics: .*{name}=(\d+)", process.log.read_text()))
        for name in ("batches", "dropped")
    )
    assert dropped >= 10
    assert computed + dropped == 21


def test_a_client_that_is_only_slow_to_speak_keeps_its_batches(worker, link, hosts):
    at = endpoint()
    worker("--listen", at, "--policy", "s=emulated:latency_ms=1500", "--policy", FAST)
    slow = replace(PATIENT, heartbeat_s=3.0, silence_s=30.0)
    engine, events = link(RemoteSpec(at, "s", hosts.towards()), slow)
    next_of(events, EngineReady)
    for batch in (1, 2, 3):
        engine.submit(batch, [request()], expected_s=1.5)
    assert [next_of(events, BatchDone).batch for _ in range(3)] == [1, 2, 3]


def test_a_stopped_worker_is_down_within_the_silence_and_its_late_answer_cannot_come(
    worker, link, hosts
):
    at = endpoint()
    process = worker("--listen", at, "--policy", "s=emulated:latency_ms=4000")
    engine, events = link(RemoteSpec(at, security=hosts.towards()), NOTICES)
    next_of(events, EngineReady)
    engine.submit(1, [request()])
    engine.wait_until_it_computes(1)
    process.send(signal.SIGSTOP)
    assert next_of(events, EngineDown).lost == (1,)
    process.send(signal.SIGCONT)
    next_of(events, EngineReady)
    engine.submit(2, [request()])
    assert next_of(events, BatchDone).batch == 2


def test_a_key_that_the_worker_does_not_know_gets_nothing(worker, link, hosts, tmp_path):
    at = endpoint()
    process = worker("--listen", at, "--policy", FAST)
    stranger = KeyFolder(tmp_path / "stranger").new("edge_dials", Role.CLIENT)
    security = CurveClient(stranger, hosts.edge.server())
    _, events = link(RemoteSpec(at, security=security), LinkTiming())
    until(lambda: "refused unknown key" in process.log.read_text(), what="for the refusal")
    time.sleep(1.0)
    seen = [next_of(events, EngineUnreachable)]
    seen += [events.get_nowait() for _ in range(events.qsize())]
    assert all(isinstance(e, EngineUnreachable) for e in seen)
    (reason,) = {e.reason for e in seen}
    assert re.fullmatch(rf"since \d\d:\d\d:\d\d, dialling {at}", reason)


def test_the_link_says_its_round_trip_bandwidth_and_bytes_per_request(worker, link, hosts):
    at = endpoint()
    worker("--listen", at, "--policy", "f=emulated:images=top@224x224")
    engine, events = link(RemoteSpec(at, security=hosts.towards()))
    before = next_of(events, LinkChanged).state
    assert 0 < before.min_rtt_s <= before.rtt_s
    assert before.bytes_per_s != UNKNOWN_BYTES_PER_S  # from probes: nothing else was sent
    assert before.request_bytes == 0
    next_of(events, EngineReady)
    # a heartbeat that a busy machine held up counts for less with every one after it
    until(lambda: next_of(events, LinkChanged).state.rtt_s < 1.0, what="for a short round trip")
    engine.submit(1, [request(images={"top": os.urandom(100_000), "other": bytes(9)})])
    next_of(events, BatchDone)
    after = next_of(events, LinkChanged).state
    assert 100_000 < after.request_bytes < 100_500
    assert (after.in_flight, after.unconfirmed_bytes) == (0, 0)
    assert 0 <= after.loss < 0.5  # even a loopback resends when the machine is busy


class Counting:
    """A TCP proxy to one port that counts what goes there."""

    def __init__(self, at):
        self.sent = 0
        self._there = at.rpartition(":")[2]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.at = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", int(self._there)))
        threading.Thread(target=self._copy, args=(far, near, False), daemon=True).start()
        self._copy(near, far, True)

    def _copy(self, source, sink, count):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.sent += len(data) if count else 0
                sink.sendall(data)


def test_bytes_per_request_are_those_that_travel(worker, link, hosts):
    at = endpoint()
    process = worker("--listen", at, "--policy", "f=emulated:images=top@224x224", "--max-batch=8")
    until(lambda: "serving" in process.log.read_text(), what="for the worker")
    proxy = Counting(at)
    engine, events = link(RemoteSpec(proxy.at, security=hosts.towards()))
    next_of(events, EngineReady)
    image = os.urandom(100_000)
    before, batches, rows = proxy.sent, 10, 8
    for batch in range(1, batches + 1):
        engine.submit(batch, [request(images={"top": image}) for _ in range(rows)])
        next_of(events, BatchDone)
    travelled = proxy.sent - before  # with CURVE, and heartbeats between
    said = next_of(events, LinkChanged).state.request_bytes
    assert said == pytest.approx(travelled / (batches * rows), rel=0.02)


def test_images_are_recompressed_for_the_link_unless_that_makes_them_larger(worker, link, hosts):
    from io import BytesIO

    import PIL.Image

    at = endpoint()
    worker("--listen", at, "--policy", "f=emulated:images=top@224x224")
    spec = RemoteSpec(at, security=hosts.towards(), images=WanImages(PerCamera(30)))
    engine, events = link(spec)
    next_of(events, EngineReady)
    gradient = np.linspace(0, 255, 224 * 224 * 3).reshape(224, 224, 3)
    noisy = gradient + np.random.default_rng(1).normal(0, 20, gradient.shape)
    buffer = BytesIO()
    PIL.Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    engine.submit(1, [request(images={"top": buffer.getvalue()})])
    assert next_of(events, BatchDone).outcomes[0].chunk.shape == (50, 7)
    state = next_of(events, LinkChanged).state
    assert state.request_bytes < len(buffer.getvalue()) / 5


def test_images_that_take_long_to_recompress_do_not_silence_the_link(
    worker, link, hosts, monkeypatch
):
    def slowly(*request):
        time.sleep(2.5)
        return for_link(*request)

    monkeypatch.setattr("kairos_ros.engine.client.batch_encoder.for_link", slowly)
    at = endpoint()
    worker("--listen", at, "--policy", FAST)
    spec = RemoteSpec(at, security=hosts.towards(), images=WanImages(PerCamera(80)))
    engine, events = link(spec, replace(PATIENT, silence_s=4.0))  # two requests take longer
    next_of(events, EngineReady)
    engine.submit(1, [request(), request()])
    engine.submit(2, [request()])
    states = []
    for batch in (1, 2):
        while not isinstance(event := events.get(timeout=60.0), BatchDone):
            assert isinstance(event, LinkChanged), event
            states.append(event.state)
        assert (event.batch, len(event.outcomes)) == (batch, 3 - batch)
    assert len(states) > 10
    assert median(state.rtt_s for state in states) < 0.5  # a busy machine holds some up
    engine.submit(3, [request()])
    engine.stop()  # what was not sent yet is not lost without a word
    assert next_of(events, EngineDown, BatchFailed).reason == "stopped"
    assert next_of(events, BatchFailed).batch == 3


def test_an_engine_elsewhere_is_one_line_of_parameters(hosts, tmp_path):
    profile = tmp_path / "p.json"
    profile.write_text("{}")
    text = f"far=tcp://gpu:7411,policy=pick,jpeg=80,size=160|wrist:96,profile={profile}"
    images = WanImages(PerCamera(80), PerCamera(160, (("wrist", 96),)))
    remote = parse_remote(text, hosts.edge)
    assert (remote.name, remote.profile) == ("far", str(profile))
    assert remote.spec == RemoteSpec("tcp://gpu:7411", "pick", hosts.towards(), images=images)
    home = parse_remote("near=listen:tcp://0.0.0.0:7411", hosts.edge).spec
    assert (home.listen, home.security.only) == (True, "cloud_dials")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp://gpu:7411", "write NAME=tcp"),
        ("a b=tcp://gpu:7411", "a name has letters"),
        ("far=gpu:7411", "write ipc"),
        ("far=tcp://gpu:7411,quality=80", "unknown option 'quality'"),
        ("far=tcp://gpu:7411,jpeg=high", "'high' is not a number from 1 to 95"),
        ("far=tcp://gpu:7411,jpeg=100", "not a number from 1 to 95"),
        ("far=tcp://gpu:7411,jpeg=80|wrist", "'' is not a number"),
        ("far=tcp://gpu:7411,size=160", "jpeg=80,size=160"),
        ("far=tcp://gpu:7411,lossless,jpeg=80", "lossless excludes"),
        ("far=tcp://gpu:7411,lossless=no", "lossless takes no value"),
        ("far=tcp://127.0.0.1:7411,insecure_loopback=false", "insecure_loopback takes no value"),
        ("far=tcp://gpu:7411,profile=/none.json", "no profile /none.json"),
        ("far=tcp://gpu:7411,server_key=moon", "no server 'moon'"),
    ],
)
def test_an_engine_elsewhere_that_makes_no_sense_is_refused_with_what_is_wrong(text, says, hosts):
    with pytest.raises(ConfigError, match=says):
        parse_remote(text, hosts.edge)


def test_a_worker_with_several_policies_is_an_engine_for_each_on_one_device(hosts):
    text = "far=tcp://gpu:7411,policy=pick|place,jpeg=80"
    found = parse_remote(text, hosts.edge).per_policy()
    assert [(one.name, one.spec.policy, one.device) for one in found] == [
        ("far/pick", "pick", "far"),
        ("far/place", "place", "far"),
    ]
    assert {one.spec.images.jpeg for one in found} == {PerCamera(80)}
    alone = parse_remote("far=tcp://gpu:7411,policy=pick", hosts.edge)
    assert alone.per_policy() == [alone]


@pytest.mark.parametrize(
    ("option", "says"),
    [("listen:", "a worker that dials in serves one"), ("", "profile is of one policy")],
)
def test_what_cannot_be_had_of_several_policies_is_refused(option, says, hosts, tmp_path):
    profile = tmp_path / "p.json"
    profile.write_text("{}")
    text = f"far={option}tcp://0.0.0.0:7411,policy=pick|place,profile={profile}"
    if not option:
        text = text.replace("0.0.0.0", "gpu")
    with pytest.raises(ConfigError, match=says):
        parse_remote(text, hosts.edge).per_policy()


def test_a_registry_file_gives_each_policy_its_options(tmp_path):
    (tmp_path / "drawers").mkdir()
    file = tmp_path / "registry.yaml"
    file.write_text("drawers: drawers\nbig: {policy: org/pi0, device: 'cuda:1', max_batch: 4}\n")
    defaults = EngineOptions("", "cuda:0")
    registry = read_registry(file, defaults)
    assert registry["drawers"] == EngineOptions(str(tmp_path / "drawers"), "cuda:0")
    assert registry["big"] == EngineOptions("org/pi0", "cuda:1", max_batch=4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "one line"),
        ("a: {device: cpu}", "give a policy"),
        ("a: {policy: x, gpu: 1}", "unknown option 'gpu'"),
        ("a: {policy: x, max_batch: '4'}", "expected int"),
        ("../a: x", "policy name '../a'"),
    ],
)
def test_a_registry_file_that_is_wrong_is_refused_with_what_is_wrong(tmp_path, text, says):
    file = tmp_path / "registry.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_registry(file, EngineOptions(""))


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        (["pi0"], "write NAME=POLICY"),
        (["emulated:latency_ms=20"], "write NAME=POLICY"),
        (["a=x", "a=y"], "used twice"),
        (["a b=x"], "policy name"),
    ],
)
def test_policies_on_the_command_line_need_names_of_their_own(policies, says):
    with pytest.raises(ConfigError, match=says):
        registry_of(policies, EngineOptions(""))


def test_an_option_may_be_of_one_policy_alone():
    registry = registry_of(["pick=x", "place.v2=y"], EngineOptions("", rtc=True, max_batch=8))
    own = ["pick.rtc=false", "place.v2.max_batch=4", "place.v2.tokenizer=/a=b"]
    found = with_own_options(registry, own)
    assert found["pick"] == EngineOptions("x", max_batch=8)
    assert found["place.v2"] == EngineOptions("y", rtc=True, max_batch=4, tokenizer="/a=b")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pick.rtc", "write NAME.OPTION=VALUE"),
        ("rtc=true", "'' is no policy of this host: pick"),
        ("place.rtc=true", "'place' is no policy of this host: pick"),
        ("pick.policy=y", "OPTION is one of dtype, threads"),
        ("pick.device=cuda:1", "OPTION is one of dtype, threads"),
        ("pick.rtc=yes", "expected true or false"),
        ("pick.max_batch=many", "expected a whole number"),
    ],
)
def test_an_option_of_one_policy_that_is_wrong_is_refused_with_what_is_wrong(text, says):
    with pytest.raises(ConfigError, match=says):
        with_own_options(registry_of(["pick=x"], EngineOptions("")), [text])
