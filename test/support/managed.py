"""One lifecycle node, as its manager sees it."""

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient
from wire import LATE_S, PATIENCE_S, answered, done, until


def parameters_of(wire, node: str) -> AsyncParameterClient:
    """The client of a node's parameters, once the node has found it: who has not yet answers
    nobody. DDS announces readers in the order in which they were made, so that a node which answers
    the last of them has found the others."""
    client = AsyncParameterClient(wire.node, node)
    until(client.services_are_ready, what=f"for the parameters of {node}")
    for _ in range(round(PATIENCE_S / LATE_S)):
        nothing = client.set_parameters_atomically([])
        try:
            until(nothing.done, LATE_S)
            return client
        except AssertionError:
            continue
    raise AssertionError(f"{node} does not answer")


class Managed:
    def __init__(self, wire, node: str) -> None:
        self._change = wire.node.create_client(ChangeState, f"{node}/change_state")
        self._get = wire.node.create_client(GetState, f"{node}/get_state")
        assert self._change.wait_for_service(PATIENCE_S)
        answered(self._get, GetState.Request())  # whose reader was announced after the other
        self._parameters = parameters_of(wire, node)

    def change(self, transition: int) -> bool:
        request = ChangeState.Request(transition=Transition(id=transition))
        return done(self._change.call_async(request)).success

    @property
    def state(self) -> int:
        return done(self._get.call_async(GetState.Request())).current_state.id

    def set(self, name: str, value: object) -> str:
        (result,) = done(self._parameters.set_parameters([Parameter(name, value=value)])).results
        return result.reason
