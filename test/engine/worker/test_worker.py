"""Real worker processes: what a serving node sees when one works, dies, hangs or is lied to."""

import os
import queue
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq
from watched_link import WatchedLink

from kairos_ros.core.errors import KairosError, RefusalCode
from kairos_ros.engine.client.connection import WorkerConnection
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineLoading,
    EngineReady,
)
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor, WorkerTiming
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.process import (
    FOLDER_PREFIX,
    WorkerExit,
    WorkerSpec,
    private_folder,
)
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.message_codec import (
    infer_message,
    read_description,
    read_error,
    read_result,
    read_status,
)
from kairos_ros.transport.messages import InferRequest, InferResult

pytestmark = pytest.mark.slow

PATIENT = WorkerTiming(silence_s=20.0)
"""For tests that are not about hanging: a busy machine must not look like a hung worker."""


class Engine:
    """A supervised worker, the link to it, and the events that it reported."""

    def __init__(self, policy, timing=PATIENT, **options):
        self.events = queue.Queue()
        spec = WorkerSpec(EngineOptions(policy, **options))
        self.run(spec, timing)

    def run(self, spec, timing):
        self.supervisor = WorkerSupervisor(spec, timing)
        self.link = WatchedLink(self.supervisor, self.events.put)

    def next(self, *kinds, timeout=60):
        """The next event of one of these kinds."""
        while True:
            event = self.events.get(timeout=timeout)
            if isinstance(event, kinds):
                return event
            assert isinstance(event, EngineLoading), event


@contextmanager
def engine(policy, timing=PATIENT, **options):
    running = Engine(policy, timing, **options)
    running.link.start()
    try:
        yield running
    finally:
        running.link.stop()


def request(tag=0.5, seed=1, **changes):
    fields = {
        "robot": "arm_1",
        "session": "s1",
        "task": "t1",
        "round": 1,
        "attempt": 0,
        "seed": seed,
        "instruction": "open the drawer",
        "state": np.full(7, tag, np.float32),
    }
    return InferRequest(**(fields | changes))


def test_every_action_comes_from_the_observation_that_asked_for_it():
    with engine("emulated:chunk=20,dim=3,steps=4", max_batch=4) as fleet:
        ready = fleet.next(EngineReady)
        assert fleet.link.description == ready.description
        assert (ready.description.chunk_size, ready.description.max_batch) == (20, 4)
        for batch in range(1, 6):
            tags = [batch + row / 8 for row in range(3)]
            fleet.link.submit(batch, [request(tag) for tag in tags])
        for batch in range(1, 6):
            done = fleet.next(BatchDone)
            assert done.batch == batch
            assert done.round_trip_s >= done.compute_s >= 0
            for row, outcome in enumerate(done.outcomes):
                assert outcome.chunk.shape == (20, 3)
                assert outcome.updates.shape == (4, 20, 3)
                assert (outcome.chunk[:, 0] == batch + row / 8).all()


def test_the_same_seed_gives_the_same_chunk_in_any_batch():
    with engine("emulated:") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request(seed=3)])
        fleet.link.submit(2, [request(seed=2), request(seed=3)])
        alone, together = fleet.next(BatchDone), fleet.next(BatchDone)
        assert np.array_equal(alone.outcomes[0].chunk, together.outcomes[1].chunk)
        assert not np.array_equal(together.outcomes[0].chunk, together.outcomes[1].chunk)


def test_a_bad_observation_fails_alone():
    nan = np.full(7, np.nan, np.float32)
    bad = {
        RefusalCode.BAD_STATE: request(state=np.zeros(6, np.float32)),
        RefusalCode.NOT_FINITE: request(state=nan),
    }
    with engine("emulated:") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request(0.25), *bad.values(), request(0.75)])
        first, *failed, last = fleet.next(BatchDone).outcomes
        assert [outcome.code for outcome in failed] == list(bad)
        assert (first.chunk[0, 0], last.chunk[0, 0]) == (0.25, 0.75)


def test_images_that_no_policy_asked_for_hurt_nobody():
    flood = {f"{number}-{'x' * 100}": b"" for number in range(6000)}
    with engine("emulated:") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request(0.25), request(0.5, images=flood)])
        assert [outcome.chunk[0, 0] for outcome in fleet.next(BatchDone).outcomes] == [0.25, 0.5]


