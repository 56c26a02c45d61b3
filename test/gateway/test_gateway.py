"""The gateway over real sockets: whose turn it is, which server it is, and what servers and clients
do wrong."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from judge_pictures import cell_pictures
from judge_questions import safety_question, task_state_question
from served_gateway import ask, component, gateway, state, together
from wire import PATIENCE_S, until

from kairos_ros.commands.gateway import gateway_command
from kairos_ros.core.calls.call import Caller
from kairos_ros.core.calls.orders import ORDERS
from kairos_ros.core.errors import ConfigError
from kairos_ros.dashboard import gateway_panel
from kairos_ros.dashboard.gateway_panel import GatewayPanel
from kairos_ros.gateway.backend import HttpBackend
from kairos_ros.gateway.embedded import EmbeddedBackend
from kairos_ros.vlm.conformance import check_judge
from kairos_ros.vlm.endpoint.chat_request import question_text
from kairos_ros.vlm.judge import Verdict
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow


def test_a_call_is_answered_as_its_server_answers_and_says_why_then_and_where(servers):
    one = servers()
    with gateway(one) as client:
        response = ask(client, slo_ms=20_000)
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["content"] == "yes"
        assert response.headers["x-kairos-server"] == one.name
        assert "has to start within" in response.headers["x-kairos-reason"]
        assert [m["id"] for m in client.get("/v1/models").json()["data"]] == ["m"]
        assert client.get("/health").json() == {"up": True}
        scraped = client.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
        answered = 'kairos_gateway_calls_total{component="monitor",outcome="in_time"} 1.0'
        assert answered in scraped.text
        assert "kairos_gateway_held{" not in scraped.text  # no call waits any more
        counted = component(client)
        assert (counted["answered"], counted["in_time"], counted["unanswered"]) == (1, 1, 0)
        (decision,) = state(client)["decisions"]
        assert (decision["robot"], decision["server"]) == ("arm_0", one.name)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_safety_goes_first_and_others_in_their_order(servers, order):
    one = servers(takes_s=60.0)
    with gateway(one, order=order, places=1) as client, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(ask, client, "first", "a")]
        until(lambda: one.asked)
        calls.append(pool.submit(ask, client, "plan", "b", "system2", 9000))
        until(lambda: len(state(client)["waiting"]) == 1)
        calls.append(pool.submit(ask, client, "safe?", "c", "safety", 20_000))
        until(lambda: len(state(client)["waiting"]) == 2)
        assert state(client)["waiting"][0]["robot"] == "c"
        assert state(client)["held"] == "every server is busy"
        one.go_on.set()
        assert all(call.result().status_code == 200 for call in calls)
        assert one.asked == ["first", "safe?", "plan"]


def test_a_server_gets_no_more_calls_at_a_time_than_it_has_places(servers):
    one = servers(takes_s=60.0)
    with gateway(one, places=2) as client, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(ask, client, f"{i}", f"arm_{i}", "safety") for i in range(8)]
        until(lambda: len(one.asked) == 2 and len(state(client)["waiting"]) == 6)
        one.go_on.set()
        assert {call.result().status_code for call in calls} == {200}
    assert one.most_at_once == 2


def test_two_servers_share_the_calls(servers):
    made = servers(takes_s=60.0), servers(takes_s=60.0)
    with gateway(*made, places=8) as client, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(ask, client, f"{i}", f"arm_{i}", "safety") for i in range(8)]
        until(lambda: sum(len(one.asked) for one in made) == 8)
        assert [len(one.asked) for one in made] == [4, 4]
        for one in made:
            one.go_on.set()
        assert {call.result().status_code for call in calls} == {200}


def test_a_streamed_answer_comes_as_it_is_made_and_counts_when_it_is_whole(servers):
    with gateway(servers()) as client:
        response = ask(client, stream=True)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.text.count("data: ") == 4
        assert component(client)["answered"] == 1
        assert state(client)["running"] == []


@pytest.mark.parametrize("fault", ["close", "short", "500", "503", "no_json"])
def test_what_one_server_fails_at_another_one_answers(servers, fault):
    one, two = servers(), servers()
    one.faults.extend([fault] * 9)
    with gateway(one, two) as client:
        responses = [ask(client, f"{i}") for i in range(4)]
        assert {r.status_code for r in responses} == {200}
        assert {r.headers["x-kairos-server"] for r in responses} == {two.name}
        failed = next(s for s in state(client)["servers"] if s["name"] == one.name)
        assert failed["failures"] >= 1
        assert failed["trouble"]


def test_a_call_that_no_server_can_answer_takes_no_server_from_others(servers):
    made = servers(), servers()
    for one in made:
        one.cannot = "look at this"
    with gateway(*made) as client:
        for _ in range(6):
            response = ask(client, "look at this", "arm_0")
            assert response.status_code == 502
            assert "no server answers this call" in response.text
            assert "answered 500" in response.text
            others = together(
                *[lambda i=i: ask(client, "safe?", f"arm_{i}", "safety") for i in (1, 2)]
            )
            assert {r.status_code for r in others} == {200}
            assert not any(s["paused"] for s in state(client)["servers"])
        assert component(client)["unanswered"] == 6
    for one in made:
        assert one.asked.count("look at this") == 6


def test_a_server_that_answers_as_another_model_is_not_believed(servers):
    one = servers()
    with gateway(one) as client:
        assert ask(client).status_code == 200
        one.faults.extend(["other_model"] * 9)
        response = ask(client)
        assert response.status_code == 503
        assert "answered as 'another' where it was 'm' before" in response.text


def test_a_model_that_is_gone_refuses_who_waits_for_it(servers, monkeypatch):
    monkeypatch.setattr("kairos_ros.gateway.servers.PROBED_EVERY_S", 0.2)
    one = servers(models=("m", "n"), takes_s=60.0)
    with gateway(one, places=1) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, model="n")
        until(lambda: one.asked)
        second = pool.submit(ask, client, robot="arm_1")
        until(lambda: state(client)["waiting"])
        one.models = ["n"]
        response = second.result()
        assert response.status_code == 404
        assert "no server has model 'm'; there are n" in response.text
        one.go_on.set()
        assert first.result().status_code == 200


def test_a_stream_that_breaks_off_says_so_to_its_client(servers):
    one = servers()
    one.faults.append("broken_stream")
    with gateway(one) as client:
        response = ask(client, stream=True)
        assert "broke off in mid-stream" in response.text
        assert state(client)["refused"] == {"broke_off": 1}
        assert component(client)["unanswered"] == 1
        until(lambda: ask(client).status_code == 200)


def test_a_server_that_hangs_keeps_only_its_own_callers_waiting(servers):
    """A client gives up after a time of its own; the server gets no further calls for a while."""
    one, two = servers(), servers()
    one.faults.extend(["hang"] * 9)
    with gateway(one, two, timeout_s=4.0) as client:
        responses = together(*[lambda i=i: ask(client, robot=f"arm_{i}") for i in range(4)])
        codes = sorted(r.status_code for r in responses)
        assert codes.count(200) >= 3
        began = time.monotonic()
        later = [ask(client, robot=f"late_{i}") for i in range(5)]
        assert {r.status_code for r in later} == {200}
        assert {r.headers["x-kairos-server"] for r in later} == {two.name}
        assert time.monotonic() - began < 4.0
        stuck = next(r for r in responses if r.status_code != 200)
        assert stuck.status_code == 504
        assert "no answer in 4 s" in stuck.text


def test_a_client_that_leaves_frees_its_place(servers):
    one = servers(takes_s=60.0)
    with gateway(one, places=1) as client:
        for number in (1, 2):
            with calling(client):
                until(lambda n=number: len(one.asked) == n)
            until(lambda: not state(client)["running"])
        assert state(client)["waiting"] == []
        assert state(client)["refused"] == {"client_gone": 2}


@contextlib.contextmanager
def calling(client):
    """A call whose client leaves at the end."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as connection:
        connection.sendall((head + body).encode())
        yield


