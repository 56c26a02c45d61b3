"""Imports point one way: the tables of docs/architecture.md, checked on the source."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kairos_ros"
ROW = re.compile(r"\| (\d) \| `(\w+)` \|.*\| ([\w ]*)\|")
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")
GENERATED = {"msg", "srv", "action"}
ROS = {
    "rclpy",
    "rosidl_runtime_py",
    "launch",
    "launch_ros",
    "action_msgs",
    "builtin_interfaces",
    "control_msgs",
    "diagnostic_msgs",
    "geometry_msgs",
    "lifecycle_msgs",
    "rcl_interfaces",
    "sensor_msgs",
    "std_msgs",
    "std_srvs",
    "tf2_msgs",
    "trajectory_msgs",
    "unique_identifier_msgs",
    "visualization_msgs",
}
MAY_IMPORT_ROS = {"nodes", "bringup", "dashboard", "commands", "lab"}
MAY_IMPORT_TORCH = ("engine/", "lab/training/", "lab/judges/", "lab/horizons/", "lab/commands/")
IN_PROCESS_JUDGE = "vlm/in_process.py"
"""A judge that is a torch model; loaded by name only, see `vlm/loading.py`."""
DATASETS = "recording/datasets/lerobot_writer.py"
"""LeRobot's writer of datasets, for `kairos bag export` only."""
DEFERRED_TORCH = "robot/adapters/lerobot/lerobot_torch.py"
"""Keeps torch away from LeRobot's drivers of robots, which its neighbours may import."""


def tables() -> list[dict[str, tuple[int, set[str]]]]:
    """Package -> its floor and what it imports, as drawn: of the product, and inside `lab`."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    product, lab = text.split("| floor | package |")[1].split("| floor | part of `lab` |")
    rows = [[ROW.fullmatch(line) for line in table.splitlines()] for table in (product, lab)]
    return [{row[2]: (int(row[1]), set(row[3].split())) for row in table if row} for table in rows]


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def arrows(inside: tuple[str, ...]) -> dict[str, set[str]]:
    """Who imports whom, of what lies in this folder of the package."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        *folder, name = path.relative_to(PACKAGE).with_suffix("").parts
        if tuple(folder[: len(inside)]) != inside or name == "__init__":
            continue
        here = [*folder, name][len(inside)]
        found[here]
        for imported in imports(path):
            package, *rest = imported.split(".")
            if package != "kairos_ros" or tuple(rest[: len(inside)]) != inside:
                continue
            there = rest[len(inside)] if len(rest) > len(inside) else ""
            if there and there not in {here, *GENERATED, "__version__"}:
                found[here].add(there)
    return dict(found)


@pytest.mark.parametrize(("inside", "table"), [((), 0), (("lab",), 1)], ids=["product", "lab"])
def test_packages_import_what_the_architecture_page_draws(inside, table):
    drawn = {package: imported for package, (_, imported) in tables()[table].items()}
    assert arrows(inside) == drawn


def test_the_product_has_less_than_a_hundred_arrows():
    number = sum(len(imported) for _, imported in tables()[0].values())
    assert number < 100, f"{number} imports between packages of the product: remove one first"


@pytest.mark.parametrize("table", [0, 1], ids=["product", "lab"])
def test_every_arrow_goes_to_a_lower_floor(table):
    drawn = tables()[table]
    assert max(floor for floor, _ in drawn.values()) <= 7
    for package, (floor, imported) in drawn.items():
        assert floor == 1 + max((drawn[other][0] for other in imported), default=0), package


def test_the_product_does_not_know_its_laboratory():
    """Only names in texts: the command line loads commands by name, and `start` a node."""
    for path in MODULES:
        if part(path) != "lab":
            assert not [name for name in imports(path) if name.startswith("kairos_ros.lab")], path


def test_lerobots_plugin_knows_core_and_transport_only():
    found = set()
    for path in (ROOT / "lerobot_policy_kairos" / "src").rglob("*.py"):
        names = {tuple(name.split(".")[:2]) for name in imports(path)}
        assert not {name for name, *_ in names} & ROS, path
        found |= {part for package, *part in names if package == "kairos_ros" for part in part}
    assert found == {"core", "transport"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_ros_and_torch_stay_where_they_belong(path):
    here = path.relative_to(PACKAGE).as_posix()
    for name in imports(path):
        root, *rest = [*name.split("."), ""]
        if root in ROS or (root == "kairos_ros" and rest[0] in GENERATED):
            assert part(path) in MAY_IMPORT_ROS, f"{here} imports {name}"
        if root in {"torch", "torchvision", "lerobot", "transformers"}:
            allowed = here.startswith(MAY_IMPORT_TORCH) or here in {
                IN_PROCESS_JUDGE,
                DATASETS,
                DEFERRED_TORCH,
            }
            allowed |= root == "lerobot" and here.startswith("robot/adapters/lerobot/")
            assert allowed, f"{here} imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) == "core"], ids=lambda p: p.name)
def test_core_imports_only_numpy_and_the_standard_library(path):
    allowed = {"numpy", "kairos_ros"} | sys.stdlib_module_names
    impure = {"time", "datetime", "random", "os", "socket", "threading", "asyncio", "subprocess"}
    roots = {name.split(".")[0] for name in imports(path)}
    assert roots <= allowed - impure


@pytest.mark.parametrize("node", ["nodes.robot.node", "nodes.serving.node", "nodes.vlm.node"])
@pytest.mark.slow
def test_a_node_never_imports_torch(node):
    code = f"import sys, kairos_ros.{node}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_embedded_judge_and_an_endpoint_do_without_torch():
    judges = ("embedded.embedded_judge", "endpoint.endpoint_judge", "loading")
    modules = ", ".join(f"kairos_ros.vlm.{judge}" for judge in judges)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) == "nodes"], ids=lambda p: p.name)
def test_classes_of_rclpy_are_not_subscripted(path):
    """They are generic in Kilted, and in Jazzy `Subscription[Any]` is a TypeError at import."""
    ours = {name.rsplit(".")[-1] for name in imports(path) if name.startswith("rclpy.")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in ours, f"{path.name}:{node.lineno}"
