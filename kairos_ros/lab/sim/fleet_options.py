"""The robots of a simulated fleet."""

from dataclasses import dataclass, field

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.sim.rules import Rules


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Number of robots, their rules and their links. Raises ConfigError for invalid numbers."""

    robots: int
    rules: Rules = field(default_factory=Rules)
    network_s: float = 0.005
    """Round trip between a robot and the serving node."""
    network_spread: float = 0.0
    """Standard deviation of the logarithm of each one-way delay, whose median is half of that."""
    open_s: float | None = None
    """Free robots take no task after this, running ones finish; None: until all tasks are done."""
    observation_bytes: int = 36_000
    """Of one request, where an engine's bandwidth counts; the default is three JPEG images."""
    history_bytes: int = 0
    """Of a stateful policy: sent to an engine in the cloud with a request of a task whose last
    round another engine answered."""

    def __post_init__(self) -> None:
        if self.robots < 1:
            raise ConfigError(f"a fleet has at least 1 robot, not {self.robots}")
        for name in ("network_s", "network_spread", "observation_bytes", "history_bytes"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be >= 0, not {getattr(self, name)}")
        if self.open_s is not None and not self.open_s > 0:
            raise ConfigError(f"open_s must be positive, not {self.open_s}")
