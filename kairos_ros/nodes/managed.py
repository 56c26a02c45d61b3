"""A lifecycle node that configures and activates itself unless somebody else does."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.host.dds_deadlock import changing_entities
from kairos_ros.nodes.limited_node import LimitedNode
from kairos_ros.nodes.parameters import NodeParameters, ParameterSpec

FINALIZED_S = 3.0
"""For so long a node that was shut down says that it is finalized: lifecycle managers ask after
every transition, and nav2's shuts no other node down where nobody answers."""
AUTOSTART = ParameterSpec("autostart", True, "Configure and activate at start")


class ManagedNode(LimitedNode, LifecycleNode):
    """What a node of this kind does is in four methods; each of them may raise KairosError.

    Whatever `Entities` the node gets from `set_up` on are destroyed again after `take_down`.
    """

    def __init__(self, name: str, specs: Iterable[ParameterSpec], **options: Any) -> None:
        """options: of the node. Raises ConfigError for a parameter that is wrong."""
        super().__init__(name, **options)
        self.values = NodeParameters(self, (*specs, AUTOSTART))
        self.configured = False
        self.active = False
        self.finalized = False
        """A lifecycle manager has shut it down: its process ends soon."""
        self._over_s = math.inf
        self.values.open_while(lambda: not self.configured)
        self.interrupted: Callable[[], bool] = lambda: False
        """The process is to end: what takes long gives up."""
        self._starting = False
        self._trouble = ""
        self._bug: Exception | None = None
        self._of_setup: Entities | None = None

    @property
    def over(self) -> bool:
        """Its process is to end now."""
        return time.monotonic() >= self._over_s

    def set_up(self) -> None:
        """configure"""

    def begin_work(self) -> None:
        """activate"""

    def end_work(self) -> None:
        """deactivate"""

    def take_down(self) -> None:
        """cleanup; may be called at any time."""

    def start(self) -> None:
        """Configures and activates, unless parameter `autostart` leaves it to somebody else.

        Raises ConfigError with the reason where that is not possible.
        """
        if not self.values["autostart"]:
            return
        self._starting = True
        for step in (self.trigger_configure, self.trigger_activate):
            if step() is not TransitionCallbackReturn.SUCCESS:
                raise self._bug or ConfigError(self._trouble)
        self._starting = False

    def stop(self) -> None:
        """Ends its work in whatever state it is. Raises what a transition raised, if it was no
        KairosError."""
        self._deactivate()
        self._clean_up()
        if self._bug is not None:
            raise self._bug

    def close(self) -> None:
        """Stops and destroys the node. After its executor has stopped, if it ever began."""
        try:
            self.stop()
        finally:
            self.destroy_node()

    def destroy_node(self) -> None:
        """Also what rclpy leaves to the garbage collector: others would still find the node."""
        with changing_entities():
            super().destroy_node()
            self._state_machine.destroy_when_not_in_use()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._do(self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._do(self._activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._do(self._deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._do(self._clean_up)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._do(self._deactivate)
        self.get_logger().info("finalized: this process ends")
        self.finalized = True
        self._over_s = time.monotonic() + FINALIZED_S
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After a bug: what state the node is in is not known, so its process ends."""
        self.finalized = True
        self._over_s = time.monotonic()
        return TransitionCallbackReturn.FAILURE

    def _do(self, step: Callable[[], None]) -> TransitionCallbackReturn:
        """A step of the lifecycle, which fails with a KairosError. rclpy drops what it raises."""
        try:
            step()
        except KairosError as error:
            self._trouble = str(error)
            if not self._starting:
                self.get_logger().error(self._trouble)
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self._bug = error
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _configure(self) -> None:
        self._of_setup = Entities(self)
        try:
            self.set_up()
        except KairosError:
            self._clean_up()
            raise
        self.configured = True

    def _activate(self) -> None:
        try:
            self.begin_work()
        except KairosError:
            self.end_work()
            raise
        self.active = True

    def _deactivate(self) -> None:
        if self.active:
            self.end_work()
            self.active = False

    def _clean_up(self) -> None:
        if self._of_setup is not None:
            self.take_down()
            self.configured = False
            self._of_setup.destroy_newer()
            self._of_setup = None


class Entities:
    """Publishers, subscriptions, clients, services, timers and guard conditions that a node had at
    a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._had = {id(entity): entity for _, entity in _entities(node)}

    def destroy_newer(self) -> None:
        for kind, entity in list(_entities(self._node)):
            if id(entity) not in self._had:
                getattr(self._node, f"destroy_{kind}")(entity)


def _entities(node: Node) -> Iterator[tuple[str, Any]]:
    yield from (("publisher", one) for one in node.publishers)
    yield from (("subscription", one) for one in node.subscriptions)
    yield from (("client", one) for one in node.clients)
    yield from (("service", one) for one in node.services)
    yield from (("timer", one) for one in node.timers)
    yield from (("guard_condition", one) for one in node.guards)
