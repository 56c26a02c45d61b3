"""A judge that asks the policy of the robots itself, in a real worker."""

import os
import queue
import shutil
import signal
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import zmq
from isolated_language import chosen
from observations import observation, options
from tiny_pi_workers import tiny_pi_workers
from tiny_policies import TINY

from kairos_ros.core.calls.call import Caller
from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import (
    BatchDone,
    EngineDown,
    EngineLoading,
    EngineReady,
    LanguageChanged,
)
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor, WorkerTiming
from kairos_ros.engine.policies.policy_engine import load_policy_engine
from kairos_ros.engine.worker.process import WorkerSpec
from kairos_ros.host.question_endpoint import question_endpoint
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.language_messages import (
    LanguageAnswer,
    LanguageFailure,
    LanguageQuestion,
    ask_message,
    read_ask,
    read_said,
    said_message,
)
from kairos_ros.transport.message_codec import read_error
from kairos_ros.transport.sockets import connect_dealer
from kairos_ros.vlm.conformance import check_judge
from kairos_ros.vlm.endpoint.chat_request import question_text
from kairos_ros.vlm.judge import Failure, FailureCode, Question, Verdict
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow

STATES = ("ongoing", "done", "failed")
PATIENT = WorkerTiming(silence_s=20.0)
LONG_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def own_sockets():
    """In a folder of this module, with a short name: the path of a socket is short."""
    folder = tempfile.mkdtemp(prefix="kq")
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = folder
    yield
    if before is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = before
    shutil.rmtree(folder)


