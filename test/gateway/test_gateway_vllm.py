"""vLLM behind the gateway, with pictures. Runs where KAIROS_VLLM names the Python of an environment
with vLLM (docs/gateway.md)."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from judge_questions import safety_question, task_state_question
from served_gateway import ask, gateway, state, together
from wire import until

from bench.support.client_process import ClientProcess
from bench.support.peers.vllm_server import MODEL, python
from bench.support.servers import environment
from kairos_ros.core.errors import ConfigError
from kairos_ros.gateway.backend import HttpBackend
from kairos_ros.vlm.judge import Verdict
from kairos_ros.vlm.loading import load_judge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG_S = 600.0
PICTURE = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """URL and process of a server."""
    try:
        python()
    except ConfigError as error:
        pytest.skip(str(error))
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with ClientProcess(log, environment(), "bench.support.peers.vllm_server") as process:
        yield process.hear(), process


def verdict(url, question):
    judge = load_judge(f"openai:{url}#{MODEL}", timeout_s=LONG_S)
    try:
        (outcome,) = judge.judge([question])
    finally:
        judge.close()
    assert isinstance(outcome, Verdict), outcome
    return outcome


def test_a_judge_gets_the_same_verdict_through_the_gateway_as_from_vllm_itself(vllm):
    url, _ = vllm
    questions = [
        safety_question("open the drawer", (PICTURE,)),
        task_state_question("open the drawer", (PICTURE, PICTURE)),
    ]
    with gateway(HttpBackend(url), timeout_s=LONG_S) as client:
        own = f"{str(client.base_url).rstrip('/')}/v1"
        for question in questions:
            alone, routed = verdict(url, question), verdict(own, question)
            assert routed.answer == alone.answer
            assert routed.answer in question.answers
            assert routed.probabilities == pytest.approx(alone.probabilities, abs=1e-4)
            assert set(routed.probabilities) == set(question.answers)
            assert routed.cost.prompt_tokens > 16, "the picture was read"
        assert state(client)["refused"] == {}


def test_safety_overtakes_monitors_before_vllm(vllm):
    url, _ = vllm
    with (
        gateway(HttpBackend(url), timeout_s=LONG_S, places=1) as client,
        ThreadPoolExecutor() as pool,
    ):
        ended = []

        def call(number, name):
            long = {"model": MODEL, "max_tokens": 60, "ignore_eos": True, "timeout_s": LONG_S}
            assert ask(client, "hi", f"arm_{number}", name, 60_000, **long).status_code == 200
            ended.append(name)

        monitors = [pool.submit(call, number, "monitor") for number in range(6)]
        until(lambda: len(state(client)["running"]) == 1)
        safety = pool.submit(call, 6, "safety")
        safety.result()
        assert ended.index("safety") <= 2, "at most the running one is before it, or two that end"
        for one in monitors:
            one.result()


def test_what_vllm_refuses_is_refused_to_its_caller_alone(vllm):
    url, _ = vllm
    with gateway(HttpBackend(url), timeout_s=LONG_S) as client:
        answers = together(
            lambda: ask(client, "x" * 5000, "too_long", model=MODEL),
            lambda: ask(client, "hello", "stranger", model="another"),
            lambda: ask(client, "hello", "arm_0", model=MODEL, max_tokens=4),
            lambda: ask(client, "hello", "arm_1", model=MODEL, max_tokens=-3),
        )
        codes = [one.status_code for one in answers]
        assert codes[2] == 200, answers[2].text
        assert all(400 <= code < 500 for code in (codes[0], codes[1], codes[3])), codes
        assert "context length" in answers[0].text
        (server,) = state(client)["servers"]
        assert server["up"]
        assert not server["paused"]


def test_vllm_that_dies_in_mid_stream_ends_that_stream_with_an_error(vllm):
    """The last test: nobody starts it again."""
    url, process = vllm
    body = {
        "model": MODEL, "stream": True, "max_tokens": 900, "ignore_eos": True,
        "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip
    with gateway(HttpBackend(url), timeout_s=LONG_S) as client:
        text = ""
        with client.stream("POST", "/v1/chat/completions", json=body, timeout=LONG_S) as response:
            for piece in response.iter_text():
                if not text:
                    os.killpg(process.pid, signal.SIGKILL)
                text += piece
        assert "server_failed" in text.strip().split("\n")[-1]
        gone = ask(client, "hello", "arm_0", model=MODEL, slo_ms=2000)
        assert gone.status_code >= 500
        assert state(client)["refused"]["broke_off"] == 1
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url}/models", timeout=5.0)
