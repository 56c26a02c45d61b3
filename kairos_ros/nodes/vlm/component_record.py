"""What became of the questions of one component: counted, logged once per kind, diagnosed."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node

from kairos_ros.core.pipeline import Component
from kairos_ros.core.wire_check import printable
from kairos_ros.nodes.timers import every
from kairos_ros.nodes.vlm.parameters import NAMES
from kairos_ros.vlm.attainment import AttainmentWindow
from kairos_ros.vlm.judge import Verdict
from kairos_ros.vlm.judge_threads import JudgementResult, JudgeThreads

STUCK = 5.0
"""A request that has been with the model for so many objectives is an error."""


class Record:
    """What became of the questions of one component, for people."""

    def __init__(
        self, node: Node, component: Component, judges: JudgeThreads, values: Mapping[str, Any]
    ):
        self.counters: Counter[str] = Counter()
        self.name = NAMES[component]
        self.slo_ns = round(values["slo_ms"] * 1e6)
        self.window = AttainmentWindow(round(values["window_s"] * 1e9))
        self._component, self._judges, self._values = component, judges, values
        self._log = node.get_logger()
        self._failing: set[str] = set()
        self._failed_before = self._refused_before = 0
        every(node, values["window_s"], self._log_attainment)

    def note(self, result: JudgementResult) -> Verdict | None:
        """Counts what came of a question, and logs each kind of failure once until it is over."""
        if result.verdict is None:
            self.window.add(result.now_ns, None, in_time=False)
            self.counters[f"failed, {result.failure}"] += 1
            if result.failure not in self._failing:
                self._failing.add(result.failure)
                said = printable(result.message, 500)
                self._log.error(f"{self.name}: {result.failure}: {said}")
            return None
        self.window.add(result.now_ns, result.latency_s, in_time=result.in_time)
        self.counters["answers"] += 1
        if self._failing:
            self._log.info(f"{self.name}: the model answers again")
            self._failing.clear()
        return result.verdict

    def diagnostic(self, node: str, robots: int, more: Counter[str]) -> DiagnosticStatus:
        """more: counters of the node."""
        attained = self.window.at(time.monotonic_ns())
        objective_ms = self.slo_ns / 1e6
        failed = sum(n for what, n in self.counters.items() if what.startswith("failed, "))
        newly, self._failed_before = failed - self._failed_before, failed
        refused = sum(
            n for what, n in (self.counters | more).items() if what.startswith("refused_")
        )
        newly_refused, self._refused_before = refused - self._refused_before, refused
        level, message = DiagnosticStatus.OK, self._said()
        if self._judges.broken or self._judges.busy_s() * 1e3 > STUCK * objective_ms:
            level = DiagnosticStatus.ERROR
            message = f"the model has been silent for {self._judges.busy_s():.1f} s"
        elif newly:
            level, message = DiagnosticStatus.ERROR, f"{newly} questions failed"
        elif newly_refused:
            level = DiagnosticStatus.WARN
            message = f"{newly_refused} messages refused; {message}"
        elif attained.answers and attained.within < self._values["warn_attainment"]:
            level = DiagnosticStatus.WARN
        values = {
            "model": self._judges.model,
            "robots": robots,
            "attainment": f"{attained.within:.4f}",
            "objective (ms)": f"{objective_ms:g}",
            "latency p50 (ms)": f"{1e3 * attained.p50_s:.1f}",
            "latency p95 (ms)": f"{1e3 * attained.p95_s:.1f}",
            "in the window": attained.answers,
            "waiting": self._judges.waiting,
            "in flight": self._judges.in_flight,
            "replaced by a newer picture": self._judges.replaced(self._component),
            **self.counters,
            **more,
        }
        return DiagnosticStatus(
            level=level,
            name=_status_name(self._component, node),
            hardware_id="kairos",
            message=message,
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )

    def _said(self) -> str:
        attained = self.window.at(time.monotonic_ns())
        if not attained.answers:
            return "nothing to judge"
        return (
            f"{attained.within:.1%} of {attained.answers} within {self.slo_ns / 1e6:g} ms, "
            f"p50 {1e3 * attained.p50_s:.0f}, p95 {1e3 * attained.p95_s:.0f} ms"
        )

    def _log_attainment(self) -> None:
        if self.window.at(time.monotonic_ns()).answers:
            self._log.info(f"{self.name}: {self._said()}")


def inactive(component: Component, node: Node) -> DiagnosticStatus:
    """Of a component of a node that is not active: robots miss its answers."""
    return DiagnosticStatus(
        level=DiagnosticStatus.WARN,
        name=_status_name(component, node.get_fully_qualified_name()),
        hardware_id="kairos",
        message="not active: nothing is judged",
    )


def _status_name(component: Component, node: str) -> str:
    return f"kairos {NAMES[component]}: {node}"
