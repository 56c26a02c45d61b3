"""Robots with openpi's real client are robots of the fleet; whoever floods or stalls hurts nobody
else (more of it: test_hostile_doors.py). Real sockets, processes and DDS throughout."""

import itertools
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest
import websockets.exceptions
import websockets.sync.client
from kairos_ros.msg import RobotStatus
from lerobot.transport import services_pb2, services_pb2_grpc
from openpi_client import msgpack_numpy
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from openpi_robot import CHUNK, MAP, POLICY, address, doors, observation, robot
from prometheus_client.parser import text_string_to_metric_families
from wire import until

from kairos_ros.bringup.plan import serving

pytestmark = pytest.mark.slow

MAX_CLIENTS = 6
NAMES = (f"robot_{n}x" for n in itertools.count())


@pytest.fixture(scope="module")
def server(starter_for_module, wire):
    node = starter_for_module.start(serving(policy=POLICY, horizon="static:4"))
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def process(server, starter_for_module, tmp_path_factory):
    options = ["--max-clients", str(MAX_CLIENTS), "--max-message-mb", "1", "--answer-s", "8"]
    text = MAP + f"metadata: {{calibration: {'x' * 900_000}}}\n"  # more than a socket holds
    return doors(starter_for_module.run, tmp_path_factory.mktemp("map"), *options, text=text)


@pytest.fixture(scope="module")
def where(process) -> str:
    return address(process)


@pytest.fixture
def connect(where):
    """Makes real clients of a name; they leave after the test."""
    made: list[WebsocketClientPolicy] = []

    def new(name: str = "", at: str = where, **options) -> WebsocketClientPolicy:
        made.append(WebsocketClientPolicy(f"{at}/{name or next(NAMES)}", **options))
        return made[-1]

    yield new
    for client in made:
        client._ws.close()


@pytest.fixture
def bystander(where):
    asking = robot(where, next(NAMES), 100.0).begin()
    asking.check()
    yield asking
    asking.check()
    asking.end()


def raw(where: str, name: str = ""):
    return websockets.sync.client.connect(
        f"{where}/{name or next(NAMES)}", compression=None, max_size=None
    )


def gone(connection) -> websockets.exceptions.ConnectionClosed:
    """Why the other side has closed it."""
    while True:
        try:
            connection.recv(timeout=20)
        except websockets.exceptions.ConnectionClosed as closed:
            return closed


def robots(wire) -> dict:
    return {robot.robot: robot for robot in wire.fleet[-1].robots}


def test_a_client_is_a_robot_of_the_fleet(connect, wire):
    client = connect("franka_1")
    told = client.get_server_metadata()
    assert told["robot"] == "franka_1"
    assert (told["action_horizon"], told["action_dim"]) == (CHUNK, 2)
    for n in range(4):
        state = 0.25 * n
        reply = client.infer(observation(state))
        assert reply["actions"].dtype == np.float32
        assert reply["actions"].shape == (
            CHUNK,
            2,
        )  # the whole chunk, whatever the server's default
        assert reply["actions"][:, 0].tolist() == [state] * CHUNK
        assert reply["server_timing"]["infer_ms"] >= reply["server_timing"]["compute_ms"] > 0
        time.sleep(0.05)
    assert reply["server_timing"]["prev_total_ms"] > 0
    assert "execution inferred from its request times" in reply["kairos"]["reason"]

    def seen():
        robot = robots(wire).get("franka_1")
        return robot if robot and robot.rounds_served >= 4 else None

    robot = until(seen)
    assert robot.instruction == "pick"
    assert "inferred" in robot.reason
    status = wire.status_of("franka_1")
    assert (status.session, status.state) == (told["session"], RobotStatus.RUNNING)
    until(lambda: wire.diagnostic("kairos: franka_1", "chunks") == "4")
    assert wire.diagnostic("kairos: franka_1", "dialect") == "openpi"
    client._ws.close()
    until(lambda: wire.status_of("franka_1").state == RobotStatus.LEAVING)
    until(lambda: "franka_1" not in robots(wire))


