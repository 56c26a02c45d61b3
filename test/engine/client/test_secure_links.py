"""Links over tcp: only known keys come in, and whoever knocks, a good client is served."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zmq
from ports import free_ports

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.transport.endpoint import Insecure, check_endpoint
from kairos_ros.transport.frames import LIMITS, Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.key_file import KeyPair, PublicKey, Role, new_pair
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.message_codec import infer_message, read_error, read_result, read_status
from kairos_ros.transport.messages import InferRequest
from kairos_ros.transport.rate import Budgets, RateDecision, RateLimit
from kairos_ros.transport.sockets import (
    CurveClient,
    CurveServer,
    bind_dealer,
    bind_router,
    connect_dealer,
    connect_router,
)
from kairos_ros.transport.zap_authenticator import ZapAuthenticator

pytestmark = pytest.mark.slow

WORKER = "kairos_ros.engine.worker"
STRICT_WORKER = f"""
import runpy
from kairos_ros.engine.worker import link
from kairos_ros.transport.rate import RateLimit
link.RateLimit = lambda: RateLimit(messages_per_s=50, messages_at_once=100)
runpy.run_module({WORKER!r}, run_name="__main__", alter_sys=True)
"""
"""A worker that allows its clients few messages: a busy machine reads more than that, too."""
PATIENCE_S = 60.0
QUIET_MS = 700
"""Longer than a handshake on loopback takes by far; an answer in that time would be a leak."""


@dataclass
class Site:
    """A key folder with a server's key and one client, `edge`, that may connect."""

    keys: KeyFolder
    server: KeyPair
    edge: KeyPair

    def towards(self, own: KeyPair | None = None, server: PublicKey | None = None) -> CurveClient:
        return CurveClient(own or self.edge, server or self.server.key)


@pytest.fixture
def site(tmp_path):
    keys = KeyFolder(tmp_path / "keys")
    made = Site(keys, keys.new("cloud", Role.SERVER), new_pair("edge", Role.CLIENT))
    keys.trust(made.edge.key)
    return made


@pytest.fixture(autouse=True)
def refused_clients_knock_again_soon(monkeypatch):
    """Not after the 5 s that a silent handshake takes otherwise."""
    monkeypatch.setattr("kairos_ros.transport.sockets.HANDSHAKE_MS", 1500)


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


def eventually(true, what):
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.02)


@pytest.fixture
def server(site, context):
    """A ROUTER with an authenticator in this process: `(router, inbox, zap, endpoint)`."""
    zap = ZapAuthenticator(context, site.keys)
    router = bind_router(context, "tcp://127.0.0.1:*", security=CurveServer(site.server, zap))
    yield (
        router,
        Inbox(router, zap),
        zap,
        router.getsockopt_string(zmq.LAST_ENDPOINT),
    )
    router.close()
    zap.close()


@contextlib.contextmanager
def dealer(endpoint, security):
    with zmq.Context() as context, connect_dealer(context, endpoint, security=security) as it:
        yield it


