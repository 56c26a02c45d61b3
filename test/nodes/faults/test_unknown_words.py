"""A goal in words that planner or judges do not know, over DDS, with the models that ship: it is
put into known words, or whoever sent it reads at once why it cannot be done."""

import json
import shutil
import time

import pytest
from kairos_ros.msg import ChunkRequest, PipelineEvent, RobotStatus
from task_rules import MS
from wire import Operator, until

from kairos_ros.bringup.plan import robot, serving, share, vlm
from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules
from kairos_ros.nodes import qos
from kairos_ros.robot.supervision.rules_text import rules_text

SAFETY, MONITOR, SYSTEM2 = Component.SAFETY, Component.MONITOR, Component.SYSTEM2
COMPONENTS = {
    SAFETY: ComponentRules(20_000 * MS, Fallback.STOP_AND_REPLAN, period_ns=200 * MS),
    MONITOR: ComponentRules(20_000 * MS, Fallback.STOP_AND_RESEND, period_ns=500 * MS),
    SYSTEM2: ComponentRules(8000 * MS, Fallback.USE_LAST_PLAN),
}
AT_ONCE_S = 15.0
"""An answer within a second or two, on a machine that has other things to do; the judges are not
overdue before 20 s."""


def rules(*components):
    return TaskRules(
        components={name: COMPONENTS[name] for name in components},
        max_task_retries=1,
        on_max_task_retries=Fallback.STOP_AND_CALL_HUMAN,
        max_consecutive_safety_replan=1000,
        max_consecutive_slo_violation=1000,
        on_max_violation=Fallback.STOP_AND_CALL_HUMAN,
        system2_ratio=3,
    )


@pytest.fixture(scope="module")
def server(start_for_module, wire):
    start_for_module(serving(policy="emulated:latency_ms=20,chunk=20,state=39,dim=4"))
    wire.serving_since()


def arm_under(start, name, *components):
    parameters = {
        "adapter_options": ["images={corner3: [240, 240]}"],
        "request_images": False,
        "rules": rules_text(rules(*components)),
    }
    return start(robot(name, **parameters))


def values_of(wire, component, node):
    status = wire.reports.get(f"kairos {component}: /kairos/{node}")
    return {value.key: value.value for value in status.values} if status else {}


def watches_an_arm(wire, component, node):
    seen = lambda: values_of(wire, component, node).get("robots") == "1"  # noqa: E731
    until(seen, what=f"for {node} to find its arm")


@pytest.fixture(scope="module")
def planned(start_for_module, server, wire):
    """An arm as in the factory fleet, under all three."""
    start_for_module(vlm("vlm", robots=["arm_1"]))
    arm_under(start_for_module, "arm_1", SAFETY, MONITOR, SYSTEM2)
    operator = Operator(wire, "arm_1")
    watches_an_arm(wire, "safety", "vlm")
    yield operator
    operator.close()


def test_a_goal_in_free_words_is_planned_before_the_judges_are_asked(planned, wire):
    asked, events, statuses = [], [], []
    node = wire.node
    node.create_subscription(ChunkRequest, "/arm_1/chunk_request", asked.append, qos.EXCHANGE)
    node.create_subscription(PipelineEvent, "/arm_1/pipeline_events", events.append, qos.EVENTS)
    node.create_subscription(RobotStatus, "/kairos/robot_status", statuses.append, qos.ROSTER)
    time.sleep(1.0)
    begun = planned.give(instruction="please open the top drawer", scene="drawer-open-v3", seed=3)
    until(lambda: wire.status_of("arm_1").actions_executed > 20, what="for the arm to move")
    until(lambda: asked, what="for a request")
    assert {request.instruction for request in asked} == {"open the drawer"}
    assert {s.instruction for s in statuses if s.task == "1"} <= {"", "open the drawer"}
    assert not [event for event in events if "overdue" in event.reason]
    said = [values_of(wire, component, "vlm") for component in ("safety", "monitor", "planner")]
    assert not [key for values in said for key in values if key.startswith("failed")]
    assert not begun.done()


def test_a_goal_that_the_planner_knows_no_skill_for_is_refused_with_those_it_knows(
    planned, wire, start
):
    arm_under(start, "arm_2", SAFETY, MONITOR, SYSTEM2)
    start(vlm("planner", robots=["arm_2"]))
    operator = Operator(wire, "arm_2")
    watches_an_arm(wire, "planner", "planner")
    begun = operator.give(instruction="make me a coffee", scene="push-v3")
    given_s = time.monotonic()
    result = operator.result(begun)
    took_s = time.monotonic() - given_s
    operator.close()
    assert not result.success
    assert result.outcome.startswith(
        "refused: the planner does not know the task 'make me a coffee'; it knows 'move the gripper"
    )
    assert "open the drawer" in result.outcome
    assert result.actions == 0
    assert took_s < AT_ONCE_S


@pytest.mark.parametrize(
    ("unknowing", "title"), [(SAFETY, "safety judge"), (MONITOR, "monitor")], ids=str
)
def test_a_goal_that_one_judge_does_not_know_is_refused_in_its_name(
    unknowing, title, server, wire, start, tmp_path
):
    """The judge that ships, and one that was taught fewer tasks."""
    known = ["push the puck to the target", "open the door"]
    folder = tmp_path / "judge"
    shutil.copytree(share() / "models" / "factory_judge", folder)
    card = json.loads((folder / "config.json").read_text())
    for asked in card["asked"]:
        asked["instructions"] = known
    (folder / "config.json").write_text(json.dumps(card))
    name = f"arm_{unknowing}"
    for component in (SAFETY, MONITOR):
        model = {"model": f"embedded:{folder}"} if component is unknowing else {}
        start(vlm(component.value, robots=[name], **model))
    node = arm_under(start, name, SAFETY, MONITOR)
    operator = Operator(wire, name)
    watches_an_arm(wire, unknowing.value, unknowing.value)
    begun = operator.give(instruction="open the drawer", scene="drawer-open-v3")
    given_s = time.monotonic()
    result = operator.result(begun)
    took_s = time.monotonic() - given_s
    operator.close()
    assert result.outcome == (
        f"refused: the {title} does not know the task 'open the drawer'; it knows 'push the puck "
        "to the target', 'open the door'; did you mean 'open the door'?"
    )
    assert took_s < AT_ONCE_S
    until(lambda: result.outcome in node.output(), what="for the robot's log")
    assert "waiting_for_human" not in node.output()
