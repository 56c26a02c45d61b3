"""A contracted robot over real topics: drivers that fit, that do not, and that fail."""

import io
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rclpy
import yaml
from control_msgs.action import FollowJointTrajectory, GripperCommand
from fake_driver import FakeDriver
from PIL import Image
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, PointCloud
from std_msgs.msg import Float64MultiArray
from wire import until

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.share import share
from kairos_ros.nodes import qos
from kairos_ros.nodes.robot.cameras import RobotCameras
from kairos_ros.nodes.robot.drivers import goal_stream
from kairos_ros.nodes.robot.drivers.link import RosDriverLink
from kairos_ros.nodes.robot.drivers.topics import channels
from kairos_ros.robot.adapter import Homing, Limited, RobotAdapter, TaskGoal
from kairos_ros.robot.adapters.contract.contract import RobotContract
from kairos_ros.robot.adapters.contract.contract_file import read_contract
from kairos_ros.robot.adapters.contract.contracted_robot import ContractedRobot
from kairos_ros.robot.adapters.contract.driver_link import Objection
from kairos_ros.robot.body_error import BodyError

pytestmark = pytest.mark.slow

LOOK_AROUND_S = 0.5
"""In one process everybody is found at once."""
STALE_S = 4.0
"""Drivers are threads of this process, which gets no processor for a while on a busy machine."""
GOAL = TaskGoal("touch the ball")
HOME = {"pan": 0.5, "lift": -1.0, "gripper": 0.2}


def contract_of(driver: str, **changes) -> RobotContract:
    joint = {"unit": "degrees", "lower": -1.6, "upper": 1.6, "max_velocity": 2.0, "safe": 0.0}
    joints = [{"name": name, "feature": f"{name}.pos", **joint} for name in ("pan", "lift")]
    gripper = {"name": "gripper", "feature": "gripper.pos", **joint, "unit": "range_0_100"}
    arm = {
        "driver": driver,
        "joint_states": {"stale_after_s": STALE_S},
        "commands": [
            {
                "kind": "joint_trajectory",
                "topic": "joint_trajectory_controller/joint_trajectory",
                "joints": ["lift", "pan"],
            },
            {
                "kind": "float64_multi_array",
                "topic": "gripper_controller/commands",
                "joints": ["gripper"],
            },
        ],
        "joints": [*joints, gripper | {"lower": 0.0, "upper": 1.0}],
        "cameras": [
            {
                "key": key,
                "topic": topic,
                "kind": kind,
                "height_px": 24,
                "width_px": 32,
                "stale_after_s": STALE_S,
                "frozen_after_s": STALE_S + 0.5,
            }
            for key, topic, kind in (
                ("front", "camera/front/image_raw", "raw"),
                ("wrist", "camera/wrist/compressed", "compressed"),
            )
        ],
        "torque": {"service": "torque_enable"},
    }
    document = {
        "robot": "test_arm",
        "control_rate_hz": 30,
        "when_lost": "hold",
        "arms": [arm],
        "extra_state": [
            {
                "topic": "target",
                "kind": "point",
                "features": ["target.x", "target.y", "target.z"],
                "stale_after_s": STALE_S,
            }
        ],
        "cell": {"new_task": "new_task", "done_topic": "task_done"},
    }
    return RobotContract.model_validate(document | changes)


@pytest.fixture(scope="module")
def context(domain_id):
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    yield context
    rclpy.shutdown(context=context)


@pytest.fixture(scope="module")
def driver(context):
    driver = FakeDriver(context, "/good", HOME)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def link(context, driver):
    link = RosDriverLink(contract_of("/good"), "/arm_1", context)
    link.start(60.0, LOOK_AROUND_S)
    yield link
    link.close()


