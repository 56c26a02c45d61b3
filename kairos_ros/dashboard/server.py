"""The pages over HTTP: read only, no external resources."""

import hmac
import time
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos_ros.dashboard.gateway_panel import GatewayPanel
from kairos_ros.dashboard.metrics import metrics
from kairos_ros.dashboard.page import fleet, page
from kairos_ros.dashboard.watch import Watch
from kairos_ros.telemetry.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from kairos_ros.tracing.fleet_traces import Traces  # of an extra

COOKIE = "kairos_dashboard"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; img-src 'self' blob: data:; connect-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Token:
    """Lets in who brings the token: a browser as `?token=` the first time and as a cookie from then
    on, a program as `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        answer: Response
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        brought = bearer if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        if self._is(brought):
            return await self._app(scope, receive, send)
        if self._is(request.query_params.get("token", "")):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        else:
            answer = PlainTextResponse("open the address that the dashboard printed", 403)
        return await answer(scope, receive, send)

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def application(
    watch: Watch,
    token: str,
    hosts: list[str],
    gateway: GatewayPanel | None = None,
    traces: "Traces | None" = None,
) -> Starlette:
    """token: asked of everybody; empty: of nobody. hosts: names that the server answers to.
    gateway: shown below the fleet. traces: told in the metrics.

    A page elsewhere that lets its own name point here (DNS rebinding) is refused by its name.
    """

    def deaf() -> Response | None:
        """What is answered once nothing is heard from the fleet any more."""
        if not watch.failure:
            return None
        text = f"The dashboard has lost ROS ({watch.failure}): start it again."
        return PlainTextResponse(text, 503, headers=HEADERS)

    async def start(request: Request) -> Response:
        return deaf() or HTMLResponse(page(), headers=HEADERS)

    async def changing(request: Request) -> Response:
        if (lost := deaf()) is not None:
            return lost
        now_s = time.monotonic()
        parts = watch.read(lambda view: fleet(view, watch.refused, now_s))
        if gateway is not None:
            parts += await gateway.html()
        return HTMLResponse(parts, headers=HEADERS)

    async def scraped(request: Request) -> Response:
        if (lost := deaf()) is not None:
            return lost
        now_s = time.monotonic()
        page = watch.read(lambda view: metrics(view, watch.refused, now_s, traces))
        return Response(page, media_type=CONTENT_TYPE, headers=HEADERS)

    async def camera(request: Request) -> Response:
        if (lost := deaf()) is not None:
            return lost
        try:
            picture = watch.picture(request.path_params["robot"], request.path_params["key"])
        except KeyError:
            return PlainTextResponse("no such camera", 404, headers=HEADERS)
        if not picture:
            return Response(status_code=204, headers=HEADERS)
        return Response(picture, media_type="image/jpeg", headers=HEADERS)

    return Starlette(
        routes=[
            Route("/", start),
            Route("/fleet", changing),
            Route("/metrics", scraped),
            Route("/camera/{robot:path}/{key}.jpg", camera),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            *([Middleware(Token, token=token)] if token else []),
        ],
    )
