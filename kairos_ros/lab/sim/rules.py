"""How a virtual robot counts its actions and times its requests."""

from dataclasses import dataclass
from typing import Literal

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.horizons.policies import HorizonPolicy, parse_horizon

Accounting = Literal["replay", "observation"]

RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class Rules:
    """The same for all robots of a run; the defaults are the robot node's.

    Raises ConfigError for values that make no sense together.
    """

    accounting: Accounting = "observation"
    """replay: requests leave at the recorded action index and every round executes the recorded
    number of actions, whatever the delay (Dai et al. §5.1). observation: a horizon counts from the
    observation, actions executed until the chunk is there are lost from it, and only the length of
    the task is as recorded."""
    horizon: str = RECORDED
    """Horizon policy of the requests: `recorded`, the recorded length as static:H, or any spec; it
    is then judged by the server on the recorded chunks."""
    lead: int | None = None
    """Actions left in the buffer when the next request leaves, under observation. None: as the
    robot node, the expected latency plus the margin, at most half the horizon. Larger than any
    horizon: as soon as a chunk begins."""
    margin_ns: int = 30_000_000
    timeout_ns: int = 2_000_000_000
    """Silence after which a request is sent again; doubles while it lasts."""
    timeout_max_ns: int = 10_000_000_000
    initial_network_ns: int = 20_000_000
    """Round trip, until one was measured."""
    initial_engine_ns: int = 100_000_000
    calibration: HorizonCalibration | None = None
    """Of the traces' policy: what `calibrated` and `static:tuned` stand for; None: refused."""

    def __post_init__(self) -> None:
        if self.accounting not in ("replay", "observation"):
            raise ConfigError(f"accounting is replay or observation, not {self.accounting!r}")
        if self.horizon != RECORDED:
            self.policy()
        if self.lead is not None and self.lead < 0:
            raise ConfigError(f"lead must be a number of actions >= 0, not {self.lead}")
        for name in ("margin_ns", "initial_network_ns", "initial_engine_ns"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, not {getattr(self, name)}")
        if not 0 < self.timeout_ns <= self.timeout_max_ns:
            raise ConfigError(
                f"0 < timeout_ns <= timeout_max_ns must hold, not {self.timeout_ns} and "
                f"{self.timeout_max_ns}"
            )

    def policy(self) -> HorizonPolicy:
        """What `horizon` names. Raises ConfigError, also for `recorded`, which is none."""
        return parse_horizon(
            self.horizon, self.calibration.policies() if self.calibration else None
        )
