"""The gateway: gives each call its turn and its server, and learns from the answers."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from kairos_ros.core.calls.call import Call, Caller
from kairos_ros.core.calls.dispatch import Dispatch
from kairos_ros.core.calls.orders import Order
from kairos_ros.core.calls.queue import CallQueue, FullError, StartedCall
from kairos_ros.core.errors import KairosError
from kairos_ros.gateway.backend import Backend, BackendError, Reply, completion, whole
from kairos_ros.gateway.chat import Chat
from kairos_ros.gateway.events import EventReader, error_event
from kairos_ros.gateway.servers import Servers

ATTEMPTS = 2
"""Servers that a call is given to before it has failed."""
HANGS_AFTER_S, HANGS_AFTER_TIMES, HANGS_AFTER_SHARE = 2.0, 5.0, 0.8
"""A server that has not answered a call that ends for so long, and so many times as long as usual,
has failed; so has one that was given this share of the call's whole time."""
PAUSE_WHEN_FULL_S = 1.0
"""Of a server that has no memory or no time left, unless it says how long."""
KEPT_DECISIONS = 100
JSON = "application/json"
"""Content type of an answer that is no stream, whatever its client asked for."""


class RefusedError(KairosError):
    """A call gets no answer; says why, in HTTP."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_s = status, code, retry_after_s


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What a server said."""

    status: int
    content_type: str
    body: bytes | AsyncIterator[bytes]
    """All of it, or as it comes."""
    start: StartedCall
    """Where it was asked, and why."""
    close: Callable[[], Awaitable[None]]
    """To be awaited when nothing of the body is wanted any more."""


@dataclass(frozen=True, slots=True)
class DispatchedCall:
    """A call that was given to a server, for people who look."""

    start: StartedCall
    at_ns: int


