"""Imports point one way: the layers of docs/architecture.md, checked on the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "kairos_ros"
LAYER = {
    "share": 0,
    "core": 1,
    "document": 2,
    "engine": 2,
    "extras": 2,
    "transport": 2,
    "serving": 3,
    "robot": 3,
    "fleet": 3,
    "vlm": 3,
    "arms": 4,
    "evaluation": 4,
    "training": 4,
    "dashboard": 5,
    "demo": 5,
    "drill": 5,
    "nodes": 5,
    "arms_arguments": 5,
    "arms_plan": 5,
    "bringup": 5,
    "cli": 5,
    "domain": 5,
    "fleet_command": 5,
    "fleet_plan": 5,
    "record": 5,
    "replay": 5,
    "robot_command": 5,
    "up": 5,
    "viz": 4,
}
IN_PROCESS_JUDGE = PACKAGE / "vlm" / "in_process.py"
"""A judge that is a torch model; loaded by name only, see `vlm/loading.py`."""
DEFERRED_TORCH = PACKAGE / "robot" / "lerobot_torch.py"
"""Keeps torch away from LeRobot's drivers of robots, which `robot/lerobot_*.py` may import."""
GENERATED = {"msg", "srv", "action"}
ROS = {
    "rclpy",
    "rosidl_runtime_py",
    "sensor_msgs",
    "diagnostic_msgs",
    "control_msgs",
    "lifecycle_msgs",
    "launch",
    "geometry_msgs",
    "tf2_msgs",
    "visualization_msgs",
}
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_layers_below_its_own(path):
    here = part(path)
    for name in imports(path):
        root, *rest = [*name.split("."), ""]
        if root in ROS or (root == "kairos_ros" and rest[0] in GENERATED):
            assert LAYER[here] == 5, f"{here} imports {name}: ROS belongs to layer 5"
        if root in {"torch", "lerobot", "transformers"}:
            allowed = here in {"engine", "training"} or path in {IN_PROCESS_JUDGE, DEFERRED_TORCH}
            allowed |= root == "lerobot" and path.name.startswith("lerobot_")
            assert allowed, f"{path} imports {name}"
        if root == "kairos_ros" and rest[0] in LAYER and rest[0] != here:
            siblings = LAYER[rest[0]] == LAYER[here] and LAYER[here] in (2, 4, 5)
            assert LAYER[rest[0]] < LAYER[here] or siblings, f"{here} imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) == "core"], ids=lambda p: p.name)
def test_core_imports_only_numpy_and_the_standard_library(path):
    allowed = {"numpy", "kairos_ros"} | sys.stdlib_module_names
    impure = {"time", "datetime", "random", "os", "socket", "threading", "asyncio", "subprocess"}
    roots = {name.split(".")[0] for name in imports(path)}
    assert roots <= allowed - impure


@pytest.mark.parametrize("node", ["robot_node", "serving_node", "vlm_node"])
def test_a_node_never_imports_torch(node):
    code = f"import sys, kairos_ros.nodes.{node}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_embedded_judge_and_an_endpoint_do_without_torch():
    modules = "kairos_ros.vlm.embedded, kairos_ros.vlm.endpoint, kairos_ros.vlm.loading"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) == "nodes"], ids=lambda p: p.name)
def test_classes_of_rclpy_are_not_subscripted(path):
    """They are generic in Kilted, and in Jazzy `Subscription[Any]` is a TypeError at import."""
    ours = {name.rsplit(".")[-1] for name in imports(path) if name.startswith("rclpy.")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in ours, f"{path.name}:{node.lineno}"
