"""The plan against the graph that comes of it: names of nodes, and what their parameters say."""

import graph_page
import pytest
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters
from task_rules import rules
from wire import answered, in_executor, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.robot.supervision.rules_text import rules_text

POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
NODES = ("serving", "robot", "viz", "recorder", "safety", "monitor", "planner", "driver")

NEEDS_A_URDF = ("/ROBOT/joint_states",)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def specs(start_for_module, tmp_path_factory) -> dict[str, ProcessSpec]:
    """One of each node, running."""
    arm = {"adapter_options": ["images={corner3: [96, 96]}"], "rules": rules_text(rules())}
    bag = tmp_path_factory.mktemp("runs") / "bag"
    planned = bringup.plan(1, serve={"policy": POLICY}, robot_parameters=arm, view=True, record=bag)
    planned += [bringup.vlm(name, model="embedded:factory_judge") for name in NODES[4:6]]
    planned += [bringup.vlm("planner", model="openai:http://127.0.0.1:9/v1#none")]
    planned += [ProcessSpec("sim_driver_node", "driver", namespace="so101")]
    for spec in planned:
        start_for_module(spec)
    return {spec.name: spec for spec in planned}


def path(spec: ProcessSpec) -> str:
    return f"/{spec.namespace}/{spec.name}"


def test_nodes_are_called_as_the_plan_and_the_docs_say(specs, wire):
    wanted = {path(spec) for spec in specs.values()}
    assert wanted == {
        *("/kairos/serving", "/kairos/viz", "/kairos/recorder", "/arm_1/robot", "/so101/driver"),
        *("/kairos/safety", "/kairos/monitor", "/kairos/planner"),
    }

    def there() -> set[str]:
        found = wire.node.get_node_names_and_namespaces()
        return {f"{namespace.rstrip('/')}/{name}" for name, namespace in found}

    until(lambda: wanted <= there(), what=f"for {wanted}")
    us = {wire.node.get_fully_qualified_name()}
    until(lambda: {one for one in there() if one.count("/") == 1} == us, what="for no other names")


@pytest.mark.parametrize("name", NODES)
def test_all_parameters_of_a_node_come_in_one_reply_as_ros2_param_dump_asks_for_them(
    specs, wire, name
):
    node = path(specs[name])
    clients = {
        kind: wire.node.create_client(kind, f"{node}/{service}")
        for kind, service in (
            (ListParameters, "list_parameters"),
            (DescribeParameters, "describe_parameters"),
            (GetParameters, "get_parameters"),
        )
    }
    names = answered(clients[ListParameters], ListParameters.Request()).result.names
    assert len(names) > 5
    asked = GetParameters.Request(names=names)
    values = answered(clients[GetParameters], asked).values
    assert len(values) == len(names)
    assert all(value.type != ParameterType.PARAMETER_NOT_SET for value in values)
    asked = DescribeParameters.Request(names=names)
    described = answered(clients[DescribeParameters], asked).descriptors
    assert [one.type for one in described] == [value.type for value in values]
    ours = {one.name: one for one in described if one.description}
    assert ours
    for client in clients.values():
        in_executor(wire.executor, client.destroy)


def test_the_docs_list_what_is_in_the_graph_with_who_offers_and_who_reads_it(specs, wire):
    wanted = graph_page.listed(graph_page.PAGE.read_text())
    assert len(wanted) > 20
    wanted = {row for row in wanted if row.name not in NEEDS_A_URDF}
    try:
        until(lambda: graph_page.found(wire.node) == wanted)
    except AssertionError:
        found = graph_page.found(wire.node)
        lacks, gone = found - wanted, wanted - found
        raise AssertionError(
            "docs/ros.md lacks\n"
            + "\n".join(sorted(map(str, lacks)))
            + "\nand has\n"
            + "\n".join(sorted(map(str, gone)))
        ) from None
