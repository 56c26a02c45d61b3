"""What is answered over HTTP on a port that speaks ZeroMQ: how the process is, and its numbers."""

from collections.abc import Callable
from http import HTTPStatus

from kairos_ros.doors.access import Access, AccessDeniedError
from kairos_ros.telemetry.exposition import CONTENT_TYPE

BEGIN, END = b"GET /", b"\r\n\r\n"
"""Of a request's head. ZeroMQ begins with another byte."""
TEXT = "text/plain; charset=utf-8"


def answer(head: bytes, access: Access, metrics: Callable[[], str]) -> tuple[HTTPStatus, bytes]:
    """Status and response for a request of /healthz or /metrics; of anything else, that there is
    nothing.

    head: from BEGIN to END. metrics: the page that Prometheus scrapes.
    """
    line, *fields = head.decode("latin-1").split("\r\n")
    named = {name.strip().lower(): value for name, _, value in (f.partition(":") for f in fields)}
    match line.split(" ")[1].partition("?")[0]:
        case "/healthz":
            return _said(HTTPStatus.OK, "OK\n")
        case "/metrics":
            try:
                access.check_scraper(named.get("authorization", "").strip())
            except AccessDeniedError as error:
                return _said(HTTPStatus.UNAUTHORIZED, f"{error}\n")
            return _said(HTTPStatus.OK, metrics(), CONTENT_TYPE)
    text = "GR00T's clients are served here; over HTTP there are /healthz and /metrics\n"
    return _said(HTTPStatus.NOT_FOUND, text)


def _said(status: HTTPStatus, text: str, kind: str = TEXT) -> tuple[HTTPStatus, bytes]:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return status, head.encode() + body