def hear(router, inbox, timeout_s=PATIENCE_S):
    """The next message that is let through, as the router's owner gets it."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if router.poll(100):
            with contextlib.suppress(zmq.Again):
                return inbox.receive()
    return None


def test_a_known_key_is_heard_and_answered(site, server):
    router, inbox, zap, endpoint = server
    with dealer(endpoint, site.towards()) as client:
        client.send_multipart([b"hello", b"x" * 500_000])
        route, *frames = hear(router, inbox)
        assert frames == [b"hello", b"x" * 500_000]
        router.send_multipart([route, b"answer"])
        assert client.poll(PATIENCE_S * 1000)
        assert client.recv() == b"answer"
    assert (zap.counts.unknown, zap.counts.turned_away) == (0, 0)


def test_an_unknown_key_gets_nothing_and_is_counted_and_named_in_the_log(site, server, caplog):
    router, inbox, zap, endpoint = server
    stranger = new_pair("stranger", Role.CLIENT)
    with dealer(endpoint, site.towards(stranger)) as client:
        client.send(b"hello")
        eventually(lambda: zap.counts.unknown, "the stranger is counted")
        assert hear(router, inbox, 0.3) is None
        assert not client.poll(QUIET_MS)
    assert f"refused unknown key {stranger.key.fingerprint} from 127.0.0.1" in caplog.text


def test_a_client_without_any_key_and_one_that_expects_another_server_get_nothing(site, server):
    router, inbox, zap, endpoint = server
    elsewhere = new_pair("elsewhere", Role.SERVER).key
    with dealer(endpoint, site.towards(server=elsewhere)) as wrong:
        wrong.send(b"hello")
        eventually(lambda: zap.counts.broken, "the wrong handshake is counted")
        with zmq.Context() as other, other.socket(zmq.DEALER) as plain:
            plain.setsockopt(zmq.LINGER, 0)
            plain.connect(endpoint)
            plain.send(b"hello")
            assert hear(router, inbox, QUIET_MS / 1000) is None
            assert not plain.poll(QUIET_MS)
        assert not wrong.poll(0)
    assert zap.counts.handshakes == 0


def test_a_stranger_reads_no_byte_beyond_the_greeting(server):
    router, inbox, _, endpoint = server
    for greeting in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00" * 20):
        with socket.create_connection(("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))) as raw:
            raw.settimeout(PATIENCE_S)
            raw.sendall(greeting)
            got = b""
            with contextlib.suppress(ConnectionError):
                while more := raw.recv(4096):
                    got += more
            assert got in (b"", b"\xff" + bytes(7) + b"\x01\x7f"), "more than ZMTP's signature"
    assert hear(router, inbox, 0.1) is None


def test_a_revoked_key_loses_its_live_connection_and_others_keep_theirs(site, server, caplog):
    router, inbox, zap, endpoint = server
    other = new_pair("other", Role.CLIENT)
    site.keys.trust(other.key)
    with (
        dealer(endpoint, site.towards()) as client,
        dealer(endpoint, site.towards(other)) as good,
    ):
        routes = {}
        for who in (client, good):
            who.send(b"hello")
            routes[who] = hear(router, inbox)[0]
        revoked_at = time.monotonic()
        site.keys.revoke("edge")
        eventually(lambda: zap.counts.cut, "the connection is cut")
        assert time.monotonic() - revoked_at < 30.0
        eventually(lambda: zap.counts.revoked, "it knocks again, in vain")
        client.send(b"still me")
        with pytest.raises(zmq.ZMQError, match="unreachable"):
            router.send_multipart([routes[client], b"secret"])
        assert not client.poll(QUIET_MS)
        good.send(b"still here")
        assert hear(router, inbox) == [routes[good], b"still here"], "on the same connection"
    assert f"refused revoked key edge {site.edge.key.fingerprint}" in caplog.text


def test_a_revoked_key_that_has_not_said_a_word_yet_is_cut_off_too(site, server):
    router, inbox, zap, endpoint = server
    with dealer(endpoint, site.towards()) as client:
        eventually(lambda: zap.counts.handshakes, "it is in")
        site.keys.revoke("edge")
        eventually(lambda: zap.counts.revoked, "it is out, and knocks again")
        client.send(b"hello")
        assert hear(router, inbox, QUIET_MS / 1000) is None


def test_a_message_of_a_revoked_key_that_waits_already_is_not_read(site, server):
    router, inbox, zap, endpoint = server
    with dealer(endpoint, site.towards()) as client:
        client.send(b"hello")
        assert router.poll(PATIENCE_S * 1000)
        site.keys.revoke("edge")
        eventually(lambda: zap.counts.revoked, "it is out, and knocks again")
        assert hear(router, inbox, 0.2) is None
    assert zap.counts.turned_away == 1


def test_a_key_that_is_imported_later_comes_in_without_a_restart(site, server):
    router, inbox, zap, endpoint = server
    late = new_pair("late", Role.CLIENT)
    with dealer(endpoint, site.towards(late)) as client:
        client.send(b"hello")
        eventually(lambda: zap.counts.unknown, "too early")
        site.keys.trust(late.key)
        assert hear(router, inbox)[1:] == [b"hello"]


def test_an_authenticator_for_one_name_keeps_other_known_keys_out(site, context):
    other = new_pair("other", Role.CLIENT)
    site.keys.trust(other.key)
    zap = ZapAuthenticator(context, site.keys, only="other")
    router = bind_router(context, "tcp://127.0.0.1:*", security=CurveServer(site.server, zap))
    endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
    with (
        dealer(endpoint, site.towards()) as edge,
        dealer(endpoint, site.towards(other)) as right,
    ):
        edge.send(b"edge")
        eventually(lambda: zap.counts.unknown, "edge is refused")
        right.send(b"other")
        assert hear(router, Inbox(router, zap))[1:] == [b"other"]
    router.close()
    zap.close()


def test_a_folder_that_vanishes_lets_nobody_in(site, server):
    router, inbox, zap, endpoint = server
    with dealer(endpoint, site.towards()) as client:
        client.send(b"hello")
        assert hear(router, inbox)
        site.keys.clients.rename(site.keys.path / "away")
        eventually(lambda: zap.counts.cut, "the connection is cut")
        client.send(b"hello")
        assert hear(router, inbox, QUIET_MS / 1000) is None


def test_an_engine_that_dials_out_to_the_client_works_the_same_way(site, context):
    """A cloud behind NAT: the serving node binds, the worker's ROUTER connects."""
    zap = ZapAuthenticator(context, site.keys, only="edge")
    client = bind_dealer(context, "tcp://127.0.0.1:*", security=CurveServer(site.server, zap))
    endpoint = client.getsockopt_string(zmq.LAST_ENDPOINT)
    with zmq.Context() as far:
        engine = connect_router(far, endpoint, security=site.towards())
        client.send(b"infer")
        route, body = engine.recv_multipart()
        engine.send_multipart([route, body + b"red"])
        assert hear(client, Inbox(client, zap)) == [b"inferred"]
        site.keys.revoke("edge")
        eventually(lambda: zap.counts.cut, "the connection is cut")
        # ZeroMQ's own thread drops the peer soon after its connection is shut down
        eventually(lambda: not client.poll(0, zmq.POLLOUT), "nobody is there to be sent to")
        with pytest.raises(zmq.Again):
            client.send(b"secret", zmq.NOBLOCK)
        assert not engine.poll(QUIET_MS)
        engine.close()
    client.close()
    zap.close()


