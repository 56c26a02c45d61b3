"""What differs between a fleet that runs and one that is planned, and so what has to be done; and
what it is told by."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kairos_ros.bringup.process_spec import ProcessSpec, plan_text, read_plan
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import COMMON
from kairos_ros.core.placement.served_plan import ServedPlan, read_served_plan

SHOWN = 8
"""Robots that are named in one line."""
PLAN = "plan"
STAGED = "staged_plan"
"""Parameters of the serving node: what it follows, and what it prepares for."""
LIVE = {"serving": (PLAN, "scheduling"), "judge": ("robots",)}
"""Parameters that can be set while a node runs."""


class Setting(Protocol):
    """Parameters on their way to a node."""

    def is_done(self) -> bool:
        """Raises KairosError where the node refuses them, UnansweredError where it says nothing."""
        ...


class State(Protocol):
    """The part of a fleet state that is looked at."""

    plan: str
    staged_plan: str
    plan_reason: str
    engines: Any
    robots: Any


class Client(Protocol):
    """The ROS side of a fleet (`nodes.clients.fleet_client.FleetClient`)."""

    def spin(self, for_s: float) -> None: ...

    @property
    def state(self) -> State | None: ...

    @property
    def states(self) -> Sequence[State]: ...

    def set(self, node: str, values: Mapping[str, Any]) -> Setting: ...


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A fleet that runs by a plan, or shall: its nodes, and what its serving node serves."""

    file: str
    """The fleet file that it was made from."""
    specs: tuple[ProcessSpec, ...]
    served: ServedPlan
    choices: Mapping[str, Any] = field(default_factory=dict)
    """How it was planned, as `bringup.planned.planner.PlanChoices.to_dict`."""
    guests: Mapping[str, str] = field(default_factory=dict)
    """Robot that has joined from elsewhere -> its task."""

    @property
    def nodes(self) -> dict[str, ProcessSpec]:
        """Name of the process -> node."""
        return {Fleet.key(spec): spec for spec in self.specs}

    @property
    def robots(self) -> frozenset[str]:
        """Names of its robots."""
        return frozenset(s.namespace for s in self.specs if s.executable == "robot_node")

    @property
    def standbys(self) -> list[str]:
        """Processes of the serving nodes that stand by and follow the plan."""
        nodes = self.nodes.items()
        return [key for key, spec in nodes if spec.parameters.get("standby_after_s")]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        specs = json.loads(plan_text(self.specs))
        return {
            "file": self.file,
            "specs": specs,
            "served": self.served.text,
            "choices": dict(self.choices),
            "guests": dict(self.guests),
        }


def planned_fleet(data: Mapping[str, Any]) -> PlannedFleet:
    """Of `PlannedFleet.to_dict`. Raises ConfigError for anything else."""
    try:
        specs = tuple(read_plan(data["specs"]))
        served = read_served_plan(data["served"])
        guests = {str(robot): str(task) for robot, task in data["guests"].items()}
        return PlannedFleet(str(data["file"]), specs, served, dict(data["choices"]), guests)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"this is no planned fleet: {error}") from None


@dataclass(frozen=True, slots=True)
class Change:
    """From one planned fleet to another. Names are keys of processes, or of engines."""

    start: tuple[str, ...]
    """Nodes."""
    stop: tuple[str, ...]
    restart: tuple[str, ...]
    """Nodes that run with other parameters, which are read at the start only."""
    tell: Mapping[str, Mapping[str, Any]]
    """Node -> parameters that it is given while it runs."""
    engines_start: tuple[str, ...]
    engines_stop: tuple[str, ...]
    lines: tuple[str, ...]
    """All of it, for people."""


