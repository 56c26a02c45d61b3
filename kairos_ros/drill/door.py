"""The door of a cloud worker, with a key that opens it."""

from dataclasses import dataclass

from kairos_ros.transport.key_file import KeyPair, PublicKey


@dataclass(frozen=True, slots=True)
class WorkerDoor:
    """Where a worker listens, and what is needed to be let in."""

    endpoint: str
    """tcp://HOST:PORT, the worker itself and not the far end of a link."""
    client: KeyPair
    server: PublicKey
    pid: int = 0
    """Of the worker; 0 where it is not a process of this drill."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), int(port)
