"""Parameters of the robot node, and what they configure."""

from collections.abc import Mapping
from typing import Any

import yaml

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import LoopConfig
from kairos_ros.core.horizons.surprise import parse_surprise
from kairos_ros.nodes.parameters import DOUBLES, INTEGERS, STRINGS, ParameterSpec
from kairos_ros.robot.adapter import Limited, RobotAdapter
from kairos_ros.robot.guard import GuardLimits, Workspace, tightened
from kairos_ros.robot.motion_watch import MotionWatch, watched_joints

P = ParameterSpec
ROBOT_PARAMETERS = (
    P(
        "name",
        "",
        "In its fleet: the end of the node's namespace, such as cell_1/arm_1; empty: its last "
        "part. What is before it is the namespace of the fleet.",
    ),
    P("adapter", "sim", "Its body: sim, ros2, lerobot, or an installed adapter."),
    P("adapter_options", STRINGS, "Options of the adapter, each 'name=value' with a YAML value."),
    P("control_rate_hz", 30.0, "Actions per second.", 1.0, 1000.0),
    P(
        "horizon_policy",
        "",
        "For goals that name none, such as 'static:10'; empty: the server's.",
        live=True,
    ),
    P("policy", "", "For goals that name none, one of the server's; empty: the server's default."),
    P(
        "deadline_s",
        0.0,
        "Refuse rather than answer later than this; 0: the server's.",
        0.0,
        600.0,
        live=True,
    ),
    P("request_images", True, "Send pictures with requests; false where the policy reads none."),
    P("camera_map", STRINGS, "CAMERA=NAME, what the policy calls a camera's pictures, if not so."),
    P("absent_cameras", STRINGS, "Cameras of the policy that this robot is without."),
    P("request_timeout_s", 2.0, "Silence after which a request is sent again.", 0.05, 600.0),
    P("request_timeout_max_s", 10.0, "The timeout doubles up to this.", 0.05, 600.0),
    P(
        "max_pause_s",
        0.5,
        "After standing still for longer, the control loop drops its actions and asks anew.",
        0.01,
        60.0,
    ),
    P("latency_margin_s", 0.03, "Added to the expected latency of an answer.", 0.0, 10.0),
    P("initial_network_s", 0.02, "Network round trip, until it was measured.", 0.0, 10.0),
    P("initial_engine_s", 0.1, "Latency of a batch of one, until a chunk tells.", 0.0, 60.0),
    P("guard.minimum", DOUBLES, "Lowest action, per dimension; empty: no limit.", live=True),
    P("guard.maximum", DOUBLES, "Highest action, per dimension; empty: no limit.", live=True),
    P(
        "guard.max_rate",
        DOUBLES,
        "Largest change per second, per dimension; empty: no limit.",
        live=True,
    ),
    P(
        "guard.measured_by",
        INTEGERS,
        "State entry that tells where each action dimension starts; -1: a displacement, 0 while "
        "holding; -2: starts from 0 and lasts while holding (a gripper). Empty: all -1.",
        live=True,
    ),
    P("guard.tolerance", 0.0, "Smaller changes are made but not counted.", 0.0, 1e9, live=True),
    P(
        "guard.workspace.action",
        INTEGERS,
        "Dimensions that displace; empty: no workspace.",
        live=True,
    ),
    P("guard.workspace.state", INTEGERS, "State entry that each of them moves.", live=True),
    P(
        "guard.workspace.scale",
        1.0,
        "Motion of the state per unit of action.",
        1e-9,
        1e9,
        live=True,
    ),
    P("guard.workspace.low", DOUBLES, "Lower corner, in the state's unit.", live=True),
    P("guard.workspace.high", DOUBLES, "Upper corner, in the state's unit.", live=True),
    P(
        "surprise",
        "",
        "Asks early when the arm does not move as its actions say, such as "
        "'tracking:threshold=6'; empty: never.",
    ),
    P(
        "surprise_hold_s",
        0.0,
        "A surprise that lasts for so long is a contact, which ends the task; 0: never.",
        0.0,
        60.0,
    ),
    P("rules", "", "How judges are obeyed, as YAML (docs/pipelines.md); empty: there are none."),
    P(
        "camera_rate_hz",
        10.0,
        "Of camera/KEY/compressed, while somebody looks.",
        0.0,
        100.0,
        live=True,
    ),
    P("disturbances", False, "Simulated cells: serve <namespace>/disturb, for drills."),
    P(
        "execution_info_rate_hz",
        5.0,
        "Of ~/execution_info; 0: not published.",
        0.0,
        100.0,
        live=True,
    ),
    *(
        P(f"{topic}_every", 1, f"Control periods per ~/{topic}; 0: never.", 0, 100_000, live=True)
        for topic in ("policy_state", "joint_states")
    ),
    P("body_log", "", "Folder to write down what the body was told; empty: nowhere."),
    P(
        "diagnostics.holding_warn_s",
        1.0,
        "Holding for want of actions: warn.",
        0.0,
        3600.0,
        live=True,
    ),
    P(
        "diagnostics.holding_error_s",
        5.0,
        "Holding for want of actions: error.",
        0.0,
        3600.0,
        live=True,
    ),
    P(
        "diagnostics.missed_warn",
        0.05,
        "Share of control periods missed: warn.",
        0.0,
        1.0,
        live=True,
    ),
    P("diagnostics.dropped_warn", 1, "Chunks dropped in a second: warn.", 1, 1000, live=True),
    P(
        "diagnostics.network_warn_s",
        0.25,
        "Network share of round trips: warn.",
        0.0,
        3600.0,
        live=True,
    ),
    P("diagnostics.guarded_warn", 10, "Actions guarded in a second: warn.", 1, 10000, live=True),
)


