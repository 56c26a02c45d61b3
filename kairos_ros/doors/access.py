"""Who may connect, from where: loopback as it is, any other address with tokens and TLS only."""

import hmac
import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kairos_ros.core.address import is_loopback
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import is_robot_name
from kairos_ros.core.wire_check import printable
from kairos_ros.document.text_file import read_text

SHORTEST_TOKEN, LONGEST_TOKEN = 20, 200
"""Characters."""
MOST_FILE_BYTES = 1_000_000
HOW = "make one with: openssl rand -hex 24"
SCRAPE_TOKEN = "KAIROS_DOORS_TOKEN"
"""Environment variable with the token for /metrics."""
GIVE = (
    "LeRobot's policy takes it from KAIROS_TOKEN, openpi's client as api_key, GR00T's as api_token"
)


class AccessDeniedError(Exception):
    """A client may not connect; the text is for it."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is asked of clients."""

    tokens: Mapping[str, str]
    """Robot -> its token; empty: none is asked for."""
    tls: ssl.SSLContext | None
    scrape_token: str = ""
    """What whoever reads /metrics brings; empty: nobody may where robots need tokens, else
    everybody."""

    def robot_of(self, path: str, authorization: str) -> str:
        """Which robot a client is, by its token, or by its path where none is asked for; empty:
        it did not say. Raises AccessDeniedError.

        authorization: the header, `Api-Key TOKEN` as of openpi's client, or `Bearer TOKEN`.
        """
        named = path.partition("?")[0].strip("/")
        if named and not is_robot_name(named):
            raise AccessDeniedError(
                f"'{printable(named)}' is no name of a robot: letters, digits and _"
            )
        if not self.tokens:
            return named
        _, _, given = authorization.strip().partition(" ")
        if not given:
            raise AccessDeniedError(f"a token is needed here; {GIVE}")
        owners = [
            robot
            for robot, token in self.tokens.items()
            if hmac.compare_digest(token.encode(), given.strip().encode(errors="replace"))
        ]
        if not owners:
            raise AccessDeniedError(f"no robot has this token; {GIVE}")
        if named not in ("", owners[0]):
            raise AccessDeniedError(f"this token is not that of robot {named}")
        return owners[0]

    def check_scraper(self, authorization: str) -> None:
        """authorization: the header, `Bearer TOKEN`. Raises AccessDeniedError."""
        if not self.scrape_token and not self.tokens:
            return
        if not self.scrape_token:
            raise AccessDeniedError(f"/metrics is closed; start kairos doors with ${SCRAPE_TOKEN}")
        expected = f"Bearer {self.scrape_token}".encode()
        if not hmac.compare_digest(expected, authorization.encode(errors="replace")):
            raise AccessDeniedError(f"/metrics needs Authorization: Bearer ${SCRAPE_TOKEN}")


def access(host: str, tokens: Path | None, cert: Path | None, key: Path | None) -> Access:
    """Raises ConfigError for an address beyond this host without tokens and TLS, and for files that
    cannot be used."""
    if (cert is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both, or none")
    if not is_loopback(host):
        missing = [] if tokens else ["--tokens"]
        missing += [] if cert else ["--tls-cert and --tls-key"]
        if missing:
            raise ConfigError(
                f"{host} can be reached from other hosts, so it needs {' and '.join(missing)}; "
                "or listen on 127.0.0.1"
            )
    return Access(
        read_tokens(tokens) if tokens else {},
        server_tls(cert, key) if cert and key else None,
        os.environ.get(SCRAPE_TOKEN, ""),
    )


def local_access(host: str, tokens: Path | None, cert: Path | None, key: Path | None) -> Access:
    """Of clients whose wire knows no encryption. Raises ConfigError for an address beyond this
    host, for files that cannot be used, and for those of TLS."""
    if cert or key:
        raise ConfigError("GR00T's clients speak no TLS; leave out --tls-cert and --tls-key")
    if not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other hosts, and GR00T's clients encrypt nothing; listen "
            "on 127.0.0.1, and on each robot run: ssh -N -L 5555:127.0.0.1:PORT USER@THIS_HOST"
        )
    scrape_token = os.environ.get(SCRAPE_TOKEN, "")
    return Access(read_tokens(tokens) if tokens else {}, None, scrape_token)


def read_tokens(path: Path) -> dict[str, str]:
    """A file with a line `ROBOT TOKEN` for each robot; # begins a comment. Raises ConfigError."""
    text = read_text(path, MOST_FILE_BYTES)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} can be read by others; run: chmod 600 {path}")
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if len(words) != 2:
            raise ConfigError(f"{where}: a line is ROBOT TOKEN")
        robot, token = words
        if not is_robot_name(robot):
            raise ConfigError(f"{where}: '{printable(robot)}' is no name of a robot")
        if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not token.isascii():
            raise ConfigError(
                f"{where}: a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} ASCII characters; {HOW}"
            )
        if robot in tokens:
            raise ConfigError(f"{where}: robot {robot} is named twice")
        if token in tokens.values():
            raise ConfigError(f"{where}: another robot has this token, too; {HOW}")
        tokens[robot] = token
    if not tokens:
        raise ConfigError(f"{path} names no robot; write lines ROBOT TOKEN")
    return tokens


def server_tls(cert: Path, key: Path) -> ssl.SSLContext:
    """Raises ConfigError for files that are no certificate and its key."""
    for path in (cert, key):
        read_text(path, MOST_FILE_BYTES)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A session ticket comes right after the handshake. A client that sends in one thread and reads
    # in another, as openpi's does, can lose its first message while OpenSSL reads the ticket.
    context.num_tickets = 0
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"{cert} and {key} are no certificate with its key: {error}") from None
    return context