def change(old: PlannedFleet, new: PlannedFleet) -> Change:
    """What has to be done so that `old` becomes `new`."""
    before, after = old.nodes, new.nodes
    start = tuple(key for key in after if key not in before)
    stop = tuple(key for key in before if key not in after)
    restart, tell = [], {}
    for key in after.keys() & before.keys():
        if before[key] != after[key]:
            live = live_parameters(before[key], after[key])
            if live is None:
                restart.append(key)
            else:
                tell[key] = live
    engines, lines = _engines(old.served, new.served)
    robots = [key for key in restart if after[key].executable == "robot_node"]
    others = [key for key in restart if key not in robots]
    lines += [_named(verb, keys) for verb, keys in (
        ("starts", start), ("stops", stop), ("restarts", sorted(others)),
        ("restarts (tasks end)", sorted(robots)),
    ) if keys]  # fmt: skip
    judged = [key for key in tell if PLAN not in tell[key]]
    lines += [_named("judge other robots from then on:", judged)] if judged else []
    return Change(start, stop, tuple(sorted(restart)), tell, *engines, tuple(lines))


def live_parameters(old: ProcessSpec, new: ProcessSpec) -> dict[str, Any] | None:
    """What to set at a running node; None: it has to be started again."""
    kind = "serving" if new.executable == "serving_node" else "judge"
    names = LIVE[kind] if new.namespace == COMMON else ()
    changed = {
        name
        for name in old.parameters.keys() | new.parameters.keys()
        if old.parameters.get(name) != new.parameters.get(name)
    }
    same = replace(old, parameters={}) == replace(new, parameters={})
    if not same or not changed <= set(names) or not changed <= new.parameters.keys():
        return None
    return {name: new.parameters[name] for name in changed}


def _engines(
    old: ServedPlan, new: ServedPlan
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    before, after = ({one.name: one for one in plan.engines} for plan in (old, new))
    options = {
        name: (before[name].device, before[name].endpoint, old.policies.get(one.policy))
        == (one.device, one.endpoint, new.policies.get(one.policy))
        for name, one in after.items()
        if name in before
    }
    start = [name for name in after if not options.get(name)]
    stop = [name for name in before if not options.get(name)]
    lines = []
    for name in list(start):
        gone = [n for n in stop if n not in after and before[n].policy == after[name].policy]
        if name not in before and gone:
            at = f" on {after[name].host}" if after[name].host else ""
            lines.append(f"engine {gone[0]} moves to {after[name].gpu}{at}")
            stop.remove(gone[0])
        else:
            again = " again, with other options" if name in before else ""
            at = f" on {after[name].host}" if after[name].host else ""
            lines.append(f"engine {name} starts{at}{again}, batches up to {after[name].batch}")
    lines += [f"engine {name} stops" for name in stop if name not in after]
    lines += [
        f"engine {name} forms batches up to {after[name].batch} instead of {before[name].batch}"
        for name, same in options.items()
        if same and before[name].batch != after[name].batch
    ]
    was, routes = old.routes, new.routes
    moved: dict[tuple[str, str], list[str]] = {}
    for robot in routes.keys() & was.keys():
        if routes[robot] != was[robot]:
            moved.setdefault((was[robot], routes[robot]), []).append(robot)
    lines += [
        f"{_names(sorted(robots))}: served by {to} instead of {of}"
        for (of, to), robots in sorted(moved.items())
    ]
    rates: dict[tuple[float, float], list[str]] = {}
    for robot in new.periods_s.keys() & old.periods_s.keys():
        if old.periods_s[robot] != new.periods_s[robot]:
            pair = old.periods_s[robot], new.periods_s[robot]
            rates.setdefault(pair, []).append(robot)
    lines += [
        f"{_names(sorted(robots))}: may ask {1 / now:.3g} times/s instead of {1 / then:.3g}"
        for (then, now), robots in sorted(rates.items())
    ]
    return (
        tuple(name for name in after if not options.get(name)),
        tuple(name for name in before if not options.get(name)),
    ), lines


def _named(verb: str, keys: Iterable[str]) -> str:
    return f"{verb} {_names(list(keys))}"


def _names(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
