"""What every server behind a gateway is, and one that is reached over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import AsyncContextManager, Protocol  # noqa: UP035

import httpx

from kairos_ros.core.errors import ConfigError, KairosError, WireError
from kairos_ros.core.wire_check import MOST_PORT
from kairos_ros.gateway.chat import LARGEST_ANSWER, Chat, Said, is_name, read_said

PROBE_S = 2.0
"""A server that does not list its models in this time is down."""
CONNECT_S = 2.0
LARGEST_LIST = 1 << 20


class BackendError(KairosError):
    """A server did not answer as it should; another one may. pause_s: how long it asked to be left
    alone; 0: it did not. said_so: it answered that it failed, which may be for this call alone."""

    def __init__(self, message: str, pause_s: float = 0.0, *, said_so: bool = False) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.said_so = said_so


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it comes."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    """Of the body. Raises BackendError where the server breaks off."""


class Backend(Protocol):
    """A server of one or several models. Used from one event loop."""

    name: str
    most_places: int | None
    """Calls that it can have at a time, where it cannot have more; None: as many as it is given."""

    async def models(self) -> frozenset[str]:
        """The models that it serves now. Raises BackendError: it is down."""
        ...

    def ask(self, chat: Chat) -> AsyncContextManager[Reply]:
        """Raises BackendError before anything was answered."""
        ...

    async def close(self) -> None: ...


class HttpBackend:
    """An OpenAI-compatible server: vLLM, SGLang, llama.cpp, a cloud."""

    most_places: int | None = None

    def __init__(self, url: str, key: str = "") -> None:
        """url: up to and with the version, such as http://gpu-1:8000/v1; `URL#MODEL` for a server
        that does not list its models. Raises ConfigError."""
        url, _, self._only = url.partition("#")
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL()
        known = parsed.scheme in ("http", "https") and parsed.host
        if not known or (parsed.port or 0) > MOST_PORT:
            raise ConfigError(f"server {url!r} is no address; write http://HOST:PORT/v1")
        self.name = f"{parsed.host}:{parsed.port or (443 if parsed.scheme == 'https' else 80)}"
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Whoever asks limits the whole; a limit per read would let a server drip for ever.
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None),
        )

    async def models(self) -> frozenset[str]:
        try:
            async with asyncio.timeout(PROBE_S):
                listed = await self._listed()
            if self._only:
                return frozenset({self._only})
            names = [one["id"] for one in json.loads(listed)["data"]]
        except TimeoutError:
            raise BackendError(f"{self._url}/models: no list within {PROBE_S:g} s") from None
        except (httpx.HTTPError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise BackendError(
                f"{self._url}/models: {type(error).__name__} {error!s:.200}".rstrip()
            ) from error
        return frozenset(name for name in names if is_name(name))

    async def _listed(self) -> bytes:
        """What GET /models answers; nothing where the model is known. Raises ValueError."""
        body = bytearray()
        async with self._client.stream("GET", f"{self._url}/models") as response:
            if self._only:
                return b""
            if response.status_code != 200:
                raise ValueError(f"{response.status_code} {response.reason_phrase}")
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > LARGEST_LIST:
                    raise ValueError("the list of models is longer than 1 MiB")
        return bytes(body)

    @asynccontextmanager
    async def ask(self, chat: Chat) -> AsyncIterator[Reply]:
        headers = {"content-type": "application/json"}
        request = self._client.build_request(
            "POST", f"{self._url}/chat/completions", content=chat.body, headers=headers
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _broken(self._url, error) from error
        try:
            yield Reply(response.status_code, response.headers, self._pieces(response))
        finally:
            await response.aclose()

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.HTTPError as error:
            raise _broken(self._url, error) from error

    async def close(self) -> None:
        await self._client.aclose()


async def whole(reply: Reply) -> bytes:
    """The body. Raises BackendError."""
    body = bytearray()
    async for piece in reply.pieces:
        body += piece
        if len(body) > LARGEST_ANSWER:
            raise BackendError(f"the answer is longer than {LARGEST_ANSWER} bytes")
    return bytes(body)


def completion(body: bytes) -> Said:
    """What an answer with status 200 says. Raises BackendError."""
    try:
        return read_said(body)
    except WireError as error:
        raise BackendError(str(error)) from error


def _broken(url: str, error: httpx.HTTPError) -> BackendError:
    return BackendError(f"{url}: {type(error).__name__} {error!s:.200}".rstrip())
