"""Writes docs/parameters.md. A test compares the two."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rclpy.parameter import Parameter

from kairos_ros.nodes.managed import AUTOSTART
from kairos_ros.nodes.parameters import ParameterSpec
from kairos_ros.nodes.recorder.parameters import RECORDER_PARAMETERS
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS
from kairos_ros.nodes.serving.parameters import SERVING_PARAMETERS
from kairos_ros.nodes.viz.parameters import VIZ_PARAMETERS
from kairos_ros.nodes.vlm.parameters import MODEL_PARAMETERS, NAMES, component_parameters

PAGE = Path(__file__).parents[3] / "docs" / "parameters.md"
HEAD = """# Parameters

Of every node, written from the code. `ros2 param describe NODE NAME` says the same of a running
node. A *live* one can be set while the node runs; [docs/ros.md](ros.md#parameters) says when it
takes effect, and what to do about the others. The files in [config/](../config) explain groups of
them.
"""
LISTS = {
    Parameter.Type.STRING_ARRAY: "list of strings",
    Parameter.Type.DOUBLE_ARRAY: "list of doubles",
    Parameter.Type.INTEGER_ARRAY: "list of integers",
}


def page() -> str:
    """The whole text."""
    nodes: dict[str, Iterable[ParameterSpec]] = {
        "`serving_node`": (*SERVING_PARAMETERS, AUTOSTART),
        "`robot_node`": (*ROBOT_PARAMETERS, AUTOSTART),
        "`viz_node`": (*VIZ_PARAMETERS, AUTOSTART),
        "`recorder_node`": (*RECORDER_PARAMETERS, AUTOSTART),
        "`safety_node`, `monitor_node`, `planner_node`": (*MODEL_PARAMETERS, AUTOSTART),
    }
    for component in NAMES:
        title = f"`{NAMES[component]}_node`, besides those; in `vlm_node` as `{NAMES[component]}.…`"
        nodes[title] = component_parameters(component)
    return HEAD + "".join(f"\n## {title}\n\n{_table(specs)}" for title, specs in nodes.items())


def _table(specs: Iterable[ParameterSpec]) -> str:
    lines = ["| name | type | default | allowed | live | |", "|---|---|---|---|---|---|"]
    for spec in specs:
        kind, default = _kind(spec.default)
        cells = (f"`{spec.name}`", kind, default, _allowed(spec), "yes" if spec.live else "")
        lines.append("| " + " | ".join((*cells, spec.description.replace("|", "\\|"))) + " |")
    return "\n".join(lines) + "\n"


def _kind(default: Any) -> tuple[str, str]:
    if isinstance(default, Parameter.Type):
        return LISTS[default], "empty"
    if isinstance(default, bool):
        return "bool", str(default).lower()
    if isinstance(default, str):
        text = default if len(default) <= 60 else f"{default[:57]}…"
        return "string", f"`{text}`" if text else "empty"
    return ("integer" if isinstance(default, int) else "double"), f"{default}"


def _allowed(spec: ParameterSpec) -> str:
    if spec.choices:
        return ", ".join(f"`{choice}`" for choice in spec.choices)
    return "" if spec.minimum is None else f"{spec.minimum:.12g} to {spec.maximum:.12g}"


if __name__ == "__main__":
    PAGE.write_text(page())
