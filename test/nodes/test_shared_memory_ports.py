"""A serving node that gets no CPU while somebody starts no longer hears robots of its host."""

import signal
import time

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from wire import Wire, WireRobot, until

from kairos_ros.bringup.plan import serving

POLICY = "emulated:latency_ms=1,chunk=20,dim=2,state=2"
STOPPED_S = 4.0


def errors(wire: Wire) -> list[str]:
    """What /diagnostics said of ports in shared memory."""
    error = DiagnosticStatus.ERROR
    return [text for _, level, text in wire.said if level == error and "shared memory" in text]


def test_a_serving_node_whose_port_was_replaced_says_so_and_what_to_do(start, wire, domain_id):
    server = start(serving(policy=POLICY, horizon="static:10"))
    wire.serving_since()
    WireRobot(wire, "early", state=[0.0, 0.0]).join()
    server.send(signal.SIGSTOP)
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    newcomer = Wire(context)
    time.sleep(STOPPED_S)  # it opens the ways to the serving node, which does not stir
    server.send(signal.SIGCONT)
    try:
        told = until(lambda: errors(wire), what="for it to say so")
        assert "Restart this node" in told[0]
    finally:
        newcomer.close()
        rclpy.shutdown(context=context)
