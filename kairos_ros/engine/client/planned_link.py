"""Keys of the links by which the hosts of a planned fleet reach each other's engines."""

from pathlib import Path

from kairos_ros.core.address import is_loopback, tcp_address
from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder, default_folder
from kairos_ros.transport.sockets import CurveClient


def dialling(endpoint: str, host: str, folder: str = "") -> CurveClient | Insecure:
    """Of a serving node that dials an engine. host: whose engine it is. folder: of keys; empty: the
    user's. Raises ConfigError for a key that is not there."""
    address, _ = tcp_address(endpoint)
    if is_loopback(address):
        return Insecure.LOOPBACK
    keys = _keys(folder)
    return CurveClient(keys.own(Role.CLIENT), keys.server(host))


def check_dialling(endpoint: str, host: str, *, here: bool) -> None:
    """Raises ConfigError as `dialling`, and where an engine that is here, too, would not let the
    serving node of this host in."""
    link, keys = dialling(endpoint, host), _keys("")
    if not here or not isinstance(link, CurveClient):
        return
    own = link.own.key
    if all(own.public != key.public for key in keys.trusted(Role.CLIENT)):
        raise ConfigError(
            f"the serving node of this host may not dial its engines: {keys.clients} lacks its key "
            f"{own.name}. Run `kairos keys export {own.name} --out FILE` and `kairos keys import "
            "FILE` here"
        )


def check_listening(name: str) -> None:
    """Raises ConfigError where this host has no server key of this name, or lets no client in."""
    keys = _keys("")
    keys.own(Role.SERVER, name)
    if not keys.trusted(Role.CLIENT):
        raise ConfigError(
            f"no serving node may dial the engines of this host: {keys.clients} has no key. On the "
            "host of the serving node run `kairos keys export NAME` of its client key, copy the "
            "file here, and run `kairos keys import FILE`"
        )


def _keys(folder: str) -> KeyFolder:
    return KeyFolder(Path(folder) if folder else default_folder())