def test_without_any_server_the_answer_is_at_once_that_there_is_none(servers):
    one = servers()
    one.lists_models = False
    with gateway(one) as client:
        response = ask(client)
        assert response.status_code == 503
        assert "no server is up" in response.text
        assert client.get("/health").status_code == 503
        one.lists_models = True
        until(lambda: ask(client).status_code == 200)


def test_a_server_that_lists_no_models_serves_the_one_that_is_named(servers):
    one = servers()
    one.lists_models = False
    with gateway(HttpBackend(f"{one.url}#m")) as client:
        assert ask(client).status_code == 200


@pytest.mark.parametrize("listed", [b" ", b"[" * 100_000, b" " * 100_000])
def test_a_list_of_models_that_never_ends_or_is_none_makes_a_server_down_and_no_other(
    servers, listed
):
    one = servers()
    with raw_server(listed) as endless, gateway(HttpBackend(endless), one) as client:
        assert ask(client).status_code == 200
        told = next(s for s in state(client)["servers"] if s["name"] != one.name)
        assert not told["up"]
        assert "/models: " in told["trouble"]


@contextlib.contextmanager
def raw_server(piece: bytes):
    """URL of a server that answers every request with this, again and again until nobody reads."""
    bound, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(piece)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(bound.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    finally:
        over.set()
        bound.shutdown(socket.SHUT_RDWR)
        bound.close()


def test_one_caller_has_eight_calls_at_a_time_and_others_are_not_held_up(servers):
    one = servers(takes_s=60.0)
    with gateway(one, places=16) as client, ThreadPoolExecutor(11) as pool:
        calls = [pool.submit(ask, client, component="monitor") for _ in range(10)]
        other = pool.submit(ask, client, robot="arm_1")
        until(lambda: sum(call.done() for call in calls) == 2 and len(one.asked) == 9)
        one.go_on.set()
        responses = [call.result() for call in calls]
        assert sorted(r.status_code for r in responses) == [200] * 8 + [429] * 2
        assert other.result().status_code == 200
        refused = next(r for r in responses if r.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "8 calls of monitor of arm_0 are not answered yet" in refused.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"model": "m"}', "messages is missing"),
        (b'{"model": 3, "messages": [{"content": "x"}]}', "name one of GET /v1/models"),
        (b'{"model": "\\ud800", "messages": [{"content": "x"}]}', "name one of GET /v1/models"),
        (b'{"model": "m", "messages": [{"content": 3}]}', "use text or a list"),
        (b'{"model": "m", "messages": [{"content": ["x"]}]}', "is not an object"),
        (b'{"model": "m", "messages": [{"content": "x"}], "stream": 1}', "use true or false"),
    ],
)
def test_a_request_that_is_none_is_refused_with_what_is_wrong(servers, body, says):
    with gateway(servers()) as client:
        response = client.post("/v1/chat/completions", content=body)
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]
        assert state(client)["refused"] == {"bad_request": 1}


