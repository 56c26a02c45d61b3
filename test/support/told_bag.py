"""Bags of one robot's task, written message by message."""

import numpy as np
from builtin_interfaces.msg import Time
from kairos_ros.msg import (
    ChunkRequest,
    ExecutionInfo,
    PipelineEvent,
    PolicyState,
    RobotStatus,
    TaskEvent,
    TaskProgress,
)
from rclpy.serialization import serialize_message

from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.metadata import Topic
from kairos_ros.recording.writer import BagWriter

DEFINITIONS = Definitions(installed_prefixes())
PERIOD_S = 0.1


class Told:
    """A bag that one robot's messages are put into, in the order in which they came."""

    def __init__(self, folder, robot="arm", state=("a", "b"), action_dim=1):
        self._bag = BagWriter(folder)
        self._channels = {}
        self._robot, self._names, self._dim = robot, list(state), action_dim
        self.at_s, self.folder = 0.0, folder

    def say(self, name, message, topic=None):
        topic = topic or f"/{self._robot}/{name}"
        kind = f"kairos_ros/msg/{type(message).__name__}"
        if topic not in self._channels:
            definition = DEFINITIONS.of(kind)
            self._channels[topic] = self._bag.add_topic(
                Topic(topic, kind, definition.rihs01), definition
            )
        at_ns = 10**18 + round(self.at_s * 1e9)
        self._bag.write(self._channels[topic], at_ns, at_ns, serialize_message(message))

    def of_task(self, message_type, **fields):
        return message_type(robot=self._robot, session="s", task="1", **fields)

    def here(self, rate_hz=1 / PERIOD_S, **more):
        status = RobotStatus(
            robot=self._robot,
            session="s",
            state_dim=len(self._names),
            action_dim=self._dim,
            control_rate_hz=rate_hz,
            **more,
        )
        self.say("", status, "/kairos/robot_status")

    def begins(self):
        self.say("task_events", self.of_task(TaskEvent, instruction="lift"))

    def asks(self, number, instruction="lift", executed=0):
        doing = ExecutionInfo(round=number - 1, actions_executed=executed)
        self.say(
            "chunk_request",
            self.of_task(ChunkRequest, round=number, instruction=instruction, execution=doing),
        )

    def period(self, action=None, number=0, index=0, mode="running", state=None):
        """action: None: it holds; a number: for all dimensions. state: the time, if not given."""
        self.at_s += PERIOD_S
        whole_s = int(self.at_s)
        message = PolicyState(
            stamp=Time(sec=whole_s, nanosec=round((self.at_s - whole_s) * 1e9)),
            names=self._names,
            values=[self.at_s] * len(self._names) if state is None else state,
            session="s",
            task="1",
            action=[] if action is None else np.broadcast_to(action, self._dim).tolist(),
            round=number,
            chunk_index=index,
            mode=mode,
        )
        self.say("policy_state", message)

    def moves(self, before, after, trigger):
        self.say(
            "pipeline_events",
            self.of_task(PipelineEvent, before=before, after=after, trigger=trigger),
        )

    def reports(self, state, service="mia", robot=None):
        message = self.of_task(TaskProgress, state=state, service=service)
        message.robot = robot or message.robot
        self.say("task_progress", message)

    def ends(self, executed, outcome="max_actions", success=False, ended=False, **goal):
        """executed: actions of each round."""
        zeros = [0.0] * len(executed)
        self.say(
            "task_events",
            self.of_task(
                TaskEvent,
                kind=TaskEvent.FINISHED,
                **{"instruction": "lift"} | goal,
                outcome=outcome,
                success=success,
                ended=ended,
                actions=sum(executed),
                round_executed=executed,
                round_latency_s=zeros,
                round_started_s=zeros,
                round_ended_s=zeros,
            ),
        )

    def close(self):
        self._bag.close()
        return self.folder
