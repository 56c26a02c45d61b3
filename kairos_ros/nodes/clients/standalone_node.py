"""A ROS node of a program that is none itself, such as a demo, a dashboard or a benchmark."""

import threading

from rclpy.action import ActionClient
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future

from kairos_ros.core.fleet_names import COMMON, ROOT, FleetNames
from kairos_ros.core.wire_check import printable
from kairos_ros.host.dds_deadlock import changing_entities
from kairos_ros.nodes.limited_node import LimitedNode
from kairos_ros.nodes.process import join_ros


class StandaloneNode:
    """A node with a context and an executor of its own: the program's signals stay the program's.

    Either the program calls `spin` again and again, or `spin_in_thread` once.
    """

    def __init__(self, name: str, domain: int | None = None, names: FleetNames = ROOT) -> None:
        """domain: ROS domain; None for that of the environment. names: of the fleet it is in."""
        self._context = Context()
        join_ros([], self._context, domain)
        self._namespace = f"{names.namespace}/{COMMON}"
        self.node = LimitedNode(name, namespace=self._namespace, context=self._context)
        self.executor = SingleThreadedExecutor(context=self._context)
        self.executor.add_node(self.node)
        self._thread: threading.Thread | None = None
        self._closed: Future = Future()
        self.failure = ""
        """Why the thread of `spin_in_thread` has ended; empty while all is well."""

    def spin(self, for_s: float) -> None:
        """Returns after the first message, at the latest after `for_s`."""
        self.executor.spin_once(timeout_sec=for_s)

    def spin_in_thread(self) -> None:
        """Until `close`."""
        self._thread = threading.Thread(target=self._live, name="ros", daemon=True)
        self._thread.start()

    def beside(self, name: str) -> Node:
        """Another node of the same context, in no executor."""
        return LimitedNode(name, namespace=self._namespace, context=self._context)

    def close(self) -> None:
        self._closed.set_result(None)
        if self._thread is not None:
            self._thread.join(5.0)
        # not beside a thread that spins, which in Jazzy ends with an error then
        self.executor.shutdown(timeout_sec=1.0)
        # Node.destroy_node does not destroy action clients, and one that is left keeps the DDS
        # participant until the interpreter ends, which may then hang
        with changing_entities():
            for client in [one for one in self.node.waitables if isinstance(one, ActionClient)]:
                client.destroy()
            self.node.destroy_node()
        self._context.try_shutdown()

    def _live(self) -> None:
        try:
            self.executor.spin_until_future_complete(self._closed)
        except ExternalShutdownException:
            return
        except Exception as error:
            self.failure = f"{type(error).__name__}: {printable(str(error), 500)}"
            raise