def test_invalid_headers_are_refused_and_a_servers_own_refusal_is_passed_on(servers):
    one = servers()
    one.faults.append("400")
    with gateway(one) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        bad = client.post("/v1/chat/completions", json=body, headers={"x-kairos-slo-ms": "soon"})
        assert bad.status_code == 400
        assert "say how many milliseconds" in bad.text
        assert ask(client).status_code == 400
        assert ask(client).status_code == 200


def test_tokens_that_a_server_cannot_have_used_are_not_learned(servers):
    one = servers()
    one.faults.append("silly_usage")
    with gateway(one) as client:
        assert ask(client).status_code == 200
        assert component(client)["answered"] == 1


def test_half_a_request_and_many_idle_connections_hold_nobody_up(servers):
    with gateway(servers()) as client:
        port = client.base_url.port
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        idle[0].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        assert ask(client).status_code == 200
        for one in idle:
            one.close()


def test_the_token_is_asked_of_everybody_but_for_health(servers):
    with gateway(servers(), token="secret") as client:
        assert ask(client).status_code == 401
        assert client.get("/state").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/health").status_code == 200
        client.headers["authorization"] = "Bearer secret"
        assert ask(client).status_code == 200


def test_an_embedded_judge_behind_the_gateway_judges_as_it_does_alone():
    alone = load_judge("embedded:factory_judge")
    pictures = cell_pictures()
    questions = [
        replace(
            ask_about("push the puck to the target", (pictures[name],)),
            caller=Caller("arm 0", "safety"),
            slo_ns=60_000_000_000,
        )
        for ask_about in (safety_question, task_state_question)
        for name in ("empty", next(name for name in pictures if name != "empty"))
    ]
    backend = EmbeddedBackend("embedded:factory_judge", load_judge("embedded:factory_judge"))
    with gateway(backend) as client:
        url = f"{client.base_url}/v1".replace("//v1", "/v1")
        judge = load_judge(f"openai:{url}#embedded:factory_judge", timeout_s=PATIENCE_S)
        check_judge(judge, questions)
        for own, other in zip(alone.judge(questions), judge.judge(questions), strict=True):
            assert isinstance(other, Verdict), other
            assert own.answer == other.answer
            assert component(client, "safety")["unanswered"] == 0
        chat = ask(client, model="embedded:factory_judge")
        assert chat.status_code == 400
        assert "has no pictures" in chat.text
        strange = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,\u00e9"}}
        words = {"type": "text", "text": question_text(questions[0])}
        chat = ask(client, text=[strange, words], model="embedded:factory_judge")
        assert chat.status_code == 400
        assert "not base64" in chat.text
        judge.close()


