"""A judge behind HTTP: a real server with the embedded judge behind it, and everything it can do
wrong."""

from dataclasses import replace

import numpy as np
import pytest
from judge_pictures import cell_pictures
from judge_questions import safety_question, task_state_question
from judge_server import JudgeServer

from kairos_ros.core.calls.call import NOBODY, Caller, read_caller
from kairos_ros.core.errors import ConfigError
from kairos_ros.vlm.conformance import check_judge
from kairos_ros.vlm.endpoint.completion import allowed_answer, probabilities, read_completion
from kairos_ros.vlm.endpoint.endpoint_judge import Endpoint, EndpointJudge
from kairos_ros.vlm.judge import Failure, FailureCode, Verdict
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow

PUSH = "push the puck to the target"


@pytest.fixture(scope="module")
def embedded():
    return load_judge("embedded:factory_judge")


@pytest.fixture(scope="module")
def question():
    return safety_question(PUSH, (cell_pictures()["empty"],))


@pytest.fixture
def serve(embedded):
    """`serve(attempts=1, ...)`: a server and a judge that asks it."""
    opened = []

    def start(
        *,
        understands=("structured_outputs",),
        strict=False,
        logprobs=True,
        key="",
        terse=True,
        **ours,
    ):
        server = JudgeServer(embedded, understands, strict, logprobs, key, terse)
        judge = EndpointJudge(Endpoint(server.url, "tiny", **({"timeout_s": 30.0} | ours)))
        opened.extend((judge, server))
        return server, judge

    yield start
    for one in opened:
        one.close()


def ask(judge, question):
    (outcome,) = judge.judge([question])
    return outcome


def test_it_is_a_judge(serve):
    _, judge = serve()
    pictures = cell_pictures()
    questions = [safety_question(PUSH, (p,)) for p in pictures.values()]
    check_judge(judge, [*questions, task_state_question(PUSH, (pictures["empty"],))])


def test_the_picture_and_the_probabilities_survive_the_way(serve, embedded, question):
    _, judge = serve()
    here, there = ask(embedded, question), ask(judge, question)
    assert there.answer == here.answer
    for answer, probability in here.probabilities.items():
        assert there.probabilities[answer] == pytest.approx(probability, abs=0.05)  # one more JPEG
    assert (there.cost.prompt_tokens, there.cost.completion_tokens) == (100, 2)


def test_a_question_says_who_asks_and_until_when(serve, question):
    server, judge = serve()
    caller = Caller("arm 1", "monitor", "7", "7", "system2")
    ask(judge, replace(question, caller=caller, slo_ns=250_000_000))
    assert read_caller(server.headers[-1]) == (caller, 250_000_000)
    ask(judge, question)
    assert read_caller(server.headers[-1]) == (NOBODY, 0)


@pytest.mark.parametrize("strict", [True, False], ids=["refuses", "ignores"])
@pytest.mark.parametrize(
    "field", ["structured_outputs", "guided_choice", "regex", "response_format", "nothing"]
)
def test_it_finds_the_constraint_that_the_server_knows_and_keeps_to_it(
    serve, question, embedded, field, strict
):
    server, judge = serve(understands=(field,), strict=strict)
    assert ask(judge, question).answer == ask(embedded, question).answer
    needed = len(server.requests)
    assert ask(judge, question).probabilities is not None
    assert len(server.requests) == needed + 1
    if not strict:  # a server that ignores a field answers in a word of its own accord
        assert needed == 1


@pytest.mark.parametrize("field", ["guided_choice", "regex", "response_format"])
def test_a_model_that_chats_is_held_to_the_words_by_the_next_constraint(
    serve, question, embedded, field
):
    _, judge = serve(understands=(field,), terse=False)
    assert ask(judge, question).answer == ask(embedded, question).answer


def test_a_model_that_chats_and_cannot_be_held_to_the_words_gives_no_verdict(serve, question):
    _, judge = serve(understands=(), terse=False)
    assert ask(judge, question).code is FailureCode.BAD_ANSWER


def test_a_server_without_log_probabilities_is_asked_without(serve, question):
    server, judge = serve(strict=True, logprobs=False)
    verdict = ask(judge, question)
    assert isinstance(verdict, Verdict)
    assert verdict.probabilities is None
    assert "logprobs" not in server.requests[-1]


@pytest.mark.parametrize("fault", ["500", "503", "garbage", "html", "close", "429:0.01", "huge"])
def test_a_passing_fault_is_retried(serve, question, fault):
    server, judge = serve()
    server.faults.extend([fault, fault])
    assert isinstance(ask(judge, question), Verdict)
    assert judge.usage.retries == 2
    assert server.seen[fault] == 2


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("500", FailureCode.SERVER_ERROR),
        ("503", FailureCode.OVERLOADED),
        ("429:0", FailureCode.OVERLOADED),
        ("garbage", FailureCode.SERVER_ERROR),
        ("html", FailureCode.SERVER_ERROR),
        ("off", FailureCode.BAD_ANSWER),
        ("close", FailureCode.UNREACHABLE),
        ("huge", FailureCode.UNREACHABLE),
    ],
)
def test_a_lasting_fault_is_a_failure_with_its_cause_and_never_an_answer(
    serve, question, fault, code
):
    server, judge = serve(attempts=2)
    server.faults.extend([fault] * 20)
    failure = ask(judge, question)
    assert isinstance(failure, Failure)
    assert failure.code == code
    assert "\n" not in failure.message
    assert judge.usage.failures == {code: 1}
    server.faults.clear()
    assert isinstance(ask(judge, question), Verdict)


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_a_server_that_takes_its_time_is_left_when_the_time_is_up(serve, question, fault):
    server, judge = serve(timeout_s=0.4)
    server.faults.append(fault)
    failure = ask(judge, question)
    assert failure.code == FailureCode.TIMEOUT
    assert "0.4 s" in failure.message
    assert 0.4 <= failure.latency_s < 4.0


