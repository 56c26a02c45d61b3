"""The models around the policy as ROS nodes: safety, monitor and planner, each alone or together.

Components in one node share one queue, where they name the same model. Each alone is
a process of its own that can fail alone.
"""

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import rclpy

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.fleet_names import COMMON
from kairos_ros.core.pipeline import Component
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.managed import Entities, ManagedNode
from kairos_ros.nodes.parameters import ParameterSpec
from kairos_ros.nodes.process import begin
from kairos_ros.nodes.timers import every
from kairos_ros.nodes.vlm.component_record import inactive
from kairos_ros.nodes.vlm.component_service import Service, open_services
from kairos_ros.nodes.vlm.parameters import (
    MODEL_PARAMETERS,
    NAMES,
    component_parameters,
    component_values,
)
from kairos_ros.vlm.judge import Judge
from kairos_ros.vlm.judge_threads import JudgeThreads
from kairos_ros.vlm.judgement_queue import order_called
from kairos_ros.vlm.loading import ENDPOINT, SYSTEM1, load_judge

SYSTEM1_IN_FLIGHT = 16
"""Questions at a time to a policy, each about another robot."""
ALL = (Component.SAFETY, Component.MONITOR, Component.SYSTEM2)


def parameters(components: Sequence[Component]) -> tuple[ParameterSpec, ...]:
    """Of the node of these components."""
    several = len(components) > 1
    return MODEL_PARAMETERS + tuple(
        spec
        for component in components
        for spec in component_parameters(component, f"{NAMES[component]}." if several else "")
    )


class VlmNode(ManagedNode):
    """Raises ConfigError for a parameter that is wrong and for a model that does not load."""

    def __init__(self, components: Sequence[Component]) -> None:
        name = NAMES[components[0]] if len(components) == 1 else "vlm"
        super().__init__(name, parameters(components), namespace=COMMON)
        self._components = components
        self._judging: list[Service] = []
        self._judge_threads: dict[str, JudgeThreads] = {}
        self._diagnostics = DiagnosticsPublisher(self, fleet_of(self))
        self.values.on_change(self._on_parameters)
        every(self, 1.0, self._publish_diagnostics)

    def _on_parameters(self, values: Mapping[str, Any], changed: Set[str]) -> None:
        if "robots" in changed:
            for watch in {id(service.watch): service.watch for service in self._judging}.values():
                watch.watch(values["robots"])

    def set_up(self) -> None:
        """Loads the models. Raises KairosError for one that does not load."""
        try:
            for component in self._components:
                model = component_values(self.values, component, self._components)["model"]
                if component is Component.SAFETY and model.startswith(SYSTEM1):
                    raise ConfigError(
                        f"parameter model is {model}: a policy is asked about the observations "
                        "that it is sent, and a robot that holds sends none; safety needs a judge "
                        "that looks at its cameras"
                    )
                self._judges_of(model)
        except KairosError:
            self.take_down()
            raise

    def begin_work(self) -> None:
        """Judges robots. Raises ConfigError for a parameter that is wrong."""
        self._before = Entities(self)
        self._judging = open_services(self, self._components, self._judges_of, self.values)
        models = ", ".join(self._judge_threads)
        names = ", ".join(NAMES[one] for one in self._components)
        self.get_logger().info(f"{names}: judged by {models}")

    def end_work(self) -> None:
        for service in self._judging:
            service.close()
        self._judging = []
        self._before.destroy_newer()

    def take_down(self) -> None:
        for judges in self._judge_threads.values():
            judges.close()
        self._judge_threads.clear()

    @property
    def broken(self) -> bool:
        """It cannot go on."""
        return any(judges.broken for judges in self._judge_threads.values())

    def _judges_of(self, model: str) -> JudgeThreads:
        if model not in self._judge_threads:
            values = self.values
            # at a policy, a question waits for an observation of its robot, and not for the others
            at_once = values["in_flight"] if not model.startswith(SYSTEM1) else SYSTEM1_IN_FLIGHT
            judges = [self._judge(model) for _ in range(at_once)]
            order = order_called(values["order"])
            # an endpoint's judge sends the questions of a batch side by side, as so many requests
            batch = 1 if model.startswith((ENDPOINT, SYSTEM1)) else values["batch"]
            self._judge_threads[model] = JudgeThreads(judges, batch=batch, order=order)
        return self._judge_threads[model]

    def _judge(self, model: str) -> Judge:
        return load_judge(model, self.values["timeout_s"])

    def _publish_diagnostics(self) -> None:
        self._diagnostics.publish(
            [service.diagnostic() for service in self._judging]
            or [inactive(component, self) for component in self._components]
        )


def main(*names: str) -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error.

    names: of its components; all of them where none is named.
    """
    components = tuple(map(Component, names)) or ALL
    node, executor, stop = begin("vlm_node", partial(VlmNode, components))
    while not stop.is_set() and not node.broken and not node.over:
        executor.spin_once(timeout_sec=0.1)
    broken = node.broken
    executor.shutdown()
    node.close()
    rclpy.shutdown()
    return int(broken)
