"""A real language model behind the gateway: llama.cpp's server with SmolLM2, which reads no
pictures. Answers are real completions, and servers die by SIGKILL."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from judge_questions import safety_question, task_state_question
from served_gateway import ask, component, gateway, state, together
from wire import until

from bench.support.client_process import ClientProcess
from bench.support.peers.language_server import MODEL, weights
from kairos_ros.core.calls.call import Caller, caller_headers
from kairos_ros.core.errors import ConfigError
from kairos_ros.gateway.backend import HttpBackend
from kairos_ros.vlm.embedded.planner import PLAN, PLAN_PROMPT
from kairos_ros.vlm.endpoint.chat_request import Constraint, chat_request
from kairos_ros.vlm.endpoint.completion import read_completion
from kairos_ros.vlm.judge import Failure, FailureCode, Question
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LONG_S = 600.0
"""Longer than a test may take: nobody is answered because a time ran out."""
PICTURE = np.zeros((16, 16, 3), np.uint8)
SKILLS = ("open the drawer", "close the drawer", "push the button")


@pytest.fixture(scope="module", autouse=True)
def _installed():
    try:
        weights()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
def start_server(tmp_path):
    """Starts servers; (process, URL) of each."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    made = []

    def start():
        log = tmp_path / f"server_{len(made)}.log"
        process = ClientProcess(log, {"PYTHONPATH": path}, "bench.support.peers.language_server")
        made.append(process)
        return process, process.hear()

    yield start
    for one in made:
        one.kill()


def asked(client, question, component_, robot):
    """The answer to a question as a judging node words it, without its picture."""
    body = chat_request(MODEL, question, Constraint.RESPONSE_FORMAT)
    content = body["messages"][0]["content"]
    body["messages"][0]["content"] = [part for part in content if part["type"] == "text"]
    headers = caller_headers(Caller(robot, component_), 60_000_000_000)
    response = client.post("/v1/chat/completions", json=body, headers=headers, timeout=LONG_S)
    assert response.status_code == 200, response.text
    return read_completion(response.content, question.answers)


def streamed(client, robot, first_piece):
    """The text of a long streamed answer; calls first_piece once it has begun."""
    body = {
        "model": MODEL, "stream": True, "max_tokens": 400, "ignore_eos": True,
        "messages": [{"role": "user", "content": "tell a long story about a robot"}],
    }  # fmt: skip
    headers = caller_headers(Caller(robot, "system2"), 0)
    text = ""
    with client.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers, timeout=LONG_S
    ) as response:
        for piece in response.iter_text():
            if not text and piece.strip():
                first_piece(response.headers["x-kairos-server"])
            text += piece
    return text


def test_judges_and_planners_get_completions_of_a_real_model(start_server):
    _, url = start_server()
    with gateway(HttpBackend(url), timeout_s=LONG_S) as client:
        plan = Question(PLAN, PLAN_PROMPT, "please open the drawer", (PICTURE,), SKILLS)
        questions = [
            (safety_question("open the drawer", (PICTURE,)), "safety"),
            (task_state_question("open the drawer", (PICTURE,)), "monitor"),
            (plan, "system2"),
        ]
        answers = together(
            *[lambda q=q, c=c, i=i: asked(client, q, c, f"arm_{i}")
              for i, (q, c) in enumerate(questions)]
        )  # fmt: skip
        for (question, name), (answer, _, cost, said) in zip(questions, answers, strict=True):
            assert answer in question.answers, said
            assert cost.prompt_tokens > 20
            assert cost.completion_tokens >= 1
            assert component(client, name)["answered"] == 1


def test_a_judge_that_shows_pictures_to_a_model_of_words_fails_alone(start_server):
    _, url = start_server()
    with gateway(HttpBackend(url), timeout_s=LONG_S) as client:
        own = str(client.base_url).rstrip("/")
        judge = load_judge(f"openai:{own}/v1#{MODEL}", timeout_s=120.0)
        (outcome,) = judge.judge([safety_question("open the drawer", (PICTURE,))])
        judge.close()
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.SERVER_ERROR
        assert "image input is not supported" in outcome.message
        (server,) = state(client)["servers"]
        assert server["up"]
        assert not server["paused"]
        response = ask(client, "safe or unsafe?", "b", "safety", model=MODEL, max_tokens=1)
        assert response.status_code == 200


def test_a_server_that_dies_in_mid_stream_ends_that_stream_and_nobody_elses_call(start_server):
    servers = [start_server() for _ in range(2)]
    by_name = {HttpBackend(url).name: process for process, url in servers}
    backends = [HttpBackend(url) for _, url in servers]
    with gateway(*backends, timeout_s=LONG_S, places=3) as client, ThreadPoolExecutor(6) as pool:
        others = []

        def kill(name):
            """Kills the server of the stream once it runs calls of others, too."""
            short = {"model": MODEL, "max_tokens": 24, "timeout_s": LONG_S}
            others.extend(pool.submit(ask, client, "hi", f"arm_{i}", **short) for i in range(4))
            until(lambda: sum(one["server"] == name for one in state(client)["running"]) > 1)
            by_name[name].kill()

        text = streamed(client, "storyteller", kill)
        last = text.strip().split("\n")[-1]
        assert json.loads(last.removeprefix("data:"))["error"]["code"] == "server_failed"
        assert {one.result().status_code for one in others} == {200}
        refused = state(client)["refused"]
        assert refused == {"broke_off": 1}
        assert component(client)["answered"] == 4