def test_a_server_that_asks_for_more_patience_than_there_is_is_overloaded(serve, question):
    server, judge = serve(timeout_s=5.0)
    server.faults.append("429:3600")
    failure = ask(judge, question)
    assert failure.code == FailureCode.OVERLOADED
    assert "429" in failure.message
    assert failure.latency_s < 30.0


def test_a_wrong_key_is_not_tried_again_and_does_not_appear_in_messages(serve, question):
    server, judge = serve(key="right")
    failure = ask(judge, question)
    assert failure.code == FailureCode.REFUSED
    assert "key" in failure.message
    assert judge.usage.requests == 1
    keyed = EndpointJudge(Endpoint(server.url, "tiny", key="secret-123", timeout_s=30.0))
    assert "secret-123" not in str(ask(keyed, question)) + repr(keyed._endpoint)
    keyed.close()


def test_nobody_listening_is_a_failure_of_each_question(question):
    judge = EndpointJudge(Endpoint("http://127.0.0.1:9/v1", "tiny", timeout_s=30.0))
    outcomes = judge.judge([question, question])
    assert [o.code for o in outcomes] == [FailureCode.UNREACHABLE] * 2
    judge.close()


def test_a_fault_hits_its_own_question_only(serve, question):
    server, judge = serve(attempts=1, in_flight=1)
    server.faults.extend(["", "500", ""])
    kinds = [type(outcome) for outcome in judge.judge([question] * 3)]
    assert kinds == [Verdict, Failure, Verdict]


def test_no_more_requests_are_in_flight_than_allowed(serve, question):
    server, judge = serve(in_flight=2)
    assert all(isinstance(o, Verdict) for o in judge.judge([question] * 8))
    assert server.most_at_once <= 2


def test_what_was_used_is_counted_retries_and_wrong_answers_included(serve, question):
    server, judge = serve()
    server.faults.extend(["off", "500"])
    verdict = ask(judge, question)
    assert judge.usage.requests == 3
    assert judge.usage.prompt_tokens == verdict.cost.prompt_tokens == 200
    assert (judge.usage.verdicts, judge.usage.retries) == (1, 1)


@pytest.mark.parametrize("url", ["gpu-1:8000", "ftp://gpu-1/v1", "http://", "http://[::1/v1", ""])
def test_an_address_that_is_none_is_refused_at_once(url):
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        Endpoint(url, "tiny")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("safe", "safe"),
        (" Unsafe.\n", "unsafe"),
        ('{"answer": "unsafe"}', "unsafe"),
        ('{"answer": "maybe"}', None),
        ("**Unsafe**", "unsafe"),
        ("It is unsafe: a hand is there.", None),
        ("Not safe.", None),
        ("The cell isn't safe: a person is in it.", None),
        ("safe or unsafe, who knows", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_an_answer_is_read_or_refused_but_never_guessed(text, answer):
    assert allowed_answer(text, ("safe", "unsafe")) == answer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b"\xff",
    ],
)
def test_a_body_that_is_no_completion_is_an_error(body):
    with pytest.raises(ValueError, match="no chat completion"):
        read_completion(body, ("safe", "unsafe"))


def test_hostile_log_probabilities_are_left_out():
    answers = ("safe", "unsafe")
    for logprobs in (
        None,
        {"content": None},
        {"content": [{"token": "safe"}]},
        {"content": [{"token": "safe", "logprob": "high", "top_logprobs": []}]},
        {"content": [{"token": "safe", "logprob": float("-inf"), "top_logprobs": []}]},
        {"content": [{"token": "safe", "logprob": float("nan"), "top_logprobs": []}]},
    ):
        assert probabilities(logprobs, "safe", answers) is None
    huge = {"content": [{"token": "safe", "logprob": 1e308, "top_logprobs": []}]}
    assert probabilities(huge, "safe", answers) == {"safe": 1.0, "unsafe": 0.0}


def test_a_batch_with_a_picture_of_every_size_is_answered(serve):
    _, judge = serve()
    rng = np.random.default_rng(0)
    sizes = [(8, 8), (37, 61), (480, 640)]
    pictures = [rng.integers(0, 255, (*size, 3)).astype(np.uint8) for size in sizes]
    outcomes = judge.judge([safety_question(PUSH, (picture,)) for picture in pictures])
    assert all(isinstance(outcome, Verdict) for outcome in outcomes)
