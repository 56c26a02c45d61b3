"""Robots with GR00T's client are robots of the fleet. Real sockets, processes and DDS throughout;
the client is ours, written from the wire's description."""

import re
import signal
import socket

import httpx
import numpy as np
import pytest
from groot_robot import MAP, TASK, observation, robot
from kairos_ros.msg import RobotStatus
from openpi_robot import CHUNK, POLICY, address, doors
from wire import until

from bench.support.peers.groot_client import GrootClient, GrootError
from kairos_ros.bringup.plan import serving

TOKENS = {"secret_1": "a" * 24, "secret_2": "b" * 24}


@pytest.fixture(scope="module")
def server(starter_for_module, wire):
    node = starter_for_module.start(serving(policy=POLICY, horizon="static:4"))
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def where(server, starter_for_module, tmp_path_factory) -> str:
    folder, options = tmp_path_factory.mktemp("map"), ["--max-clients", "6"]
    return address(doors(starter_for_module.run, folder, *options, text=MAP))


@pytest.fixture(scope="module")
def guarded(server, starter_for_module, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    tokens.chmod(0o600)
    options = ["--tokens", str(tokens), "--idle-s", "3"]
    return doors(starter_for_module.run, folder, *options, text=MAP)


@pytest.fixture
def connect(where):
    """Makes clients; they leave after the test."""
    made: list[GrootClient] = []

    def new(at: str = where, token: str = "", *, newer: bool = False) -> GrootClient:
        made.append(GrootClient(at, token, newer=newer))
        return made[-1]

    yield new
    for client in made:
        client.close()


def names(info: dict) -> list[str]:
    return [told["robot"] for told in info["kairos"]]


@pytest.mark.parametrize("newer", [False, True])
def test_a_client_is_a_robot_of_the_fleet(connect, wire, newer):
    client = connect(newer=newer)
    assert client.call("ping")["status"] == "ok"
    told = client.call("get_modality_config")
    assert told["video"]["as_json"] == {"delta_indices": [0], "modality_keys": ["front"]}
    assert told["action"]["as_json"]["delta_indices"] == [*range(CHUNK)]
    assert told["action"]["as_json"]["modality_keys"] == ["arm", "gripper"]
    assert told["language"]["as_json"]["modality_keys"] == [TASK]
    for n in range(4):
        actions, info = client.get_action(observation(0.25 * n))
        assert {key: values.dtype for key, values in actions.items()} == {
            "arm": np.float32,
            "gripper": np.float32,
        }
        assert actions["arm"].tolist() == [[[0.25 * n]] * CHUNK]
        assert actions["gripper"].tolist() == [[[float(k)] for k in range(CHUNK)]]
    (told,) = info["kairos"]
    assert told["infer_ms"] >= told["compute_ms"] > 0
    assert "execution inferred from its request times" in told["reason"]
    name = told["robot"]
    until(lambda: wire.diagnostic(f"kairos: {name}", "chunks") == "4")
    assert wire.diagnostic(f"kairos: {name}", "dialect") == "groot"
    assert wire.status_of(name).instruction == "pick"
    client.close()
    until(lambda: wire.status_of(name).state == RobotStatus.LEAVING)


def test_prometheus_is_answered_on_the_port_of_the_clients(connect, where, guarded):
    connect().get_action(observation(1.0))
    url = where.replace("tcp", "http", 1)
    page = httpx.get(f"{url}/metrics", timeout=20)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'kairos_doors_clients{dialect="groot"} 1.0' in page.text
    assert re.search(r'kairos_doors_events_total{dialect="groot",event="chunks"} [1-9]', page.text)
    assert httpx.get(f"{url}/healthz", timeout=20).text == "OK\n"
    assert httpx.get(url, timeout=20).status_code == 404
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as silent:
        silent.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no more
        assert connect().call("ping")["status"] == "ok"
    closed = httpx.get(f"{address(guarded).replace('tcp', 'http', 1)}/metrics", timeout=20)
    assert closed.status_code == 401
    assert "$KAIROS_DOORS_TOKEN" in closed.text


def test_a_reset_begins_a_new_task_and_so_does_another_instruction(connect, wire):
    client = connect()
    (name,) = names(client.get_action(observation(1.0))[1])
    assert until(lambda: wire.status_of(name).task) == "1"
    assert client.call("reset", {"options": None}) == {}
    until(lambda: wire.status_of(name).state == RobotStatus.IDLE)
    client.get_action(observation(1.0))
    until(lambda: wire.status_of(name).task == "2")
    client.get_action(observation(1.0, prompt="place"))
    until(lambda: wire.status_of(name).task == "3")
    assert wire.status_of(name).instruction == "place"


def test_an_observation_of_several_robots_makes_each_of_them_a_robot_of_the_fleet(connect, wire):
    client = connect()
    actions, info = client.get_action(observation(1.0, 2.0, 3.0))
    assert actions["arm"][:, :, 0].tolist() == [[n] * CHUNK for n in (1.0, 2.0, 3.0)]
    three = names(info)
    assert len(set(three)) == 3
    until(lambda: all(wire.status_of(name).task == "1" for name in three))
    assert names(client.get_action(observation(4.0, 5.0))[1]) == three[:2]
    nan = {"arm": np.array([[[1.0]], [[np.nan]]], np.float32)}
    with pytest.raises(GrootError, match=f"robot {three[1]}: 'state/arm'.0. is nan"):
        client.get_action(observation(1.0, 2.0, state=nan))
    assert client.get_action(observation(6.0, 7.0))[0]["arm"][:, 0, 0].tolist() == [6.0, 7.0]
    with pytest.raises(GrootError, match="6 is the limit; raise --max-clients"):
        client.get_action(observation(*range(7)))
    client.close()
    until(lambda: all(wire.status_of(name).state == RobotStatus.LEAVING for name in three))


def test_of_several_observations_the_newest_is_read(connect):
    actions, _ = connect().get_action(observation(8.0, times=3))
    assert actions["arm"][0, 0, 0] == 8.0


def test_flat_keys_are_answered_by_flat_keys(connect):
    seen = observation(9.0)
    flat = {
        f"{kind}.{key}": value for kind in ("video", "state") for key, value in seen[kind].items()
    }
    client = connect()
    actions, _ = client.get_action(flat | {TASK: ["pick"]})
    assert actions["action.arm"].tolist() == [[[9.0]] * CHUNK]
    # clients of N1.5 name no observation, and no robots
    one = {key: value[0] for key, value in flat.items()} | {TASK: ["pick"]}
    assert client.call("get_action", one)["action.arm"].tolist() == [[9.0]] * CHUNK


def test_what_is_not_served_is_an_error_and_the_client_goes_on(connect):
    client = connect()
    for endpoint, said in {
        "kill": "clients cannot end this server",
        "get_rtc_config": "no endpoint 'get_rtc_config'; there are get_action",
    }.items():
        with pytest.raises(GrootError, match=said):
            client.call(endpoint)
    with pytest.raises(GrootError, match="data of get_action are NoneType"):
        client.call("get_action")
    assert client.get_action(observation(2.0))[0]["arm"][0, 0, 0] == 2.0


def test_four_robots_get_their_own_chunks_only(where):
    fleet = [robot(where, 1000.0 * n).begin() for n in range(4)]
    for one in fleet:
        one.check(rounds=10)
    for one in fleet:
        one.end()


def test_a_robot_is_who_its_token_says_and_may_come_again(guarded, connect):
    at = address(guarded)
    asking = robot(at, 1000.0, TOKENS["secret_2"]).begin()
    asking.check()
    with pytest.raises(GrootError, match=r"secret_2 is connected from 127\.0\.0\.1"):
        connect(at, TOKENS["secret_2"]).get_action(observation(1.0))
    for token, said in (("", "a token is needed here"), ("c" * 24, "no robot has this token")):
        with pytest.raises(GrootError, match=said):
            connect(at, token).call("ping")
    asking.check()
    asking.end()  # and comes again at once, as a client that gave up waiting does
    client = connect(at, TOKENS["secret_2"])
    assert names(client.get_action(observation(1.0))[1]) == ["secret_2"]
    with pytest.raises(GrootError, match="a token is that of one robot"):
        client.get_action(observation(1.0, 2.0))
    client.get_action(observation(1.0))
    client.token = TOKENS["secret_1"]
    with pytest.raises(GrootError, match="this connection is that of robot secret_2"):
        client.get_action(observation(1.0))


def test_who_asks_for_nothing_leaves_and_joins_again_when_it_asks(guarded, connect, wire):
    client = connect(address(guarded), TOKENS["secret_1"])
    client.get_action(observation(1.0))
    until(lambda: wire.status_of("secret_1").state == RobotStatus.LEAVING)
    assert client.get_action(observation(3.0))[0]["arm"][0, 0, 0] == 3.0
    assert guarded.stop(signal.SIGINT) == 0
    assert "Traceback" not in guarded.output()