@pytest.fixture
def robot(driver, link):
    """Ready for a task; the driver is well again afterwards."""
    robot = ContractedRobot(contract_of("/good"), link)
    until(
        lambda: driver.joints.update(HOME) or not fault_of(lambda: robot.reset(GOAL)),
        what="for the driver to be well",
    )
    # what was sent before may still arrive
    until(
        lambda: driver.joints.update(HOME) or abs(robot.state()[0] - 28.648) < 0.01,
        what="for the arm at home",
    )
    yield robot
    driver.silent = driver.stamp_frozen = driver.camera_silent = driver.pixels_frozen = False
    driver.target_silent = False
    driver.target_x = None
    driver.factor = 1.0
    until(lambda: not fault_of(robot.hold), what="for the driver to be well")


def fault_of(act) -> str:
    """Reason of the BodyError that it raises; empty without one."""
    try:
        act()
    except BodyError as error:
        return error.reason
    return ""


def moved(robot, target: np.ndarray, driver: FakeDriver, **joints: float) -> bool:
    """Commands it once more: the first message may be lost while topics find each other."""
    robot.act(target)
    return all(driver.joints[name] == pytest.approx(at, abs=1e-4) for name, at in joints.items())


def test_it_is_an_adapter_with_limits_and_a_safe_state(robot):
    assert isinstance(robot, RobotAdapter)
    assert isinstance(robot, Limited)
    assert isinstance(robot, Homing)
    assert robot.spec.state_names[-1] == "target.z"
    assert robot.limits.maximum == pytest.approx([91.67, 91.67, 100.0], abs=0.01)


def test_state_and_actions_are_in_the_policy_s_order_and_units(robot, driver):
    assert robot.state()[:3] == pytest.approx([28.648, -57.296, 20.0], abs=0.01)
    target = np.array([10.0, -20.0, 50.0], np.float32)
    until(lambda: moved(robot, target, driver, gripper=0.5, pan=0.17453), what="for the arm")
    assert driver.joints["lift"] == pytest.approx(-0.34907, abs=1e-4)
    until(lambda: robot.state()[2] == pytest.approx(50.0), what="for the new state")


def test_pictures_come_as_jpeg_in_the_contract_s_size(robot):
    images = robot.observe().images
    for key in ("front", "wrist"):
        picture = Image.open(io.BytesIO(images[key]))
        assert (picture.format, picture.size) == ("JPEG", (32, 24))
    red, _, blue = Image.open(io.BytesIO(images["front"])).getpixel((4, 4))
    assert red > blue  # it is told as bgr


def test_every_task_begins_with_a_cell_that_prepared_it(robot, driver):
    first = robot.state()[3]
    driver.done = True
    until(robot.succeeded, what="for the cell to see success")
    robot.reset(GOAL)
    assert robot.state()[3] == first + 1
    assert robot.succeeded() is False


@pytest.mark.parametrize(
    ("fault", "reason", "notices"),
    [
        ("silent", "stale joint states", "hold"),
        ("stamp_frozen", "stale joint states", "state"),
        ("camera_silent", "stale camera", "observe"),
        ("pixels_frozen", "frozen camera", "observe"),
        ("target_silent", "stale state", "state"),
    ],
)
def test_who_falls_silent_or_repeats_itself_stops_the_arm(robot, driver, fault, reason, notices):
    setattr(driver, fault, True)
    until(lambda: fault_of(getattr(robot, notices)) == reason, what=f"for {reason}")
    sent = len(driver.commands)
    assert fault_of(lambda: robot.act(np.zeros(3, np.float32))) == reason
    setattr(driver, fault, False)
    until(lambda: not fault_of(robot.observe), what="for the driver to be well")
    time.sleep(0.1)
    assert len(driver.commands) == sent  # nothing moves because it is back


def test_an_arm_that_shall_let_go_is_let_go_when_it_is_lost(driver, link, robot):
    limp = ContractedRobot(contract_of("/good", when_lost="torque_off"), link)
    limp.reset(GOAL)
    until(lambda: driver.torques and driver.torques[-1], what="for torque")
    driver.silent = True
    until(lambda: fault_of(limp.hold), what="for the arm to be lost")
    until(lambda: not driver.torques[-1], what="for the torque to be off")