def test_another_prompt_is_another_task(connect, wire):
    client = connect("franka_2")
    client.infer(observation())
    assert until(lambda: wire.status_of("franka_2").task) == "1"
    client.infer(observation(prompt="place"))
    until(lambda: wire.status_of("franka_2").task == "2")
    assert wire.status_of("franka_2").instruction == "place"
    assert wire.status_of("franka_2").tasks_done == 1


def test_the_chunk_broker_executes_chunk_after_chunk(connect):
    broker = ActionChunkBroker(connect(), action_horizon=CHUNK)
    actions = [broker.infer(observation(0.1 * n))["actions"] for n in range(2 * CHUNK)]
    assert [round(float(a[0]), 3) for a in actions] == [0.0] * CHUNK + [1.0] * CHUNK
    assert [int(a[1]) for a in actions] == [*range(CHUNK)] * 2


def test_four_robots_get_their_own_chunks_only(where):
    fleet = [robot(where, next(NAMES), 1000.0 * n).begin() for n in range(4)]
    for one in fleet:
        one.check(rounds=10)
    for one in fleet:
        one.end()


def test_a_client_without_a_name_is_given_one(where):
    first, second = WebsocketClientPolicy(where), WebsocketClientPolicy(where)
    names = [client.get_server_metadata()["robot"] for client in (first, second)]
    assert names == ["robot_1", "robot_2"]
    for client in (first, second):
        client._ws.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"observation/state": np.zeros(3)}, "has shape \\(3,\\)"),
        ({"observation/state": np.array([np.nan, 0])}, "must be finite"),
        ({"observation/image": np.zeros((2, 2), np.uint8)}, "needs 3 channels"),
        ({"prompt": None}, "must be text"),
    ],
)
def test_a_bad_observation_is_an_error_of_its_client_which_goes_on(connect, changes, said):
    client = connect()
    with pytest.raises(RuntimeError, match=said):
        client.infer(observation(**changes))
    assert client.infer(observation(2.0))["actions"][0, 0] == 2.0


def test_who_sends_nothing_else_is_disconnected(where, bystander):
    with raw(where) as connection:
        for _ in range(10):
            connection.send(b"\xc1")
        closed = gone(connection)
        assert closed.rcvd.code == 1008
        assert "no observations" in closed.rcvd.reason


def test_a_name_belongs_to_one_client(where, connect, bystander):
    connect("franka_3").infer(observation())
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        connect("franka_3")
    assert refused.value.response.status_code == 409
    assert b"franka_3 is connected from 127.0.0.1" in refused.value.response.body
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        connect("no-name")
    assert refused.value.response.status_code == 401
    assert b"'no-name' is no name of a robot" in refused.value.response.body


def test_there_are_as_many_clients_as_are_allowed(where, bystander):
    more = [until(lambda: _admitted(where)) for _ in range(MAX_CLIENTS - 1)]
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        raw(where)
    assert b"--max-clients" in refused.value.response.body
    for connection in more:
        connection.close()
    until(lambda: _admitted(where)).close()


def _admitted(where: str):
    """A connection; None while there are too many, as those that have just been closed may be."""
    try:
        return raw(where)
    except websockets.exceptions.InvalidStatus:
        return None


def test_handshakes_that_are_none_hurt_nobody(where, bystander):
    host, port = where.removeprefix("ws://").split(":")
    for said in (
        b"\0" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"\x16\x03\x01",
    ):
        with socket.create_connection((host, int(port))) as one:
            one.settimeout(20)
            one.sendall(said)
            one.shutdown(socket.SHUT_WR)
            while one.recv(4096):
                pass


def test_a_grpc_client_of_lerobot_is_told_what_to_run_instead(where, process, bystander):
    channel = grpc.insecure_channel(where.removeprefix("ws://"))
    stub = services_pb2_grpc.AsyncInferenceStub(channel)
    try:
        with pytest.raises(grpc.RpcError) as told:
            stub.Ready(services_pb2.Empty(), timeout=60.0)
    finally:
        channel.close()
    assert told.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "run lerobot-rollout with --policy.type=kairos" in told.value.details()
    until(lambda: "gRPC is not served here" in process.output())


