"""Robots that join a planned fleet: as it is placed, by another plan, or not at all."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_planner import ANY_EXECUTION, S1, SYNCHRONOUS, check_plan, workloads
from typer.testing import CliRunner
from workloads import ALL, flat, profile, robot_class, workload

from kairos_ros.commands.cli import app
from kairos_ros.core.errors import ConfigError
from kairos_ros.planning.admission import admit, unused_names
from kairos_ros.planning.planner import ClusterTooSmallError, Planner
from kairos_ros.planning.workload import Cluster, PlanOptions


def planner(work, gpus, options=SYNCHRONOUS, memory_mib=8000.0):
    return Planner(work, Cluster(gpus, "GPU", memory_mib), options)


def joins(now, task, robots):
    plan, new = now.plan(explain=False), unused_names(now.workload, task, robots)
    return admit(now, plan, {task: new})


def test_a_robot_joins_a_server_with_room_and_nobody_is_slowed_down():
    """1 / 0.25 actions/s of each robot, and the server answers 100/s within the SLO."""
    now = planner(workload([robot_class("pick", 4)], flat(S1, 0.05, 100)), 1)
    answer = joins(now, "pick", 3)
    assert (answer.how, answer.why) == ("as placed", "")
    (server,) = answer.plan.servers
    assert len(server.robots["pick"]) == 7
    assert answer.plan.classes[0].actions_hz == now.plan().classes[0].actions_hz
    assert server.rate_hz == pytest.approx(7 / 4 * now.plan().servers[0].rate_hz)


def test_a_full_server_takes_a_robot_if_all_are_slowed_down():
    work = workload([robot_class("pick", 4)], profile(S1, (5, 15), (0.05, 0.07), (0.1, 0.3)))
    now = planner(work, 1)
    answer = joins(now, "pick", 1)
    assert answer.how == "other plan"
    assert "no server of system1" in answer.why
    assert "the emptiest, gpu0, is at 99 % with 4 of pick" in answer.why
    assert answer.plan.classes[0].robots == 5
    assert answer.plan.classes[0].actions_hz < now.plan().classes[0].actions_hz


def test_too_few_gpus_are_a_no_that_says_what_fails():
    four = workload([robot_class("pick", 4, ALL)], *(flat(c, 0.01, 4) for c in ALL))
    gpus = planner(four, 100).least_gpus
    answer = joins(planner(four, gpus), "pick", 4)
    assert (answer.how, answer.plan) == ("no", None)
    assert f"{gpus} GPUs are too few" in answer.why


def test_a_task_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="there is no task 'lift'; tasks are pick"):
        joins(planner(workload([robot_class("pick", 1)], flat(S1, 0.05, 100)), 1), "lift", 1)


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), st.integers(1, 9), st.integers(1, 4), ANY_EXECUTION, st.data())
def test_whoever_joins_everybody_keeps_every_slo(work, gpus, robots, execution, data):
    options, memory = PlanOptions(execution=execution, network_s=0.01), 2000.0
    task = data.draw(st.sampled_from([one.name for one in work.classes]))
    try:
        now = planner(work, gpus, options, memory)
        before = now.plan(explain=False)
        answer = joins(now, task, robots)
    except ClusterTooSmallError:
        return
    if answer.plan is None:
        return
    which = [one.name for one in work.classes].index(task)
    routed = {
        robot for s in answer.plan.servers if s.component is S1 for robot in s.robots.get(task, ())
    }
    new = sorted(routed - set(work.classes[which].robots))
    assert len(new) == robots
    classes = list(work.classes)
    classes[which] = replace(classes[which], robots=(*classes[which].robots, *new))
    check_plan(answer.plan, replace(work, classes=tuple(classes)), memory, execution)
    if answer.how == "as placed":
        assert [s.gpu for s in answer.plan.servers] == [s.gpu for s in before.servers]
        assert [c.actions_hz for c in answer.plan.classes] == [c.actions_hz for c in before.classes]


def test_the_command_answers_with_its_exit_code_and_json(tmp_path):
    def asked(*options):
        out = tmp_path / "answer.json"
        command = ["fleet", "admit", "paper_p4", "--task", "assemble_kit", "--json", str(out)]
        done = CliRunner().invoke(app(), [*command, *options])
        return done, json.loads(out.read_text())

    done, answer = asked()
    assert done.exit_code == 0
    assert "can join on the servers as they are placed" in done.output
    assert answer["how"] == "as placed"
    assert "assumed, not measured" in done.output
    done, answer = asked("--robots", "300")
    assert done.exit_code == 1
    assert "GPUs are too few" in done.output
    assert (answer["how"], answer["plan"]) == ("no", None)
    assert "robots cannot be split so that every server keeps its slo_ms 500" in answer["why"]