def test_an_arm_that_sank_is_not_driven_back_to_its_old_target(driver, link, robot):
    limp = ContractedRobot(contract_of("/good", when_lost="torque_off"), link)
    limp.reset(GOAL)
    until(lambda: moved(limp, np.array([10.0, -20.0, 50.0], np.float32), driver, pan=0.17453))
    driver.silent = True
    until(lambda: fault_of(limp.hold), what="for the arm to be lost")
    until(lambda: not driver.torque, what="for the torque to be off")
    driver.joints |= {"lift": 0.4}
    driver.silent = False
    until(lambda: not fault_of(lambda: limp.reset(GOAL)), what="for the driver to be well")
    until(lambda: driver.torque, what="for the torque to be on")
    assert driver.joints["lift"] == pytest.approx(0.4)


def test_who_gave_way_leaves_the_other_one_s_arm_alone(driver, link, robot, monkeypatch):
    robot.reset(GOAL)
    torques, tasks = len(driver.torques), robot.state()[3]
    with monkeypatch.context() as patch:
        patch.setattr(link, "_give_way", Objection("commanded by another", "somebody was first"))
        assert fault_of(lambda: robot.reset(GOAL)) == "commanded by another"
    time.sleep(0.3)
    assert (len(driver.torques), robot.state()[3]) == (torques, tasks)


def test_pictures_that_are_published_again_do_not_become_younger(driver, link, robot, context):
    document = contract_of("/good").model_dump()
    for camera in document["arms"][0]["cameras"]:
        camera["stale_after_s"] = 60.0
    patient = ContractedRobot(RobotContract.model_validate(document), link)
    node = rclpy.create_node("eye", namespace="/arm_1", context=context)
    node.create_subscription(CompressedImage, "camera/front/compressed", print, qos.SENSOR)
    cameras, frames = RobotCameras(node, ["front", "wrist"], 10.0), []
    found = lambda stamp, _: cameras.frames.find((stamp.sec, stamp.nanosec))  # noqa: E731
    cameras.published = lambda *look: frames.append(found(*look))

    def look():
        cameras.hurry()
        cameras.look(patient.observe, "1")
        return len(frames)

    until(look, what="for the subscriber to be found")
    driver.within(lambda: setattr(driver, "camera_silent", True))
    before_ns = 0

    def taken_by_three_looks():
        """When their picture was taken; None while pictures that were under way come in."""
        nonlocal before_ns
        before_ns = time.monotonic_ns()
        frames.clear()
        while look() < 3:
            time.sleep(0.05)
        taken_ns = {frame.taken_ns for frame in frames}
        return taken_ns.pop() if len(taken_ns) == 1 else None

    assert until(taken_by_three_looks) < before_ns
    node.destroy_node()


def test_an_entry_that_is_no_number_stops_the_arm_and_lets_it_go(driver, link, robot):
    limp = ContractedRobot(contract_of("/good", when_lost="torque_off"), link)
    limp.reset(GOAL)
    driver.target_x = float("nan")
    until(lambda: fault_of(limp.state) == "bad state", what="for the nan")
    until(lambda: not driver.torques[-1], what="for the torque to be off")
    driver.target_x = None
    until(lambda: not fault_of(limp.observe), what="for the driver to be well")


def test_a_task_does_not_wait_for_ever_for_drivers_that_say_nothing(robot, link):
    """All that they say is an hour old by this robot's clock, which runs while it sleeps."""
    late_ns = [3600 * 10**9]

    def sleep(for_s: float) -> None:
        late_ns[0] += round(1e9 * for_s)

    waiting = ContractedRobot(
        contract_of("/good"), link, clock_ns=lambda: time.monotonic_ns() + late_ns[0], sleep=sleep
    )
    with pytest.raises(BodyError, match=r"/good/joint_states has said nothing new for 36.* s") as e:
        waiting.reset(GOAL)
    assert e.value.reason == "silent at start"