def loop_config(values: Mapping[str, Any], robot: str, session: str, action_dim: int) -> LoopConfig:
    return LoopConfig(
        robot=robot,
        session=session,
        action_dim=action_dim,
        period_ns=round(1e9 / values["control_rate_hz"]),
        margin_ns=round(values["latency_margin_s"] * 1e9),
        timeout_ns=round(values["request_timeout_s"] * 1e9),
        timeout_max_ns=round(values["request_timeout_max_s"] * 1e9),
        max_pause_ns=round(values["max_pause_s"] * 1e9),
    )


def initial_latency(values: Mapping[str, Any]) -> LatencyEstimate:
    return LatencyEstimate(
        network_ns=round(values["initial_network_s"] * 1e9),
        engine_ns=round(values["initial_engine_s"] * 1e9),
    )


def guard_limits(values: Mapping[str, Any], body: RobotAdapter | None = None) -> GuardLimits:
    """Those of the parameters, and of the body where it has any of its own."""
    box = Workspace(
        action=values["guard.workspace.action"],
        state=values["guard.workspace.state"],
        scale=values["guard.workspace.scale"],
        low=values["guard.workspace.low"],
        high=values["guard.workspace.high"],
    )
    limits = GuardLimits(
        minimum=values["guard.minimum"],
        maximum=values["guard.maximum"],
        max_rate=values["guard.max_rate"],
        measured_by=values["guard.measured_by"],
        tolerance=values["guard.tolerance"],
        workspace=box if any((box.action, box.state, box.low, box.high)) else None,
    )
    return tightened(body.limits, limits) if isinstance(body, Limited) else limits


def motion_watch(
    values: Mapping[str, Any], limits: GuardLimits, state_names: tuple[str, ...]
) -> MotionWatch | None:
    """None where nothing is watched. Raises ConfigError for a rule that is none, or that cannot
    know what the actions of the robot move."""
    hold_s = values["surprise_hold_s"]
    if not values["surprise"]:
        if hold_s:
            raise ConfigError(
                f"surprise_hold_s is {hold_s:g}, but nothing is watched; name a rule in surprise, "
                "such as 'tracking'"
            )
        return None
    rule = parse_surprise(values["surprise"])
    return MotionWatch(rule.watch(watched_joints(limits, state_names)), round(hold_s * 1e9))


def adapter_options(texts: list[str]) -> dict[str, Any]:
    """`["env_id=Pusher-v5", "images={top: [224, 224]}"]` as keyword arguments.

    Raises ConfigError for a text without `=` and for a value that is not YAML.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"adapter option {text!r} must read 'name=value'")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"adapter option {text!r} has no YAML value: {error}") from error
    return options
