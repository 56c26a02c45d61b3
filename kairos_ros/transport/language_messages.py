"""Questions to a policy that speaks, and its answers, as messages. See `messages`.

Client to engine: `ask {question, robot, text, answers, most_tokens, wait_s}`.
Engine to client: `said {question, code, reason, text, tokens, odds, round, task}`.
"""

from dataclasses import dataclass

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.transport.field_checks import (
    count,
    is_text,
    list_of,
    number,
    refusal_code,
    serial,
    text,
)
from kairos_ros.transport.frames import Message
from kairos_ros.transport.message_codec import MAX_REASON

MOST_ANSWERS = 64
"""Allowed answers of one question."""
MOST_TEXT = 4096
"""Bytes of a question, of an allowed answer, and of what is said."""
MOST_TOKENS = 64
"""That one answer may have."""
MOST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LanguageQuestion:
    """What is asked about what a robot's policy sees next."""

    robot: str
    text: str
    """It follows the prompt of the policy; not empty."""
    answers: tuple[str, ...] = ()
    """The allowed answers; none: the policy says what it likes."""
    most_tokens: int = MOST_TOKENS
    """Of an answer in its own words, 1 to MOST_TOKENS."""
    wait_s: float = 10.0
    """How long the answer may take, 0 < wait_s <= MOST_WAIT_S."""


@dataclass(frozen=True, slots=True)
class LanguageAnswer:
    """What the policy said."""

    text: str
    """One of the allowed answers where the question has some."""
    tokens: tuple[int, ...]
    """Those that were decoded for it; of an allowed answer only up to where no other one begins
    so."""
    odds: tuple[float, ...]
    """Probability of each allowed answer among these; empty where their first tokens do not tell
    them apart, or where none are given."""
    task: str
    """Of the observation that was looked at."""
    round: int


@dataclass(frozen=True, slots=True)
class LanguageFailure:
    """Why a question has no answer."""

    code: RefusalCode
    reason: str


LanguageOutcome = LanguageAnswer | LanguageFailure


def ask_message(question_number: int, policy: str, question: LanguageQuestion) -> Message:
    """`question_number`: the answer repeats it. `policy`: of the worker's registry."""
    fields = {
        "question": question_number,
        "policy": policy,
        "robot": question.robot,
        "text": question.text,
        "answers": list(question.answers),
        "most_tokens": question.most_tokens,
        "wait_s": question.wait_s,
    }
    return Message("ask", fields)


def read_ask(message: Message) -> tuple[int, LanguageQuestion]:
    """Raises WireError for a question that no policy could answer."""
    fields = message.fields
    question = LanguageQuestion(
        robot=text(fields, "robot"),
        text=text(fields, "text"),
        answers=tuple(list_of(fields, "answers", is_text, "text")),
        most_tokens=count(fields, "most_tokens"),
        wait_s=number(fields, "wait_s"),
    )
    if wrong := complaint(question):
        raise WireError(wrong)
    return _number(message), question


def complaint(question: LanguageQuestion) -> str:
    """What is wrong with a question, whichever policy gets it; empty where nothing is."""
    if not question.text.strip():
        return "the text of the question is empty"
    try:
        longest = max(len(text.encode()) for text in (question.text, *question.answers))
    except UnicodeEncodeError as error:
        return f"a text of the question has half a character: {error}"
    if longest > MOST_TEXT:
        return f"a text of the question has more than {MOST_TEXT} bytes"
    if len(question.answers) == 1 or len(question.answers) > MOST_ANSWERS:
        return f"{len(question.answers)} allowed answers; give none, or 2 to {MOST_ANSWERS}"
    if len(set(question.answers)) != len(question.answers) or not all(
        answer.strip() for answer in question.answers
    ):
        return "the allowed answers are not all different words"
    if not 1 <= question.most_tokens <= MOST_TOKENS:
        return f"most_tokens is {question.most_tokens}; use 1 to {MOST_TOKENS}"
    if not 0 < question.wait_s <= MOST_WAIT_S:
        return f"wait_s is {question.wait_s:g}; use more than 0 and at most {MOST_WAIT_S:g}"
    return ""


def question_number_of(message: Message) -> int | None:
    """The question that a message claims to be about, so that even its refusal can name it."""
    return serial(message.fields.get("question"))


def said_message(question_number: int, outcome: LanguageOutcome) -> Message:
    """The answer, or why there is none."""
    fields: dict[str, object] = {"question": question_number, "code": int(RefusalCode.NONE)}
    if isinstance(outcome, LanguageFailure):
        fields |= {"code": int(outcome.code), "reason": outcome.reason[:MAX_REASON]}
    else:
        fields |= {
            "text": outcome.text[:MOST_TEXT],
            "tokens": list(outcome.tokens),
            "odds": list(outcome.odds),
            "task": outcome.task,
            "round": outcome.round,
        }
    return Message("said", fields)


def read_said(message: Message) -> tuple[int, LanguageOutcome]:
    """Raises WireError."""
    fields = message.fields
    code = refusal_code(fields)
    if code is not RefusalCode.NONE:
        return _number(message), LanguageFailure(code, text(fields, "reason"))
    odds = list_of(fields, "odds", _is_share, "numbers from 0 to 1")
    answer = LanguageAnswer(
        text(fields, "text"),
        tuple(list_of(fields, "tokens", _is_token, "tokens")),
        tuple(odds),
        text(fields, "task"),
        count(fields, "round"),
    )
    return _number(message), answer


def _is_token(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_share(value: object) -> bool:
    return type(value) is float and 0.0 <= value <= 1.0


def _number(message: Message) -> int:
    found = question_number_of(message)
    if found is None:
        raise WireError(f"{message.kind!r:.40} without the number of a question")
    return found


READERS = (read_ask, read_said)
"""What reads the messages of a peer, as in `messages`."""