@pytest.mark.parametrize(
    ("joints", "factor", "reason", "said"),
    [
        ({"pan": 1.8}, 1.0, "joint out of limits", "pan is at 1.8 rad, above its 1.6 rad"),
        ({"pan": 0.5}, 57.29578, "looks like degrees", "joint_states.unit"),
        ({"pan": float("nan")}, 1.0, "not finite", "pan is at nan"),
    ],
)
def test_no_task_begins_with_joints_where_they_cannot_be(
    robot, driver, joints, factor, reason, said
):
    driver.factor = factor

    def begin() -> None:
        driver.joints |= joints  # again, as a task that began with the old ones sent the arm there
        time.sleep(0.1)
        robot.reset(GOAL)

    with pytest.raises(BodyError, match=said) as caught:
        until(begin, what="for the driver's new positions")
    assert caught.value.reason == reason


def test_the_way_home_is_slow_and_ends(robot):
    robot.act(np.array([20.0, 30.0, 50.0], np.float32))
    steps, last = 0, np.array([20.0, 30.0, 50.0])
    while (action := robot.toward_safe_state()) is not None:
        assert (np.abs(action - last) < np.array(robot.limits.max_rate) / 30 / 2).all()
        robot.act(action)
        steps, last = steps + 1, action
    assert last == pytest.approx([0.0, 0.0, 0.0], abs=1e-4)
    assert 10 < steps < 200


def test_who_comes_second_is_refused_and_the_first_goes_on(robot, driver, context):
    second = RosDriverLink(contract_of("/good"), "/arm_2", context)
    with pytest.raises(ConfigError, match=r"/arm_1/driver_link_.* commands /good/joint_traj"):
        second.start(1.0, LOOK_AROUND_S)
    second.close()
    robot.act(np.zeros(3, np.float32))


def test_who_did_not_see_the_first_in_time_gives_way_later(robot, link, context, monkeypatch):
    blind = RosDriverLink(contract_of("/good"), "/arm_3", context)
    with monkeypatch.context() as patch:
        patch.setattr(blind._claim, "other_commanders", lambda: [])
        blind.start(60.0, LOOK_AROUND_S)
    objection = until(blind.objection, what="for the second one to see the first")
    assert "and was first" in objection.text
    assert link.objection() is None
    until(lambda: not link.commanders(), what="for the second one to step back")
    blind.close()


def test_somebody_who_commands_the_arm_meanwhile_stops_it(robot, driver):
    topic = "/good/gripper_controller/commands"
    made = []
    driver.within(lambda: made.append(driver.node.create_publisher(Float64MultiArray, topic, 1)))
    until(lambda: fault_of(robot.hold) == "commanded by another", what="for the objection")
    driver.within(lambda: driver.node.destroy_publisher(made[0]))
    until(lambda: not fault_of(robot.hold), what="for the other one to leave")


