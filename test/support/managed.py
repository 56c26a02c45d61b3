"""One lifecycle node, as its manager sees it."""

import time

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient
from wire import PATIENCE_S, done, until


class Managed:
    def __init__(self, wire, node: str) -> None:
        self._change = wire.node.create_client(ChangeState, f"{node}/change_state")
        self._get = wire.node.create_client(GetState, f"{node}/get_state")
        self._parameters = AsyncParameterClient(wire.node, node)
        for client in (self._change, self._get):
            assert client.wait_for_service(PATIENCE_S)
        until(self._parameters.services_are_ready)
        time.sleep(0.5)  # the node may not have found our readers yet: its answers would be lost

    def change(self, transition: int) -> bool:
        request = ChangeState.Request(transition=Transition(id=transition))
        return done(self._change.call_async(request)).success

    @property
    def state(self) -> int:
        return done(self._get.call_async(GetState.Request())).current_state.id

    def set(self, name: str, value: object) -> str:
        (result,) = done(self._parameters.set_parameters([Parameter(name, value=value)])).results
        return result.reason
