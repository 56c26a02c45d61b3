"""A judge that asks the policy of the robots itself, in the engine that serves it on this host.

The pictures of a question are not sent: the policy is asked about the next observation that it is
given of the robot, whose prefill it shares with the chunk of that observation (docs/unified.md).
"""

import time
from collections.abc import Sequence

import zmq

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.host.question_endpoint import question_endpoint
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.language_messages import (
    MOST_WAIT_S,
    LanguageAnswer,
    LanguageFailure,
    LanguageOutcome,
    LanguageQuestion,
    ask_message,
    complaint,
    read_said,
)
from kairos_ros.transport.message_codec import ping_message, read_error
from kairos_ros.transport.sockets import connect_dealer
from kairos_ros.vlm.endpoint.chat_request import question_text
from kairos_ros.vlm.judge import Failure, FailureCode, Question, Verdict
from kairos_ros.vlm.judge import complaint as complaint_of_any

PING_S = 0.5
"""Between two signs of life while answers are waited for."""
GRACE_S = 0.5
"""For the engine's own word that a question is out of time."""
FAILURES = {
    RefusalCode.MALFORMED: FailureCode.BAD_QUESTION,
    RefusalCode.DEADLINE: FailureCode.TIMEOUT,
    RefusalCode.OVERLOADED: FailureCode.OVERLOADED,
}
"""Of the others: a server error."""


class System1Judge:
    """One connection, one thread. Questions of a call wait side by side."""

    def __init__(self, policy: str, timeout_s: float) -> None:
        """policy: its name at the serving node, "" of the only one. timeout_s bounds each call; it
        has to leave time for the next observation of the robot. Raises ConfigError."""
        self.model = f"system1:{policy}" if policy else "system1"
        self._endpoint = question_endpoint(policy)
        self._timeout_s = min(timeout_s, MOST_WAIT_S)
        # one of all judges: it has threads of its own
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._number = 0
        self._connect()

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        """As the interface says."""
        start = time.monotonic()
        asked: dict[int, int] = {}  # number on the wire -> place
        outcomes: dict[int, LanguageOutcome] = {}
        for place, question in enumerate(questions):
            wrong, wanted = self._wanted(question)
            if wrong:
                outcomes[place] = LanguageFailure(RefusalCode.MALFORMED, wrong)
                continue
            self._number += 1
            asked[self._number] = place
            self._send(ask_message(self._number, "", wanted))
        heard = self._collect(asked, outcomes, start)
        if asked:  # what is on its way is nobody's any more
            self._socket.close(linger=0)
            self._connect()
        latency_s = time.monotonic() - start
        return [
            self._outcome(question, outcomes.get(place), latency_s, heard)
            for place, question in enumerate(questions)
        ]

    def close(self) -> None:
        """As the interface says."""
        self._socket.close(linger=0)

    def _connect(self) -> None:
        self._socket = connect_dealer(self._context, self._endpoint)
        self._inbox = Inbox(self._socket)

    def _wanted(self, question: Question) -> tuple[str, LanguageQuestion]:
        """What is wrong with a question, and what is asked."""
        wanted = LanguageQuestion(
            robot=question.caller.robot,
            text=f"\n{question_text(question)}\nAnswer: ",
            answers=question.answers,
            wait_s=self._timeout_s,
        )
        wrong = complaint_of_any(question) or complaint(wanted)
        if not wrong and not question.caller.robot:
            wrong = "it does not say which robot it is about"
        return wrong or "", wanted

    def _collect(
        self, asked: dict[int, int], outcomes: dict[int, LanguageOutcome], start: float
    ) -> bool:
        """Waits for answers, and takes each one's question out of `asked`. False where nothing was
        heard of the engine."""
        heard, pinged, ends = False, 0.0, start + self._timeout_s + GRACE_S
        while asked and (now := time.monotonic()) < ends:
            if now - pinged >= PING_S:
                pinged = now
                self._send(ping_message(0, ""))
            if not self._socket.poll(round(1e3 * min(ends - now, PING_S))):
                continue
            try:
                heard |= self._read(decode(self._inbox.receive()), asked, outcomes)
            except zmq.Again:
                continue
            except WireError as error:
                failure = LanguageFailure(RefusalCode.ENGINE_FAILED, f"it sent no answer: {error}")
                outcomes |= dict.fromkeys(asked.values(), failure)
                return True
        return heard

    def _read(
        self, message: Message, asked: dict[int, int], outcomes: dict[int, LanguageOutcome]
    ) -> bool:
        """True: the engine is there."""
        if message.kind == "said":
            number, outcome = read_said(message)
            if (place := asked.pop(number, None)) is not None:
                outcomes[place] = outcome
        elif message.kind == "error":  # of an engine that knows no questions
            error = read_error(message)
            outcomes |= dict.fromkeys(asked.values(), LanguageFailure(error.code, error.reason))
            asked.clear()
        return True

    def _send(self, message: Message) -> None:
        try:
            self._socket.send_multipart(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return  # nobody is there: the questions are out of time then

    def _outcome(
        self, question: Question, came: LanguageOutcome | None, latency_s: float, heard: bool
    ) -> Verdict | Failure:
        if came is None and heard:
            message = f"no answer in {self._timeout_s:g} s"
            return Failure(FailureCode.TIMEOUT, message, latency_s, self.model)
        if came is None:
            message = f"no engine answers at {self._endpoint}"
            return Failure(FailureCode.UNREACHABLE, message, latency_s, self.model)
        if isinstance(came, LanguageFailure):
            code = FAILURES.get(came.code, FailureCode.SERVER_ERROR)
            return Failure(code, " ".join(came.reason.split()), latency_s, self.model)
        return self._verdict(question, came, latency_s)

    def _verdict(
        self, question: Question, came: LanguageAnswer, latency_s: float
    ) -> Verdict | Failure:
        if came.text not in question.answers:
            said = f"it said {came.text!r:.80}, which is none of {question.answers}"
            return Failure(FailureCode.BAD_ANSWER, said, latency_s, self.model)
        odds = dict(zip(question.answers, came.odds, strict=False))
        told = odds if len(came.odds) == len(question.answers) else None
        return Verdict(came.text, told, latency_s, self.model)
