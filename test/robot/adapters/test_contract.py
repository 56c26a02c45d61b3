"""Contracts of robots: what is wrong in a file, what positions mean, which nodes run an arm."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kairos_ros.bringup.arms import arm_plan
from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import FaultyFileError
from kairos_ros.nodes.robot.drivers.topics import controllers
from kairos_ros.nodes.robot.parameters import adapter_options
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.contract.contract import ContractJoint, Following, RobotContract
from kairos_ros.robot.adapters.contract.contract_file import (
    at_drivers,
    contract_path,
    read_contract,
)
from kairos_ros.robot.adapters.contract.contracted_robot import ContractedRobot
from kairos_ros.robot.adapters.contract.driver_link import Glance, Objection, Positions
from kairos_ros.robot.adapters.contract.following import FollowingCheck
from kairos_ros.robot.adapters.contract.joint_units import JointUnits
from kairos_ros.robot.body_error import BodyError
from kairos_ros.robot.cameras.picture import as_jpeg, pixels
from kairos_ros.robot.guard import ActionGuard, GuardLimits, tightened

SHIPPED = (
    "so101", "so101_cameras", "so101_real", "bi_so101", "bi_so101_real", "franka", "franka_real"
)  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_contract_is_right_and_its_safe_state_is_allowed(name):
    contract = read_contract(contract_path(name))
    units = JointUnits(contract.joints)
    safe = units.policy(np.array([joint.safe for joint in contract.joints]))
    guard = ActionGuard(units.limits(), len(safe), len(contract.state_features), 30.0)
    state = np.zeros(len(contract.state_features), np.float32)
    state[: len(safe)] = safe
    guard.reset(state)
    assert guard.check(safe.astype(np.float32), lambda: state) is not None
    assert guard.counts["range"] == 0


COMMANDS = "arms.0.commands"
JOINTS = "arms.0.joints"
CASES = [
    # what is changed to what in so101.yaml, field, line, said
    ("control_rate_hz: 30", "control_rate_hz: 30k", "control_rate_hz", 5, "must be a valid number"),
    ("when_lost: hold  ", "when_lost: hodl  ", "when_lost", 6, "allowed are: hold, torque_off"),
    ("when_lost: hold  ", "when_lost: torque_off  ", "arms.0", 8, "torque: {service: ...}"),
    ("unit: radians, stale", "units: radians, stale", "arms.0.joint_states.units", 9, "no field"),
    ("- kind: joint_tr", "- kind: joint_rt", f"{COMMANDS}.0.kind", 11, "did you mean"),
    ("lower: -1.92,", "lower: -110,", f"{JOINTS}.0.lower", 15, "are -1.92 rad"),
    ("lower: -1.92,", "lower: 1.92,", f"{JOINTS}.0.lower", 15, "must be below upper"),
    ("lower: -1.92,", "lower: .nan,", f"{JOINTS}.0.lower", 15, "must be a finite number"),
    ("elbow_flex.pos", "wrist_flex.pos", f"{JOINTS}.3.feature", 18, "is there already"),
    ("name: elbow_flex", "name: gripper", f"{JOINTS}.5.name", 20, "is there already"),
    ("safe: -1.0", "safe: -2.0", f"{JOINTS}.1.safe", 16, "outside the limits -1.745"),
    (", safe: -1.0", "", "arms", 8, "shoulder_lift.pos has none"),
    ("unit: radians, lower", "unit: metres, lower", f"{JOINTS}.0.unit", 15, "has no metres"),
    ("driver: /so101", "driver: so101", "arms.0.driver", 8, "the driver's namespace"),
    (", target.z]", "]", "extra_state.0.features", 23, "3 features (x, y, z), not 2"),
    ("robot: so101\n", "robot: so101\nrobot: so102\n", "", 5, "given twice"),
    ("reach_s:", "joints: [gripper]\n        reach_s:", COMMANDS, 11, "nothing commands"),
    ("reach_s:", "joints: [griper]\n        reach_s:", f"{COMMANDS}.0.joints", 13, "'gripper'"),
]


@pytest.mark.parametrize(("old", "new", "field", "line", "said"), CASES)
def test_a_fault_names_file_line_field_value_and_what_is_allowed(
    tmp_path, old, new, field, line, said
):
    text = contract_path("so101").read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FaultyFileError) as caught:
        read_contract(path)
    told = [(f.field, f.place.line) for f in caught.value.faults]
    assert (field, line) in told
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


@pytest.mark.parametrize("text", ["", "just text", "[1, 2]", "a: [", "{robot: " * 200])
def test_what_is_no_contract_at_all_is_refused(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        read_contract(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_contract(tmp_path / "none.yaml")


def test_drivers_can_be_elsewhere_one_for_each_arm():
    pair = read_contract(contract_path("bi_so101_real"))
    moved = at_drivers(pair, ["/left", "right"])
    assert [arm.driver for arm in moved.arms] == ["/left", "/right"]
    assert moved.joints == pair.joints
    with pytest.raises(ConfigError, match="give one for each arm"):
        at_drivers(pair, ["/left"])
    with pytest.raises(ConfigError, match="write them like /so101"):
        at_drivers(pair, ["/left", "/ri ght"])


def joint(**changes) -> ContractJoint:
    plain = {"name": "a", "feature": "a.pos", "lower": -1.0, "upper": 3.0, "max_velocity": 2.0}
    return ContractJoint.model_validate(plain | changes)


@pytest.mark.parametrize(
    ("changes", "position", "policy"),
    [
        ({"unit": "radians"}, 0.5, 0.5),
        ({"unit": "degrees"}, math.pi / 2, 90.0),
        ({"unit": "degrees", "sign": -1, "zero": 0.5}, 0.5 + math.pi / 6, -30.0),
        ({"unit": "range_0_100"}, 0.0, 25.0),
        ({"unit": "range_0_100", "sign": -1}, 0.0, 75.0),
        ({"unit": "range_m100_100"}, 3.0, 100.0),
        ({"unit": "range_m100_100", "sign": -1}, 0.0, 50.0),
        ({"unit": "metres", "kind": "prismatic"}, 0.02, 0.02),
    ],
)
def test_a_joint_is_read_and_commanded_in_the_policy_s_unit(changes, position, policy):
    units = JointUnits([joint(**changes)])
    assert units.policy(np.array([position])) == pytest.approx([policy])
    assert units.positions(np.array([policy], np.float32)) == pytest.approx([position], abs=1e-6)
    beyond = units.positions(np.array([1e6], np.float32))[0]
    assert -1.0 <= beyond <= 3.0
    limits = units.limits()
    assert limits.minimum[0] < limits.maximum[0]
    assert limits.max_rate[0] > 0


def followed(targets, positions, period_s=0.1, silent_after=1000, **joint_changes) -> str:
    """What a check of one joint says at the end. silent_after: so many periods."""
    check = FollowingCheck([joint(unit="radians", **joint_changes)], Following())
    said = ""
    for i, (target, position) in enumerate(zip(targets, positions, strict=True)):
        now_ns, heard_ns = (round(k * period_s * 1e9) for k in (i, min(i, silent_after)))
        said = check.told(now_ns, np.array([target]), np.array([position]), heard_ns)
        if said:
            break
    return said


def test_a_joint_that_stands_still_far_from_its_targets_is_found():
    saw = [0.05 + 0.02 * (i % 10) for i in range(40)]  # chunks begin near an arm that is stuck
    assert "joint a has not moved for 2.1 s" in followed(saw, [0.0] * 40)
    assert followed(saw[:20], [0.0] * 20) == ""
    assert followed(saw, [0.0] * 40, silent_after=18) == "", "who knows where it is"
    assert followed(saw, [0.0] * 40, grips=True) == ""
    assert followed([0.1] * 40, [0.0] * 40) == ""  # it sags, but is where it shall be
    assert followed([2.0] * 40, [0.01 * i for i in range(40)]) == ""


class StillLink:
    """A link to drivers that tell the same positions for ever, and what was done with it."""

    def __init__(self, contract: RobotContract, positions: list[float]) -> None:
        names = tuple(joint.name for joint in contract.arms[0].joints)
        self.now_ns = 10**9
        self.told = names, np.array(positions)
        self.refusal: Objection | None = None
        self.taken_ns = dict.fromkeys(contract.cameras, self.now_ns)
        self.done_with: list[str] = []

    def clock_ns(self) -> int:
        return self.now_ns

    def sleep(self, for_s: float) -> None:
        self.now_ns += round(1e9 * for_s)
        self.done_with.append("sleep")

    def positions(self, _):
        return Positions(*self.told, self.now_ns)

    def entries(self, _):
        raise BodyError("bad state", "nan")

    def glance(self, key):
        return Glance(self.taken_ns[key], self.taken_ns[key])

    def picture(self, key):
        self.taken_ns[key] = self.now_ns  # a newer one comes
        return b"jpeg"

    def aim(self, _, positions):
        self.done_with.append(f"aim {[*positions.values()]}")

    def torque(self, on):
        self.done_with.append(f"torque {on}")

    def objection(self):
        return self.refusal

    def lives(self, _):
        return 1

    def prepared(self):
        return True

    begin = announce = command = lambda *_: None


def still_robot(positions, joints, **arm) -> tuple[ContractedRobot, StillLink]:
    """A robot of joints called j0, j1 ..., and its link."""
    told = [
        joint(name=f"j{i}", feature=f"j{i}.pos", **changes).model_dump()
        for i, changes in enumerate(joints)
    ]
    command = {"kind": "joint_trajectory", "topic": "commands"}
    extra = arm.pop("extra_state", [])
    document = {
        "robot": "still",
        "control_rate_hz": 30,
        "when_lost": "torque_off",
        "arms": [
            {
                "driver": "/still",
                "commands": [command],
                "joints": told,
                "torque": {"service": "torque"},
                **arm,
            }
        ],
        "extra_state": extra,
    }
    contract = RobotContract.model_validate(document)
    link = StillLink(contract, positions)
    return ContractedRobot(contract, link, clock_ns=link.clock_ns, sleep=link.sleep), link


@pytest.mark.parametrize("extra", [[], [{"topic": "x", "kind": "array", "features": ["x"]}]])
def test_an_arm_that_must_not_be_commanded_is_not_touched_by_a_task(extra):
    robot, link = still_robot([0.5], [{"unit": "radians"}], extra_state=extra)
    link.refusal = Objection("commanded by another", "somebody was first")
    with pytest.raises(BodyError, match="somebody was first"):
        robot.reset(TaskGoal("reach"))
    assert link.done_with == []


def test_controllers_aim_where_the_arm_is_for_long_enough_before_its_torque_comes_on():
    robot, link = still_robot([0.5, -0.2], [{"unit": "radians"}, {"unit": "degrees"}])
    began_ns = link.now_ns
    robot.reset(TaskGoal("reach"))
    assert link.done_with == ["aim [0.5, -0.2]", "sleep", "torque True"]
    assert link.now_ns - began_ns > 0.1 * 1e9  # the time that a trajectory takes
    robot, link = still_robot([0.5], [{"unit": "radians"}], torque=None)
    robot.reset(TaskGoal("reach"))
    assert "sleep" not in link.done_with


def test_a_look_is_as_old_as_its_oldest_picture_was_before_it_was_read():
    cameras = [
        {"key": key, "topic": key, "kind": "raw", "height_px": 8, "width_px": 8}
        for key in ("front", "wrist")
    ]
    robot, link = still_robot([0.5], [{"unit": "radians"}], cameras=cameras)
    link.taken_ns = {"front": 10**9, "wrist": 10**9 - 7}
    assert robot.observe().taken_ns == 10**9 - 7
    robot, _ = still_robot([0.5], [{"unit": "radians"}])
    assert robot.observe().taken_ns is None


@pytest.mark.parametrize("unit", ["degrees", "radians", "range_m100_100", "range_0_100"])
def test_every_safe_state_is_arrived_at_by_actions_which_are_rounded(unit):
    places = np.linspace(-1.0, 3.0, 40)
    joints = [{"unit": unit, "safe": float(place)} for place in places]
    robot, _ = still_robot([0.0] * 40, joints)
    robot.reset(TaskGoal("reach"))
    for _ in range(300):
        action = robot.toward_safe_state()
        if action is None:
            return
        robot.act(action)
    pytest.fail("it never arrives")


def stuck(acts) -> None:
    """An arm that does not move although it is told to, in the periods in which it `acts`."""
    robot, link = still_robot([0.0], [{"unit": "radians"}])
    robot.reset(TaskGoal("reach"))
    for period in range(1, 200):
        link.now_ns += round(1e9 / 30)
        if acts(period):
            robot.act(np.array([0.6], np.float32))
        else:
            robot.hold()


@pytest.mark.parametrize("every", [10, 50, 10**6])
def test_a_joint_that_does_not_follow_is_found_although_the_arm_holds_now_and_then(every):
    with pytest.raises(BodyError, match=r"has not moved for 2\.0 s"):
        stuck(lambda period: period % every)


def test_time_in_which_the_arm_holds_does_not_count_against_a_joint():
    stuck(lambda period: period % 10 == 0)


def test_parameters_can_only_tighten_the_limits_of_a_body():
    body = GuardLimits(minimum=[-1, -2], maximum=[1, 2], max_rate=[3, 3], measured_by=[0, 1])
    more = GuardLimits(minimum=[-5, -1], maximum=[5, 1], tolerance=0.1)
    both = tightened(body, more)
    assert (both.minimum, both.maximum) == ([-1, -1], [1, 1])
    assert (both.max_rate, both.measured_by, both.tolerance) == ([3, 3], [0, 1], 0.1)
    with pytest.raises(ConfigError, match="guard maximum has 1 values"):
        ActionGuard(tightened(body, GuardLimits(maximum=[1.0])), 2, 2, 30.0)


def test_pictures_of_every_common_encoding_are_read():
    red = np.zeros((2, 3, 3), np.uint8)
    red[..., 0] = 200
    padded = np.zeros((2, 12), np.uint8)
    padded[:, :9] = red.reshape(2, 9)
    assert (pixels("rgb8", 2, 3, 12, padded.tobytes()) == red).all()
    assert (pixels("bgr8", 2, 3, 9, red[..., ::-1].tobytes()) == red).all()
    assert pixels("mono8", 2, 3, 3, bytes([7] * 6)).tolist() == [[[7] * 3] * 3] * 2
    rgba = np.concatenate([red, np.full((2, 3, 1), 255, np.uint8)], 2)
    assert (pixels("rgba8", 2, 3, 12, rgba.tobytes()) == red).all()


@pytest.mark.parametrize(
    ("encoding", "height", "width", "step", "size"),
    [("yuv422", 2, 2, 4, 8), ("rgb8", 2, 2, 6, 11), ("rgb8", 2, 2, 5, 10), ("rgb8", 2, 0, 0, 0)],
)
def test_a_picture_that_contradicts_itself_is_refused(encoding, height, width, step, size):
    with pytest.raises(BodyError):
        pixels(encoding, height, width, step, bytes(size))


def test_bytes_that_are_no_picture_are_refused():
    with pytest.raises(BodyError, match="are no picture"):
        as_jpeg(b"\xff\xd8 torn", (8, 8))


def test_actions_need_control_msgs_and_the_contract_says_what_to_do_without(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    text = contract_path("so101").read_text()
    path.write_text(text.replace("kind: joint_trajectory\n", "kind: follow_joint_trajectory\n"))
    monkeypatch.setitem(sys.modules, "control_msgs.action", None)
    with pytest.raises(ConfigError, match=r"arms\.0\.commands\.0.* Use kind joint_trajectory"):
        controllers(read_contract(path))


@pytest.mark.parametrize("arm", ARGUMENTS)
def test_a_simulated_arm_is_driver_robot_and_serving_node(arm):
    driver, robot, serving = arm_plan(arm, {})
    assert (driver.executable, driver.namespace) == ("sim_driver_node", arm)
    assert (robot.executable, robot.namespace) == ("robot_node", f"{arm}_1")
    options = adapter_options(robot.parameters["adapter_options"])
    assert options == {"contract": arm, "drivers": [arm]}, "below the fleet's namespace"
    assert serving.parameters["policy"].endswith(f"models/{arm}_reach")


SEES = "emulated:state=6,dim=6,images=front@120x160|wrist@120x160"


def test_a_simulated_arm_has_the_cameras_of_its_contract_and_that_follows_the_policy():
    driver, robot, _ = arm_plan("so101", {"policy": SEES})
    assert adapter_options(robot.parameters["adapter_options"])["contract"] == "so101_cameras"
    assert driver.parameters["cameras"] == ["front:120x160", "wrist:120x160"]
    assert driver.parameters["camera_rate_hz"] == 15.0
    driver, robot, _ = arm_plan("so101", {"policy": SEES, "cameras": "front"})
    assert driver.parameters["cameras"] == ["front"]
    assert "camera_rate_hz" not in driver.parameters
    driver, robot, _ = arm_plan("franka", {"policy": SEES})  # no contract with cameras ships
    assert adapter_options(robot.parameters["adapter_options"])["contract"] == "franka"
    assert "cameras" not in driver.parameters
    driver, _, _ = arm_plan("so101", {"policy": SEES, "contract": "so101_real"})
    assert driver.parameters["cameras"] == ["front:480x640", "wrist:480x640"]


def test_a_horizon_goes_to_the_server_or_where_that_is_elsewhere_with_the_robots_requests():
    *_, serving = arm_plan("so101", {"horizon": "static:10"})
    assert serving.parameters["horizon"] == "static:10"
    driver, robot = arm_plan("so101", {"horizon": "static:10", "serving": "false"})
    assert robot.parameters["horizon_policy"] == "static:10"
    assert robot.parameters["adapter"] == "ros2"
    assert "horizon_policy" not in driver.parameters


FLEET = """
server_cluster: {num_servers: 1, gpu_type: none}
robot_fleet:
  - {task: reach, names: [so101_1], adapter: ros2, adapter_options: {contract: so101}}
