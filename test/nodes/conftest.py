"""Fixtures of tests whose robot node is a real process and whose peer is the test."""

import pytest
import rclpy
from robot_peer import Peer

from kairos_ros.bringup import plan as bringup


@pytest.fixture
def context(domain_id):
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    yield context
    rclpy.shutdown(context=context)


@pytest.fixture
def peer(context, request):
    peer = Peer(f"arm_{abs(hash(request.node.name)) % 10**6}", context)
    yield peer
    peer.close()


@pytest.fixture
def start_robot(start_node, peer):
    def start(*parameters):
        settings = [word for p in parameters for word in ("-p", p)]
        shipped = bringup.share() / "config" / "robot.yaml"
        named = ("-r", f"__ns:=/{peer.robot}", "--params-file", str(shipped))
        return start_node("robot_node", *named, *settings)

    return start