def test_who_floods_waits_for_itself(where, bystander):
    """Requests that do not wait for their answers wait in their own socket."""
    message = msgpack_numpy.packb(observation(5.0))
    with raw(where) as connection:
        connection.recv()
        flood = threading.Thread(target=lambda: [connection.send(message) for _ in range(50)])
        flood.start()
        bystander.check(rounds=10)
        answers = [msgpack_numpy.unpackb(connection.recv(timeout=30)) for _ in range(50)]
        flood.join()
        assert all(answer["actions"][0, 0] == 5.0 for answer in answers)


def test_a_client_that_does_not_read_is_disconnected(where, process, bystander):
    host, port = where.removeprefix("ws://").split(":")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(
            b"GET /deaf HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        until(lambda: "client deaf did not read for 10 s" in process.output())


def test_the_health_of_the_process_can_be_asked_for_over_http(where):
    host, port = where.removeprefix("ws://").split(":")
    with socket.create_connection((host, int(port))) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 OK" in one.recv(100)


def test_prometheus_and_a_robot_called_metrics_get_what_each_wants(where, connect):
    url = where.replace("ws", "http", 1) + "/metrics"
    robot = connect("metrics")
    robot.infer(observation())

    def told() -> dict[tuple[str, ...], float]:
        with urllib.request.urlopen(url, timeout=20) as response:
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            page = response.read().decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    before = told()
    robot.infer(observation() | {"more": 1})
    after = told()
    assert after["kairos_doors_clients", "openpi"] >= 1
    for event in ("requests", "chunks", "unused_keys"):
        key = "kairos_doors_events_total", "openpi", event
        assert after[key] == before.get(key, 0) + 1, event


# Other processes beside the same serving node.


@pytest.fixture(scope="module")
def guarded(starter_for_module, server, tmp_path_factory):
    """(process, certificate), with tokens and TLS."""
    folder = tmp_path_factory.mktemp("guarded")
    cert, key, tokens = folder / "cert.pem", folder / "key.pem", folder / "tokens"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    tokens.write_text(f"secret_1 {'a' * 24}\nsecret_2 {'b' * 24}  # the other one\n")
    tokens.chmod(0o600)
    options = ["--tokens", str(tokens), "--tls-cert", str(cert), "--tls-key", str(key)]
    return doors(starter_for_module.run, folder, *options, "--idle-s", "5"), cert


def test_with_tokens_and_tls_a_client_is_who_its_token_says(guarded, monkeypatch):
    process, cert = guarded
    at = address(process)
    assert at.startswith("wss://")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    client = WebsocketClientPolicy(at, api_key="b" * 24)
    assert client.get_server_metadata()["robot"] == "secret_2"
    assert client.infer(observation(6.0))["actions"][0, 0] == 6.0
    assert not client._ws.socket.session.has_ticket
    for name, given in (("", "c" * 24), ("", None), ("/secret_1", "b" * 24)):
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            WebsocketClientPolicy(at + name, api_key=given)
        assert refused.value.response.status_code == 401
    closed = gone(client._ws)  # it has nothing to ask
    assert (closed.rcvd.code, closed.rcvd.reason) == (1001, "no request for 5 s")
    with pytest.raises((OSError, websockets.exceptions.InvalidMessage)):
        raw(at.replace("wss", "ws"))
    assert process.stop(signal.SIGINT) == 0
    assert "Traceback" not in process.output()


def test_a_map_that_does_not_fit_the_policy_ends_the_start_and_says_why(
    starter_for_module, server, tmp_path
):
    process = doors(starter_for_module.run, tmp_path, text=MAP.replace("size: 2", "size: 7"))
    assert process.process.wait(60) == 2
    assert "does not fit policy emulated-" in process.output()
    assert "the robot's state has 7 values" in process.output()
    assert "Traceback" not in process.output()


def test_clients_of_a_server_that_has_gone_are_told_and_served_by_the_next(
    where, connect, server, starter_for_module, wire
):
    client = connect()
    assert client.infer(observation(7.0))["actions"][0, 0] == 7.0
    before = wire.serving_since()
    assert server.stop() == 0
    with pytest.raises(RuntimeError, match=r"not served: no (server for|chunk within) 8 s"):
        client.infer(observation(8.0))
    starter_for_module.start(serving(policy=POLICY, horizon="static:4"))
    wire.serving_since(before)
    assert client.infer(observation(9.0))["actions"][0, 0] == 9.0
