"""The body `lerobot` over a robot that a package `lerobot_robot_*` brings, with wheels."""

import threading

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.task import Task
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.lerobot.lerobot_torch import torch_deferred
from kairos_ros.robot.adapters.registry import make_adapter
from kairos_ros.robot.body_error import BodyError
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import Start, StopControl
from kairos_ros.robot.guard import ActionGuard

PLUGIN = """
import threading
from dataclasses import dataclass, field

from lerobot.robots import Robot, RobotConfig


@RobotConfig.register_subclass("turtle")
@dataclass
class TurtleConfig(RobotConfig):
    legs: list[str] = field(default_factory=lambda: ["front"])
    calibrated: bool = True
    broken: str = ""
    deaf: int = 0


class Turtle(Robot):
    config_class, name = TurtleConfig, "turtle"
    calls = []
    newest = None

    def __init__(self, config):
        super().__init__(config)
        self.config = config
        self.legs = dict.fromkeys(config.legs, 0.0)
        self.connected = False
        Turtle.newest = self

    def _note(self, call, value=None):
        self.calls.append((call, threading.get_ident(), value))

    observation_features = property(lambda self: {f"{leg}.pos": float for leg in self.legs})
    action_features = property(lambda self: self.observation_features | {"x.vel": float})
    is_connected = property(lambda self: self.connected)
    is_calibrated = property(lambda self: self.config.calibrated)

    def connect(self, calibrate=True):
        self._note("connect", calibrate)
        self.connected = True

    def calibrate(self):
        self._note("calibrate")

    def configure(self):
        self._note("configure")

    def get_observation(self):
        self._note("get_observation")
        if self.config.broken:
            raise RuntimeError(self.config.broken)
        return {f"{leg}.pos": at for leg, at in self.legs.items()}

    def send_action(self, action):
        if self.config.deaf:
            self.config.deaf -= 1
            raise ConnectionError("There is no status packet!")
        self._note("send_action", dict(action))
        return action

    def disconnect(self):
        self._note("disconnect")
        self.connected = False
"""
METADATA = "Metadata-Version: 2.1\nName: lerobot-robot-turtle\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def turtle(tmp_path_factory):
    """The installed plugin's robot class."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "lerobot_robot_turtle.py").write_text(PLUGIN)
    info = folder / "lerobot_robot_turtle-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("HF_LEROBOT_CALIBRATION", str(folder))
        with torch_deferred():
            import lerobot_robot_turtle

        yield lerobot_robot_turtle.Turtle


@pytest.fixture
def options(turtle, tmp_path):
    turtle.calls.clear()
    return {"robot": "turtle", "calibration_dir": str(tmp_path), "max_speed": {"front.pos": 5.0}}


def calls(turtle, name):
    return [value for call, _, value in turtle.calls if call == name]


def test_a_plugin_s_robot_is_found_and_its_settings_reach_it(turtle, options):
    body = make_adapter("lerobot", 20.0, options | {"legs": ["left", "right"], "max_speed": 5.0})
    assert body.spec.state_names == ("left.pos", "right.pos")
    assert body.spec.action_dim == 3
    assert list(body.limits.measured_by) == [0, 1, -1]
    assert calls(turtle, "connect") == [False]
    body.close()


def test_a_robot_that_holds_stands_still(turtle, options):
    body = make_adapter("lerobot", 20.0, options)
    body.reset(TaskGoal("walk"))
    body.act(np.array([4.0, 0.5], np.float32))
    body.hold()
    body.hold()
    driving, standing = {"front.pos": 4.0, "x.vel": 0.5}, {"front.pos": 4.0, "x.vel": 0.0}
    assert calls(turtle, "send_action") == [driving, standing]
    body.act(np.array([4.0, 0.5], np.float32))
    body.close()
    assert calls(turtle, "send_action")[2:] == [driving, standing]


@pytest.mark.parametrize("between", ["nothing", "a new task", "a send that failed"])
def test_it_stands_still_whatever_came_between(turtle, options, between):
    body = make_adapter("lerobot", 20.0, options)
    body.reset(TaskGoal("walk"))
    body.act(np.array([4.0, 0.5], np.float32))
    if between == "a new task":
        body.reset(TaskGoal("walk"))
    if between == "a send that failed":
        turtle.newest.config.deaf = 1
        body.hold()
        assert body.tolerated["silent motor"] == 1
    body.hold()
    body.hold()
    assert [sent["x.vel"] for sent in calls(turtle, "send_action")] == [0.5, 0.0]
    body.close()


def test_a_driver_that_fails_in_its_own_way_ends_the_task_and_the_robot_stands_still(
    turtle, options
):
    body = make_adapter("lerobot", 20.0, options)
    body.reset(TaskGoal("walk"))
    body.act(np.array([4.0, 0.5], np.float32))
    turtle.newest.config.broken = "leg on fire"
    with pytest.raises(BodyError, match="leg on fire") as failed:
        body.hold()
    assert failed.value.reason == "driver"
    assert calls(turtle, "send_action")[-1] == {"front.pos": 4.0, "x.vel": 0.0}
    body.close()


def test_a_robot_that_is_not_calibrated_is_refused_and_never_calibrated(turtle, options):
    with pytest.raises(BodyError, match=r"run: lerobot-calibrate --robot\.type=turtle"):
        make_adapter("lerobot", 20.0, options | {"calibrated": False})
    assert calls(turtle, "calibrate") == []
    assert turtle.calls[-1][0] == "disconnect"


def test_torque_cannot_be_promised_where_there_is_no_bus(options):
    with pytest.raises(ConfigError, match="leave on_fault at hold"):
        make_adapter("lerobot", 20.0, options | {"on_fault": "torque_off"})


class Silence:
    """A server that never answers."""

    def __init__(self):
        self.asked = threading.Event()

    def send(self, request):
        self.asked.set()

    def changed(self, report): ...

    def finished(self, result): ...

    def unready(self): ...

    def acting(self, action, state): ...

    def period(self, state): ...


def test_everything_but_the_first_connection_happens_in_the_control_thread(turtle, options):
    body = make_adapter("lerobot", 100.0, options)
    config = LoopConfig("r", "s", 2, 10_000_000, 0, 10**9, 10**9)
    outside = Silence()
    guard = ActionGuard(body.limits, 2, 1, 100.0)
    control = Controller(body, Loop(config, LatencyEstimate(0, 0)), guard, outside)
    thread = threading.Thread(target=control.run)
    del turtle.calls[:]
    thread.start()
    control.post(Start(Task("1", "walk"), TaskGoal("walk")))
    assert outside.asked.wait(30)
    control.post(StopControl())
    thread.join()
    assert {ident for _, ident, _ in turtle.calls} == {thread.ident}
    assert turtle.calls[-1][0] == "disconnect"
