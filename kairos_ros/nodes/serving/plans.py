"""The plan that a serving node follows, and how it changes to another one while robots move.

New engines are loaded beside the old ones. Once all of them are up, robots are routed by the new
plan, and engines that it lacks finish their batches and end. Until then nothing changes, so that a
plan whose engines do not come up leaves the old one as it was.

Parameter `plan` has the node do all of this. Parameter `staged_plan` has it load the engines, and
wait for `plan` before it routes by them: several serving nodes change together or not at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rclpy.impl.rcutils_logger import RcutilsLogger

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan, read_served_plan
from kairos_ros.engine.client.remote_spec import RemoteSpec
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.nodes.serving.engines import ServingEngines
from kairos_ros.nodes.serving.parameters import engine_options, planned_remote, serving_options
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.options import ServingOptions

MOST_FAILURES = 2
"""A new engine whose workers ended so often in a row is not waited for any longer."""

STAGED = "staged_plan"

Key = tuple[str, str, EngineOptions, str]
"""GPU, policy, how it runs, and its endpoint on another host: engines that differ in any of these
are different ones."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    plan: ServedPlan
    engines: Mapping[Key, PlannedEngine]
    elsewhere: Mapping[str, RemoteSpec]
    """By endpoint."""
    options: ServingOptions


