"""How much a fleet asks of its models, per second."""

from dataclasses import dataclass

from kairos_ros.core.pipeline import Component
from kairos_ros.fleet.fleet_file import FleetFile, Monitor, Safety, TaskClass


@dataclass(frozen=True, slots=True)
class ComponentDemand:
    """What the robots of one task ask of one component."""

    task: str
    component: Component
    model: str
    robots: int
    hz: float
    """Requests per second of all of them; of System 1 and 2 at most, with models that take no
    time (Rosa §3.4: f <= 1/t_act)."""


def demands(fleet: FleetFile) -> list[ComponentDemand]:
    """In the order of the file."""
    return [
        ComponentDemand(
            name, component, one.model, robots_of(fleet, name), robots_of(fleet, name) * hz
        )
        for name, task in fleet.tasks.items()
        for component, one in task.components.used.items()
        for hz in [_per_robot_hz(task, component)]
    ]


def robots_of(fleet: FleetFile, task: str) -> int:
    """How many robots do a task."""
    return sum(len(group.robots) for group in fleet.robot_fleet if group.task == task)


def _per_robot_hz(task: TaskClass, component: Component) -> float:
    one = task.components.used[component]
    if isinstance(one, Safety | Monitor):
        return one.freq_hz
    actions_hz = 1000 / task.pipeline.action_period_ms
    return actions_hz / (task.rules.system2_ratio if component is Component.SYSTEM2 else 1)
