"""The gateway over HTTP: as an OpenAI-compatible server, and its state for people who look."""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kairos_ros.core.calls.call import Caller, read_caller
from kairos_ros.core.errors import WireError
from kairos_ros.gateway.chat import LARGEST_REQUEST, Chat, error_body, read_chat
from kairos_ros.gateway.events import error_event
from kairos_ros.gateway.gateway import CallAnswer, Gateway, RefusedError
from kairos_ros.gateway.metrics import metrics
from kairos_ros.gateway.state import state
from kairos_ros.telemetry.exposition import CONTENT_TYPE

BODY_WITHIN_S = 10.0
"""A client that takes longer to send its request is refused."""
READ_WITHIN_S = 10.0
"""A client that does not read its stream for so long is left."""
MOST_HELD = 256 << 20
"""Bytes of requests that are read or wait; obligations are taken beyond it."""
AGAIN_AFTER_S = 1.0
READABLE = ("/health",)
"""Answered without a token."""


class Token:
    """Lets in who brings the token as `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in READABLE:
            return await self._app(scope, receive, send)
        given = Request(scope).headers.get("authorization", "").encode()
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        message = "the token is missing or wrong; send Authorization: Bearer TOKEN"
        return await JSONResponse(error_body(message, "token"), 401)(scope, receive, send)


def application(gateway: Gateway, token: str = "") -> Starlette:
    """token: asked of everybody; empty: of nobody."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with gateway:
            yield

    async def models(_request: Request) -> Response:
        served = [
            {"id": name, "object": "model", "created": 0, "owned_by": "kairos"}
            for name in gateway.servers.models
        ]
        return JSONResponse({"object": "list", "data": served})

    async def health(_request: Request) -> Response:
        up = any(one.up for one in gateway.servers.by_name.values())
        return JSONResponse({"up": up}, 200 if up else 503)

    async def status(_request: Request) -> Response:
        return JSONResponse(state(gateway), headers={"Cache-Control": "no-store"})

    async def scraped(_request: Request) -> Response:
        return Response(metrics(gateway), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", Completions(gateway), methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/state", status),
            Route("/metrics", scraped),
        ],
        middleware=[Middleware(Token, token=token)] if token else [],
        lifespan=lifespan,
    )


class Completions:
    """POST /v1/chat/completions. An answer ends for its server, too, when its client leaves."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

        self._held = 0
        """Bytes of requests that are read or not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        try:
            await self._call(body, scope, receive, send)
        finally:
            self._held -= len(body)

    async def _call(self, body: bytearray, scope: Scope, receive: Receive, send: Send) -> None:
        """body: the request is read into it, and is counted as held as long as it is there."""
        try:
            caller, slo_ns = read_caller(Request(scope).headers)
            async with asyncio.timeout(BODY_WITHIN_S):
                await self._read(body, receive, caller)
            chat = read_chat(bytes(body))
        except RefusedError as refused:
            self._gateway.refused[refused.code] += 1
            return await _refusal(refused)(scope, receive, send)
        except WireError as error:
            self._gateway.refused["bad_request"] += 1
            return await JSONResponse(error_body(str(error), "bad_request"), 400)(
                scope, receive, send
            )
        except TimeoutError:
            self._gateway.refused["slow_client"] += 1
            message = f"the request was not whole after {BODY_WITHIN_S:g} s"
            return await JSONResponse(error_body(message, "slow_client"), 408)(scope, receive, send)
        except _GoneError:
            self._gateway.refused["client_gone"] += 1
            return None
        if not caller.robot:  # whoever does not say who it is shares its host's places
            client = scope.get("client") or ("", 0)
            caller = replace(caller, robot=f"({client[0]})")
        begun = False

        async def said(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await _until_gone(
                receive, lambda: self._respond(chat, caller, slo_ns, said, scope, receive)
            )
        except asyncio.CancelledError:  # this program ends, and waits for the call no longer
            message = "the gateway ends; ask again when it is back"
            if begun:
                await send({"type": "http.response.body", "body": error_event(message, "ended")})
            else:
                await JSONResponse(error_body(message, "ended"), 503)(scope, receive, send)
        return None

    async def _read(self, body: bytearray, receive: Receive, caller: Caller) -> None:
        """Raises WireError for one that is too long, RefusedError where no more can be held,
        _GoneError."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            piece = message.get("body", b"")
            if len(body) + len(piece) > LARGEST_REQUEST:
                raise WireError(f"the request is longer than {LARGEST_REQUEST} bytes")
            if self._held + len(piece) > MOST_HELD and not caller.is_obligation:
                full = f"requests of {self._held >> 20} MiB are not answered yet"
                raise RefusedError(429, "too_many_bytes", full, AGAIN_AFTER_S)
            body += piece
            self._held += len(piece)
            more = message.get("more_body", False)

    async def _respond(
        self, chat: Chat, caller: Caller, slo_ns: int, send: Send, scope: Scope, receive: Receive
    ) -> None:
        try:
            answer = await self._gateway.answer(chat, caller, slo_ns)
        except RefusedError as refused:
            await _refusal(refused)(scope, receive, send)
            return
        start = answer.start
        headers = {
            "x-kairos-server": start.instance.name,
            "x-kairos-reason": start.reason.encode("ascii", "replace").decode(),
        }
        if isinstance(answer.body, bytes):
            await Response(answer.body, answer.status, headers, answer.content_type)(
                scope, receive, send
            )
        else:
            await self._stream(answer, headers, send)

    async def _stream(self, answer: CallAnswer, headers: dict[str, str], send: Send) -> None:
        assert not isinstance(answer.body, bytes)
        raw = [(b"content-type", answer.content_type.encode())]
        raw += [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            async for piece in answer.body:
                async with asyncio.timeout(READ_WITHIN_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            self._gateway.refused["slow_client"] += 1
        finally:
            await answer.close()


class _GoneError(Exception):
    """The client has left."""


def _refusal(refused: RefusedError) -> Response:
    after = {"Retry-After": f"{refused.retry_after_s:g}"} if refused.retry_after_s else {}
    return JSONResponse(error_body(str(refused), refused.code), refused.status, after)


async def _until_gone(receive: Receive, respond: Callable[[], Awaitable[None]]) -> None:
    """Responds; gives it up when the client leaves before the end."""

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    answering = asyncio.ensure_future(respond())
    leaving = asyncio.ensure_future(leaves())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (answering, leaving):
            task.cancel()
        outcomes = await asyncio.gather(answering, leaving, return_exceptions=True)
    failure = outcomes[0]
    if isinstance(failure, Exception) and not isinstance(failure, OSError):
        raise failure
