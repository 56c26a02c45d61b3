"""Parameters that are set while nodes run, by ROS's own services, and what comes of them."""

import pytest
from kairos_ros.action import ExecuteTask
from lifecycle_msgs.msg import Transition
from managed import parameters_of
from rcl_interfaces.msg import ParameterEvent
from rclpy.parameter import Parameter
from wire import WireRobot, done, in_executor, meet, until

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.robot import one_robot
from kairos_ros.nodes import qos

POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"

pytestmark = pytest.mark.slow


class Setter:
    """`ros2 param set`, for one node."""

    def __init__(self, wire, node: str) -> None:
        self.client = parameters_of(wire, node)

    def set(self, **values) -> str:
        """Why one of them was refused; empty where all were taken."""
        asked = [Parameter(name.replace("__", "."), value=v) for name, v in values.items()]
        results = done(self.client.set_parameters(asked)).results
        return "; ".join(result.reason for result in results if not result.successful)


@pytest.fixture(scope="module")
def fleet(start_for_module, wire):
    start_for_module(serving(policy=POLICY, horizon="static:10"))
    start_for_module(one_robot("arm_1", adapter_options="env_id=Pendulum-v1"))
    return wire.serving_since()


@pytest.fixture(scope="module")
def of_serving(fleet, wire):
    return Setter(wire, "/kairos/serving")


@pytest.fixture(scope="module")
def of_robot(fleet, wire):
    return Setter(wire, "/arm_1/robot")


def test_a_load_horizon_without_a_calibration_is_refused_with_what_to_do(of_serving, wire):
    assert "make one with 'kairos calibrate'" in of_serving.set(load_horizon=True)
    assert not of_serving.set(rate_control=True)
    until(lambda: "kairos serving: rates" in wire.reports)
    assert wire.reports["kairos serving: rates"].message == "no robot is limited"
    assert not of_serving.set(rate_control=False)


def test_scheduling_and_default_horizon_change_while_robots_are_served(of_serving, wire):
    robot = WireRobot(wire, "bob", state=[0.0, 0.0, 0.0]).join()
    assert robot.ask(50).horizon == 10
    assert not of_serving.set(scheduling="fifo", horizon="static:4", fleet_state_hz=20.0)
    until(lambda: (wire.fleet[-1].scheduling, wire.fleet[-1].horizon) == ("fifo", "static:4"))
    assert robot.ask(51).horizon == 4
    assert not of_serving.set(scheduling="wait_ratio", horizon="static:10", fleet_state_hz=5.0)
    robot.leave()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scheduling": "by_luck"}, "by_luck"),
        ({"horizon": "static:-1"}, "static"),
        ({"warn_engine_load": 2.0}, "warn_engine_load"),
        ({"max_queue": 0}, "max_queue"),
        ({"device": "cuda"}, "ros2 lifecycle set /kairos/serving cleanup"),
        ({"placement": "nearest"}, "choose from completion, printed"),
        ({"policy_swaps": ["a=b", "a=c"]}, "each policy can be swapped for one other only"),
    ],
)
def test_what_the_serving_node_cannot_do_is_refused_with_a_reason(of_serving, wire, values, said):
    assert said in of_serving.set(**values)
    until(lambda: wire.fleet[-1].horizon == "static:10")
    assert wire.fleet[-1].active


def test_a_change_is_an_event_of_ros_which_bags_hold(of_serving, wire):
    events: list[ParameterEvent] = []
    wire.node.create_subscription(ParameterEvent, "/parameter_events", events.append, qos.EVENTS)
    until(lambda: wire.node.count_publishers("/parameter_events") >= 3)

    def told() -> bool:
        of_serving.set(warn_queued_s=len(events) + 2.0)  # again, until the subscription is found
        changed = [one for event in events for one in event.changed_parameters]
        return any(one.name == "warn_queued_s" for one in changed)

    until(told)


def test_while_it_is_unconfigured_a_serving_node_takes_any_parameter(of_serving, wire):
    before = wire.fleet[-1].engines[0].policy
    for transition in (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP):
        assert wire.transition(transition)
    assert not of_serving.set(policy=POLICY.replace("chunk=20", "chunk=30"), max_batch=4)
    assert not of_serving.set(horizon="static:7", scheduling="wait_ratio:wait=unified")
    for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
        assert wire.transition(transition)
    robot = WireRobot(wire, "eve", state=[0.0, 0.0, 0.0]).join()
    chunk = robot.ask(50)
    assert (chunk.horizon, chunk.chunk_size) == (7, 30)
    until(lambda: (e := wire.fleet[-1].engines) and e[0].policy != before, what="for the state")
    robot.leave()


def test_a_guard_gets_tighter_during_a_task_and_looser_only_afterwards(of_robot, wire):
    client = wire.action_client("/arm_1/execute_task")
    meet(client, wire.executor)
    assert not of_robot.set(guard__minimum=[-2.0], guard__maximum=[2.0])
    assert "2 values" in of_robot.set(guard__maximum=[1.0, 1.0])
    goal = ExecuteTask.Goal(instruction="swing up", max_duration_s=300.0)
    handle = done(in_executor(wire.executor, lambda: client.send_goal_async(goal)))
    until(lambda: wire.status_of("arm_1").task, what="for the task to begin")
    assert not of_robot.set(guard__maximum=[0.001])
    assert "may only become tighter" in of_robot.set(guard__maximum=[1.0])
    assert "between tasks only" in of_robot.set(guard__tolerance=1.0)
    until(lambda: int(wire.diagnostic("kairos: arm_1", "guarded, range") or 0) > 0)
    done(in_executor(wire.executor, handle.cancel_goal_async))
    done(in_executor(wire.executor, handle.get_result_async))
    until(lambda: not of_robot.set(guard__maximum=[2.0]))
    in_executor(wire.executor, client.destroy)


def test_a_robot_says_what_it_reads_only_when_it_is_configured(of_robot):
    said = of_robot.set(control_rate_hz=50.0)
    assert said == (
        "parameter control_rate_hz is read when the node is configured: ros2 lifecycle set "
        "/arm_1/robot cleanup, set it, then configure and activate"
    )
    assert "of 100000 bytes" in of_robot.set(horizon_policy="x" * 100_000)
    assert not of_robot.set(camera_rate_hz=1e-300, execution_info_rate_hz=1e-300)
    assert not of_robot.set(camera_rate_hz=10.0)
    assert len(of_robot.set(guard__maximum=[1.0] * 100_000)) < 1000
    assert not of_robot.set(diagnostics__holding_warn_s=2.0, execution_info_rate_hz=0.0)
    assert not of_robot.set(execution_info_rate_hz=5.0)
