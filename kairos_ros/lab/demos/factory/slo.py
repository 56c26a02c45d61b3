"""How often the components of a fleet file kept their latency objectives during the demo."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.pipeline import Component, TaskRules
from kairos_ros.lab.demos.factory.history import FleetHistory
from kairos_ros.recording.runs.run import TaskRecord


@dataclass(frozen=True, slots=True)
class ComponentShare:
    """One component, over all robots; latencies are NaN where nothing was answered."""

    component: Component
    slo_ms: tuple[float, ...]
    """The objectives of the task classes, each once."""
    answers: int
    in_time: float
    """Share of the answers that came within the objective of their robot's class, 0..1."""
    p50_s: float
    p95_s: float
    missed: int
    """Deadlines that robots saw pass without an answer."""


class AnswerLatencies:
    """Latencies of what was answered, in the order in which it was heard."""

    def __init__(self) -> None:
        self._heard: dict[Component, list[tuple[str, float]]] = defaultdict(list)

    def add(self, component: Component, robot: str, latency_s: float) -> None:
        self._heard[component].append((robot, latency_s))

    def count(self, component: Component) -> int:
        return len(self._heard[component])

    def shares(
        self, rules: Mapping[str, TaskRules], history: FleetHistory, tasks: Iterable[TaskRecord]
    ) -> list[ComponentShare]:
        """Per component. System 1's answers: the rounds of ended tasks, if not given up."""
        heard = dict(self._heard)
        heard[Component.SYSTEM1] = [
            (t.robot, s) for t in tasks for s in t.round_latency_s if not np.isnan(s)
        ]
        shares = []
        for component in Component:
            slo_s = {
                robot: one.components[component].slo_ns / 1e9
                for robot, one in rules.items()
                if component in one.components
            }
            if not slo_s:
                continue
            mine = [(robot, s) for robot, s in heard.get(component, []) if robot in slo_s]
            late = [
                m for m in history.transitions if m.component is component and "overdue" in m.reason
            ]
            latency = [s for _, s in mine]
            p50, p95 = np.percentile(latency, (50, 95)) if latency else (np.nan, np.nan)
            kept = sum(s <= slo_s[robot] for robot, s in mine)
            shares.append(
                ComponentShare(
                    component,
                    tuple(sorted({1e3 * s for s in slo_s.values()})),
                    len(mine),
                    kept / len(mine) if mine else float("nan"),
                    float(p50),
                    float(p95),
                    len(late),
                )
            )
        return shares