reach:
  pipeline: {action_period_ms: 500}
  task_retry: {max_task_retries: 0, on_max_task_retries: stop_and_call_human}
  safety_and_slo_violation:
    {max_consecutive_safety_replan: 1, max_consecutive_slo_violation: 1,
     on_max_violation: stop_and_call_human}
  components:
    system1:
      {model: "emulated:state=9,dim=6", prompt: touch the ball, slo_ms: 500,
       fallback: stop_and_resend}
"""


def test_a_fleet_file_names_the_arm_and_the_plan_stands_its_driver_beside_it(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    driver, serving, robot = arm_plan("so101", {"fleet": str(path)})
    assert (driver.executable, serving.executable) == ("sim_driver_node", "serving_node")
    assert robot.parameters["adapter_options"] == ['contract="so101"']
    assert robot.params_file.name == "arm.yaml"  # not the limits of Meta-World's arm
    beside = arm_plan("so101", {"fleet": str(path), "serving": "false"})
    assert [spec.executable for spec in beside] == [driver.executable, robot.executable]
    for name in ("policy", "horizon"):
        with pytest.raises(ConfigError, match=f"leave out {name}"):
            arm_plan("so101", {"fleet": str(path), name: "static:10"})


def test_a_real_arm_is_on_its_serial_port_or_behind_its_driver():
    policy = {"use_sim": "false", "policy": "/models/mine"}
    [serial, _] = arm_plan("so101", policy | {"port": "/dev/ttyACM0", "id": "desk"})
    assert serial.parameters["adapter"] == "lerobot"
    options = dict(text.split("=", 1) for text in serial.parameters["adapter_options"])
    assert {k: json.loads(v) for k, v in options.items()} == {
        "robot": "so101_follower",
        "port": "/dev/ttyACM0",
        "id": "desk",
    }
    [behind] = arm_plan("franka", policy | {"driver": "/cell_3/fr3", "serving": "false"})
    assert behind.parameters["adapter_options"] == [
        'contract="franka_real"',
        'drivers=["/cell_3/fr3"]',
    ]


@pytest.mark.parametrize(
    ("arm", "given", "said"),
    [
        ("so102", {}, "none of so101, bi_so101, franka"),
        ("franka", {"port": "/dev/ttyACM0"}, "no argument 'port'"),
        ("so101", {"use_sim": "yes"}, "say true or false"),
        ("so101", {"port": "/dev/ttyACM0"}, "say use_sim:=false"),
        ("so101", {"use_sim": "false"}, "name the policy"),
        ("so101", {"robot": "so101"}, "both called 'so101'"),
        ("so101", {"seed": "-1"}, "seed is '-1'"),
        ("bi_so101", {"use_sim": "false", "left_port": "/dev/a"}, "give left_port and right_port"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arm, given, said):
    with pytest.raises(ConfigError, match=said):
        arm_plan(arm, given)


@pytest.mark.parametrize("file", ["so101", "bimanual_so101", "franka"])
def test_a_launch_file_describes_every_argument_of_its_plan(file):
    pytest.importorskip("launch_ros")
    path = Path(__file__).parents[3] / "launch" / f"{file}.launch.py"
    names: dict = {}
    exec(compile(path.read_text(), path, "exec"), names)
    assert len(names["generate_launch_description"]().entities) > len(ARGUMENTS["franka"])


@pytest.mark.slow
def test_the_command_shows_the_faulty_line_and_exits_with_2(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        contract_path("so101").read_text().replace("when_lost: hold ", "when_lost: go ")
    )
    done = subprocess.run(
        [Path(sys.prefix, "bin", "kairos"), "robot", "check", path],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 2
    assert f"{path}:6:12: when_lost: 'go' is not allowed" in done.stderr
    assert "           ^" in done.stderr


@pytest.mark.slow
def test_the_check_says_how_many_observations_a_policy_reads():
    policy = "emulated:state=9,dim=6,observations=2"
    done = subprocess.run(
        [Path(sys.prefix, "bin", "kairos"), "robot", "check", "so101", "--policy", policy],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "it reads 2 observations, 33 ms apart: in a task the robot observes 30 times" in done.stdout
    )
