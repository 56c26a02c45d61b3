"""A program that has closed its node has left DDS, whatever it made in between."""

import time

import pytest
from kairos_ros.action import ExecuteTask
from rclpy.action import ActionClient
from std_msgs.msg import String

from kairos_ros.host.shared_memory import own_ports
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.timers import every

pytestmark = pytest.mark.slow


def make_all(standalone: StandaloneNode) -> None:
    node = standalone.node
    node.create_publisher(String, "said", 1)
    node.create_subscription(String, "said", lambda _: None, 1)
    every(node, 0.02, lambda: None)
    ActionClient(node, ExecuteTask, "/nobody/execute_task")


@pytest.mark.parametrize("make", [lambda _: None, make_all], ids=["nothing", "all kinds"])
def test_a_node_that_is_closed_reads_no_port_of_dds(domain_id, make):
    before = own_ports()
    standalone = StandaloneNode("closed", domain_id)
    make(standalone)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        standalone.spin(0.05)
    assert own_ports() - before
    standalone.close()
    assert not own_ports() - before
