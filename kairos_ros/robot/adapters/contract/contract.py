"""A robot's contract: what its ROS 2 drivers speak, and what its policy reads and commands.

Positions, limits and velocities are radians and rad/s (metres and m/s of a prismatic joint)
throughout; the policy's unit is said per joint. The names of features and of units are LeRobot's.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

Name = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=100, description="a ROS name")
]
Topic = Annotated[
    str,
    Field(
        pattern=r"^/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$",
        max_length=250,
        description="a topic; without a / in front it is the driver's",
    ),
]
Feature = Annotated[str, Field(min_length=1, max_length=100, description="LeRobot feature name")]
Seconds = Annotated[float, Field(gt=0, le=600, description="seconds")]
Reliability = Literal["best_effort", "reliable"]
Unit = Literal["radians", "degrees", "metres", "range_m100_100", "range_0_100"]
CommandKind = Literal[
    "joint_trajectory", "float64_multi_array", "follow_joint_trajectory", "gripper_command"
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ContractJoint(_Section):
    """One joint, as the driver knows it and as the policy knows it."""

    name: Annotated[str, Field(min_length=1, max_length=100, description="as in JointState")]
    feature: Feature
    kind: Literal["revolute", "prismatic"] = "revolute"
    unit: Annotated[Unit, Field(description="what the policy reads and commands")]
    sign: Annotated[
        Literal[1, -1], Field(description="-1 where the policy counts the other way round")
    ] = 1
    zero: Annotated[
        FiniteFloat, Field(description="where the policy's zero is; radians, degrees, metres only")
    ] = 0.0
    lower: Annotated[FiniteFloat, Field(description="lowest position, rad or m")]
    upper: Annotated[FiniteFloat, Field(description="highest position, rad or m")]
    max_velocity: Annotated[float, Field(gt=0, le=1000, description="rad/s or m/s")]
    grips: Annotated[
        bool, Field(description="true: what it grips may stop it; it need not reach its targets")
    ] = False
    safe: Annotated[FiniteFloat | None, Field(description="position in the safe state")] = None


class JointStates(_Section):
    """Where the driver tells positions."""

    topic: Topic = "joint_states"
    unit: Annotated[
        Literal["radians", "degrees"], Field(description="of revolute joints; REP 103: radians")
    ] = "radians"
    reliability: Reliability = "best_effort"
    stale_after_s: Annotated[Seconds, Field(description="older positions stop the arm")] = 0.25


class Command(_Section):
    """One controller."""

    kind: CommandKind
    topic: Topic
    joints: Annotated[
        list[str], Field(description="in the controller's order; empty: all of the arm, in order")
    ] = []
    reach_s: Annotated[
        Seconds, Field(description="time_from_start of a trajectory's point; 0.1: about 3 periods")
    ] = 0.1
    max_effort: Annotated[
        float, Field(ge=0, le=1000, description="of a gripper_command, N; 0: the gripper's own")
    ] = 0.0


class ContractCamera(_Section):
    """One camera."""

    key: Annotated[Name, Field(description="the policy's image key, without observation.images.")]
    topic: Topic
    kind: Annotated[
        Literal["raw", "compressed"],
        Field(description="sensor_msgs/Image or sensor_msgs/CompressedImage"),
    ]
    height_px: Annotated[int, Field(ge=8, le=8192, description="pixels as the policy gets them")]
    width_px: Annotated[int, Field(ge=8, le=8192, description="pixels as the policy gets them")]
    reliability: Reliability = "best_effort"
    stale_after_s: Annotated[Seconds, Field(description="older pictures stop the arm")] = 1.0
    frozen_after_s: Annotated[
        float,
        Field(ge=0, le=600, description="the same pixels for so long are no camera's; 0: they may"),
    ] = 0.0


class Torque(_Section):
    """Where the driver is told to let go."""

    service: Annotated[Topic, Field(description="std_srvs/SetBool, false: off")]


class ContractArm(_Section):
    """One driver: an arm and the cameras beside it."""

    driver: Annotated[
        str,
        Field(
            pattern=r"^(/[A-Za-z_][A-Za-z0-9_]*)+$",
            max_length=200,
            description="the driver's namespace, such as /so101",
        ),
    ]
    joint_states: JointStates = JointStates()
    commands: Annotated[list[Command], Field(min_length=1, max_length=8)]
    joints: Annotated[
        list[ContractJoint], Field(min_length=1, max_length=64, description="in the policy's order")
    ]
    cameras: Annotated[list[ContractCamera], Field(max_length=16)] = []
    torque: Annotated[Torque | None, Field(description="needed where when_lost is torque_off")] = (
        None
    )

    def topic(self, name: str) -> str:
        """The whole name of one of this arm's topics."""
        return name if name.startswith("/") else f"{self.driver}/{name}"

    def joints_of(self, command: Command) -> list[str]:
        return command.joints or [joint.name for joint in self.joints]


class Following(_Section):
    """When an arm does not do what it is told: it is blocked, or its controller rejects."""

    tolerance: Annotated[
        float, Field(gt=0, le=10, description="rad or m from its target that a joint may stay")
    ] = 0.15
    within_s: Annotated[Seconds, Field(description="in which it must at least move")] = 2.0


class Extra(_Section):
    """Entries of the state that no joint tells, such as where an object is."""

    topic: Topic
    kind: Annotated[
        Literal["point", "pose", "array"],
        Field(description="PointStamped, PoseStamped's position, or Float64MultiArray"),
    ]
    features: Annotated[list[Feature], Field(min_length=1, max_length=256)]
    stale_after_s: Annotated[
        float, Field(ge=0, le=600, description="0: what was said last is true until said otherwise")
    ] = 0.0


class ContractCell(_Section):
    """A cell that prepares tasks and knows when they are done; names as of the first arm."""

    new_task: Annotated[
        Topic | None, Field(description="service std_srvs/Trigger: lays out the next task")
    ] = None
    done_topic: Annotated[
        Topic | None, Field(description="std_msgs/Bool, periodically: whether the task is done")
    ] = None


class RobotContract(_Section):
    """One robot."""

    robot: Annotated[Name, Field(description="what kind of robot this is, such as so101")]
    control_rate_hz: Annotated[float, Field(ge=1, le=1000, description="actions per second")]
    when_lost: Annotated[
        Literal["hold", "torque_off"],
        Field(description="what an arm does whose driver or camera fell silent"),
    ]
    tolerance: Annotated[
        float, Field(ge=0, le=1, description="rad or m beyond a limit that a task may start with")
    ] = 0.05
    following: Following = Following()
    arms: Annotated[list[ContractArm], Field(min_length=1, max_length=4)]
    extra_state: Annotated[list[Extra], Field(max_length=16)] = []
    cell: ContractCell = ContractCell()

    @property
    def joints(self) -> list[ContractJoint]:
        """Of all arms: the order of actions, and of the state's first entries."""
        return [joint for arm in self.arms for joint in arm.joints]

    @property
    def state_features(self) -> list[str]:
        extra = [name for entry in self.extra_state for name in entry.features]
        return [joint.feature for joint in self.joints] + extra

    @property
    def cameras(self) -> Mapping[str, ContractCamera]:
        return {camera.key: camera for arm in self.arms for camera in arm.cameras}


def joint_names(joints: Sequence[ContractJoint]) -> tuple[str, ...]:
    """As the URDF of the whole robot names them: where two drivers call theirs alike, by feature,
    such as left_gripper of left_gripper.pos."""
    names = tuple(joint.name for joint in joints)
    if len(set(names)) == len(names):
        return names
    return tuple(joint.feature.removesuffix(".pos") for joint in joints)