def test_an_image_of_the_wrong_size_is_refused_with_both_sizes():
    import io

    from PIL import Image

    def jpeg(width, height):
        buffer = io.BytesIO()
        Image.new("RGB", (width, height)).save(buffer, "JPEG")
        return buffer.getvalue()

    sent = [{"cam": jpeg(48, 32)}, {"cam": jpeg(32, 48)}, {"cam": b"not a jpeg"}, {}]
    with engine("emulated:images=cam@32x48") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request(images=images) for images in sent])
        good, *bad = fleet.next(BatchDone).outcomes
        assert isinstance(good, InferResult)
        assert {outcome.code for outcome in bad} == {RefusalCode.BAD_IMAGE}
        assert "48 x 32 px (height x width), the policy expects 32 x 48" in bad[0].reason


def test_a_worker_killed_mid_batch_is_replaced_and_the_lost_batch_is_named():
    with engine("emulated:latency_ms=60000") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()])
        fleet.link.submit(2, [request()])
        fleet.link.wait_until_it_computes(1)
        first_pid = fleet.supervisor.pid
        os.kill(first_pid, signal.SIGKILL)
        down = fleet.next(EngineDown)
        assert down.lost == (1, 2)
        assert "SIGKILL" in down.reason
        assert down.retry_in_s is not None
        fleet.next(EngineReady)
        assert fleet.supervisor.pid not in (None, first_pid)


def test_after_useful_work_a_new_worker_follows_at_once():
    with engine("emulated:") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()])
        fleet.next(BatchDone)
        os.kill(fleet.supervisor.pid, signal.SIGKILL)
        assert fleet.next(EngineDown).retry_in_s == 0
        fleet.next(EngineReady)


def test_a_stopped_worker_counts_as_hung_and_is_replaced():
    with engine("emulated:", WorkerTiming(silence_s=4.0)) as fleet:
        fleet.next(EngineReady)
        os.kill(fleet.supervisor.pid, signal.SIGSTOP)
        fleet.link.submit(1, [request(0.25)])
        down = fleet.next(EngineDown)
        assert (down.lost, down.reason) == ((1,), "no heartbeat for 4 s")
        fleet.next(EngineReady)
        fleet.link.submit(2, [request(0.75)])
        done = fleet.next(BatchDone)
        assert (done.batch, done.outcomes[0].chunk[0, 0]) == (2, 0.75)


def test_a_batch_that_never_ends_counts_as_hung():
    timing = WorkerTiming(silence_s=20.0, batch_min_s=0.5, batch_factor=10)
    with engine("emulated:latency_ms=60000", timing) as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()], expected_s=0.01)
        down = fleet.next(EngineDown)
        assert down.lost == (1,)
        assert "batch 1 runs for" in down.reason


def test_a_long_batch_that_was_announced_is_waited_for():
    timing = WorkerTiming(silence_s=20.0, batch_min_s=0.1, batch_factor=100)
    with engine("emulated:latency_ms=1000", timing) as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()], expected_s=1.0)
        assert fleet.next(BatchDone).batch == 1


def test_a_batch_submitted_while_no_engine_is_up_is_answered():
    with engine("emulated:load_s=3", WorkerTiming(silence_s=20.0, backoff_s=20)) as fleet:
        fleet.link.submit(1, [request()])
        assert fleet.next(BatchFailed).code is RefusalCode.ENGINE_DOWN
        fleet.next(EngineReady)
        os.kill(fleet.supervisor.pid, signal.SIGKILL)
        assert fleet.next(EngineDown).retry_in_s == 20
        fleet.link.submit(2, [request()])
        assert fleet.next(BatchFailed).batch == 2


def test_a_batch_larger_than_the_engine_takes_is_refused_and_the_engine_lives():
    with engine("emulated:", max_batch=2) as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()] * 3)
        failed = fleet.next(BatchFailed)
        assert "a batch of 3 requests; this engine takes 1 to 2" in failed.reason
        fleet.link.submit(2, [request()] * 2)
        assert len(fleet.next(BatchDone).outcomes) == 2


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("emulated:latency=80", "unknown option"),
        ("emulated:latency_ms=80ms", "write 80, 35b or 80+35b"),
        ("emulated:chunk=0", "not a number from 1"),
        ("emulated:memory_mib=x", "not a number from 0 to 10000000"),
        ("emulated:load_s=601", "no number of seconds up to 600"),
        ("emulated:images=cam:32", "write key@HEIGHTxWIDTH"),
    ],
)
def test_a_policy_that_cannot_be_served_is_reported_once_and_not_retried(policy, reason):
    with engine(policy) as fleet:
        down = fleet.next(EngineDown)
        assert reason in down.reason
        assert down.retry_in_s is None


