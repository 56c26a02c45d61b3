"""What the programs that run one planned fleet on several hosts tell each other."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import MALFORMED, printable

SILENT_S = 6.0
"""A host that was not heard for so long counts as gone; it tells its status once a second."""
TEXT = 300
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Of the program that runs one host's part of the fleet."""

    host: str
    session: str
    """Of the program; the one that was started later has the greater one."""
    plan: str
    """Identity of the plan that this host has all processes of."""
    dead: Mapping[str, str] = field(default_factory=dict)
    """Its processes that have ended -> how."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Those of them that have ended again and again."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """How often each has ended so far, also of those that run again."""
    told: str = ""
    """Which plan it was told last, as `digest` of its text."""
    problem: str = ""
    """Why it does not follow that one; empty: it does."""

    @property
    def text(self) -> str:
        """JSON, as `read_host_status` takes it."""
        return json.dumps(asdict(self))


def digest(text: str) -> str:
    """What tells a text from all others."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def read_host_status(text: str) -> HostStatus:
    """Of `HostStatus.text`. Raises WireError for anything else."""
    try:
        data = json.loads(text)
        told = {
            name: printable(str(data[name]), TEXT) for name in ("host", "session", "plan", "told")
        }
        return HostStatus(
            **told,
            dead=_reasons(data["dead"]),
            failed=_reasons(data["failed"]),
            ended={printable(str(k), TEXT): int(n) for k, n in data["ended"].items()},
            problem=printable(str(data["problem"]), TEXT),
        )
    except MALFORMED as error:
        raise WireError(f"this is no status of a host: {type(error).__name__}") from None


def _reasons(told: Mapping[str, str]) -> dict[str, str]:
    return {printable(str(key), TEXT): printable(str(why), TEXT) for key, why in told.items()}
