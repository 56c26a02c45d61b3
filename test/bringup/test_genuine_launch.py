"""Launch files under the genuine launch_ros, where there is one: names, namespaces, arguments."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kairos_ros.action import ExecuteTask
from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import GetParameters
from wire import PATIENCE_S, answered, until

from kairos_ros.bringup.process_spec import ProcessKind, command
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.nodes.clients.task_client import TaskClient

pytest.importorskip(
    "launch_ros", reason="launch_ros is not in the wheels: ros2 launch is not tested"
)
from launch import LaunchContext
from launch.actions import ExecuteProcess
from launch.utilities import perform_substitutions
from launch_ros.actions import Node

FILES = Path(__file__).parents[2] / "launch"
POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
SITES = """
import sys
from pathlib import Path
from launch import LaunchDescription, LaunchService
from launch.actions import GroupAction, IncludeLaunchDescription
from launch_ros.actions import PushRosNamespace

def include(file, **arguments):
    path = str(Path(sys.argv[1]) / f"{file}.launch.py")
    return GroupAction([IncludeLaunchDescription(path, launch_arguments=arguments.items())])

policy, arm = sys.argv[2], "env_id=Pendulum-v1"
later = {"namespace": "site_b", "autostart": "False", "use_sim_time": "True", "log_level": "WARN"}
service = LaunchService()
service.include_launch_description(LaunchDescription([
    GroupAction([
        PushRosNamespace("site_a"),
        include("serving", policy=policy, params_file=sys.argv[3], max_batch="4"),
        include("robot", robot="arm_1", adapter_options=arm),
        include("robot", robot="cell_1/arm_2", adapter_options=arm, namespace="hall"),
        include("rviz", rviz="false"),
    ]),
    include("serving", policy=policy, **later),
    include("robot", robot="arm_1", adapter_options=arm, **later),
    include("pipelines", components="safety", **later),
]))
sys.exit(service.run())
"""
NODES = (
    *("/site_a/kairos/serving", "/site_a/kairos/viz", "/site_a/arm_1/robot"),
    *("/site_a/hall/cell_1/arm_2/robot", "/site_b/kairos/serving", "/site_b/kairos/safety"),
    "/site_b/arm_1/robot",
)

pytestmark = pytest.mark.slow


def planned_and_launched(file: Path, pushed: str) -> tuple[set[str], set[str]]:
    """Full names of the nodes, and lines of other programs, as the plan has them and as launch_ros
    starts them."""
    scope: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    description = scope["generate_launch_description"]()
    context = LaunchContext()
    if pushed:
        context.launch_configurations["ros_namespace"] = pushed
    given = {}
    for argument in description.get_launch_arguments():
        given[argument.name] = perform_substitutions(context, argument.default_value)
    context.launch_configurations.update(given)
    launched = set()
    for action in description.entities[-1].execute(context):
        if isinstance(action, Node):
            action._perform_substitutions(context)
            launched.add(action.node_name)
        elif isinstance(action, ExecuteProcess):
            launched.add(" ".join(perform_substitutions(context, part) for part in action.cmd))
    scope["launch_description"] = lambda arguments, make_plan: (arguments, make_plan)
    arguments, make_plan = scope["generate_launch_description"]()
    specs = make_plan({name: given[name] for name in arguments if given[name]})
    ours = [spec for spec in specs if spec.package == "kairos_ros"]
    planned = {
        f"{pushed}/{spec.namespace}/{spec.name}"
        if spec.kind is ProcessKind.NODE
        else " ".join(command(spec))
        for spec in ours
    }
    return planned, launched


@pytest.mark.parametrize("file", sorted(FILES.glob("*.launch.py")), ids=lambda file: file.name)
@pytest.mark.parametrize("pushed", ["", "/site_a"])
def test_launch_ros_calls_nodes_as_the_plan_does(file, pushed, monkeypatch):
    monkeypatch.setenv("PATH", "")  # without rviz
    planned, launched = planned_and_launched(file, pushed)
    assert planned == launched
    assert planned


@pytest.fixture(scope="module")
def sites(tmp_path_factory, wire):
    """Two fleets in one domain, one in a pushed namespace, the other by its argument."""
    folder = tmp_path_factory.mktemp("sites")
    (folder / "site.yaml").write_text("/**: {ros__parameters: {max_queue: 7}}")
    line = [sys.executable, "-c", SITES, FILES, POLICY, folder / "site.yaml"]
    prefix = os.environ | {"AMENT_PREFIX_PATH": sys.prefix, "ROS_LOG_DIR": str(folder)}
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(line, stdout=log, stderr=log, env=prefix)

        def there() -> set[str]:
            found = wire.node.get_node_names_and_namespaces()
            return {f"{namespace.rstrip('/')}/{name}" for name, namespace in found}

        try:
            until(lambda: {*NODES} <= there(), what=f"for {NODES}")
            yield running, folder / "log", there
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
                running.wait(PATIENCE_S)


def asked(wire, kind: type, name: str, request):
    return answered(wire.node.create_client(kind, name), request)


def test_fleets_of_two_namespaces_are_launched_beside_each_other(sites, wire, domain_id):
    _, _, there = sites
    shown = {name for name in there() if not name.rpartition("/")[2].startswith("_")}
    assert shown - {wire.node.get_fully_qualified_name()} == {*NODES}
    # cell_1/arm_2 is of the fleet /site_a/hall, where nobody serves
    with TaskClient("arm_1", domain_id, FleetNames("/site_a")) as client:
        client.find()
        goal = ExecuteTask.Goal(instruction="swing up", max_actions=30)
        assert client.send(goal, lambda feedback: None, lambda: False).actions == 30


def test_arguments_of_the_launch_reach_the_nodes(sites, wire):
    def values(node: str, *names: str) -> list:
        answer = asked(
            wire, GetParameters, f"{node}/get_parameters", GetParameters.Request(names=names)
        )
        return [
            {1: one.bool_value, 2: one.integer_value}.get(one.type, one.string_value)
            for one in answer.values
        ]

    def state(node: str) -> int:
        return asked(wire, GetState, f"{node}/get_state", GetState.Request()).current_state.id

    wanted = ("max_queue", "max_batch", "autostart", "use_sim_time", "policy")
    assert values("/site_a/kairos/serving", *wanted) == [7, 4, True, False, POLICY]
    assert values("/site_b/kairos/serving", *wanted) == [1000, 16, False, True, POLICY]
    assert values("/site_a/hall/cell_1/arm_2/robot", "name") == ["cell_1/arm_2"]
    assert state("/site_a/arm_1/robot") == State.PRIMARY_STATE_ACTIVE
    for node in ("/site_b/kairos/serving", "/site_b/arm_1/robot", "/site_b/kairos/safety"):
        assert state(node) == State.PRIMARY_STATE_UNCONFIGURED


def test_ctrl_c_ends_all_of_them_without_an_error(sites):
    """Last: it ends the launch."""
    running, log, _ = sites
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE_S) == 0
    said = log.read_text()
    assert said.count("process has finished cleanly") == len(NODES), said
    assert "Traceback" not in said
