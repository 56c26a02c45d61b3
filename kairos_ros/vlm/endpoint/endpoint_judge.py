"""A judge behind an OpenAI-compatible endpoint: vLLM, SGLang, llama.cpp, a cloud."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import httpx

from kairos_ros.core.calls.call import caller_headers
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import MOST_PORT
from kairos_ros.vlm.endpoint.chat_request import Constraint, chat_request
from kairos_ros.vlm.endpoint.completion import read_completion
from kairos_ros.vlm.judge import Cost, Failure, FailureCode, Question, Verdict, complaint

LIKELIEST = 10
"""Alternatives asked for with each token."""
LARGEST_BODY = 1 << 20
"""Bytes of a response; an answer is one word."""
FIRST_BACKOFF_S = 0.05
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
MISUNDERSTOOD = frozenset({400, 422})
"""A server that does not know a field of the request says so with one of these."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the model is and how patient to be."""

    url: str
    """Up to and with the version, for example http://gpu-1:8000/v1."""
    model: str
    """As the server names it."""
    key: str = field(default="", repr=False)
    """Sent as a bearer token; empty: none."""
    timeout_s: float = 2.0
    """For one call of `judge`, however many questions, retries included."""
    attempts: int = 3
    """Of one request while the server fails, is busy, or does not answer in JSON."""
    in_flight: int = 2
    """Requests at a time. More only moves the queue to where nobody can order it."""

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL:
            url = httpx.URL()
        known = url.scheme in ("http", "https") and url.host and (url.port or 0) <= MOST_PORT
        if not known or not self.model:
            raise ConfigError(
                f"judge endpoint {self.url!r} with model {self.model!r}: give"
                " http://HOST:PORT/v1 and the name that the server gives its model"
            )
        if self.timeout_s <= 0 or self.attempts < 1 or self.in_flight < 1:
            raise ConfigError(
                f"judge endpoint: timeout_s={self.timeout_s}, attempts={self.attempts},"
                f" in_flight={self.in_flight}; all must be positive"
            )