class Plans:
    """values: the node's parameters. use: takes the options of a plan that is applied."""

    def __init__(
        self,
        values: Mapping[str, Any],
        engines: ServingEngines,
        logger: RcutilsLogger,
        use: Callable[[ServingOptions], None],
    ) -> None:
        self._values, self._engines, self._logger, self._use = values, engines, logger, use
        self._applied: _Wanted | None = None
        self._staged: _Wanted | None = None
        self._held = False
        """The staged plan waits for parameter `plan`."""
        self._names: dict[Key, str] = {}
        """Engines by their names at the dispatcher."""
        self.reason = ""
        """For people: what the staged plan waits for, or why the last one was not applied; empty
        once the engines of one that waits for parameter `plan` are up."""

    @property
    def applied(self) -> ServedPlan | None:
        return self._applied.plan if self._applied else None

    @property
    def staged(self) -> ServedPlan | None:
        return self._staged.plan if self._staged else None

    @property
    def applied_text(self) -> str:
        """As parameter `plan`."""
        return self._applied.plan.text if self._applied else ""

    @property
    def text(self) -> str:
        """For people: by which plan robots are served; empty without one."""
        by = f"by {self._applied.plan.identity}" if self._applied else ""
        more = f", and not by {self._staged.plan.identity}" if self._staged else ""
        return by + more

    def start(self, dispatcher: Dispatcher) -> None:
        """At the start of the node: the engines of the plan, if there is one, begin to load.
        Raises ConfigError."""
        self._dispatcher, self._staged, self.reason = dispatcher, None, ""
        self._names.clear()
        self._applied = _wanted(self._values) if self._values["plan"] else None
        if self._applied:
            for key in self._applied.engines:
                self._add(key, self._applied)
            self._follow(self._applied)
            if self._values[STAGED]:
                self.stage(self._values)

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises ConfigError for a plan that this node cannot change to."""
        if not values["plan"] or self._applied is None:
            raise ConfigError(
                "a serving node that was started without a plan cannot get one, nor lose the one "
                "that it has; start the fleet with `kairos fleet up FILE --planned`"
            )
        new, old = _wanted(_goal(values)).plan, self._applied.plan
        for name in new.policies.keys() & old.policies.keys():
            if new.policies[name]["policy"] != old.policies[name]["policy"]:
                raise ConfigError(
                    f"policy {name!r} is {old.policies[name]['policy']} and would be "
                    f"{new.policies[name]['policy']}; tasks that run would get other weights: give "
                    "the new one another name (in a fleet file: another model name)"
                )

    def stage(self, values: Mapping[str, Any]) -> None:
        """Begins to change to the plan in `values`, which `check` has passed, or goes on to do so.
        The plan that is applied calls off what was begun."""
        assert self._applied is not None
        wanted = _wanted(_goal(values))
        self._held = bool(values[STAGED])
        back = wanted.plan == self._applied.plan
        before = f"the change to plan {self._staged.plan.identity}" if self._staged else ""
        self.reason = f"{before} was called off" if before and back else ""
        if before and wanted.plan != self.staged:
            self._logger.warning(f"{before} is called off")
        self._staged = None if back else wanted
        self._drop_others()
        if self._staged:
            new = [key for key in wanted.engines if key not in self._names]
            for key in new:
                self._add(key, wanted)
            what = ", ".join(self._names[key] for key in new) or "no new engine"
            verb = "preparing for" if self._held else "changing to"
            self._logger.info(f"{verb} plan {wanted.plan.identity}: {what}")
        self.look()

    def look(self) -> None:
        """Applies the staged plan once all its engines are up and it does not wait for parameter
        `plan`, or gives it up."""
        staged = self._staged
        if staged is None:
            return
        assert self._applied is not None
        new = [self._slot(key) for key in staged.engines if key not in self._applied.engines]
        if failed := next(filter(_failed, new), None):
            self._give_up(f"{failed.name}: {failed.failed or failed.last_error}")
        elif missing := [slot for slot in new if slot.state != "ready"]:
            waits = (f"{slot.name} ({slot.last_error or slot.state})" for slot in missing)
            self.reason = f"waits for {', '.join(waits)}"
        else:
            self._go_on(staged)

    def _go_on(self, staged: _Wanted) -> None:
        try:
            self._dispatcher.check(staged.options)
        except ConfigError as error:
            self._give_up(str(error))
            return
        if self._held:
            self.reason = ""
            return
        self._dispatcher.change(staged.options)
        self._use(staged.options)
        self._applied, self._staged, self.reason = staged, None, ""
        self._follow(staged)
        self._drop_others()
        self._logger.info(f"plan {staged.plan.identity} is applied")

    def _give_up(self, why: str) -> None:
        assert self._staged is not None
        assert self._applied is not None
        self.reason = f"plan {self._staged.plan.identity} was not applied: {why}"
        self._logger.error(f"{self.reason}; {self._applied.plan.identity} stays")
        self._staged = None
        self._drop_others()

    def _follow(self, wanted: _Wanted) -> None:
        names = {one.name: self._names[key] for key, one in wanted.engines.items()}
        plan = wanted.plan
        self._dispatcher.follow(
            {robot: names[engine] for robot, engine in plan.routes.items()},
            {robot: round(1e9 * s) for robot, s in plan.periods_s.items()},
            {names[one.name]: one.batch for one in plan.engines},
            plan.refused,
            {names[one.name] for one in plan.engines if one.standby},
        )

    def _drop_others(self) -> None:
        """Ends the engines that neither plan has."""
        kept: set[Key] = set()
        for wanted in filter(None, (self._applied, self._staged)):
            kept |= wanted.engines.keys()
        for key in self._names.keys() - kept:
            self._engines.remove(self._names.pop(key))

    def _add(self, key: Key, wanted: _Wanted) -> None:
        gpu, policy, options, endpoint = key
        name, number = f"{gpu}/{policy}", 1
        while name in self._dispatcher.engines:  # one that ends, or runs with other options
            number += 1
            name = f"{gpu}/{policy}.{number}"
        self._names[key] = name
        if endpoint:
            self._engines.add_elsewhere(name, wanted.elsewhere[endpoint], gpu)
        else:
            self._engines.add(name, policy, options, gpu)

    def _slot(self, key: Key) -> EngineSlot:
        return self._dispatcher.engines[self._names[key]]


def _failed(slot: EngineSlot) -> bool:
    """Whether it is not worth while to wait for this engine."""
    hopeless = slot.retry_ns is None or slot.failures >= MOST_FAILURES
    return slot.state == "refused" or (slot.state == "down" and hopeless)


def _goal(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters as they are to be: those of the staged plan, if there is one."""
    return {**values, "plan": values[STAGED] or values["plan"]}


def _wanted(values: Mapping[str, Any]) -> _Wanted:
    """Raises ConfigError."""
    plan = read_served_plan(values["plan"])
    options = engine_options(values)
    engines = {}
    for one in plan.engines:
        mine = options[one.policy]
        if "max_batch" not in plan.policies[one.policy]:
            mine = replace(mine, max_batch=max(mine.max_batch, one.batch))
        mine = replace(mine, device=one.device)
        engines[one.gpu, one.policy, mine, one.endpoint] = one
    elsewhere = {e.endpoint: planned_remote(values, e) for e in plan.engines if e.endpoint}
    return _Wanted(plan, engines, elsewhere, serving_options(values))
