"""config/sros2/policy.xml against the running nodes: it allows what they do, and little else.

The Fast DDS of the PyPI wheels is built without security, so that the policy is not enforced here.
"""

import contextlib
import time
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rclpy.node import NodeNameNonExistentError
from task_rules import rules
from visualization_msgs.msg import MarkerArray
from wire import until

from kairos_ros.bringup.plan import recorder, robot, serving, viz, vlm
from kairos_ros.robot.supervision.rules_text import rules_text

POLICY = Path(__file__).parents[2] / "config" / "sros2" / "policy.xml"
ENCLAVE = {
    "/kairos/serving": "/kairos/serving",
    "/arm_1/robot": "/arm_1",
    "/kairos/safety": "/kairos/safety",
    "/kairos/monitor": "/kairos/monitor",
    "/kairos/planner": "/kairos/planner",
    "/kairos/recorder": "/kairos/recorder",
    "/kairos/_recorder_topics": "/kairos/recorder",
    "/kairos/viz": "/kairos/viz",
    "/kairos/_viz_topics": "/kairos/viz",
}
POLICY_XML = ElementTree.parse(POLICY)
GOAL_SERVICES = ("send_goal", "get_result", "cancel_goal")
GOAL_TOPICS = ("feedback", "status")


def rights(enclave):
    """(right, pattern of full names) as sros2's template writes them for DDS."""
    found = set()
    for profile in POLICY_XML.find(f".//enclave[@path='{enclave}']").iter("profile"):
        namespace, node = profile.get("ns").rstrip("/"), profile.get("node")
        for group in profile:
            for right, verdict in group.items():
                assert verdict == "ALLOW"
                for item in group:
                    name = item.text
                    if name.startswith("~"):
                        name = f"{namespace}/{node}{name[1:]}"
                    elif not name.startswith("/"):
                        name = f"{namespace}/{name}"
                    found |= {(r, n) for r, n in spelled_out(right, name)}
    return found


def spelled_out(right, name):
    if right not in ("call", "execute"):
        return [(right, name)]
    topics, services = ("subscribe", "request") if right == "call" else ("publish", "reply")
    return [
        *((topics, f"{name}/_action/{topic}") for topic in GOAL_TOPICS),
        *((services, f"{name}/_action/{service}") for service in GOAL_SERVICES),
    ]


def allows(enclave, right, name):
    return any(r == right and fnmatchcase(name, pattern) for r, pattern in rights(enclave))


@pytest.fixture(scope="module")
def graph(wire, start_for_module, tmp_path_factory):
    """What each node of a running fleet publishes, subscribes to, serves and calls."""
    start_for_module(serving(policy="emulated:", horizon="static:10"))
    seen = {"adapter_options": ["images={corner3: [96, 96]}"], "rules": rules_text(rules())}
    start_for_module(robot("arm_1", adapter="sim", **seen))
    for component in ("safety", "monitor", "planner"):
        start_for_module(vlm(component))
    start_for_module(recorder(tmp_path_factory.mktemp("bag") / "bag"))
    start_for_module(viz())
    wire.node.create_subscription(MarkerArray, "/kairos/markers/chunks", lambda _: None, 1)
    ask = {
        "publish": wire.node.get_publisher_names_and_types_by_node,
        "subscribe": wire.node.get_subscriber_names_and_types_by_node,
        "reply": wire.node.get_service_names_and_types_by_node,
        "request": wire.node.get_client_names_and_types_by_node,
    }
    done = {
        ("/kairos/serving", "publish", "/arm_1/action_chunk"),
        ("/kairos/serving", "subscribe", "/arm_1/chunk_request"),
        ("/kairos/serving", "reply", "/kairos/serving/change_state"),
        ("/kairos/serving", "publish", "/kairos/server_status"),
        ("/kairos/serving", "subscribe", "/kairos/server_status"),
        ("/arm_1/robot", "subscribe", "/kairos/server_status"),
        ("/arm_1/robot", "subscribe", "/arm_1/action_chunk"),
        ("/arm_1/robot", "reply", "/arm_1/execute_task/_action/send_goal"),
        ("/kairos/_recorder_topics", "subscribe", "/arm_1/chunk_request"),
        ("/kairos/recorder", "reply", "/kairos/recorder/change_state"),
        ("/kairos/viz", "publish", "/kairos/markers/chunks"),
        ("/kairos/_viz_topics", "subscribe", "/arm_1/chunk_request"),
        ("/kairos/safety", "publish", "/arm_1/safety_verdict"),
        ("/kairos/monitor", "publish", "/arm_1/task_progress"),
        ("/kairos/planner", "publish", "/arm_1/plan"),
    }
    seen = set()

    def look():
        time.sleep(0.5)
        for path in ENCLAVE:
            namespace, _, name = path.rpartition("/")
            for right, query in ask.items():
                with contextlib.suppress(NodeNameNonExistentError):
                    seen.update((path, right, what) for what, _ in query(name, namespace))
        return seen

    until(lambda: done <= look(), 120.0, "for what nodes are known to do")
    return look


