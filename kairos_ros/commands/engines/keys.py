"""`kairos keys`: who may use a network link, and whom to trust on it."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.key_file import MAX_FILE_BYTES, Role, parse_public, public_text, read_text
from kairos_ros.transport.key_folder import KeyFolder, default_folder

Folder = Annotated[
    Path | None,
    typer.Option("--keys", help="Folder of keys; $KAIROS_KEYS, else ~/.config/kairos/keys."),
]
Name = Annotated[str, typer.Argument(help="Name of the key: letters, digits, '-' and '_'.")]


def new_command(
    name: Name,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="For the side that listens; without it, for the side that connects."
        ),
    ] = False,
    keys: Folder = None,
) -> None:
    """Make a key of this host. One per site and robot room, so that each can be revoked alone."""
    pair = _folder(keys).new(name, Role.SERVER if server else Role.CLIENT)
    print(f"made {pair.key.role} key {name} {pair.key.fingerprint} in {_folder(keys).path}")
    print(f"now `kairos keys export {name} --out {name}.key` and import that on the other side")


def list_command(keys: Folder = None) -> None:
    """List keys of this host, who is trusted, and who no longer is."""
    folder = _folder(keys)
    table = Table("name", "role", "fingerprint", "made", "is", title=str(folder.path))
    rows = [(pair.key, "own") for pair in folder.own_keys()]
    rows += [(key, "may connect here") for key in folder.trusted(Role.CLIENT)]
    rows += [(key, "trusted to dial") for key in folder.trusted(Role.SERVER)]
    rows += [(key, "revoked") for key in folder.revoked_keys()]
    for key, state in rows:
        table.add_row(key.name, key.role, key.fingerprint, key.created, state)
    Console().print(table)


def export_command(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="File to write; without it, print.")] = None,
    keys: Folder = None,
) -> None:
    """Write the public half of a key of this host: a small text file to copy."""
    text = public_text(_folder(keys).public(name))
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    print(f"wrote {out}; on the other side run `kairos keys import {out.name}`")


def import_command(
    file: Annotated[
        Path, typer.Argument(help="File that `kairos keys export` wrote; - reads stdin.")
    ],
    keys: Folder = None,
) -> None:
    """Let a client in, or trust a server. Compare the fingerprint with the other side's."""
    text = sys.stdin.read(MAX_FILE_BYTES) if str(file) == "-" else read_text(file)
    key = parse_public(text, "standard input" if str(file) == "-" else str(file))
    added = _folder(keys).trust(key)
    means = "may connect to this host" if key.role is Role.CLIENT else "is trusted as a server"
    print(f"{key.role} {key.name} {key.fingerprint} {means}" + ("" if added else " already"))


def revoke_command(name: Name, keys: Folder = None) -> None:
    """Trust a client or server no more. Running workers cut its connection within a second."""
    for key in _folder(keys).revoke(name):
        print(f"revoked {key.role} {key.name} {key.fingerprint}")


def _folder(given: Path | None) -> KeyFolder:
    path = given or default_folder()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, not a folder of keys")
    return KeyFolder(path)
