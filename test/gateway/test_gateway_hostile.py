"""A gateway between servers and clients that each keep to nothing."""

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from served_gateway import ask, component, gateway, state
from wire import until

from kairos_ros.gateway import backend, connection, server
from kairos_ros.gateway import gateway as gateways
from kairos_ros.gateway import servers as servers_
from kairos_ros.gateway.servers import FIRST_PROBE_S, LAST_PROBE_S, pause_s

pytestmark = pytest.mark.slow


def test_a_server_that_loses_many_calls_at_once_is_asked_again_soon(servers):
    one = servers(takes_s=60.0)
    one.faults.extend(["close"] * 7)
    with gateway(one, places=8) as client, ThreadPoolExecutor(7) as pool:
        calls = [pool.submit(ask, client, f"{i}", f"arm_{i}") for i in range(7)]
        until(lambda: len(one.asked) == 7)
        began = time.monotonic()
        one.go_on.set()
        assert {call.result().status_code for call in calls} == {200}
        assert time.monotonic() - began < LAST_PROBE_S / 2, "seven calls, but one failure"


def test_a_server_that_is_down_for_days_is_still_asked():
    assert pause_s(1) == FIRST_PROBE_S
    assert pause_s(100_000) == LAST_PROBE_S


def test_one_late_list_of_models_does_not_make_a_server_down(servers, monkeypatch):
    monkeypatch.setattr(servers_, "PROBED_EVERY_S", 0.1)
    monkeypatch.setattr(backend, "PROBE_S", 0.5)
    one = servers()
    with gateway(one) as client:
        one.late_lists = 1
        until(lambda: not one.late_lists)
        for _ in range(20):
            assert ask(client).status_code == 200
            time.sleep(0.05)  # 1 s in all: the list is given up meanwhile
        one.late_lists = 1000
        until(lambda: ask(client).status_code == 503)


def test_a_call_that_waited_for_its_turn_does_not_make_the_server_one_that_hangs(servers):
    one = servers(takes_s=2.0)
    with gateway(one, places=1, timeout_s=3.0) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, "first", "arm_0")
        until(lambda: len(one.asked) == 1)
        assert ask(client, "second", "arm_1").status_code == 504
        assert first.result().status_code == 200
        assert one.asked == ["first", "second"], "it was with the server for a second only"
        assert state(client)["servers"][0]["failures"] == 0


def test_names_that_nobody_can_ask_for_are_not_listed(servers):
    with gateway(servers(models=("m", "\ud800", "x" * 1000, 7))) as client:
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["m"]
        assert state(client)["servers"][0]["models"] == ["m"]


def test_a_content_type_that_is_no_text_is_not_passed_on(servers):
    one = servers()
    one.faults.append("strange_type")
    with gateway(one) as client:
        response = ask(client)
        assert response.headers["content-type"] == "application/json"
        assert response.json()["choices"]


def test_a_server_that_does_not_stream_when_asked_to_has_answered(servers):
    one = servers()
    one.faults.append("no_stream")
    with gateway(one) as client:
        assert ask(client, stream=True).json()["choices"][0]["message"]["content"] == "yes"
        assert not state(client)["servers"][0]["trouble"]
        assert component(client)["answered"] == 1


@contextlib.contextmanager
def streaming(client, **options):
    """A streamed call whose first bytes have come, and that reads no more."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    text = json.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect(("127.0.0.1", client.base_url.port))
        caller.sendall((head + text).encode())
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
        yield


def test_a_client_that_leaves_its_stream_does_not_make_the_server_one_that_hangs(
    servers, monkeypatch
):
    monkeypatch.setattr(gateways, "HANGS_AFTER_S", 1e-9)
    monkeypatch.setattr(gateways, "HANGS_AFTER_TIMES", 0.0)
    one = servers()
    one.faults.append("slow_stream")
    with gateway(one) as client:
        with streaming(client):
            pass
        until(lambda: not state(client)["running"])
        assert state(client)["servers"][0]["failures"] == 0
        assert ask(client).status_code == 200


def test_a_client_that_does_not_read_its_stream_is_left(servers, monkeypatch):
    monkeypatch.setattr(server, "READ_WITHIN_S", 0.3)
    one = servers()
    one.faults.append("long_stream")
    with gateway(one, timeout_s=20.0) as client, streaming(client):
        until(lambda: state(client)["refused"] == {"slow_client": 1})
        assert state(client)["running"] == []
        assert state(client)["servers"][0]["failures"] == 0


def test_a_client_that_says_nothing_is_left(servers, monkeypatch):
    monkeypatch.setattr(connection, "ASKS_WITHIN_S", 0.2)
    with gateway(servers()) as client:
        with socket.create_connection(("127.0.0.1", client.base_url.port)) as silent:
            silent.settimeout(20.0)
            assert silent.recv(1) == b""
        assert ask(client).status_code == 200


def test_large_requests_that_wait_leave_room_for_safety(servers, monkeypatch):
    monkeypatch.setattr(server, "MOST_HELD", 3000)
    one = servers(takes_s=60.0)
    with gateway(one, places=1) as client, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(ask, client, "x" * 2000, "arm_0")]
        until(lambda: len(one.asked) == 1)
        refused = ask(client, "y" * 2000, "arm_1")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "MiB are not answered yet" in refused.text
        calls.append(pool.submit(ask, client, "z" * 2000, "arm_2", "safety"))
        until(lambda: len(state(client)["waiting"]) == 1)
        one.go_on.set()
        assert {call.result().status_code for call in calls} == {200}
        assert ask(client, "y" * 2000, "arm_1").status_code == 200
