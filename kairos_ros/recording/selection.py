"""Which topics of a fleet belong into a bag."""

import re
from collections.abc import Collection, Mapping, Sequence

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import ROOT, FleetNames, fleets_among

UPDATES = "chunk_updates"
FULL_UPDATES = "chunk_updates/full"
SENSORS = (
    "sensor_msgs/msg/JointState",
    "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
)
FLEET = {
    "robot_status": "kairos_ros/msg/RobotStatus",
    "server_status": "kairos_ros/msg/ServerStatus",
    "fleet_state": "kairos_ros/msg/FleetState",
    UPDATES: "kairos_ros/msg/ChunkUpdates",
    FULL_UPDATES: "kairos_ros/msg/ChunkUpdates",
}
"""Topics of the fleet, and their types whatever else is published there."""
SHARED = {
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
    "/parameter_events": "rcl_interfaces/msg/ParameterEvent",
    "/tf": "tf2_msgs/msg/TFMessage",
    "/tf_static": "tf2_msgs/msg/TFMessage",
}
"""The same, of all fleets."""
ROBOT = {
    "chunk_request": "kairos_ros/msg/ChunkRequest",
    "action_chunk": "kairos_ros/msg/ActionChunk",
    "task_events": "kairos_ros/msg/TaskEvent",
    "execution_info": "kairos_ros/msg/ExecutionInfo",
    "policy_state": "kairos_ros/msg/PolicyState",
    "joint_states": "sensor_msgs/msg/JointState",
    "safety_verdict": "kairos_ros/msg/SafetyVerdict",
    "task_progress": "kairos_ros/msg/TaskProgress",
    "task_refusal": "kairos_ros/msg/TaskRefusal",
    "task_truth": "kairos_ros/msg/TaskProgress",
    "plan_request": "kairos_ros/msg/PlanRequest",
    "plan": "kairos_ros/msg/Plan",
    "pipeline_events": "kairos_ros/msg/PipelineEvent",
    "rules": "std_msgs/msg/String",
}
"""The same below the name of each robot."""
_REQUEST = "/chunk_request"


def parse_topics(text: str) -> re.Pattern[str] | None:
    """A regular expression for whole topic names; None where empty. Raises ConfigError."""
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise ConfigError(f"topics {text!r} is no regular expression: {error}") from error


def selected(
    topics: Mapping[str, Sequence[str]],
    wanted: re.Pattern[str] | None,
    *,
    full_updates: bool,
    names: FleetNames = ROOT,
    heard: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """The topics to record, of all that exist (name -> types), and the types they may have.

    A topic of the fleet has its one type, also where only others publish. Any other topic may have
    each of its types.

    wanted: names that match as a whole; None: what the fleet says (requests with their images,
    chunks with their updates, execution, tasks, states, verdicts and what robots did about them,
    diagnostics, transforms) and, below a robot's namespace, joint states and images; those of its
    drivers, too.
    names: of the fleet. Those in namespaces below its own are others.
    heard: topics that robots' nodes subscribe to: those of their drivers are among them.
    """
    others = fleets_among(topics)
    robots = [
        name.removesuffix(_REQUEST)
        for name, kinds in topics.items()
        if name.endswith(_REQUEST) and ROBOT[_REQUEST[1:]] in kinds and names.has(name, others)
    ]
    robots.sort(key=len, reverse=True)  # one without a namespace has what no other has
    common = {names.common(name): kind for name, kind in FLEET.items()} | SHARED
    unwanted = names.common(UPDATES if full_updates else FULL_UPDATES)
    chosen: dict[str, tuple[str, ...]] = {}
    for name, kinds in topics.items():
        inside = next((name[len(r) + 1 :] for r in robots if name.startswith(f"{r}/")), "")
        known = common.get(name) or ROBOT.get(inside)
        if wanted is not None:
            if wanted.fullmatch(name):
                chosen[name] = (known,) if known else tuple(kinds)
        elif known:
            if name != unwanted:
                chosen[name] = (known,)
        else:
            wants = _belongs if inside else _is_sensor
            fitting = tuple(filter(wants, kinds)) if inside or name in heard else ()
            if fitting:
                chosen[name] = fitting
    return chosen


def _belongs(kind: str) -> bool:
    return kind.startswith("kairos_ros/msg/") or _is_sensor(kind)


def _is_sensor(kind: str) -> bool:
    return kind in SENSORS