def test_the_dashboard_shows_queue_servers_and_reasons_and_escapes_what_they_say(
    servers, monkeypatch
):
    monkeypatch.setattr(gateway_panel, "PATIENCE_S", 20.0)
    one = servers(takes_s=60.0)
    with gateway(one, places=1) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, robot="<b>arm</b>")
        until(lambda: one.asked)
        second = pool.submit(ask, client, robot="arm_1", component="safety", slo_ms=20_000)
        until(lambda: state(client)["waiting"])
        panel = GatewayPanel(f"{client.base_url}".rstrip("/") + "/v1")
        html = asyncio.run(panel.html())
        assert "&lt;b&gt;arm&lt;/b&gt;" in html
        assert "<b>arm" not in html
        assert "1 waiting (every server is busy)" in html
        assert "obligation, due in" in html
        assert one.name in html
        one.go_on.set()
        assert {first.result().status_code, second.result().status_code} == {200}
        assert "100.0 %" in asyncio.run(panel.html())


def test_the_dashboard_says_when_the_gateway_does_not_answer(servers):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        panel = GatewayPanel(f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert "Timeout" in asyncio.run(panel.html())
    with gateway(servers(), token="secret") as client:
        refused = asyncio.run(GatewayPanel(str(client.base_url)).html())
        assert "answered 401; start the dashboard with the gateway" in refused
        assert "$KAIROS_GATEWAY_TOKEN" in refused
    with raw_server(b" ") as endless:
        assert "TimeoutError" in asyncio.run(GatewayPanel(endless).html())
    for wrong in ("127.0.0.1:8380", "http://host:99999"):
        with pytest.raises(ConfigError, match="write http://HOST:PORT"):
            GatewayPanel(wrong)


COMMAND = [sys.executable, "-c", "from kairos_ros.commands.cli import main; main()", "gateway"]


def test_the_command_serves_until_ctrl_c(servers):
    one = servers()
    process = subprocess.Popen(
        [*COMMAND, one.url, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert f"before {one.url}; order latest_start" in line
        with httpx.Client(base_url=line.split()[1].removesuffix("/v1"), timeout=60) as client:
            assert ask(client).status_code == 200
        process.send_signal(2)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == "gateway: ended\n"
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_answers_the_calls_that_servers_have_not_answered(servers):
    one = servers()
    one.faults.append("hang")
    process = subprocess.Popen(
        [*COMMAND, one.url, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().split()[1].removesuffix("/v1")
        with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, client, timeout_s=60)
            until(lambda: one.asked)
            process.send_signal(2)
            time.sleep(0.2)
            process.send_signal(2)  # ros2 launch sends one, too
            assert waits.result().status_code == 503
            assert "the gateway ends" in waits.result().text
        assert process.wait(PATIENCE_S) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("servers_", "options", "says"),
    [
        (["http://h:1/v1"], {"listen": "0.0.0.0:0"}, r"set \$KAIROS_GATEWAY_TOKEN, --tls-cert"),
        (["http://h:1/v1"], {"order": "best"}, "order 'best' is unknown"),
        (["http://h:1/v1"], {"dispatch": "best"}, "dispatch 'best' is unknown"),
        (["http://h:1/v1"], {"tls_cert": Path("x.pem")}, "give both or neither"),
        (["ftp://h/v1"], {}, "write http://HOST:PORT/v1"),
        (["http://h:99999/v1"], {}, "write http://HOST:PORT/v1"),
        (["http://h:1/v1", "http://h:1/v1"], {}, "h:1 is given twice"),
    ],
)
def test_options_that_are_wrong_are_refused(servers_, options, says, monkeypatch):
    monkeypatch.delenv("KAIROS_GATEWAY_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=says):
        gateway_command(servers_, **options)
