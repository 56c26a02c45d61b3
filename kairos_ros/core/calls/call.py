"""A call of a vision-language model, and who makes it (Chen et al. §4.1: system identifiers)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kairos_ros.core.errors import WireError
from kairos_ros.core.pipeline import Component

ID_BYTES = 128
"""Longest text of an identifier, UTF-8."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and for what. Empty: not said."""

    robot: str = ""
    component: str = ""
    """The agent of Chen et al.: calls of one are alike. "safety", "monitor", "system2", ..."""
    task: str = ""
    workflow: str = ""
    """Calls of one robot with the same id belong together, such as all for one task. Empty: the
    call belongs to nothing else."""
    upstream: str = ""
    """Component whose answer led to this call."""

    @property
    def is_obligation(self) -> bool:
        """People may be at risk until it is answered: it goes first, whatever the order."""
        return self.component == Component.SAFETY


NOBODY = Caller()


def caller_headers(caller: Caller, slo_ns: int) -> dict[str, str]:
    """The HTTP headers that say so; servers that do not know them ignore them.

    slo_ns: how long the answer may take from now on, said as 1 µs to an hour; 0: there is no
    objective.
    """
    said = {header(f.name): getattr(caller, f.name) for f in fields(caller)}
    said[SLO_HEADER] = f"{min(max(slo_ns, 1000) / 1e6, LONGEST_SLO_MS):.3f}" if slo_ns > 0 else ""
    return {name: _quoted(value) for name, value in said.items() if value}


def header(name: str) -> str:
    """HTTP header of a field of `Caller`."""
    return f"x-kairos-{name}"


SLO_HEADER = "x-kairos-slo-ms"
LONGEST_SLO_MS = 3_600_000.0


def read_caller(headers: Mapping[str, str]) -> tuple[Caller, int]:
    """The caller and its SLO in ns (0: none), from HTTP headers with lower-case names.

    Raises WireError for an identifier that is too long or has control characters, and for an SLO
    that is no number of milliseconds above 0 and at most an hour.
    """
    said = {f.name: _read(f.name, headers.get(header(f.name), "")) for f in fields(Caller)}
    slo = headers.get(SLO_HEADER, "").strip()
    if not slo:
        return Caller(**said), 0
    try:
        slo_ms = float(slo)
    except ValueError:
        slo_ms = -1.0
    if not 0 < slo_ms <= LONGEST_SLO_MS:  # also refuses NaN
        raise WireError(f"{SLO_HEADER} is {slo!r:.40}; say how many milliseconds, up to an hour")
    return Caller(**said), max(1, round(slo_ms * 1e6))


def _quoted(text: str) -> str:
    """HTTP headers are ASCII: other characters are percent-encoded, as in a URL."""
    safe = (chr(b) if 0x20 < b < 0x7F and b != 0x25 else f"%{b:02X}" for b in text.encode())
    return "".join(safe)


def _read(name: str, text: str) -> str:
    """Raises WireError."""
    raw = bytearray()
    rest = text.strip().encode()
    while rest:
        if rest[:1] == b"%":
            try:
                raw += bytes.fromhex((rest[1:3] or b"?").decode("ascii"))
            except ValueError:
                raise WireError(f"{header(name)} is {text!r:.60}: % begins no byte") from None
            rest = rest[3:]
        else:
            raw += rest[:1]
            rest = rest[1:]
    try:
        said = raw.decode()
    except UnicodeDecodeError:
        raise WireError(f"{header(name)} is {text!r:.60}, which is not UTF-8") from None
    if len(raw) > ID_BYTES or not said.isprintable():
        raise WireError(
            f"{header(name)} is {said!r:.60}; use at most {ID_BYTES} bytes of printable text"
        )
    return said


@dataclass(frozen=True, slots=True)
class Call:
    """A call that waits for a model or is with one."""

    number: int
    """Counts up with every call that arrives."""
    caller: Caller
    model: str
    arrived_ns: int
    due_ns: int
    """When the answer is due; `NEVER` without an SLO."""
    prompt_tokens: int
    """As far as is known before the server has counted: at least 1."""
    workflow_began_ns: int
    """When the first call of its workflow arrived."""


NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a call that a model answered."""

    call: Call
    began_ns: int
    """When it was given to the model."""
    ended_ns: int
    completion_tokens: int
    """0: the server did not say."""
