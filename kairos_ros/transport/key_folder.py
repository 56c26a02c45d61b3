"""The folder of keys of a host: its own ones, the clients it lets in, the servers it trusts.

~/.config/kairos/keys/        0700; KAIROS_KEYS names another place
    own/NAME.secret           0600; both halves of a key made here
    clients/NAME.key          public keys of clients that may connect
    servers/NAME.key          public keys of servers that this host dials
    revoked/ROLE-NAME-FINGERPRINT.key
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.key_file import (
    KeyPair,
    PublicKey,
    Role,
    checked_name,
    new_pair,
    parse_pair,
    parse_public,
    public_text,
    read_text,
    secret_text,
    write_new,
)

ENVIRONMENT = "KAIROS_KEYS"
SECRET_SUFFIX = ".secret"
PUBLIC_SUFFIX = ".key"


def default_folder() -> Path:
    """`KAIROS_KEYS`, or `~/.config/kairos/keys`."""
    given = os.environ.get(ENVIRONMENT, "")
    return Path(given).expanduser() if given else Path.home() / ".config" / "kairos" / "keys"


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """Reads and changes a folder of keys. Everything raises ConfigError that says what to do."""

    path: Path

    @property
    def clients(self) -> Path:
        """The allow-list of whoever binds: a key file for every client that may connect."""
        return self.path / "clients"

    @property
    def revoked(self) -> Path:
        return self.path / "revoked"

    def new(self, name: str, role: Role) -> KeyPair:
        """Makes a key of this host. Its secret half is never written anywhere else."""
        pair = new_pair(name, role)
        path = self._make("own") / f"{name}{SECRET_SUFFIX}"
        try:
            write_new(path, secret_text(pair), 0o600)
        except FileExistsError as error:
            raise ConfigError(
                f"there is a key {name!r} already, {path}; take another name, for example "
                f"{name}_2, and retire the old one when the peers know the new one"
            ) from error
        return pair

    def own(self, role: Role, name: str = "") -> KeyPair:
        """The key of this host for a role: the named one, or the only one."""
        chosen = [pair for pair in self.own_keys() if pair.key.role is role]
        named = [pair for pair in chosen if pair.key.name == name] if name else chosen
        if len(named) == 1:
            return named[0]
        have = ", ".join(pair.key.name for pair in chosen) or "none"
        server = " --server" if role is Role.SERVER else ""
        if name:
            raise ConfigError(
                f"no {role} key {name!r} in {self.path}; {role} keys here: {have}. Make it with "
                f"`kairos keys new {name}{server}`"
            )
        if chosen:
            raise ConfigError(f"which {role} key? {self.path} has {have}; name one")
        raise ConfigError(
            f"a network link needs keys, and no {role} key is in {self.path}; make one with "
            f"`kairos keys new NAME{server}`"
        )

    def own_keys(self) -> list[KeyPair]:
        """All keys of this host, by name."""
        self._check_private(self.path)
        paths = sorted((self.path / "own").glob(f"*{SECRET_SUFFIX}"))
        for path in paths:
            self._check_private(path)
        return [parse_pair(read_text(path), str(path)) for path in paths]

    def trusted(self, role: Role) -> list[PublicKey]:
        """Clients that may come in, or servers that are trusted, by name."""
        return [key for _, key in self._trusted(role)]

    def server(self, name: str = "") -> PublicKey:
        """The server to dial: the named one, or the only one."""
        known = self.trusted(Role.SERVER)
        named = [key for key in known if key.name == name] if name else known
        if len(named) == 1:
            return named[0]
        have = ", ".join(key.name for key in known) or "none"
        gone = [key.name for key in self.revoked_keys() if key.role is Role.SERVER]
        again = f"remove own/{name}.secret and run `kairos keys new {name} --server`"
        first = f"{again} (the old key was revoked), then " if name in gone else ""
        raise ConfigError(
            (f"no server {name!r} is known" if name else "which server is dialled?")
            + f"; known in {self.path}: {have}. On the server's host {first}run `kairos keys "
            f"export {name or 'NAME'}`, copy the file here, and run `kairos keys import FILE`"
        )

    def public(self, name: str) -> PublicKey:
        """The public half of a key made here, to be copied."""
        for pair in self.own_keys():
            if pair.key.name == name:
                return pair.key
        have = ", ".join(pair.key.name for pair in self.own_keys()) or "none"
        raise ConfigError(f"no key {name!r} was made here; keys of this host: {have}")

    def trust(self, key: PublicKey) -> bool:
        """Lets a client in, or trusts a server. False when that was so already."""
        if any(gone.public == key.public for gone in self.revoked_keys()):
            raise ConfigError(
                f"key {key.name} {key.fingerprint} was revoked here and does not come back; "
                "make a new one on its host"
            )
        for path, known in self._trusted(key.role):
            if known.public == key.public and known.name == key.name:
                return False
            if known.public == key.public or known.name == key.name:
                raise ConfigError(
                    f"{key.role} {key.name} {key.fingerprint}: {path} holds {known.name} "
                    f"{known.fingerprint}; revoke that one first, or make the new key under "
                    "another name"
                )
        self._write(self._make(f"{key.role}s") / f"{key.name}{PUBLIC_SUFFIX}", key)
        return True

    def revoke(self, name: str) -> list[PublicKey]:
        """Trusts nobody of that name any more; live connections end too (`ZapAuthenticator`)."""
        checked_name(name)
        gone = [
            (path, key) for role in Role for path, key in self._trusted(role) if key.name == name
        ]
        if not gone:
            if any(pair.key.name == name for pair in self.own_keys()):
                raise ConfigError(
                    f"{name} is a key of this host itself: run `kairos keys revoke {name}` on the "
                    f"hosts that trust it, then remove {self.path / 'own' / name}{SECRET_SUFFIX}"
                )
            known = ", ".join(key.name for role in Role for key in self.trusted(role)) or "nobody"
            raise ConfigError(f"nobody of the name {name!r} is trusted here; trusted: {known}")
        for path, key in gone:
            record = f"{key.role}-{key.name}-{key.fingerprint}{PUBLIC_SUFFIX}"
            try:
                path.replace(self._make("revoked") / record)
            except OSError as error:
                raise ConfigError(f"{path} cannot be moved: {error.strerror}") from error
        return [key for _, key in gone]

    def revoked_keys(self) -> list[PublicKey]:
        return [key for _, key in read_keys(self.revoked)]

    def _trusted(self, role: Role) -> Iterator[tuple[Path, PublicKey]]:
        for path, key in read_keys(self.path / f"{role}s"):
            if key.role is role:
                yield path, key

    def _write(self, path: Path, key: PublicKey) -> None:
        try:
            write_new(path, public_text(key), 0o600)
        except FileExistsError as error:
            raise ConfigError(f"{path} exists already and is no valid key; remove it") from error

    def _make(self, part: str) -> Path:
        folder = self.path / part
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_private(self.path)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made: {error.strerror}") from error
        return folder

    def _check_private(self, path: Path) -> None:
        """Others must not read a secret, nor put a key into the allow-list."""
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        if mode & 0o077:
            right = 0o700 if path.is_dir() else 0o600
            raise ConfigError(
                f"{path} can be used by others (mode {mode:04o}) and is refused; run "
                f"`chmod {right:o} {path}`, and make new keys if others may have read it"
            )


def read_keys(folder: Path) -> Iterator[tuple[Path, PublicKey]]:
    """Public keys in a folder, by file name. Files that are no keys are left out."""
    for path in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")):
        try:
            yield path, parse_public(read_text(path), str(path))
        except ConfigError:
            continue
