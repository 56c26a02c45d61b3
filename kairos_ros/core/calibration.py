"""Horizons that were calibrated for one policy: a plan of horizons per kind of task, as plain data.

How long a chunk is safe depends first on the task and on how far it has come, which no signal
inside a chunk tells. Episodes tell it: `kairos calibrate` measures a plan per task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizon import Floats, Horizon, HorizonContext

FORMAT = 1


@dataclass(frozen=True, slots=True)
class HorizonPlan:
    """Horizons of a task's rounds, in actions. Raises ConfigError for one below 1."""

    rounds: tuple[int, ...]
    """Horizons of rounds 1, 2, ..."""
    after: int
    """Of every later round. A task that needs more rounds than planned is in trouble, so this is
    the horizon that is safe throughout."""

    def __post_init__(self) -> None:
        for h in (*self.rounds, self.after):
            if isinstance(h, bool) or not isinstance(h, int) or h < 1:
                raise ConfigError(f"calibration: a horizon is a whole number >= 1, not {h!r}")

    def horizon(self, round_: int) -> int:
        """Actions to execute in round `round_` of a task, counted from 1."""
        return self.rounds[round_ - 1] if 0 < round_ <= len(self.rounds) else self.after

    @property
    def longest(self) -> int:
        return max((*self.rounds, self.after))

    def __str__(self) -> str:
        return "-".join(map(str, self.rounds)) + (" then " if self.rounds else "") + str(self.after)


@dataclass(frozen=True, slots=True)
class HorizonCalibration:
    """Plans for the tasks of one policy.

    Raises ConfigError for one longer than the chunk, a task with two, or one without a name.
    """

    policy_id: str
    chunk_size: int
    tasks: Mapping[tuple[str, ...], HorizonPlan]
    """Names of a task (its kind, its instruction) -> its plan."""
    unknown: HorizonPlan
    """For tasks that were not calibrated."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """What it was measured with, for readers; JSON-ready."""

    def __post_init__(self) -> None:
        if not all(self.tasks):
            raise ConfigError("calibration: a task without names")
        plans = {names[0]: plan for names, plan in self.tasks.items()}
        for name, plan in [*plans.items(), ("unknown tasks", self.unknown)]:
            if plan.longest > self.chunk_size:
                raise ConfigError(
                    f"calibration: horizon {plan.longest} of {name} exceeds the chunk of "
                    f"{self.chunk_size} actions"
                )
        names = [name for task in self.tasks for name in task]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"calibration: {twice[0]!r} has two plans; keep one")

    def require_policy(self, policy_id: str) -> None:
        """Raises ConfigError when this was calibrated for another policy."""
        if self.policy_id != policy_id:
            raise ConfigError(
                f"these horizons were calibrated for policy {self.policy_id!r}, but the engine runs"
                f" {policy_id!r}; run 'kairos calibrate' for that policy"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back."""
        return {
            "format": FORMAT,
            "policy_id": self.policy_id,
            "chunk_size": self.chunk_size,
            "tasks": [{"names": list(names), **_plan(plan)} for names, plan in self.tasks.items()],
            "unknown": _plan(self.unknown),
            "how": dict(self.how),
        }

    @classmethod
    def from_dict(cls, data: Any) -> "HorizonCalibration":
        """Reads what `to_dict` wrote. Raises ConfigError that names what is wrong."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ConfigError(
                f"calibration: not a horizon calibration of format {FORMAT}; run 'kairos calibrate'"
            )
        try:
            tasks = {tuple(map(str, row["names"])): _parse(row) for row in data["tasks"]}
            return cls(
                policy_id=str(data["policy_id"]),
                chunk_size=int(data["chunk_size"]),
                tasks=tasks,
                unknown=_parse(data["unknown"]),
                how=dict(data.get("how", {})),
            )
        except KeyError as error:
            raise ConfigError(f"calibration: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"calibration: {error}") from None


class Calibrated:
    """Executes what the calibration plans for this task and round. A HorizonPolicy.

    Raises PolicyError for chunks of another length than it was calibrated for.
    """

    def __init__(self, calibration: HorizonCalibration) -> None:
        self._chunk_size = calibration.chunk_size
        self._unknown = calibration.unknown
        self._plans = {name: plan for names, plan in calibration.tasks.items() for name in names}

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        if np.ndim(chunk) != 2 or len(chunk) != self._chunk_size:
            raise PolicyError(
                f"calibrated: made for chunks of {self._chunk_size} actions, not of shape "
                f"{np.shape(chunk)}; run 'kairos calibrate' for this policy"
            )
        plan = self._plans.get(context.task) or self._plans.get(context.instruction)
        known = "" if plan else ", a task that was not calibrated"
        plan = plan or self._unknown
        length = plan.horizon(context.round)
        confidence = np.zeros(self._chunk_size, np.float32)
        confidence[:length] = 1.0
        late = ", past its plan" if plan.rounds and context.round > len(plan.rounds) else ""
        return Horizon(length, confidence, f"calibrated for round {context.round}{known}{late}")


def _plan(plan: HorizonPlan) -> dict[str, Any]:
    return {"rounds": list(plan.rounds), "after": plan.after}


def _parse(row: Mapping[str, Any]) -> HorizonPlan:
    rounds: Sequence[Any] = row["rounds"]
    return HorizonPlan(tuple(rounds), row["after"])
