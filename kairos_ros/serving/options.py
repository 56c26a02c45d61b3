"""How the dispatcher serves."""

from dataclasses import dataclass
from typing import Literal

from kairos_ros.core.calibration import Calibrated, HorizonCalibration
from kairos_ros.core.decision import SchedulingPolicy
from kairos_ros.core.horizon import HorizonPolicy, parse_horizon

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Raises ConfigError where a policy is named wrongly."""

    scheduling: SchedulingPolicy
    horizon: str
    """Default horizon policy."""
    stale_after_ns: int = 50_000_000
    """An observation older than this at its dispatch is fetched again; 0: never."""
    default_deadline_ns: int = 10 * SECOND_NS
    max_queue: int = 1000
    max_bytes: int = 8_000_000
    batch_cap: int = 1_000_000
    """Largest batch, besides the profile's saturation and the engine's own limit."""
    comparison: Literal["completion", "printed"] = "completion"
    """How edge and cloud are compared (`Capacity.comparison`)."""
    hedge_budget: float = 0.0
    """Copies per request that may be sent to a second tier where the answer may be late, 0..1."""
    calibration: HorizonCalibration | None = None
    """What the horizon policy `calibrated` stands for; None: it is refused."""

    def __post_init__(self) -> None:
        self.parse_horizon(self.horizon)

    def parse_horizon(self, text: str) -> HorizonPolicy:
        """The policy that `text` names at this server. Raises ConfigError."""
        return parse_horizon(text, Calibrated(self.calibration) if self.calibration else None)
