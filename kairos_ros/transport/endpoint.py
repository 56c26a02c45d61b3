"""Which endpoints an engine may be reached on, and what each must be secured with."""

from enum import Enum

from kairos_ros.core.address import is_loopback, tcp_address
from kairos_ros.core.errors import ConfigError

LOCAL = ("ipc://", "inproc://")


class Insecure(Enum):
    """Asking for a link without keys, which only one host's loopback may have."""

    LOOPBACK = "loopback"


def is_local(endpoint: str) -> bool:
    """Guarded by the file system (ipc://, in a folder of this user) or within the process."""
    return endpoint.startswith(LOCAL)


def check_endpoint(endpoint: str, security: object = None, *, dial: bool = False) -> None:
    """Raises ConfigError for an endpoint that is none, or one that `security` is not enough for.

    `security` is None, `Insecure.LOOPBACK`, or something with keys. dial: it is dialled, so it
    must say whom.
    """
    if is_local(endpoint) and (endpoint in LOCAL or "\0" in endpoint):
        raise ConfigError(f"engine endpoint {endpoint!r}: name a path, such as ipc:///tmp/engine")
    if endpoint.startswith("ipc://@"):
        raise ConfigError(
            f"engine endpoint {endpoint!r}: every user of this host can open an abstract socket; "
            "use ipc:///PATH in a folder of your own"
        )
    if is_local(endpoint):
        return
    host, _ = tcp_address(endpoint, listens=not dial)
    if security is None:
        local = (
            ", or allow it without them (insecure loopback), which lets every user of this host in"
            if is_loopback(host)
            else ""
        )
        raise ConfigError(
            f"engine endpoint {endpoint!r} can be reached over the network and has no keys: make "
            f"them with `kairos keys new NAME [--server]`{local}, or use ipc://PATH on one host"
        )
    if security is Insecure.LOOPBACK and not is_loopback(host):
        raise ConfigError(
            f"engine endpoint {endpoint!r}: without keys only a loopback address is served (such "
            "as tcp://127.0.0.1:5555), because everybody who reaches this one could use the GPU, "
            "read what cameras see, and tell robots how to move; use keys (`kairos keys new`)"
        )