def test_a_socket_with_keys_but_without_an_authenticator_lets_nobody_in(site, context):
    zap = ZapAuthenticator(context, site.keys)
    router = bind_router(context, "tcp://127.0.0.1:*", security=CurveServer(site.server, zap))
    zap.close()
    with dealer(router.getsockopt_string(zmq.LAST_ENDPOINT), site.towards()) as client:
        client.send(b"hello")
        assert not router.poll(QUIET_MS)
    router.close()


@pytest.mark.parametrize(
    ("endpoint", "security", "reason"),
    [
        ("tcp://0.0.0.0:5555", None, "kairos keys new"),
        ("tcp://0.0.0.0:5555", Insecure.LOOPBACK, "tell robots how to move"),
        ("tcp://*:5555", Insecure.LOOPBACK, "only a loopback address"),
        ("tcp://10.1.2.3:5555", Insecure.LOOPBACK, "only a loopback address"),
        ("tcp://[::]:5555", Insecure.LOOPBACK, "only a loopback address"),
        ("tcp://eth0:5555", Insecure.LOOPBACK, "only a loopback address"),
        ("tcp://127.0.0.1.example.com:5555", Insecure.LOOPBACK, "only a loopback address"),
        ("tcp://127.0.0.1:5555", None, "insecure loopback"),
        ("tcp://127.0.0.1:5555;10.1.2.3:5555", Insecure.LOOPBACK, "write ipc"),
        ("tcp://127.0.0.1:1;10.1.2.3:5555", object(), "write ipc"),
        ("udp://127.0.0.1:5555", Insecure.LOOPBACK, "write ipc"),
        ("ws://127.0.0.1:5555", Insecure.LOOPBACK, "write ipc"),
        ("ipc://@abstract", None, "every user of this host"),
    ],
)
def test_an_endpoint_that_is_not_safe_is_refused_with_an_explanation(endpoint, security, reason):
    with pytest.raises(ConfigError, match=reason):
        check_endpoint(endpoint, security)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://[::1]:*", "tcp://localhost:1"])
def test_loopback_without_keys_is_served_when_asked_for(endpoint):
    check_endpoint(endpoint, Insecure.LOOPBACK)


def test_the_wrong_side_of_a_key_is_not_taken_for_security(site, context):
    with pytest.raises(ConfigError, match="has no keys"):
        bind_router(context, "tcp://127.0.0.1:*", security=site.towards())
    zap = ZapAuthenticator(context, site.keys)
    with pytest.raises(ConfigError, match="has no keys"):
        connect_dealer(context, "tcp://127.0.0.1:5555", security=CurveServer(site.server, zap))
    zap.close()


