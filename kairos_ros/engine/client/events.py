"""What an engine link reports, from its own thread. Imports no torch."""

from dataclasses import dataclass

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.transport.link_estimate import LinkState
from kairos_ros.transport.messages import EngineDescription, InferOutcome


@dataclass(frozen=True, slots=True)
class EngineLoading:
    """Still loading; sent when the stage changes and about once a second."""

    stage: str
    seconds: float
    """Since the worker was started."""


@dataclass(frozen=True, slots=True)
class EngineUnreachable:
    """No worker answers at the other end of a link; sent about once a second."""

    reason: str
    """Since when, and what is tried; the same as long as it lasts."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """Batches are welcome."""

    description: EngineDescription
    seconds: float
    """What loading took."""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """Outcomes in the order of the batch's requests."""

    batch: int
    outcomes: tuple[InferOutcome, ...]
    compute_s: float
    """In the engine, postprocessing included and decoding left out."""
    round_trip_s: float
    """Since it was sent: preparing, waiting in the worker, compute and transport."""
    prepare_s: float = 0.0
    """What checking and decoding it took, beside the batch before it if there was one."""


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """The batch was not inferred; the engine lives (or was not there when it was submitted)."""

    batch: int
    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True)
class EngineDown:
    """The worker is gone. A new one follows in `retry_in_s`, or none does where that is None."""

    reason: str
    lost: tuple[int, ...]
    """Batches that were submitted and never answered; queue their requests again."""
    retry_in_s: float | None
    crashed: bool = True
    """False where it was the link that was lost: that is not the fault of any request."""
    failures: int = 0
    """Workers in a row, this one included, that ended without one finished batch."""


@dataclass(frozen=True, slots=True)
class EngineDraining:
    """A remote worker was told to stop: it answers what it has, and takes no more."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """How the link to a remote engine is; some times a second."""

    state: LinkState


@dataclass(frozen=True, slots=True)
class LanguageChanged:
    """What questions the engine has."""

    load: LanguageLoad


EngineEvent = (
    EngineLoading
    | EngineUnreachable
    | EngineReady
    | BatchDone
    | BatchFailed
    | EngineDown
    | EngineDraining
    | LinkChanged
    | LanguageChanged
)