class Worker:
    """A supervised worker, and the observations that robots send to it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.events = queue.Queue()
        self.link = EngineLink(WorkerSupervisor(spec, PATIENT), self.events.put)
        self.batch = 0
        self.loads = []
        """What it told of its questions."""

    def next(self, kind):
        while not isinstance(event := self.events.get(timeout=LONG_S), kind):
            assert isinstance(event, EngineLoading | LanguageChanged), event
            if isinstance(event, LanguageChanged):
                self.loads.append(event.load)
        return event

    def observe(self, *robots: int):
        """Waits for the chunks of these robots."""
        self.batch += 1
        self.link.submit(self.batch, [observation(robot, round=self.batch) for robot in robots])
        return self.next(BatchDone).outcomes

    def observe_until(self, asking: "Asking", *robots: int) -> list[Verdict | Failure]:
        """The outcomes of a judge, while the robots send observations."""
        while not asking.done.is_set():
            self.observe(*robots)
        if asking.error:
            raise asking.error
        return asking.outcomes


class Asking:
    """A judge that is asked in a thread of its own."""

    def __init__(self, ask, *about) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        threading.Thread(target=self._ask, args=(ask, about), daemon=True).start()

    def _ask(self, ask, about):
        try:
            self.outcomes = ask(*about)
        except BaseException as error:
            self.error = error
        self.done.set()


@contextmanager
def worker(spec):
    running = Worker(spec)
    running.link.start()
    try:
        running.next(EngineReady)
        yield running
    finally:
        running.link.stop()


@pytest.fixture(scope="module")
def pi05(folder_of, tmp_path_factory):
    environment = tiny_pi_workers(tmp_path_factory.mktemp("site"))
    asked = options(folder_of("pi05"), language_mib=1)
    endpoint = question_endpoint("")
    with worker(WorkerSpec(asked, environment=environment, questions=endpoint)) as running:
        yield running


@pytest.fixture
def emulated():
    spec = WorkerSpec(options("emulated:"), questions=question_endpoint("emulated"))
    with worker(spec) as running:
        yield running


@pytest.fixture
def judge():
    loaded = load_judge("system1", LONG_S)
    yield loaded
    loaded.close()


def question(robot: int, prompt="ongoing, done, or failed?", answers=STATES) -> Question:
    picture = np.zeros((8, 8, 3), np.uint8)
    caller = Caller(f"arm_{robot}", "monitor")
    return Question("task_state", prompt, "open the drawer", (picture,), answers, caller)


def test_a_policy_answers_about_the_observation_whose_chunk_it_gives(pi05, judge, folder_of):
    asked = [question(0), question(1), question(1, "what next?", ("open it", "open up", "push"))]
    outcomes = pi05.observe_until(Asking(judge.judge, asked), 0, 1)
    with TINY["pi05"].loaded():
        here = load_policy_engine(options(folder_of("pi05"), language_mib=1), lambda _: None)
    for robot, one, verdict in zip((0, 1, 1), asked, outcomes, strict=True):
        text = f"\n{question_text(one)}\nAnswer: "
        assert verdict.answer == chosen(here, observation(robot), text, one.answers)
    assert outcomes[0].probabilities.keys() == set(STATES)
    assert outcomes[2].probabilities is None, "two of them begin alike"


def test_it_is_a_judge_like_the_others(pi05, judge):
    pi05.observe_until(Asking(check_judge, judge, [question(0), question(1)]), 0, 1)


def test_chunks_are_the_same_while_questions_are_answered(pi05, judge):
    (before,) = pi05.observe(0)
    asking = Asking(judge.judge, [question(0), question(2)])
    while not asking.done.is_set():
        (chunk, _) = pi05.observe(0, 2)
        np.testing.assert_allclose(chunk.chunk, before.chunk, atol=2e-4)  # another batch


def test_a_robot_without_observations_costs_the_others_nothing(pi05):
    patient, impatient = load_judge("system1", LONG_S), load_judge("system1", 3.0)
    asked = Asking(impatient.judge, [question(9)]), Asking(patient.judge, [question(0)])
    (unseen,), (seen,) = (pi05.observe_until(one, 0) for one in asked)
    for one in (patient, impatient):
        one.close()
    assert isinstance(seen, Verdict)
    assert unseen.code is FailureCode.TIMEOUT
    assert "arm_9" in unseen.message
    assert "it waited" in unseen.message
    assert max(load.waiting for load in pi05.loads) >= 1, "for seconds"
    assert pi05.loads[-1].slots > 1


def test_a_question_about_no_robot_is_refused(judge):
    (failed,) = judge.judge([replace(question(0), caller=Caller())])
    assert failed.code is FailureCode.BAD_QUESTION
    assert "which robot" in failed.message


def test_where_no_engine_is_the_judge_says_so():
    judge = load_judge("system1:nobody", 0.2)
    (failed,) = judge.judge([question(0)])
    judge.close()
    assert failed.code is FailureCode.UNREACHABLE
    assert question_endpoint("nobody") in failed.message


@pytest.mark.parametrize("prompt", ["ü" * 3000, "half a character: \ud83d"])
def test_a_question_that_cannot_be_sent_fails_alone(prompt):
    judge = load_judge("system1:nobody", 0.2)
    (bad, good) = judge.judge([question(0, prompt), question(0)])
    judge.close()
    assert (bad.code, good.code) == (FailureCode.BAD_QUESTION, FailureCode.UNREACHABLE)


def test_a_policy_without_words_is_refused_by_name_and_a_new_worker_is_found_again(emulated):
    judge = load_judge("system1:emulated", LONG_S)
    (failed,) = judge.judge([question(0)])
    assert failed.code is FailureCode.SERVER_ERROR
    assert "policy emulated answers no questions here" in failed.message
    os.kill(emulated.link._supervisor.pid, signal.SIGKILL)
    emulated.next(EngineDown)
    emulated.next(EngineReady)
    (failed,) = judge.judge([question(0)])
    judge.close()
    assert "policy emulated answers no questions here" in failed.message


def test_a_malformed_question_is_answered_and_the_next_one_taken(emulated):
    context = zmq.Context()
    dealer = connect_dealer(context, question_endpoint("emulated"))

    def answer(message: Message) -> Message:
        dealer.send_multipart(encode(message))
        assert dealer.poll(1e3 * LONG_S)
        return decode(dealer.recv_multipart())

    good = ask_message(7, "", LanguageQuestion("arm_0", "what now?"))
    for field, value in (("text", " "), ("answers", ["one"]), ("wait_s", 1e9), ("robot", None)):
        number, failed = read_said(answer(Message("ask", good.fields | {field: value})))
        assert number == 7
        assert isinstance(failed, LanguageFailure)
        assert failed.code is RefusalCode.MALFORMED
        assert field in failed.reason.replace("allowed answers", "answers")
    unnamed = read_error(answer(Message("ask", good.fields | {"question": "first"})))
    assert unnamed.code is RefusalCode.MALFORMED
    _, failed = read_said(answer(good))
    assert failed.code is RefusalCode.ENGINE_DOWN
    dealer.close(linger=0)
    context.term()


@pytest.mark.parametrize(
    "message",
    [
        ask_message(3, "pick", LanguageQuestion("arm_0", "what?", ("yes", "no"), 5, 2.0)),
        said_message(3, LanguageAnswer("yes", (4, 5), (0.75, 0.25), "t", 9)),
        said_message(3, LanguageFailure(RefusalCode.DEADLINE, "late")),
    ],
)
def test_questions_and_answers_survive_the_wire(message):
    read = read_ask if message.kind == "ask" else read_said
    number, what = read(decode(encode(message)))
    assert number == 3
    again = ask_message(3, "pick", what) if message.kind == "ask" else said_message(3, what)
    assert again == message
