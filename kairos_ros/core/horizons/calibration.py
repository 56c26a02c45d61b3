"""Horizons that were calibrated for one policy: a plan of horizons per kind of task, as plain data.

How long a chunk is safe depends first on the task and on how far it has come, which no signal
inside a chunk tells. Episodes tell it: `kairos calibrate` measures a plan per task, and the static
horizon that suits each task best. Where a plan does not do, a critic tells it by the state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizons.critic import ByRisk, Critic
from kairos_ros.core.horizons.policies import (
    CALIBRATED,
    SLACK,
    TUNED,
    UNCALIBRATED,
    Floats,
    Horizon,
    HorizonContext,
    HorizonPolicy,
    parse_horizon,
)

FORMAT = 1
SLACK_LOSS = 0.02
"""Share of the tuning episodes that `static:slack` may lose to the best static horizon: one of 64.
"""


@dataclass(frozen=True, slots=True)
class HorizonPlan:
    """Horizons of a task's rounds, in actions. Raises ConfigError for one below 1, and for a lead
    below 0."""

    rounds: tuple[int, ...]
    """Horizons of rounds 1, 2, ..."""
    after: int
    """Of every later round. A task that needs more rounds than planned is in trouble, so this is
    the horizon that is safe throughout."""
    longest_lead: int | None = None
    """Actions: with a longer lead (`HorizonContext.lead`) it fails too often, as does the task's
    critic. None: no such lead is known."""

    def __post_init__(self) -> None:
        for h in (*self.rounds, self.after):
            _check_horizon(h)
        lead = self.longest_lead
        if lead is not None and (isinstance(lead, bool) or not isinstance(lead, int) or lead < 0):
            raise ConfigError(f"calibration: longest_lead is a number of actions, not {lead!r}")

    def horizon(self, round_: int) -> int:
        """Actions to execute in round `round_` of a task, counted from 1."""
        return self.rounds[round_ - 1] if 0 < round_ <= len(self.rounds) else self.after

    @property
    def longest(self) -> int:
        return max((*self.rounds, self.after))

    def __str__(self) -> str:
        return "-".join(map(str, self.rounds)) + (" then " if self.rounds else "") + str(self.after)


@dataclass(frozen=True, slots=True)
class StaticHorizons:
    """`static:tuned`: each task's largest static horizon at the highest accuracy (Dai et al. §5.1).

    Raises ConfigError for a horizon below 1, for a task with two or one without a name, and for
    counts of episodes that cannot be.
    """

    tasks: Mapping[tuple[str, ...], int]
    """Names of a task (its kind, its instruction) -> actions to execute in each of its rounds."""
    general: int
    """The same over all these tasks together, for tasks that are none of them."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """What it was measured with, for readers; JSON-ready."""

    def __post_init__(self) -> None:
        _check_names(self.tasks)
        _check_counts(self.counts, self.how.get("episodes"))
        for h in (*self.tasks.values(), self.general):
            _check_horizon(h)

    @property
    def counts(self) -> Mapping[str, Mapping[Any, int]]:
        """Task, or `all` -> horizon -> successful tuning episodes; empty where they are not kept,
        and for horizons from bags, of which each has its own number of tasks."""
        kept: Mapping[str, Mapping[Any, int]] = self.how.get("successes", {})
        return kept if "episodes" in self.how else {}

    def with_slack(self) -> "StaticHorizons | None":
        """The largest that lost no more than SLACK_LOSS of the tuning episodes to the best one;
        None where the counts of a task are not kept."""
        kept = self.counts
        if not all(names[0] in kept for names in self.tasks) or "all" not in kept:
            return None
        tasks = {names: _largest_within(kept[names[0]], self.how) for names in self.tasks}
        return StaticHorizons(tasks, _largest_within(kept["all"], self.how, len(tasks)))


@dataclass(frozen=True, slots=True)
class HorizonCalibration:
    """Plans for the tasks of one policy, and their tuned static horizons.

    Raises ConfigError for one longer than the chunk, a task with two, or one without a name.
    """

    policy_id: str
    chunk_size: int
    tasks: Mapping[tuple[str, ...], HorizonPlan]
    """Names of a task (its kind, its instruction) -> its plan."""
    unknown: HorizonPlan | None
    """For tasks that were not calibrated; None: they get the horizons of a policy that has no
    calibration."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """What it was measured with, for readers; JSON-ready."""
    static: StaticHorizons | None = None
    """None: static horizons were not tuned."""
    critics: Mapping[tuple[str, ...], Critic] = field(default_factory=dict)
    """Names of a task, as in `tasks` -> what decides after its plan's rounds; see `careful`."""

    def __post_init__(self) -> None:
        _check_names(self.tasks)
        if unplanned := next((names for names in self.critics if names not in self.tasks), None):
            raise ConfigError(f"calibration: a critic of {unplanned}, a task without a plan")
        longest = {names[0]: plan.longest for names, plan in self.tasks.items()}
        if self.unknown:
            longest["unknown tasks"] = self.unknown.longest
        if self.static:
            longest |= {f"static:tuned, {n[0]}": h for n, h in self.static.tasks.items()}
            longest["static:tuned, unknown tasks"] = self.static.general
            counts = self.static.counts.items()
            longest |= {f"the counts of {name}": max(map(int, of)) for name, of in counts}
        longest |= {f"the critic of {n[0]}": c.horizons[-1] for n, c in self.critics.items()}
        for name, h in longest.items():
            if h > self.chunk_size:
                raise ConfigError(
                    f"calibration: horizon {h} of {name} exceeds the chunk of "
                    f"{self.chunk_size} actions"
                )

    def policies(self) -> dict[str, HorizonPolicy]:
        """The horizon policies that it stands for, by name, for `parse_horizon`."""
        found: dict[str, HorizonPolicy] = {CALIBRATED: Calibrated(self)}
        if self.static:
            found[TUNED] = TunedStatic(self.static, self.chunk_size, "tuned")
            if longer := self.static.with_slack():
                why = f"at most {SLACK_LOSS:.0%} below the best"
                found[SLACK] = TunedStatic(longer, self.chunk_size, why)
        return found

    def careful(self, names: tuple[str, ...]) -> int:
        """Actions of a task where its critic cannot judge: its tuned static horizon, or the last of
        its plan where none was tuned."""
        static = self.static.tasks if self.static else {}
        return static.get(names, self.tasks[names].after)

    def require_policy(self, policy_id: str) -> None:
        """Raises ConfigError when this was calibrated for another policy."""
        if self.policy_id != policy_id:
            raise ConfigError(
                f"these horizons were calibrated for policy {self.policy_id!r}, but the engine runs"
                f" {policy_id!r}; run 'kairos calibrate' for that policy, or take the calibration "
                "out of its folder (horizon_calibration.json)"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back."""
        data: dict[str, Any] = {
            "format": FORMAT,
            "policy_id": self.policy_id,
            "chunk_size": self.chunk_size,
            "tasks": [{"names": list(names), **_plan(plan)} for names, plan in self.tasks.items()],
            "unknown": _plan(self.unknown) if self.unknown else None,
            "how": dict(self.how),
        }
        if self.static:
            data["static"] = {
                "tasks": [{"names": list(n), "horizon": h} for n, h in self.static.tasks.items()],
                "general": self.static.general,
                "how": dict(self.static.how),
            }
        if self.critics:
            data["critics"] = [{"names": list(n), **c.to_dict()} for n, c in self.critics.items()]
        return data

    @classmethod
    def from_dict(cls, data: Any) -> "HorizonCalibration":
        """Reads what `to_dict` wrote. Raises ConfigError that names what is wrong."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ConfigError(
                f"calibration: not a horizon calibration of format {FORMAT}; run 'kairos calibrate'"
            )
        try:
            return cls(
                policy_id=str(data["policy_id"]),
                chunk_size=int(data["chunk_size"]),
                tasks=_named(data["tasks"], _parse),
                unknown=None if data["unknown"] is None else _parse(data["unknown"]),
                how=dict(data.get("how", {})),
                static=_parse_static(data["static"]) if "static" in data else None,
                critics=_named(data.get("critics", ()), Critic.from_dict),
            )
        except KeyError as error:
            raise ConfigError(f"calibration: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"calibration: {error}") from None


class Calibrated:
    """Executes what the calibration plans for this task and round; where the task has a critic, it
    decides after the planned rounds. Tasks that the calibration does not know have its plan for
    these, or else the horizons of a policy without a calibration, as have tasks with a longer lead
    than their plan holds for. A HorizonPolicy.

    Raises PolicyError for chunks of another length than it was calibrated for.
    """

    def __init__(self, calibration: HorizonCalibration) -> None:
        self._chunk_size = calibration.chunk_size
        self._unknown, self._uncalibrated = calibration.unknown, parse_horizon(UNCALIBRATED)
        self._plans = {name: plan for names, plan in calibration.tasks.items() for name in names}
        self._critics = {
            name: ByRisk(critic, calibration.careful(names))
            for names, critic in calibration.critics.items()
            for name in names
        }

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        _check_chunk(CALIBRATED, chunk, self._chunk_size)
        critic = self._critics.get(context.task) or self._critics.get(context.instruction)
        plan = self._plans.get(context.task) or self._plans.get(context.instruction)
        if plan and plan.longest_lead is not None and context.lead > plan.longest_lead:
            limit = f"calibrated for a lead of up to {plan.longest_lead} actions"
            return self._without(updates, chunk, context, f", {limit}, here {context.lead}")
        planned = plan.rounds if plan else ()
        if critic and (not planned or context.round > len(planned)):
            return critic(updates, chunk, context)
        known = "" if plan else UNKNOWN
        plan = plan or self._unknown
        if plan is None:
            return self._without(updates, chunk, context, UNKNOWN)
        late = ", past its plan" if plan.rounds and context.round > len(plan.rounds) else ""
        which = f"for round {context.round}" if plan.rounds else f"as static {plan.after}"
        reason = f"calibrated {which}{known}{late}"
        return _executed(plan.horizon(context.round), self._chunk_size, reason)

    def _without(
        self, updates: Floats, chunk: Floats, context: HorizonContext, why: str
    ) -> Horizon:
        found = self._uncalibrated(updates, chunk, context)
        return replace(found, reason=f"{found.reason}{why}")


class TunedStatic:
    """Executes the task's tuned static horizon in every round. A HorizonPolicy; reads no updates.

    why: it is that horizon. Raises PolicyError for chunks of another length than it was tuned for.
    """

    def __init__(self, static: StaticHorizons, chunk_size: int, why: str) -> None:
        self._chunk_size, self._why = chunk_size, why
        self._general = static.general
        self._horizons = {name: h for names, h in static.tasks.items() for name in names}

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        _check_chunk(TUNED, chunk, self._chunk_size)
        h = self._horizons.get(context.task) or self._horizons.get(context.instruction)
        known = "" if h else UNKNOWN
        h = h or self._general
        return _executed(h, self._chunk_size, f"static {h}, {self._why}{known}")


def _largest_within(successes: Mapping[Any, int], how: Mapping[str, Any], tasks: int = 1) -> int:
    """successes: horizon -> successful episodes of so many tasks together."""
    least = max(successes.values()) - SLACK_LOSS * how["episodes"] * tasks
    return max(int(h) for h, ok in successes.items() if ok >= least)


UNKNOWN = ", a task that was not calibrated"


def _check_chunk(policy: str, chunk: Floats, chunk_size: int) -> None:
    if np.ndim(chunk) != 2 or len(chunk) != chunk_size:
        raise PolicyError(
            f"{policy}: made for chunks of {chunk_size} actions, not of shape "
            f"{np.shape(chunk)}; run 'kairos calibrate' for this policy"
        )


def _executed(length: int, chunk_size: int, reason: str) -> Horizon:
    confidence = np.zeros(chunk_size, np.float32)
    confidence[:length] = 1.0
    return Horizon(length, confidence, reason)


def _check_horizon(h: Any) -> None:
    if isinstance(h, bool) or not isinstance(h, int) or h < 1:
        raise ConfigError(f"calibration: a horizon is a whole number >= 1, not {h!r}")


def _check_counts(counts: Any, episodes: Any) -> None:
    """`StaticHorizons.counts`, which come from a file."""
    try:
        for of in counts.values():
            for h in of:
                _check_horizon(int(h))
            if not of or not all(isinstance(ok, int) and ok >= 0 for ok in of.values()):
                raise ValueError
        if counts and not (isinstance(episodes, int) and episodes >= 1):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            "calibration: successes of static horizons are counts of episodes per task and horizon,"
            " with the number of episodes; run 'kairos calibrate --static-only'"
        ) from None


