"""One CURVE key as a small text file: its public half to copy, or both halves to keep.

The format is the one that ZeroMQ's own tools read (a ZPL certificate):

    metadata
        name = site_a
        role = client
        created = 2026-11-21
    curve
        public-key = "<40 characters of Z85>"
        secret-key = "<40 characters of Z85>"      (own keys only)
"""

import contextlib
import hashlib
import os
import re
import struct
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import zmq
from zmq.utils import z85

from kairos_ros.core.errors import ConfigError

MAX_FILE_BYTES = 4096
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Role(StrEnum):
    """Which side of a link a key is for: the one that dials, or the one that is dialled."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Who may come in, or whom to trust: not a secret."""

    name: str
    role: Role
    public: bytes
    """Z85, 40 characters."""
    created: str = ""

    @property
    def fingerprint(self) -> str:
        """12 hex digits of the SHA-256 of the 32 key bytes: what logs and tables show."""
        return fingerprint(z85.decode(self.public))


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key of this host."""

    key: PublicKey
    secret: bytes = field(repr=False)
    """Z85, 40 characters."""


def fingerprint(public: bytes) -> str:
    """The short name of a public key of 32 bytes."""
    return hashlib.sha256(public).hexdigest()[:12]


def new_pair(name: str, role: Role) -> KeyPair:
    """A fresh key pair. Raises ConfigError for a name that cannot be one."""
    public, secret = zmq.curve_keypair()
    return KeyPair(PublicKey(checked_name(name), role, public, time.strftime("%Y-%m-%d")), secret)


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"key name {name!r:.80}: use 1 to 64 letters, digits, '-' and '_', first a letter "
            "or digit; the name of the site is a good one"
        )
    return name


def public_text(key: PublicKey) -> str:
    """What is copied to the other side."""
    return (
        f"# kairos_ros public key of {key.role} {key.name}, fingerprint {key.fingerprint}.\n"
        "# Not a secret: copy it to the other side and run `kairos keys import FILE` there.\n"
        f"metadata\n    name = {key.name}\n    role = {key.role}\n    created = {key.created}\n"
        f'curve\n    public-key = "{key.public.decode()}"\n'
    )


def secret_text(pair: KeyPair) -> str:
    """What stays on this host."""
    body = "".join(public_text(pair.key).partition("metadata\n")[1:])
    return (
        f"# kairos_ros SECRET key of {pair.key.role} {pair.key.name}. It never leaves this host.\n"
        f'{body}    secret-key = "{pair.secret.decode()}"\n'
    )


def parse_public(text: str, where: str) -> PublicKey:
    """The public half in a key file. Raises ConfigError; also for a file with a secret in it."""
    values = _values(text, where)
    if "secret-key" in values:
        raise ConfigError(
            f"{where} holds a secret key, which must not be copied between hosts: on the host "
            "where it was made run `kairos keys export NAME` and copy what that writes"
        )
    return _public(values, where)


def parse_pair(text: str, where: str) -> KeyPair:
    """Both halves, which must belong together. Raises ConfigError."""
    values = _values(text, where)
    key = _public(values, where)
    secret = _z85(values, "secret-key", where)
    if zmq.curve_public(secret) != key.public:
        raise ConfigError(f"{where}: the secret key does not belong to the public key beside it")
    return KeyPair(key, secret)


def read_text(path: Path) -> str:
    """A key file's text. Raises ConfigError when it cannot be one."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"key file {path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is no key file: larger than {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no key file: not text") from error


def write_new(path: Path, text: str, mode: int) -> None:
    """Writes a file that did not exist, whole or not at all, never readable beyond `mode`.

    Raises FileExistsError; ConfigError where it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _values(text: str, where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.lstrip().startswith("#") or not equals:
            continue
        if name.strip() in values:
            raise ConfigError(f"{where} is no key file: {name.strip()!r:.40} is in it twice")
        values[name.strip()] = value.strip().strip("'\"")
    return values


def _public(values: dict[str, str], where: str) -> PublicKey:
    role = values.get("role", "")
    if role not in list(Role):
        raise ConfigError(f"{where} is no key file of kairos_ros: role {role!r:.40}")
    public = _z85(values, "public-key", where)
    return PublicKey(
        checked_name(values.get("name", "")), Role(role), public, values.get("created", "")[:40]
    )


def _z85(values: dict[str, str], name: str, where: str) -> bytes:
    value = values.get(name, "").encode()
    try:
        if len(value) == 40 and z85.encode(z85.decode(value)) == value:
            return value
    except (KeyError, struct.error) as error:
        raise ConfigError(f"{where}: {name} is not Z85: {error}") from error
    raise ConfigError(f"{where}: {name} is not a key of 40 Z85 characters")