def test_two_authenticators_in_one_context_are_refused(site, context):
    zap = ZapAuthenticator(context, site.keys)
    with pytest.raises(ConfigError, match="has an authenticator already"):
        ZapAuthenticator(context, site.keys)
    zap.close()


def test_a_peer_that_sends_too_much_is_told_once_and_read_again_when_it_slows_down():
    budgets = Budgets(RateLimit(messages_per_s=10, messages_at_once=4))
    verdicts = [budgets.spend("a", 1, now=0.0) for _ in range(7)]
    assert (
        verdicts == [RateDecision.READ] * 4 + [RateDecision.DROP_AND_TELL] + [RateDecision.DROP] * 2
    )
    assert budgets.dropped == 3
    assert budgets.spend("b", 1, now=0.0) is RateDecision.READ, "one peer's budget is not another's"
    assert [budgets.spend("a", 1, now=0.1) for _ in range(2)] == [
        RateDecision.READ,
        RateDecision.DROP,
    ]
    assert [budgets.spend("a", 1, now=0.5) for _ in range(5)] == [
        *[RateDecision.READ] * 4,
        RateDecision.DROP_AND_TELL,
    ]


def test_bytes_have_a_budget_too():
    budgets = Budgets(RateLimit(bytes_per_s=100, bytes_at_once=1000))
    assert budgets.spend("a", 900, now=0.0) is RateDecision.READ
    assert budgets.spend("a", 200, now=0.0) is RateDecision.DROP_AND_TELL
    assert budgets.spend("a", 50, now=0.0) is RateDecision.READ
    assert budgets.spend("a", 200, now=2.0) is RateDecision.READ


def test_the_budgets_of_many_peers_are_bounded():
    budgets = Budgets(RateLimit())
    for peer in range(10_000):
        budgets.spend(peer, 1, now=0.0)
    assert len(budgets._of) <= 256


def test_a_key_shares_one_budget_over_all_its_connections(site, context):
    zap = ZapAuthenticator(context, site.keys)
    router = bind_router(context, "tcp://127.0.0.1:*", security=CurveServer(site.server, zap))
    inbox = Inbox(router, zap, RateLimit(messages_per_s=1e-6, messages_at_once=6))
    endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
    with dealer(endpoint, site.towards()) as one, dealer(endpoint, site.towards()) as two:
        for number in range(8):
            (one, two)[number % 2].send(b"x")
        assert all(hear(router, inbox) for _ in range(6))
        eventually(lambda: hear(router, inbox, 0.1) or inbox.dropped == 2, "two are dropped")
        assert inbox.dropped == 2
        eventually(lambda: one.poll(0) or two.poll(0), "one of them is told")
        (told,) = [client for client in (one, two) if client.poll(QUIET_MS)]
        refusal = read_error(decode(told.recv_multipart()))
        assert (refusal.batch, refusal.code) == (None, RefusalCode.OVERLOADED)
        assert not told.poll(QUIET_MS), "told more than once"
    router.close()
    zap.close()


@dataclass
class Served:
    """A real worker process on a tcp port, and a good client of it."""

    process: subprocess.Popen
    port: int
    log: Path
    dealer: zmq.Socket

    def ask(self, message):
        self.dealer.send_multipart(encode(message))
        assert self.dealer.poll(PATIENCE_S * 1000), f"no answer:\n{self.log.read_text()}"
        return decode(self.dealer.recv_multipart())

    def works(self):
        """A batch goes through, and its actions come from its observation."""
        request = InferRequest("arm", "s", "t", 1, 0, 1, "go", np.full(7, 0.25, np.float32))
        result = read_result(self.ask(infer_message(1, [request])))
        return result.outcomes[0].chunk[0, 0] == 0.25 and self.process.poll() is None


@pytest.fixture
def program():
    return ["-m", WORKER]


@pytest.fixture(params=["keys", "insecure loopback"])
def worker(request, site, tmp_path, program):
    port, log, insecure = free_ports(), tmp_path / "worker.log", request.param != "keys"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, *program, "--policy", "emulated:", "--max-batch=4"),
                *("--listen", f"tcp://127.0.0.1:{port}"),
                *(["--insecure-loopback"] if insecure else []),
            ],
            stderr=output,
            env=os.environ | {"KAIROS_KEYS": str(site.keys.path)},
        )
    security = Insecure.LOOPBACK if insecure else site.towards()
    with dealer(f"tcp://127.0.0.1:{port}", security) as client:
        served = Served(process, port, log, client)
        while read_status(served.ask(Message("ping"))).state == "loading":
            time.sleep(0.05)
        yield served
    process.terminate()
    assert process.wait(PATIENCE_S) == 0, log.read_text()