def _check_names(tasks: Mapping[tuple[str, ...], Any]) -> None:
    if not all(tasks):
        raise ConfigError("calibration: a task without names")
    names = [name for task in tasks for name in task]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"calibration: {twice[0]!r} has two plans; keep one")


def _plan(plan: HorizonPlan) -> dict[str, Any]:
    row: dict[str, Any] = {"rounds": list(plan.rounds), "after": plan.after}
    return row if plan.longest_lead is None else row | {"longest_lead": plan.longest_lead}


def _parse(row: Mapping[str, Any]) -> HorizonPlan:
    rounds: Sequence[Any] = row["rounds"]
    return HorizonPlan(tuple(rounds), row["after"], row.get("longest_lead"))


def _parse_static(data: Mapping[str, Any]) -> StaticHorizons:
    tasks = _named(data["tasks"], lambda row: row["horizon"])
    return StaticHorizons(tasks, data["general"], dict(data.get("how", {})))


def _named[T](
    rows: Iterable[Mapping[str, Any]], parse: Callable[[Mapping[str, Any]], T]
) -> dict[tuple[str, ...], T]:
    found: dict[tuple[str, ...], T] = {}
    for row in rows:
        if isinstance(row["names"], str):
            raise ConfigError(f"calibration: names is a list, not {row['names']!r}")
        names = tuple(map(str, row["names"]))
        if names in found:
            raise ConfigError(f"calibration: {names} has two rows; keep one")
        found[names] = parse(row)
    return found
