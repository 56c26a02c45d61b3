"""How the dispatcher serves, and by which horizon policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kairos_ros.core.calibration import HorizonCalibration
from kairos_ros.core.decision import SchedulingPolicy
from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Refusal
from kairos_ros.core.horizon import HorizonPolicy, parse_horizon, require_steps
from kairos_ros.transport.messages import EngineDescription

SECOND_NS = 1_000_000_000
MOST_POLICIES = 1000
"""More different texts than this are made by nobody who means them; all are forgotten then."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Raises ConfigError where a policy is named wrongly."""

    scheduling: SchedulingPolicy
    horizon_policy: str
    """Of requests that name none."""
    stale_after_ns: int = 50_000_000
    """An observation older than this at its dispatch is fetched again; 0: never."""
    default_deadline_ns: int = 10 * SECOND_NS
    max_queue: int = 1000
    max_bytes: int = 8_000_000
    batch_cap: int = 1_000_000
    """Largest batch, besides the profile's saturation and the engine's own limit."""
    comparison: Literal["completion", "printed"] = "completion"
    """How edge and cloud are compared (`Capacity.comparison`)."""
    memory_budget_mib: int = 0
    """What the policies of this host may take together; 0: all are loaded all the time."""
    hedge_budget: float = 0.0
    """Copies per request that may be sent to a second tier where the answer may be late, 0..1."""
    calibration: HorizonCalibration | None = None
    """What `calibrated` and `static:tuned` stand for; None: they are refused."""
    policies: tuple[str, ...] = ("",)
    """Names of the policies that are served, that of requests which name none first; the one
    policy of a server that serves no other has none."""
    calibrations: Mapping[str, HorizonCalibration] = field(default_factory=dict)
    """By name, in the place of `calibration` where there are several policies."""

    def __post_init__(self) -> None:
        for policy in self.policies:
            self.parse_horizon(self.horizon_policy, policy)

    def parse_horizon(self, text: str, policy: str = "") -> HorizonPolicy:
        """The horizon policy that `text` names at this server, for chunks of the policy of that
        name. Raises ConfigError."""
        calibration = self._calibration_of(policy)
        return parse_horizon(text, calibration.policies() if calibration else None)

    def check_policy(self, served: EngineDescription, name: str = "") -> None:
        """Raises ConfigError for a policy that the calibration is not of, or that the default
        horizon policy cannot judge."""
        if calibration := self._calibration_of(name):
            calibration.require_policy(served.policy_id)
        policy = self.parse_horizon(self.horizon_policy, name)
        require_steps(policy, self.horizon_policy, served.steps, served.policy_id)

    def _calibration_of(self, policy: str) -> HorizonCalibration | None:
        return self.calibrations.get(policy, self.calibration)


class HorizonPolicies:
    """The horizon policies that requests have named; builds each once."""

    def __init__(self, options: ServingOptions) -> None:
        self._options = options
        self._known: dict[tuple[str, str], HorizonPolicy] = {}

    def of(
        self, text: str, policy: str, served: EngineDescription | None
    ) -> HorizonPolicy | Refusal:
        """The horizon policy that `text` names, or why there is none, or none for the policy of
        that name, which is `served`."""
        try:
            if (policy, text) not in self._known:
                if len(self._known) >= MOST_POLICIES:
                    self._known.clear()
                self._known[policy, text] = self._options.parse_horizon(text, policy)
            if served is not None:
                require_steps(self._known[policy, text], text, served.steps, served.policy_id)
        except ConfigError as error:
            return Refusal(RefusalCode.BAD_HORIZON_POLICY, str(error))
        return self._known[policy, text]
