"""How the dispatcher serves, and by which horizon policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Refusal
from kairos_ros.core.horizons.calibration import Calibrated, HorizonCalibration, TunedStatic
from kairos_ros.core.horizons.load_horizon import HorizonCurve, horizon_curves
from kairos_ros.core.horizons.policies import (
    AUTO,
    CALIBRATED,
    DEFAULT_SURPRISED_HORIZON,
    UNCALIBRATED,
    Explore,
    HorizonPolicy,
    parse_horizon,
    require_steps,
)
from kairos_ros.core.scheduling.decision import SchedulingPolicy
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
    rate_control: bool = False
    """Robots are told how often they may ask where the engines are short."""
    load_horizon: bool = False
    """Where the engines are short, more of each chunk is executed, as the calibration says that it
    is worth it."""
    surprised_horizon: int = DEFAULT_SURPRISED_HORIZON
    """Most actions of a chunk that a surprised arm asked for; 0: no limit."""
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
            if self.load_horizon:
                self.curves(policy)

    def horizon_of(
        self, text: str, policy: str = "", served: EngineDescription | None = None
    ) -> str:
        """The horizon policy that a request gets which names `text`, or names none, for chunks of
        the policy of that name, which is `served`. `auto` is what it stands for, and passes over a
        calibration that is of another policy."""
        text = text or self.horizon_policy
        if text != AUTO:
            return text
        calibration = self._calibration_of(policy)
        fits = served is None or not self.unfit_calibration(served, policy)
        return CALIBRATED if calibration is not None and fits else UNCALIBRATED

    def parse_horizon(self, text: str, policy: str = "") -> HorizonPolicy:
        """The horizon policy that `text` names at this server, for chunks of the policy of that
        name. Raises ConfigError."""
        calibration = self._calibration_of(policy)
        return parse_horizon(text, calibration.policies() if calibration else None)

    def curves(self, policy: str) -> dict[str, HorizonCurve]:
        """Success against horizon, by names of tasks of the policy of that name. Raises ConfigError
        without a calibration, and for one that does not hold its counts."""
        calibration = self._calibration_of(policy)
        if calibration is None:
            of = f" of policy {policy}" if policy else ""
            raise ConfigError(
                f"load_horizon needs a calibration{of}: success against horizon; make one with "
                "'kairos calibrate', name it with horizon_calibration, or leave load_horizon off"
            )
        return horizon_curves(calibration)

    def require_fit(
        self, horizon: HorizonPolicy, text: str, served: EngineDescription, name: str = ""
    ) -> None:
        """Raises ConfigError where `horizon`, which `text` names, cannot judge chunks of the policy
        of that name: for want of steps, or because it was calibrated for another one."""
        calibration = self._calibration_of(name)
        used = horizon.base if isinstance(horizon, Explore) else horizon
        if calibration is not None and isinstance(used, Calibrated | TunedStatic):
            calibration.require_policy(served.policy_id)
        require_steps(horizon, text, served.steps, served.policy_id)

    def check_policy(self, served: EngineDescription, name: str = "") -> None:
        """Raises ConfigError for a policy that the default horizon policy cannot judge, and for one
        that the calibration which `load_horizon` needs is not of."""
        text = self.horizon_of("", name, served)
        self.require_fit(self.parse_horizon(text, name), text, served, name)
        calibration = self._calibration_of(name)
        if self.load_horizon and calibration is not None:
            calibration.require_policy(served.policy_id)

    def unfit_calibration(self, served: EngineDescription, name: str = "") -> str:
        """What to say of a calibration that is of another policy than it lies beside; empty:
        nothing. Horizon policies that use it are refused."""
        calibration = self._calibration_of(name)
        if calibration is None:
            return ""
        try:
            calibration.require_policy(served.policy_id)
        except ConfigError as error:
            return str(error)
        return ""

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
                self._options.require_fit(self._known[policy, text], text, served, policy)
        except ConfigError as error:
            return Refusal(RefusalCode.BAD_HORIZON_POLICY, str(error))
        return self._known[policy, text]