@dataclass(slots=True)
class Usage:
    """What a judge has used since it was made."""

    requests: int = 0
    """HTTP requests, retries included."""
    retries: int = 0
    verdicts: int = 0
    failures: Counter[FailureCode] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What this server understands, as far as is known."""

    constraint: Constraint = Constraint.STRUCTURED_OUTPUTS
    logprobs: bool = True


class EndpointJudge:
    """Judge over `Endpoint`. Keeps its connections; not to be called from a coroutine."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.model = endpoint.model
        self.usage = Usage()
        self._endpoint = endpoint
        self._dialect = _Dialect()
        self._runner = asyncio.Runner()
        self._client: httpx.AsyncClient | None = None

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        return self._runner.run(self._judge_all(questions))

    def close(self) -> None:
        if self._client is not None:
            self._runner.run(self._client.aclose())
        self._runner.close()

    async def _judge_all(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        start = time.monotonic()
        places = asyncio.Semaphore(self._endpoint.in_flight)
        asked = [_PendingQuestion(question, start) for question in questions]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._judge_one(one, places)) for one in asked]
        outcomes = [task.result() for task in tasks]
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                self.usage.failures[outcome.code] += 1
            else:
                self.usage.verdicts += 1
        return outcomes

    async def _judge_one(
        self, asked: "_PendingQuestion", places: asyncio.Semaphore
    ) -> Verdict | Failure:
        if wrong := complaint(asked.question):
            return self._failure(asked, FailureCode.BAD_QUESTION, wrong)
        left = self._endpoint.timeout_s - (time.monotonic() - asked.start)
        try:
            async with asyncio.timeout(left), places:
                return await self._negotiate(asked)
        except TimeoutError:
            said = f"; last: {asked.trouble}" if asked.trouble else ""
            code = FailureCode.OVERLOADED if asked.put_off else FailureCode.TIMEOUT
            message = f"no answer from {self._endpoint.url} in {self._endpoint.timeout_s:g} s{said}"
            return self._failure(asked, code, message)

    async def _negotiate(self, asked: "_PendingQuestion") -> Verdict | Failure:
        """Asks in the dialect that worked last; where that is not understood, in the others."""
        failure: Failure | None = None
        dialect: _Dialect | None = self._dialect
        while dialect is not None:
            outcome = await self._persist(asked, dialect)
            if isinstance(outcome, Verdict):
                self._dialect = dialect
                return outcome
            failure = failure or outcome
            if outcome.code not in (FailureCode.BAD_ANSWER, FailureCode.REFUSED):
                return outcome
            if asked.status is not None and asked.status not in MISUNDERSTOOD:
                return outcome
            dialect = _next(dialect, outcome.message)
        return failure or self._failure(asked, FailureCode.REFUSED, asked.trouble)

    async def _persist(self, asked: "_PendingQuestion", dialect: _Dialect) -> Verdict | Failure:
        """One request, again while the server fails, at growing intervals."""
        url = self._endpoint.url
        failure = self._failure(asked, FailureCode.UNREACHABLE, url)
        for attempt in range(self._endpoint.attempts):
            if attempt:
                self.usage.retries += 1
                await asyncio.sleep(asked.wait_s or _backoff_s(attempt))
            asked.wait_s = asked.status = None
            asked.put_off = False
            try:
                status, headers, body = await self._post(asked.question, dialect)
            except httpx.HTTPError as error:
                asked.trouble = f"{url}: {type(error).__name__} {error}".rstrip()
                failure = self._failure(asked, FailureCode.UNREACHABLE, asked.trouble)
                continue
            if status == 200:
                outcome = self._read(asked, body)
                if outcome is not None:
                    return outcome
                failure = self._failure(asked, FailureCode.SERVER_ERROR, asked.trouble)
                continue
            asked.status = status
            asked.trouble = f"{url} answered {status}: {_one_line(body)}"
            if status not in RETRIED:
                if status in (401, 403):
                    asked.trouble += "; is the key right?"
                return self._failure(asked, FailureCode.REFUSED, asked.trouble)
            asked.wait_s = _retry_after_s(headers)
            asked.put_off = status in (429, 503)
            code = FailureCode.OVERLOADED if asked.put_off else FailureCode.SERVER_ERROR
            failure = self._failure(asked, code, asked.trouble)
        return failure

    async def _post(
        self, question: Question, dialect: _Dialect
    ) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body. Raises httpx.HTTPError."""
        if self._client is None:
            key = self._endpoint.key
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            # The whole call is timed; a limit per read would let a server drip for ever.
            self._client = httpx.AsyncClient(headers=headers, timeout=None)
        self.usage.requests += 1
        request = chat_request(self._endpoint.model, question, dialect.constraint)
        if dialect.logprobs:
            request |= {"logprobs": True, "top_logprobs": LIKELIEST}
        url = self._endpoint.url.rstrip("/") + "/chat/completions"
        headers = caller_headers(question.caller, question.slo_ns)
        body = bytearray()
        async with self._client.stream("POST", url, json=request, headers=headers) as response:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > LARGEST_BODY:
                    raise httpx.DecodingError(f"more than {LARGEST_BODY} bytes")
        return response.status_code, response.headers, bytes(body)

    def _read(self, asked: "_PendingQuestion", body: bytes) -> Verdict | Failure | None:
        """The verdict, a failure that asking again would not mend, or None: ask again."""
        try:
            answer, likely, cost, said = read_completion(body, asked.question.answers)
        except ValueError as error:
            asked.trouble = str(error)
            return None
        asked.cost = _sum(asked.cost, cost)
        self.usage.prompt_tokens += cost.prompt_tokens
        self.usage.completion_tokens += cost.completion_tokens
        if answer is None:
            allowed = ", ".join(asked.question.answers)
            asked.trouble = f"{self.model} said {said[:80]!r}; allowed are {allowed}"
            return self._failure(asked, FailureCode.BAD_ANSWER, asked.trouble)
        latency_s = time.monotonic() - asked.start
        return Verdict(answer, likely, latency_s, self.model, asked.cost)

    def _failure(self, asked: "_PendingQuestion", code: FailureCode, message: str) -> Failure:
        latency_s = time.monotonic() - asked.start
        return Failure(code, " ".join(message.split()), latency_s, self.model, asked.cost)


@dataclass(slots=True)
class _PendingQuestion:
    """A question on its way."""

    question: Question
    start: float
    cost: Cost | None = None
    trouble: str = ""
    """What went wrong last."""
    status: int | None = None
    """HTTP status of the last response that was not 200."""
    wait_s: float | None = None
    """What the server asked to wait."""
    put_off: bool = False


def _next(dialect: _Dialect, message: str) -> _Dialect | None:
    """What to try after `dialect` failed with `message`; None when nothing is left."""
    if dialect.logprobs and "logprob" in message:
        return replace(dialect, logprobs=False)
    ways = list(Constraint)
    rest = ways[ways.index(dialect.constraint) + 1 :]
    return replace(dialect, constraint=rest[0]) if rest else None


def _backoff_s(attempt: int) -> float:
    """Doubles with every attempt; the jitter keeps a fleet from coming back all at once."""
    return FIRST_BACKOFF_S * 2.0 ** (attempt - 1) * random.uniform(0.5, 1.5)


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """Seconds of a Retry-After header; None without one, or where it names a date."""
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _one_line(body: bytes) -> str:
    return " ".join(body[:300].decode(errors="replace").split()) or "nothing"


def _sum(before: Cost | None, more: Cost) -> Cost:
    if before is None:
        return more
    return Cost(
        before.prompt_tokens + more.prompt_tokens,
        before.completion_tokens + more.completion_tokens,
    )
