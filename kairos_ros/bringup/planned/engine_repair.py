"""Which engine of a plan stays down, and which standby is to take its place."""

import time
from collections.abc import Iterable
from typing import Protocol

from kairos_ros.core.placement.served_plan import ServedPlan
from kairos_ros.core.server_status import ENGINE_UP

REPAIR_S = 20.0
"""An engine that is down for so long does not come up by itself."""


class EngineState(Protocol):
    """The part of an engine's state that is looked at."""

    engine: str
    state: str


class EngineRepair:
    """Since when engines are down. `look` is to be called often."""

    def __init__(self) -> None:
        self._down_s: dict[str, float] = {}

    def look(self, plan: ServedPlan, engines: Iterable[EngineState]) -> tuple[str, str] | None:
        """(engine that stays down, standby that is up), by their names; None: nothing is to be
        exchanged."""
        now_s = time.monotonic()
        up = {one.engine: one.state in ENGINE_UP for one in engines}
        for one in plan.engines:
            if one.standby or up.get(one.name, True):
                self._down_s.pop(one.name, None)
            elif now_s - self._down_s.setdefault(one.name, now_s) > REPAIR_S:
                spares = (s for s in plan.engines if s.standby and s.policy == one.policy)
                if spare := next((s for s in spares if up.get(s.name)), None):
                    del self._down_s[one.name]
                    return one.name, spare.name
        return None
