"""What a simulated body knows of every picture that judges get: recorded, to score them by.

Nobody who judges or acts listens: the answers of a robot's monitor are on another topic.
"""

from typing import Protocol, runtime_checkable

from builtin_interfaces.msg import Time
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node

from kairos_ros.core.pipeline import TaskState
from kairos_ros.msg import TaskProgress
from kairos_ros.nodes import qos
from kairos_ros.nodes.messages.pipeline import STATES
from kairos_ros.nodes.robot.messages import Identity

SERVICE = "simulator"
_CODES = {state: code for code, state in STATES.items()}


@runtime_checkable
class Knowing(Protocol):
    """What a simulated body offers besides `RobotAdapter`."""

    def task_state(self) -> TaskState | None:
        """The truth about the running task, now; None where either answer would be right."""


class RobotTruth:
    """Publishes `task_truth`, a `TaskProgress` by picture. Used by the control thread only."""

    def __init__(self, node: Node, who: Identity, body: Knowing) -> None:
        self._who, self._body = who, body
        self._topic = node.create_publisher(
            TaskProgress,
            "task_truth",
            qos.EVENTS,
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
        )

    def tell(self, stamp: Time, task: str) -> None:
        """The picture with this stamp has just been taken."""
        if not self._topic.get_subscription_count():
            return
        state = self._body.task_state()
        if state is not None:
            self._topic.publish(
                TaskProgress(
                    robot=self._who.robot,
                    session=self._who.session,
                    task=task,
                    frame=stamp,
                    service=SERVICE,
                    state=_CODES[state],
                    probability=1.0,
                )
            )