def test_everything_that_a_node_does_is_allowed_to_its_enclave(graph):
    refused = {
        f"{path} may not {right} {name}"
        for path, right, name in graph()
        if not allows(ENCLAVE[path], right, name)
    }
    assert not refused, "\n".join(sorted(refused))


def test_nothing_is_allowed_that_no_node_does(graph):
    """Patterns for other robots and the operator's rights aside, and the joints of a robot with a
    URDF: these here have none."""
    known = {(enclave, r, p) for enclave in set(ENCLAVE.values()) for r, p in rights(enclave)}

    def idle():
        done = {(ENCLAVE[path], right, name) for path, right, name in graph()}
        return {
            (enclave, right, pattern)
            for enclave, right, pattern in known
            if not any((e, r) == (enclave, right) and fnmatchcase(n, pattern) for e, r, n in done)
        }

    without_a_urdf = {("/arm_1", "publish", "/arm_1/joint_states")}
    with contextlib.suppress(AssertionError):  # of nodes that are found late
        until(lambda: idle() == without_a_urdf)
    assert idle() == without_a_urdf


def test_only_the_serving_node_may_send_chunks_and_a_robot_asks_for_itself_only():
    enclaves = [one.get("path") for one in POLICY_XML.iter("enclave")]
    senders = [e for e in enclaves if allows(e, "publish", "/arm_2/action_chunk")]
    assert senders == ["/kairos/serving"]
    announcers = [e for e in enclaves if allows(e, "publish", "/kairos/server_status")]
    assert announcers == ["/kairos/serving"]
    assert allows("/arm_1", "publish", "/arm_1/chunk_request")
    assert not any(allows(e, "publish", "/arm_2/chunk_request") for e in enclaves)
    assert not allows("/arm_1", "subscribe", "/arm_2/chunk_request"), "other robots' cameras"


def test_only_an_operator_may_give_tasks_and_change_the_servers_state():
    enclaves = [one.get("path") for one in POLICY_XML.iter("enclave")]
    reserved = ("/arm_1/execute_task/_action/send_goal", "/kairos/serving/change_state")
    for name in (*reserved, "/arm_1/release"):
        assert [e for e in enclaves if allows(e, "request", name)] == ["/operator"]


def test_only_the_safety_node_may_call_a_cell_safe_and_nobody_may_disturb_one():
    enclaves = [one.get("path") for one in POLICY_XML.iter("enclave")]
    for node, topic in (
        ("safety", "safety_verdict"),
        ("monitor", "task_progress"),
        ("planner", "plan"),
    ):
        who = [e for e in enclaves if allows(e, "publish", f"/arm_1/{topic}")]
        assert who == [f"/kairos/{node}"]
    assert not any(allows(e, "request", "/arm_1/disturb") for e in enclaves)