def test_why_a_worker_left_may_arrive_after_the_news_that_it_has(monkeypatch):
    """As on a busy host, where the thread that reads the socket gets its turn late."""
    running = Engine("emulated:latency=80")
    ended_s = []

    def ended():
        with suppress(ChildProcessError):  # it was waited for
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, running.supervisor.pid, flags) is not None
        return True

    receive = WorkerConnection.receive

    def late(connection):
        if running.supervisor.pid is not None and ended():
            ended_s.append(time.monotonic())
        if not ended_s or time.monotonic() - ended_s[0] < 0.2:
            raise zmq.Again
        return receive(connection)

    monkeypatch.setattr(WorkerConnection, "receive", late)
    running.link.start()
    try:
        assert "unknown option" in running.next(EngineDown).reason
    finally:
        running.link.stop()


def test_a_worker_that_never_comes_up_is_given_up():
    timing = WorkerTiming(backoff_s=0.01, max_failures=3)
    running = Engine("emulated:", timing)
    environment = {"PYTHONHOME": "/nonexistent"}  # Python fails before it runs any of our code
    spec = WorkerSpec(EngineOptions("emulated:"), environment=environment)
    running.run(spec, timing)
    running.link.start()
    retries = [running.next(EngineDown).retry_in_s for _ in range(3)]
    running.link.stop()
    assert retries == [0.01, 0.02, None]


def test_a_worker_that_was_up_is_started_again_for_ever():
    timing = WorkerTiming(silence_s=20.0, backoff_s=0.01, backoff_max_s=0.2, max_failures=3)
    running = Engine("emulated:", timing)
    environment: dict[str, str] = {}
    spec = WorkerSpec(EngineOptions("emulated:"), environment=environment)
    running.run(spec, timing)
    running.link.start()
    running.next(EngineReady)
    environment["PYTHONHOME"] = "/nonexistent"
    os.kill(running.supervisor.pid, signal.SIGKILL)
    downs = [running.next(EngineDown) for _ in range(5)]
    assert [down.failures for down in downs] == [1, 2, 3, 4, 5]
    assert [down.retry_in_s for down in downs] == [0.01, 0.02, 0.2, 0.2, 0.2]
    del environment["PYTHONHOME"]
    running.next(EngineReady)
    running.link.stop()


@pytest.mark.parametrize(
    ("folder", "reason"), [("x" * 100, "File name too long"), ("none", "No such file")]
)
def test_no_place_for_the_socket_is_reported_and_no_worker_is_left(
    folder, reason, tmp_path, monkeypatch
):
    (tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / folder))
    with engine("emulated:") as fleet:
        down = fleet.next(EngineDown)
        assert reason in down.reason
        assert (down.lost, down.retry_in_s, fleet.supervisor.pid) == ((), None, None)
        for commandline in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                assert str(tmp_path) not in commandline.read_text()
        fleet.link.submit(1, [request()])
        assert fleet.next(BatchFailed).batch == 1


def test_a_link_that_fails_says_which_batches_it_lost(monkeypatch):
    with engine("emulated:latency_ms=60000") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()])
        fleet.link.wait_until_it_computes(1)
        monkeypatch.setattr(EngineLink, "_check", None)
        down = fleet.next(EngineDown)
        assert down.reason.startswith("the engine link failed")
        assert (down.lost, down.retry_in_s) == ((1,), None)
        assert (fleet.supervisor.pid, fleet.link.description) == (None, None)


def test_stopping_finishes_what_runs():
    with engine("emulated:latency_ms=3000") as fleet:
        fleet.next(EngineReady)
        fleet.link.submit(1, [request()])
        fleet.link.wait_until_it_computes(1)
        folder = socket_folder(fleet.supervisor.pid)
        fleet.link.stop()
        assert fleet.next(BatchDone).batch == 1
        assert fleet.next(EngineDown).reason == "stopped"
        assert not folder.exists()
        with pytest.raises(KairosError, match="stopped"):
            fleet.link.submit(2, [request()])


def test_the_socket_is_in_a_folder_that_only_this_user_can_enter():
    with engine("emulated:") as fleet:
        fleet.next(EngineReady)
        folder = socket_folder(fleet.supervisor.pid)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folders_of_killed_owners_are_removed_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    orphan = tmp_path / f"{FOLDER_PREFIX}orphan"
    orphan.mkdir()
    with private_folder() as mine:
        for folder in (orphan, mine):
            os.utime(folder, (0, 0))
        with private_folder():
            assert not orphan.exists()
            assert mine.exists()
    assert list(tmp_path.iterdir()) == []


def socket_folder(pid):
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(arguments[arguments.index("--listen") + 1].removeprefix("ipc://")).parent


