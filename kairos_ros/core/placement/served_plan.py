"""What a serving node is told to serve by a plan: engines on GPUs, who is routed where, and rates.

`kairos fleet` makes it of a fleet plan, and the serving node reads it from its parameter `plan`.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from kairos_ros.core.address import tcp_address
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import MALFORMED

FORMAT = 1
DEVICE = re.compile(r"cpu|cuda:\d+")
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of GPUs, policies and fleets."""
LARGEST_BATCH = 256
Option = str | bool | int


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """One System 1 model on one GPU, or in one CPU slot."""

    gpu: str
    device: str
    """cpu or cuda:N."""
    policy: str
    """Name of what it serves."""
    batch: int
    """Largest batch."""
    robots: tuple[str, ...]
    """That are routed here."""
    standby: bool = False
    """It is loaded, and serves nobody until another engine of its policy is down."""
    host: str = ""
    """Where it is, where the fleet has several hosts."""
    endpoint: str = ""
    """tcp://ADDRESS:PORT where a worker of another host serves it; empty: it is an engine of the
    serving node's own host."""

    @property
    def name(self) -> str:
        """Of the engine at the serving node."""
        return f"{self.gpu}/{self.policy}"


@dataclass(frozen=True)
class ServedPlan:
    """Raises ConfigError for what contradicts itself."""

    fleet: str
    """Name of the fleet, for people."""
    policies: Mapping[str, Mapping[str, Option]]
    """Name -> `policy`, the folder, hub id or emulated:..., and further options of its engines. The
    first one is that of robots which name none."""
    engines: tuple[PlannedEngine, ...]
    periods_s: Mapping[str, float]
    """Robot -> least time between two of its requests."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Robots that asked to join and do not fit, and why, for people."""
    forced: tuple[str, ...] = ()
    """Robots that were let in although they do not fit."""

    def __post_init__(self) -> None:
        for name in (self.fleet, *self.policies, *(one.gpu for one in self.engines)):
            if not PART.fullmatch(name):
                raise ConfigError(
                    f"plan: {name!r:.80} is no name; use 1 to 64 letters, digits, '.', '-' and "
                    "'_', first a letter or digit"
                )
        if not self.engines:
            raise ConfigError("plan: it has no engine")
        for name, options in self.policies.items():
            if not isinstance(options.get("policy"), str) or not options["policy"]:
                raise ConfigError(f"plan: policy {name!r} does not say where it is")
            if not any(one.policy == name and not one.standby for one in self.engines):
                raise ConfigError(f"plan: no engine serves policy {name!r}")
        gpus: set[str] = set()
        for one in self.engines:
            if one.gpu in gpus:
                raise ConfigError(f"plan: {one.gpu} is given to two engines")
            gpus.add(one.gpu)
            if one.policy not in self.policies:
                raise ConfigError(f"plan: {one.name} serves a policy that is not in the plan")
            if one.standby and one.robots:
                raise ConfigError(f"plan: {one.name} stands by, and robots are routed to it")
            if not DEVICE.fullmatch(one.device) or not 1 <= one.batch <= LARGEST_BATCH:
                raise ConfigError(
                    f"plan: {one.name} has device {one.device!r} and batches up to {one.batch}; a "
                    f"device is cpu or cuda:N, and a batch from 1 to {LARGEST_BATCH}"
                )
        endpoints = [one.endpoint for one in self.engines if one.endpoint]
        for endpoint in endpoints:
            tcp_address(endpoint)
        if len(set(endpoints)) < len(endpoints):
            raise ConfigError(f"plan: two engines are at one endpoint of {sorted(endpoints)}")
        routed = [robot for one in self.engines for robot in one.robots]
        if len(set(routed)) < len(routed):
            twice = next(robot for robot in routed if routed.count(robot) > 1)
            raise ConfigError(f"plan: robot {twice!r} is routed to two engines")
        if both := self.refused.keys() & set(routed):
            raise ConfigError(f"plan: robot {min(both)!r} is routed to an engine, and refused")
        for robot, period_s in self.periods_s.items():
            if not (math.isfinite(period_s) and 0 < period_s <= 3600):
                raise ConfigError(f"plan: robot {robot!r} cannot ask every {period_s} s")

    @cached_property
    def identity(self) -> str:
        """The fleet's name, and what tells this plan from all others of it."""
        return f"{self.fleet} {hashlib.sha256(self.text.encode()).hexdigest()[:8]}"

    @cached_property
    def text(self) -> str:
        """JSON, as `read_served_plan` takes it; the same for the same plan."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @property
    def routes(self) -> dict[str, str]:
        """Robot -> name of its engine."""
        return {robot: one.name for one in self.engines for robot in one.robots}


def read_served_plan(text: str) -> ServedPlan:
    """Of `ServedPlan.text`. Raises ConfigError for anything else."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data["format"] != FORMAT:
            raise ConfigError(f"plan: format {data['format']!r:.20} is not {FORMAT}")
        policies = {
            str(name): {str(option): _option(value) for option, value in options.items()}
            for name, options in data["policies"].items()
        }
        engines = tuple(
            PlannedEngine(
                str(one["gpu"]),
                str(one["device"]),
                str(one["policy"]),
                int(one["batch"]),
                tuple(str(robot) for robot in one["robots"]),
                one.get("standby") is True,
                str(one.get("host", "")),
                str(one.get("endpoint", "")),
            )
            for one in data["engines"]
        )
        periods = {str(robot): float(s) for robot, s in data["periods_s"].items()}
        refused = {str(robot): str(why) for robot, why in data.get("refused", {}).items()}
        forced = tuple(str(robot) for robot in data.get("forced", ()))
        return ServedPlan(str(data["fleet"]), policies, engines, periods, refused, forced)
    except ConfigError:
        raise
    except MALFORMED as error:
        raise ConfigError(
            f"plan: this is no plan of `kairos fleet`: {type(error).__name__} {error}"[:300]
        ) from None


def _option(value: object) -> Option:
    if not isinstance(value, str | bool | int):
        raise ConfigError(f"plan: {value!r:.80} is no option of an engine")
    return value
