"""A robot node whose DDS ports in shared memory another process has replaced is reached again.

Fast DDS removes the port of a process that gets no CPU, and now and then forgets to tell it. Here
the test removes them: after that nobody who joins can reach the robot, and the robot is not told.
"""

import os
from pathlib import Path

import pytest
import rclpy
from wire import Operator, Wire, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.host.shared_memory import own_ports, replaced_ports

HEARS_AGAIN_S = 30.0


@pytest.fixture
def newcomer(domain_id):
    """Somebody who joins when called."""
    contexts, wires = [], []

    def join() -> Wire:
        contexts.append(rclpy.Context())
        rclpy.init(context=contexts[-1], domain_id=domain_id)
        wires.append(Wire(contexts[-1]))
        return wires[-1]

    yield join
    for wire in wires:
        wire.close()
    for context in contexts:
        rclpy.shutdown(context=context)


@pytest.mark.slow
def test_a_robot_whose_ports_were_replaced_is_reached_again(start_for_module, wire, newcomer):
    robot = start_for_module(bringup.robot("arm_1"))
    until(lambda: wire.statuses, what="for the robot")
    proc = Path("/proc", str(robot.process.pid))
    ports = own_ports(proc)
    assert ports
    mapped = {line.split()[-1] for line in (proc / "maps").read_text().splitlines()}
    for file in mapped:
        if any(file.endswith(f"_port{port}") for port in ports):
            os.unlink(file)
    assert replaced_ports(proc).keys() == ports
    operator = Operator(newcomer(), "arm_1")
    until(lambda: not replaced_ports(proc), HEARS_AGAIN_S, "for new ports")
    result = operator.give(instruction="reach", max_duration=0.5)
    operator.result(result)
    operator.close()
    assert "it opens the new one now" in robot.output()