def test_a_worker_dies_with_the_process_that_started_it():
    program = """
import time
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.process import WorkerSpec
from kairos_ros.engine.client.events import EngineReady
def told(event):
    if isinstance(event, EngineReady):
        print(supervisor.pid, flush=True)
supervisor = WorkerSupervisor(WorkerSpec(EngineOptions("emulated:")))
EngineLink(supervisor, told).start()
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    worker = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    poller = zmq.Poller()
    poller.register(worker, zmq.POLLIN)
    assert poller.poll(30_000), "the worker outlived its parent"
    os.close(worker)


@pytest.fixture
def bare(tmp_path):
    """A worker without a supervisor, and a DEALER that may say anything to it."""
    endpoint = f"ipc://{tmp_path}/w"
    command = [sys.executable, "-m", "kairos_ros.engine.worker", "--listen", endpoint]
    worker = subprocess.Popen([*command, "--policy", "emulated:latency_ms=3000", "--max-batch=4"])
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(endpoint)

    def ask(*frames, timeout_s=60):
        dealer.send_multipart(frames)
        assert dealer.poll(timeout_s * 1000), "no answer"
        return decode(dealer.recv_multipart())

    while read_status(ask(*encode(Message("ping")))).state == "loading":
        time.sleep(0.05)
    yield worker, dealer, ask
    worker.kill()
    worker.wait()
    context.destroy()


def outcome(dealer):
    """The next message that is no heartbeat: a worker looks after a client that says nothing."""
    while True:
        assert dealer.poll(60_000), "no answer"
        message = decode(dealer.recv_multipart())
        if message.kind != "status":
            return message


def test_garbage_is_answered_with_a_code_and_does_no_harm(bare):
    worker, _, ask = bare
    claims_too_much = msgpack.packb([1, "infer", {"batch": 4}, [["float32", [2**40]]]])
    oversized = b"x" * 1_000_000
    header_only = msgpack.packb([1, "infer", {"batch": 5, "requests": [{}]}, []])
    for frames in (
        [b""],
        [b"garbage"],
        [b"\x80\x04\x95pickle"],
        [os.urandom(5000), os.urandom(50)],
        [claims_too_much, b"1234"],
        [oversized],
        [b"x"] * 6000,
        encode(Message("kill")),
    ):
        error = read_error(ask(*frames))
        assert (error.batch, error.code) == (None, RefusalCode.MALFORMED)
        assert error.reason
    assert read_error(ask(header_only)).batch == 5
    assert read_description(ask(*encode(Message("hello")))).policy_type == "emulated"
    assert worker.poll() is None


def test_a_peer_that_sends_a_frame_beyond_every_limit_is_cut_off_and_others_are_served(bare):
    worker, dealer, ask = bare
    with zmq.Context() as context, context.socket(zmq.DEALER) as hostile:
        hostile.setsockopt(zmq.LINGER, 0)
        hostile.connect(dealer.getsockopt_string(zmq.LAST_ENDPOINT))
        hostile.send(bytes(80 * 1024 * 1024))
        assert not hostile.poll(500)
    assert read_status(ask(*encode(Message("ping")))).state == "ready"
    assert worker.poll() is None


def test_a_busy_worker_answers_at_once_and_says_what_it_is_busy_with(bare):
    _, dealer, ask = bare
    dealer.send_multipart(encode(infer_message(9, [request()])))
    status = read_status(ask(*encode(Message("ping"))))
    while status.busy_batch is None:  # the batch is on its way to the engine's thread
        status = read_status(ask(*encode(Message("ping"))))
    assert (status.state, status.busy_batch) == ("ready", 9)
    assert 0 <= status.busy_s < 60
    assert read_result(outcome(dealer)).batch == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_finishes_what_runs_refuses_the_rest_and_exits_with_0(bare, number):
    worker, dealer, ask = bare
    for batch in (1, 2):
        dealer.send_multipart(encode(infer_message(batch, [request()])))
    running = read_status(ask(*encode(Message("ping"))))
    while running.busy_batch != 1 or running.busy_s < 0.1:  # computed, and not only prepared
        running = read_status(ask(*encode(Message("ping"))))
    worker.send_signal(number)
    assert read_result(outcome(dealer)).batch == 1
    refused = read_error(outcome(dealer))
    assert (refused.batch, refused.code) == (2, RefusalCode.ENGINE_DOWN)
    assert worker.wait(60) == 0


def test_a_worker_that_nobody_talks_to_leaves(tmp_path):
    command = [sys.executable, "-m", "kairos_ros.engine.worker", "--policy", "emulated:"]
    silent = [*command, "--listen", f"ipc://{tmp_path}/w", "--exit-if-silent-s", "0.5"]
    assert subprocess.run(silent, timeout=60).returncode == WorkerExit.SILENCE


def test_the_serving_side_imports_no_torch():
    check = "import sys, kairos_ros.engine.client.engine_link; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