class Gateway:
    """Used from one event loop, as a context manager."""

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        order: Order,
        dispatch: Dispatch,
        places: int = 2,
        memory_tokens: int = 0,
        timeout_s: float = 30.0,
    ) -> None:
        """places, memory_tokens: of each server; see `Instance`. timeout_s: for one call, with its
        time in the queue."""
        self.servers = Servers(backends, places, memory_tokens, self._pump)
        self.queue = CallQueue(self.servers.instances, order, dispatch)
        self.refused: Counter[str] = Counter()
        """Calls without an answer, by code."""
        self.decisions: deque[DispatchedCall] = deque(maxlen=KEPT_DECISIONS)
        self._timeout_s = timeout_s
        self._turns: dict[int, asyncio.Future[StartedCall]] = {}

    async def __aenter__(self) -> "Gateway":
        await self.servers.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.servers.__aexit__()

    async def answer(self, chat: Chat, caller: Caller, slo_ns: int) -> CallAnswer:
        """What a server says, once it is the call's turn. slo_ns: from now on; 0: none.

        Cancel it when nobody waits for the answer any more. Raises RefusedError.
        """
        try:
            return await self._answer(chat, caller, slo_ns)
        except RefusedError as refused:
            self.refused[refused.code] += 1
            raise
        except asyncio.CancelledError:
            self.refused["client_gone"] += 1
            raise

    async def _answer(self, chat: Chat, caller: Caller, slo_ns: int) -> CallAnswer:
        if (refusal := self._refusal(chat.model)) is not None:
            raise refusal
        try:
            call = self.queue.put(caller, chat.model, chat.prompt_tokens, slo_ns, _now_ns())
        except FullError as error:
            raise RefusedError(429, "too_many_calls", str(error), 1.0) from error
        goes_on = False
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._served(call, chat)
            goes_on = not isinstance(answer.body, bytes)
            return answer
        except TimeoutError:
            why = self._hung(call) or self._held()
            message = f"no answer in {self._timeout_s:g} s: {why}"
            raise RefusedError(504, "timeout", message) from None
        finally:
            if not goes_on:
                self._leave(call)

    async def _served(self, call: Call, chat: Chat) -> CallAnswer:
        trouble = ""
        not_at: frozenset[str] = frozenset()
        for _ in range(ATTEMPTS):
            start = await self._turn(call)
            name = start.instance.name
            try:
                return await self._ask(start, chat)
            except BackendError as error:
                trouble = str(error)
                if error.said_so:
                    self.servers.doubt(name, trouble)
                    not_at |= {name}
                else:
                    self.servers.failed(name, trouble, error.pause_s)
                self.queue.again(call, _now_ns(), not_at)
                if not_at and not self.servers.others(chat.model, not_at):
                    break
        raise RefusedError(502, "server_failed", f"no server answers this call: {trouble}")

    async def _turn(self, call: Call) -> StartedCall:
        turn: asyncio.Future[StartedCall] = asyncio.get_running_loop().create_future()
        self._turns[call.number] = turn
        self._pump()
        try:
            return await turn
        finally:
            self._turns.pop(call.number, None)

    def _pump(self) -> None:
        """Gives servers what they have places for. Called whenever that may have changed."""
        now_ns = _now_ns()
        for start in self.queue.start(now_ns):
            turn = self._turns.get(start.call.number)
            if turn is None or turn.done():  # it is being given up: `_leave` frees the place
                continue
            self.decisions.append(DispatchedCall(start, now_ns))
            turn.set_result(start)
        for call in self.queue.waiting:
            turn = self._turns.get(call.number)
            if turn is not None and not turn.done() and (no := self._refusal(call.model)):
                turn.set_exception(no)

    def _leave(self, call: Call) -> None:
        """The call is over, however it ended; if it still runs, nobody waits for it any more."""
        self._hung(call)
        self._end(call)

    def _end(self, call: Call) -> None:
        self.queue.gone(call, _now_ns())
        self._pump()

    def _hung(self, call: Call) -> str:
        """What is wrong with the server that runs a call which ends now without an answer; "" if
        none does, or not for long."""
        found = self.queue.running_at(call)
        if found is None:
            return ""
        instance, run = found
        took_s = (_now_ns() - run.began_ns) / 1e9
        usual_s = max(HANGS_AFTER_S, HANGS_AFTER_TIMES * run.expected_ns / 1e9)
        if took_s < min(usual_s, HANGS_AFTER_SHARE * self._timeout_s):
            return ""  # most of its time was spent in the queue
        trouble = f"{instance.name} has not answered for {took_s:.1f} s"
        self.queue.gone(call, _now_ns())
        self.servers.failed(instance.name, trouble)
        return trouble

    async def _ask(self, start: StartedCall, chat: Chat) -> CallAnswer:
        """Raises BackendError where another server may do better."""
        name = start.instance.name
        async with AsyncExitStack() as stack:
            reply = await stack.enter_async_context(self.servers.by_name[name].backend.ask(chat))
            kind = reply.headers.get("content-type", JSON)
            kind = kind if kind.isascii() else JSON
            if reply.status == 200 and chat.stream and not kind.startswith(JSON):
                kept = stack.pop_all()

                async def close() -> None:
                    self._end(start.call)  # whoever has begun to answer does not hang
                    await kept.aclose()

                return CallAnswer(200, kind, self._streamed(start, chat, reply), start, close)
            body = await whole(reply)
            if reply.status in (429, 503):
                pause_s = _retry_after_s(reply) or PAUSE_WHEN_FULL_S
                raise BackendError(f"{name} is full: {_line(body)}", pause_s)
            if reply.status >= 500:
                raise BackendError(f"{name} answered {reply.status}: {_line(body)}", said_so=True)
            if reply.status == 200:
                said = completion(body)
                self.servers.answered(name, chat.model, said)
                self.queue.answered(start.call, _now_ns(), said.completion_tokens)
            return CallAnswer(reply.status, kind, body, start, _nothing_to_close)

    async def _streamed(self, start: StartedCall, chat: Chat, reply: Reply) -> AsyncIterator[bytes]:
        """The pieces as they come; an event with the error where the server breaks off."""
        reader = EventReader()
        ends_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            while True:
                async with asyncio.timeout_at(ends_s):  # the server's time, not its client's
                    piece = await anext(reply.pieces, None)
                if piece is None:
                    break
                reader.read(piece)
                yield piece
            if not reader.done:
                raise BackendError(f"{start.instance.name} broke off in mid-stream")
            self.servers.answered(start.instance.name, chat.model, reader.said)
            self.queue.answered(start.call, _now_ns(), reader.said.completion_tokens)
        except (BackendError, TimeoutError) as error:
            trouble = str(error) or f"no end in {self._timeout_s:g} s"
            self.refused["broke_off"] += 1
            self.servers.failed(start.instance.name, trouble)
            yield error_event(trouble, "server_failed")

    def _refusal(self, model: str) -> RefusedError | None:
        """For a call of a model that nobody answers now."""
        lacks = self.servers.lacks(model)
        if not lacks:
            return None
        if self.servers.might_have(model):
            return RefusedError(503, "no_server", lacks, 1.0)
        return RefusedError(404, "unknown_model", lacks)

    def _held(self) -> str:
        troubles = [one.trouble for one in self.servers.by_name.values() if one.trouble]
        return "; ".join([self.queue.held or "it was not its turn", *troubles])


async def _nothing_to_close() -> None:
    """Of an answer that is all there."""


def _retry_after_s(reply: Reply) -> float:
    """0 where it does not say, or names a date."""
    try:
        return max(0.0, float(reply.headers.get("retry-after", "")))
    except ValueError:
        return 0.0


def _line(body: bytes) -> str:
    return " ".join(body[:300].decode(errors="replace").split()) or "nothing"


def _now_ns() -> int:
    return time.monotonic_ns()
