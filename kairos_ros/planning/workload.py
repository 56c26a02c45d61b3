"""What a plan is made for: robots by class, what they ask of which model, and the GPUs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.core.pipeline import PERIODIC, Component

Execution = Literal["overlapped", "synchronous"]
Objective = Literal["weighted", "fair", "fewest"]
Use = tuple[str, Component]
"""A model and what it is asked as."""
GOAL = (Component.SYSTEM1, Component.SYSTEM2)
"""They set the action rate."""
OBLIGATIONS = tuple(component for component in Component if component in PERIODIC)
"""They run at rates of their own, and faster is worth nothing."""


@dataclass(frozen=True, slots=True)
class Need:
    """What every robot of a class asks of one component."""

    model: str
    slo_s: float
    hz: float = 0.0
    """Of safety and monitor; the others follow from the action rate."""


@dataclass(frozen=True, slots=True)
class RobotClass:
    """Robots that do the same task. Raises ConfigError for numbers that make no sense."""

    name: str
    robots: tuple[str, ...]
    action_s: float
    """Execution that follows each System 1 prediction: t_act."""
    needs: Mapping[Component, Need]
    system2_ratio: int = 1
    """System 1 predictions per call of System 2: H."""
    value: float = 1.0
    """v_c: what one action is worth."""
    floor_hz: float = 0.0
    """F_c: actions per second that all robots of the class together must get."""

    def __post_init__(self) -> None:
        if Component.SYSTEM1 not in self.needs or not self.robots:
            raise ConfigError(f"class {self.name!r} needs robots and a system1")
        numbers = (self.action_s, self.value, self.system2_ratio)
        if not all(math.isfinite(n) and n > 0 for n in numbers) or not self.floor_hz >= 0:
            raise ConfigError(
                f"class {self.name!r}: action_s, value and system2_ratio must be > 0 and floor_hz "
                f">= 0, not {numbers} and {self.floor_hz}"
            )

    @property
    def count(self) -> int:
        return len(self.robots)

    @property
    def floor_per_robot_hz(self) -> float:
        return self.floor_hz / self.count


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs of one kind, each for one model."""

    gpus: int
    device: str
    memory_mib: float = math.inf
    standby: int = 0
    """Further ones, which have a model loaded and serve nobody until another one dies."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Name and GPUs of each host, in the order in which GPUs are counted; empty: there is one."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to plan."""

    execution: Execution = "overlapped"
    objective: Objective = "weighted"
    network_s: float = 0.005
    """Round trip between robot and server, part of every latency."""
    evaluations: int = 3000
    """Rate vectors that the search over several classes tries at most."""


@dataclass(frozen=True, slots=True)
class Workload:
    """All that a plan depends on."""

    classes: tuple[RobotClass, ...]
    profiles: Mapping[Use, LoadProfile]

    def __post_init__(self) -> None:
        if not self.classes:
            raise ConfigError("there are no robots to plan for")
        for one in self.classes:
            for component, need in one.needs.items():
                if (need.model, component) not in self.profiles:
                    raise ConfigError(f"no profile of model {need.model!r} as {component}")

    def with_robots(self, total: int) -> "Workload":
        """The same classes with so many robots in all, in the same proportions. Raises ConfigError
        for fewer than classes."""
        counts = scaled([one.count for one in self.classes], total)
        classes = (
            replace(one, robots=tuple(f"{one.name}_{i}" for i in range(1, count + 1)))
            for one, count in zip(self.classes, counts, strict=True)
        )
        return replace(self, classes=tuple(classes))


def scaled(counts: Sequence[int], total: int) -> list[int]:
    """So many in all, split as `counts` are, at least one each. Raises ConfigError for fewer."""
    if total < len(counts):
        raise ConfigError(f"{total} robots are fewer than the {len(counts)} tasks of the file")
    exact = [count * total / sum(counts) for count in counts]
    found = [max(1, math.floor(share)) for share in exact]
    while sum(found) != total:
        short = sum(found) < total
        i = max(
            range(len(found)),
            key=lambda i: exact[i] - found[i] if short else (found[i] > 1, found[i] - exact[i]),
        )
        found[i] += 1 if short else -1
    return found
