"""What the gateway of vision-language models does, as a part of the page."""

import asyncio
import os
from typing import Any

import httpx
import jinja2

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import MOST_PORT
from kairos_ros.dashboard.page import TEMPLATES

TOKEN = "KAIROS_GATEWAY_TOKEN"
PATIENCE_S = 1.0
MOST_ROWS = 20
WHY = {
    401: f"; start the dashboard with the gateway's token in ${TOKEN}",
    404: "; it is no `kairos gateway`",
}


class GatewayPanel:
    """Asks a gateway for its state whenever the page is drawn. Used from one event loop."""

    def __init__(self, url: str) -> None:
        """url: of the gateway, with or without /v1. Raises ConfigError."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL()
        known = parsed.scheme in ("http", "https") and parsed.host
        if not known or (parsed.port or 0) > MOST_PORT:
            raise ConfigError(f"--gateway {url!r} is no address; write http://HOST:PORT")
        self.url = url.rstrip("/").removesuffix("/v1")
        token = os.environ.get(TOKEN, "")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = httpx.create_ssl_context()  # reads all certificates of the host: once

    async def html(self) -> str:
        """Everything in it is escaped; a gateway that does not answer is said to be so."""
        try:
            async with (
                asyncio.timeout(PATIENCE_S),  # httpx's is of each read
                httpx.AsyncClient(
                    headers=self._headers, timeout=PATIENCE_S, verify=self._tls
                ) as client,
            ):
                response = await client.get(f"{self.url}/state")
            if response.status_code != 200:
                why = WHY.get(response.status_code, "")
                return _drawn(self.url, None, f"it answered {response.status_code}{why}")
            return _drawn(self.url, response.json(), "")
        except (
            httpx.HTTPError,
            TimeoutError,
            ValueError,
            TypeError,
            jinja2.TemplateError,
        ) as error:
            return _drawn(self.url, None, f"{type(error).__name__} {error!s:.200}".strip())


def _drawn(url: str, state: Any, trouble: str) -> str:
    template = TEMPLATES.get_template("gateway.html.jinja")
    return template.render(url=url, state=state, trouble=trouble, most=MOST_ROWS)