def connect(worker):
    return socket.create_connection(("127.0.0.1", worker.port))


ZMTP_NULL = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
ZMTP_CURVE = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
TLS_HELLO = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03" + bytes(41)


def test_whatever_strangers_send_a_good_client_is_served(worker):
    huge = LIMITS.array_bytes + 1
    hostile = [
        b"",
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" * 50,
        TLS_HELLO,
        os.urandom(100_000),
        b"\x00" * 100_000,
        b"\xff" * 100_000,
        ZMTP_NULL + READY + b"\x00\x05hello",
        ZMTP_NULL + READY + b"\x02" + huge.to_bytes(8, "big") + b"x" * 10_000,
        ZMTP_NULL + READY + b"\x02" + (2**63 - 1).to_bytes(8, "big"),
        ZMTP_NULL + READY + b"\x01\x01x" * 10_000 + b"\x00\x01x",  # 10 000 frames
        ZMTP_CURVE + b"\x04\xc8\x05HELLO" + os.urandom(194),
        ZMTP_CURVE + b"\x06" + (2**40).to_bytes(8, "big") + b"\x05HELLO",
        ZMTP_CURVE[:20],
    ]
    with contextlib.ExitStack() as held:
        for said in hostile:
            raw = held.enter_context(connect(worker))
            with contextlib.suppress(ConnectionError):
                raw.sendall(said)
        assert worker.works()
        assert worker.works()


def test_a_crowd_of_strangers_that_come_and_go_keeps_nobody_out(worker):
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", ZMTP_CURVE, ZMTP_NULL) * 150:
        with contextlib.suppress(ConnectionError), connect(worker) as raw:
            raw.sendall(said)
    assert worker.works()


def test_half_messages_that_are_held_back_do_not_hold_up_others(worker):
    """Slow loris: many connections, each a byte at a time and never done."""
    said = ZMTP_NULL + READY + b"\x02" + (1_000_000).to_bytes(8, "big") + b"x" * 100
    with contextlib.ExitStack() as held:
        slow = [held.enter_context(connect(worker)) for _ in range(40)]
        for at in range(0, len(said), 8):
            for raw in slow:
                with contextlib.suppress(ConnectionError):
                    raw.sendall(said[at : at + 8])
        for _ in range(3):
            assert worker.works()


@pytest.mark.parametrize("program", [["-c", STRICT_WORKER]], ids=["little is allowed"])
def test_a_client_that_floods_is_dropped_and_another_is_served(worker, site):
    keyed = "insecure" not in worker.process.args[-1]
    security = Insecure.LOOPBACK
    if keyed:
        flooder = new_pair("flooder", Role.CLIENT)
        site.keys.trust(flooder.key)
        security = site.towards(flooder)
    codes: set[RefusalCode] = set()
    with dealer(f"tcp://127.0.0.1:{worker.port}", security) as flood:
        for sent in range(4000):
            flood.send(b"garbage")
            while flood.poll(0):  # answers that nobody takes would fill the link
                codes.add(read_error(decode(flood.recv_multipart())).code)
            if sent % 1000 == 0:
                assert worker.works()
        assert worker.works()
        # All of its messages have to be read before it leaves: libzmq 4.3.5 (issue 4841) may abort
        # a process whose peer leaves while more of its messages wait than the queue holds.
        while flood.poll(1000 if RefusalCode.OVERLOADED in codes else PATIENCE_S * 1000):
            codes.add(read_error(decode(flood.recv_multipart())).code)
    assert codes == {RefusalCode.MALFORMED, RefusalCode.OVERLOADED}
    if keyed:
        eventually(lambda: "flooder sends more" in worker.log.read_text(), "it is in the log")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tcp://0.0.0.0:5555", "--insecure-loopback"], "only a loopback address is served"),
        (["tcp://0.0.0.0:5555"], "a network link needs keys"),
    ],
)
def test_a_worker_without_keys_does_not_open_a_public_address(tmp_path, arguments, reason):
    done = subprocess.run(
        [sys.executable, "-m", WORKER, "--policy", "emulated:", "--listen", *arguments],
        env=os.environ | {"KAIROS_KEYS": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    assert reason in done.stderr