def test_of_two_who_begin_at_once_one_stays(context):
    driver = FakeDriver(context, "/both", HOME)
    links = [RosDriverLink(contract_of("/both"), f"/arm_{i}", context) for i in (3, 4)]
    refused = []

    def begin(link):
        try:
            link.start(3.0, LOOK_AROUND_S)
        except ConfigError as error:
            refused.append((link, str(error)))
            link.close()

    threads = [threading.Thread(target=begin, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(refused) == 1
    [stayed] = set(links) - {link for link, _ in refused}
    assert "commanded by another" in refused[0][1]
    until(lambda: stayed.objection() is None, what="for the other one to leave")
    stayed.close()
    driver.close()


def test_a_driver_that_was_restarted_moves_nothing_before_a_new_task(context):
    driver = FakeDriver(context, "/again", HOME)
    link = RosDriverLink(contract_of("/again"), "/arm_5", context)
    link.start(60.0, LOOK_AROUND_S)
    robot = ContractedRobot(contract_of("/again"), link)
    robot.reset(GOAL)
    act = lambda: robot.act(np.zeros(3, np.float32))  # noqa: E731
    act()
    driver.close()
    driver = FakeDriver(context, "/again", HOME)
    until(lambda: fault_of(robot.hold) == "driver restarted", what="for the new driver")
    assert fault_of(act) == "driver restarted"
    time.sleep(0.1)
    assert driver.commands == []
    until(lambda: not fault_of(lambda: robot.reset(GOAL)), what="for the new driver to talk")
    until(lambda: act() or driver.commands, what="for the new task to move")
    driver.stop_controller()
    until(lambda: fault_of(act) == "no controller", what="for the controller to be missed")
    link.close()
    driver.close()


def test_whatever_does_not_fit_the_live_drivers_is_named(context, domain_id):
    latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
    bad = FakeDriver(context, "/bad", {"pan": 0.0, "lfit": 0.0}, command_qos=latched)
    elsewhere = rclpy.Context()  # one participant does not know a topic as two types
    rclpy.init(context=elsewhere, domain_id=domain_id)
    typed = FakeDriver(elsewhere, "/typed", HOME, state_type=PointCloud)
    names = ("bad", "typed", "gone")
    links = {name: RosDriverLink(contract_of(f"/{name}"), "/arm_6", context) for name in names}

    def told(name: str) -> set[str]:
        return {problem.code for problem in links[name].mismatches()}

    until(lambda: told("bad") == {"wrong joint", "joint missing", "QoS mismatch"})
    until(lambda: told("typed") == {"wrong type"})
    assert told("gone") == {"missing topic", "missing service"}
    texts = " ".join(problem.text for problem in links["bad"].mismatches())
    assert "did you mean 'lfit'?" in texts
    with pytest.raises(ConfigError, match=r"wrong type: /typed/joint_states .*PointCloud"):
        links["typed"].start(0.5)
    for link in links.values():
        link.close()
    bad.close()
    typed.close()
    rclpy.shutdown(context=elsewhere)


def test_a_driver_in_degrees_is_told_and_understood_in_degrees(context):
    driver = FakeDriver(context, "/old", {name: np.degrees(at) for name, at in HOME.items()})
    contract = contract_of("/old").model_dump()
    contract["arms"][0]["joint_states"]["unit"] = "degrees"
    contract = RobotContract.model_validate(contract)
    link = RosDriverLink(contract, "/arm_7", context)
    link.start(60.0, LOOK_AROUND_S)
    robot = ContractedRobot(contract, link)
    robot.reset(GOAL)
    assert robot.state()[:3] == pytest.approx([28.648, -57.296, 20.0], abs=0.01)
    target = np.array([10.0, -20.0, 50.0], np.float32)
    until(lambda: moved(robot, target, driver, pan=10.0), what="for the arm")
    link.close()
    driver.close()


def test_controllers_can_be_actions(context):
    driver = FakeDriver(context, "/acts", HOME, actions=True)
    document = contract_of("/acts").model_dump()
    trajectory, gripper = document["arms"][0]["commands"]
    trajectory |= {
        "kind": "follow_joint_trajectory",
        "topic": "joint_trajectory_controller/follow_joint_trajectory",
    }
    gripper |= {"kind": "gripper_command", "topic": "gripper_controller/gripper_cmd"}
    contract = RobotContract.model_validate(document)
    link = RosDriverLink(contract, "/arm_8", context)
    link.start(60.0, LOOK_AROUND_S)
    robot = ContractedRobot(contract, link)
    robot.reset(GOAL)
    target = np.array([10.0, -20.0, 50.0], np.float32)
    until(lambda: moved(robot, target, driver, gripper=0.5, pan=0.17453, lift=-0.34907))
    gripped = driver.goals[GripperCommand]
    until(lambda: moved(robot, target, driver) and driver.goals[FollowJointTrajectory] > 5)
    assert driver.goals[GripperCommand] == gripped  # its target has not changed

    second = RosDriverLink(contract, "/arm_9", context)
    with pytest.raises(ConfigError, match=r"/arm_8/driver_link_.* commands /acts/joint_traj"):
        second.start(0.5, LOOK_AROUND_S)
    second.close()

    driver.rejects = True
    until(lambda: fault_of(lambda: robot.act(target)) == "goal rejected", what="for the objection")
    assert fault_of(robot.hold) == "goal rejected"

    def rests():
        """No goal is on its way any more that was sent before the first was rejected."""
        before = driver.goals.total()
        time.sleep(0.5)
        return driver.goals.total() == before

    until(rests)
    driver.rejects = False
    sent = driver.goals.total()
    time.sleep(0.1)
    assert driver.goals.total() == sent
    robot.reset(GOAL)
    until(lambda: moved(robot, target, driver) and driver.goals.total() > sent)
    link.close()
    driver.close()


def test_a_gripper_that_is_slow_to_answer_has_its_last_goal_in_the_end(context):
    driver = FakeDriver(context, "/slow", HOME, actions=True)
    document = contract_of("/slow").model_dump()
    document["arms"][0]["joint_states"]["stale_after_s"] = 60.0
    document["arms"][0]["commands"][1] |= {
        "kind": "gripper_command",
        "topic": "gripper_controller/gripper_cmd",
    }
    link = RosDriverLink(RobotContract.model_validate(document), "/arm_10", context)
    link.start(60.0, LOOK_AROUND_S)
    driver.thinks_s = 0.3
    for opening in [*np.linspace(1.0, 0.0, 8), *[0.0] * 30]:
        link.command(0, {"pan": 0.0, "lift": 0.0, "gripper": float(opening)})
        time.sleep(0.03)
    until(lambda: driver.joints["gripper"] == 0.0, what="for the gripper to be closed")
    assert driver.goals[GripperCommand] < 8  # it was late for the others
    link.close()
    driver.close()


def test_a_goal_that_comes_while_another_one_is_being_sent_is_not_lost(monkeypatch):
    sent = []
    later = SimpleNamespace(add_done_callback=lambda _: None)
    client = SimpleNamespace(send_goal_async=lambda goal: sent.append(goal) or later)
    monkeypatch.setattr(goal_stream, "ActionClient", lambda *_: client)
    monkeypatch.setattr(goal_stream, "ExecutorCall", lambda *_: SimpleNamespace(ask=lambda: None))
    stream = goal_stream.GoalStream(SimpleNamespace(), None, "grip")
    clock = SimpleNamespace(monotonic=lambda: stream.send("second") or 0.0)
    monkeypatch.setattr(goal_stream, "time", clock)  # the other thread runs in the midst
    stream.send("first")
    stream._send()
    monkeypatch.setattr(goal_stream, "time", time)
    stream._send()
    assert sent[-1] == "second"


def test_an_action_that_nobody_serves_is_named(context):
    document = contract_of("/nobody").model_dump()
    document["arms"][0]["commands"][0]["kind"] = "follow_joint_trajectory"
    link = RosDriverLink(RobotContract.model_validate(document), "/arm_9", context)
    told = [problem.text for problem in link.mismatches() if problem.code == "missing action"]
    assert told == [
        "nobody serves /nobody/joint_trajectory_controller/joint_trajectory (arms.0.commands.0)"
    ]
    link.close()


def test_shipped_contracts_name_topics_that_ros_allows():
    files = sorted((share() / "config" / "robots").glob("*.yaml"))
    assert len(files) == 7
    for file in files:
        for channel in channels(read_contract(Path(file))):
            assert channel.topic.startswith("/")
        assert yaml.safe_load(file.read_text())["robot"] in file.stem
