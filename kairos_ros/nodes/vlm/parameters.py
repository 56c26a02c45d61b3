"""Parameters of the nodes of safety, monitor and planner."""

from collections.abc import Mapping, Sequence
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import PERIODIC, Component, are_skills
from kairos_ros.core.wire_check import ROBOTS
from kairos_ros.nodes.parameters import STRINGS, ParameterSpec
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.vlm.embedded.planner import MODEL, PLAN_PROMPT
from kairos_ros.vlm.judgement_queue import ORDERS
from kairos_ros.vlm.questions import SAFETY_PROMPT, TASK_STATE_PROMPT

P = ParameterSpec
JUDGE = "embedded:factory_judge"
PROMPT = {
    Component.SAFETY: SAFETY_PROMPT,
    Component.MONITOR: TASK_STATE_PROMPT,
    Component.SYSTEM2: PLAN_PROMPT,
}
SLO_MS = {Component.SAFETY: 300.0, Component.MONITOR: 1000.0, Component.SYSTEM2: 2000.0}
FREQ_HZ = {Component.SAFETY: 5.0, Component.MONITOR: 2.0}
NAMES = {
    Component.SAFETY: "safety",
    Component.MONITOR: "monitor",
    Component.SYSTEM2: "planner",
}
"""Of the node of one component, and of its parameters where one node has several."""

MODEL_PARAMETERS = (
    P("in_flight", 1, "Requests at a time to each model. More only move the queue there.", 1, 32),
    P("batch", 4, "Most questions per request; to an endpoint, one.", 1, 256),
    P("timeout_s", 2.0, "An endpoint that takes longer has failed.", 0.01, 600.0),
    P("order", "earliest_deadline", "Which question goes first.", choices=tuple(ORDERS)),
    P("window_s", 60.0, "Attainment is told over so long.", 1.0, 86400.0),
    P("warn_attainment", 0.99, "A smaller share of answers in time is a warning.", 0.0, 1.0),
    P("robots", STRINGS, "Whom to judge; empty: everybody.", live=True),
    P("max_robots", ROBOTS, "More at a time are ignored.", 1, 10_000),
)


def component_parameters(component: Component, prefix: str = "") -> tuple[ParameterSpec, ...]:
    """What is asked for one component."""
    planner = component is Component.SYSTEM2
    specs = [
        P("model", MODEL if planner else JUDGE, "Which model answers (docs/judges.md)."),
        P("prompt", PROMPT[component], "What it is asked."),
        P("slo_ms", SLO_MS[component], "Latency objective of an answer.", 1.0, 600_000.0),
    ]
    if component in PERIODIC:
        hz = FREQ_HZ[component]
        specs += [
            P("freq_hz", hz, "Judgements per second and robot.", 0.01, 100.0),
            P("cameras", STRINGS, "Cameras to judge by; empty: all that a robot has."),
        ]
    else:
        specs.append(P("skills", STRINGS, "What may be planned; empty: the shipped policy's."))
    return tuple(
        P(prefix + s.name, s.default, s.description, s.minimum, s.maximum, s.choices) for s in specs
    )


def component_values(
    values: Mapping[str, Any], component: Component, components: Sequence[Component]
) -> dict[str, Any]:
    """The node's parameters as the node of this component alone would have them."""
    prefix = f"{NAMES[component]}." if len(components) > 1 else ""
    return {name.removeprefix(prefix): value for name, value in values.items()}


def skills(values: Mapping[str, Any]) -> tuple[str, ...]:
    """What the planner chooses from. Raises ConfigError for fewer than two, and for a blank one."""
    named: Sequence[str] = list(dict.fromkeys(values["skills"])) or list(SCENES.values())
    if not are_skills(named):
        raise ConfigError(
            f"parameter skills is {list(named)}; a planner chooses from at least two, none of them "
            "blank: name the instructions that the action model knows"
        )
    return tuple(named)
