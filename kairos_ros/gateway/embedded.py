"""A judge in the gateway's own process, as a server behind it."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError
from kairos_ros.gateway.backend import Reply
from kairos_ros.gateway.chat import Chat, error_body
from kairos_ros.transport.picture import picture
from kairos_ros.vlm.endpoint.chat_request import read_question_text
from kairos_ros.vlm.judge import Failure, FailureCode, Judge, Question, Verdict

STATUS = {
    FailureCode.BAD_QUESTION: 400,
    FailureCode.UNKNOWN_INSTRUCTION: 422,
}
"""HTTP status of a failure; of others 500."""
KIND = "asked"
"""Kind of a question whose asker did not say it."""


class EmbeddedBackend:
    """Answers the questions that judging nodes ask, and refuses any other chat."""

    most_places: int | None = 1

    def __init__(self, model: str, judge: Judge) -> None:
        """model: as the fleet file names it."""
        self.name = model
        self._judge = judge
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"judge {model}")

    async def models(self) -> frozenset[str]:
        return frozenset({self.name})

    @asynccontextmanager
    async def ask(self, chat: Chat) -> AsyncIterator[Reply]:
        loop = asyncio.get_running_loop()
        status, body = await loop.run_in_executor(self._thread, self._answer, chat)

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(body).encode()

        yield Reply(status, {"content-type": "application/json"}, pieces())

    async def close(self) -> None:
        self._thread.submit(self._judge.close)
        self._thread.shutdown(wait=False)

    def _answer(self, chat: Chat) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        if chat.stream:
            return 400, error_body(
                f"{self.name} answers with one word; ask without stream", "stream"
            )
        try:
            question = read_question(chat.body)
        except WireError as error:
            return 400, error_body(str(error), "bad_question")
        (outcome,) = self._judge.judge([question])
        if isinstance(outcome, Failure):
            return STATUS.get(outcome.code, 500), error_body(outcome.message, outcome.code)
        return 200, _completion(self.name, outcome)


def read_question(body: bytes) -> Question:
    """The question of a request that `chat_request` made. Raises WireError for any other."""
    said = json.loads(body)
    content = said["messages"][-1].get("content")
    if not isinstance(content, list):
        raise WireError("the last message has no pictures; this model judges what cameras see")
    texts = [one.get("text") for one in content if one.get("type") == "text"]
    text = "\n".join(one for one in texts if isinstance(one, str))
    prompt, instruction, answers = read_question_text(text)
    pictures = tuple(_picture(one) for one in content if one.get("type") == "image_url")
    return Question(KIND, prompt, instruction, pictures, answers)


def _picture(part: dict[str, Any]) -> NDArray[np.uint8]:
    url = part.get("image_url")
    data = url.get("url") if isinstance(url, dict) else None
    if not isinstance(data, str) or not data.startswith("data:image/"):
        raise WireError("a picture is no data URL (data:image/jpeg;base64,...)")
    try:
        raw = base64.b64decode(data.partition(",")[2], validate=True)
    except ValueError as error:  # of base64, and of what is no ASCII
        raise WireError(f"a picture is not base64: {error}") from None
    return picture(raw)


def _completion(model: str, verdict: Verdict) -> dict[str, Any]:
    """As a server words it, with the probabilities as those of the first token."""
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": verdict.answer},
    }
    if verdict.probabilities is not None:
        listed = [
            {"token": answer, "logprob": float(np.log(max(p, 1e-12)))}
            for answer, p in verdict.probabilities.items()
        ]
        own = next(one for one in listed if one["token"] == verdict.answer)
        choice["logprobs"] = {"content": [own | {"top_logprobs": listed}]}
    return {
        "id": f"judge-{time.monotonic_ns()}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
    }
