"""One serving node, several policies: real nodes, real workers, emulated policies."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import yaml
from kairos_ros.msg import ActionChunk, ServerStatus
from ports import free_ports
from wire import Operator, WireRobot, until, until_served

from kairos_ros.bringup.fleet import fleet_plan
from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.commands.engines.policy import restore_command, swap_command
from kairos_ros.core.errors import KairosError
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.host import obstacles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.host.child_processes import children
from kairos_ros.nodes.clients.policy_swaps import change_swaps
from kairos_ros.robot.body_log import read_body_log

KAIROS = Path(sys.prefix, "bin", "kairos")
PICK = "emulated:latency_ms=20+5b,chunk=20,state=2,dim=2"
PLACE = "emulated:latency_ms=20+5b,chunk=30,state=3,dim=4"


@pytest.fixture
def robots(wire):
    """Makes robots that ask; they leave after the test."""
    made = []

    def new(name, **observation):
        made.append(WireRobot(wire, name, **observation))
        return made[-1]

    yield new
    for robot in made:
        robot.leave()


def status_of(wire, server):
    active = lambda: (s := wire.servers.get(server)) and s.state == ServerStatus.ACTIVE and s  # noqa: E731
    return until(active, what="for the status of the server")


def test_one_node_serves_several_policies_and_says_which_it_has(start, wire, robots):
    start(serving(policies=[f"pick={PICK}", f"place={PLACE}"], horizon="static:7"))
    server = wire.serving_since()
    first = robots("arm_1", state=[0.25, 0.0]).join()
    second = robots("arm_2", state=[0.5, 0.0, 0.0], policy="place").join()
    status = status_of(wire, server)
    told = {one.name: one for one in status.policies}
    assert list(told) == ["pick", "place"]
    assert (told["place"].state_dim, told["place"].action_dim) == (3, 4)
    assert status.policy == told["pick"].policy != told["place"].policy

    default = first.ask(2)
    named = second.answers[0]
    assert (default.kind, default.chunk_size) == (ActionChunk.ACTIONS, 20)
    assert default.policy == told["pick"].policy
    assert (named.chunk_size, named.action_dim) == (30, 4)
    assert (named.policy, named.engine) == (told["place"].policy, "edge/place")
    until(
        lambda: (
            {r.robot: r.policy_name for r in wire.fleet[-1].robots}
            == {"arm_1": "pick", "arm_2": "place"}
        ),
        what="for the fleet state to say who has which policy",
    )
    engines = {e.engine: (e.policy_name, e.policy) for e in wire.fleet[-1].engines}
    assert engines == {f"edge/{n}": (n, told[n].policy) for n in ("pick", "place")}

    refused = first.ask(1, task="t2", policy="stack")
    assert (refused.kind, refused.refusal) == (ActionChunk.REFUSED, 18)
    assert "'stack' is not served here; this server serves pick (emulated-" in refused.reason


def test_one_worker_elsewhere_serves_all_policies_that_both_sides_name(
    start, wire, robots, tmp_path
):
    at = f"tcp://127.0.0.1:{free_ports()}"
    options = ["--listen", at, "--insecure-loopback"]
    for name, policy in (("pick", PICK), ("place", PLACE), ("stack", PLACE)):
        options += ["--policy", f"{name}={policy}"]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen([KAIROS, "worker", *options], stdout=log, stderr=log)
    try:
        elsewhere = f"gpu={at},policy=pick|place,insecure_loopback"
        start(serving(policies=["pick", "place"], engines=[elsewhere], horizon="static:7"))
        wire.serving_since()
        first = robots("arm_1", state=[0.25, 0.0], policy="pick").join()
        second = robots("arm_2", state=[0.5, 0.0, 0.0], policy="place").join()
        answers = [until_served(first, 1), until_served(second, 1)]
    finally:
        worker.terminate()
        worker.wait()
    assert [(a.engine, a.chunk_size) for a in answers] == [("gpu/pick", 20), ("gpu/place", 30)]
    engines = {e.engine: (e.policy_name, e.tier) for e in wire.fleet[-1].engines}
    assert engines == {f"gpu/{n}": (n, "cloud") for n in ("pick", "place")}


OLD = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
NEW = OLD + ",offset=10"
ROBOTS = "arm_1", "arm_2"
ACTIONS = 150
"""Of a task: 5 s at 30 Hz."""
RATE_HZ = 10.0
"""Where something has to happen in the middle of a task: 15 s."""


def executed(bodies, robot):
    """Task -> which policies its executed actions are of. Those of OLD are cosines of an angle,
    those of NEW are 10 more."""
    (log,) = bodies.glob(f"{robot}.*")
    tasks: dict[str, list[str]] = {}
    for event in read_body_log(log):
        if event.kind == "task":
            mine = tasks.setdefault(event.task, [])
        elif event.kind == "act":
            mine.append("new" if abs(float(event.action[0])) > 5 else "old")
    return tasks


@pytest.mark.slow
def test_a_swap_in_the_middle_of_tasks_moves_no_arm_by_the_wrong_policy(start, wire, tmp_path):
    start(serving(policies=[f"old={OLD}", f"new={NEW}"], horizon="static:10"))
    wire.serving_since()
    body = {"adapter_options": ["env_id=Pendulum-v1"], "body_log": str(tmp_path), "policy": "old"}
    body |= {"control_rate_hz": RATE_HZ, "max_pause_s": 30.0}  # a pause may drop an answer
    for robot in ROBOTS:
        start(ProcessSpec("robot_node", "robot", robot, body))
    operators = {robot: Operator(wire, robot) for robot in ROBOTS}

    def give(robot, **goal):
        return operators[robot].give(instruction="swing", max_actions=ACTIONS, **goal)

    def moved(robot, actions):
        until(lambda: wire.status_of(robot).actions_executed >= actions, what=f"for {robot}")

    try:
        first = give("arm_1"), give("arm_2", policy="new")
        for robot in ROBOTS:
            moved(robot, 10)
        swap_command("old=new")
        assert all(wire.status_of(robot).task for robot in ROBOTS), "in the middle of the tasks"
        ended = [operators["arm_1"].result(first[0]), operators["arm_2"].result(first[1])]
        second = give("arm_1"), give("arm_2")
        moved("arm_1", ACTIONS + 10)
        restore_command("old")
        ended += [operators[r].result(f) for r, f in zip(ROBOTS, second, strict=True)]
        ended.append(operators["arm_1"].result(give("arm_1")))
        assert [result.outcome for result in ended] == ["max_actions"] * 5
        assert not any(result.dropped for result in ended), "answers by a wrong policy"
        with pytest.raises(KairosError, match=r"no policy 'newer' is served here.* old, new"):
            swap_command("old=newer")
    finally:
        for operator in operators.values():
            operator.close()
    told = {one: {task: set(by) for task, by in executed(tmp_path, one).items()} for one in ROBOTS}
    assert told == {
        "arm_1": {"1": {"old"}, "2": {"new"}, "3": {"old"}},
        "arm_2": {"1": {"new"}, "2": {"new"}},
    }
    counts = [len(by) for robot in ROBOTS for by in executed(tmp_path, robot).values()]
    assert counts == [ACTIONS] * 5


@pytest.mark.slow
def test_a_swap_while_both_engines_start_again_moves_no_arm_by_the_wrong_policy(
    start, wire, tmp_path
):
    server = start(serving(policies=[f"old={OLD}", f"new={NEW}"], horizon="static:10"))
    wire.serving_since()
    body = {"adapter_options": ["env_id=Pendulum-v1"], "body_log": str(tmp_path), "policy": "old"}
    start(ProcessSpec("robot_node", "robot", "arm_1", body))
    operator = Operator(wire, "arm_1")

    def give():
        return operator.give(instruction="swing", max_actions=ACTIONS)

    def moved(actions):
        until(lambda: wire.status_of("arm_1").actions_executed >= actions, what="for the arm")

    def kill_both():
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGKILL)

    try:
        first = give()
        moved(30)
        kill_both()
        swap_command("old=new")
        ended = [operator.result(first)]
        second = give()
        moved(ACTIONS + 30)
        restore_command("old")
        kill_both()
        ended += [operator.result(second), operator.result(give())]
    finally:
        operator.close()
    assert [result.outcome for result in ended] == ["max_actions"] * 3
    told = {task: set(by) for task, by in executed(tmp_path, "arm_1").items()}
    assert told == {"1": {"old"}, "2": {"new"}, "3": {"old"}}


def test_swaps_that_several_clients_make_at_once_are_all_kept_or_refused(start, wire):
    names = "abcde"
    start(serving(policies=[f"{n}={OLD},offset={i}" for i, n in enumerate(names)]))
    wire.serving_since()

    def at_once(*swaps):
        """Makes all these swaps, after every client has read what there was before."""
        together = Barrier(len(swaps))

        def swap(old, new):
            waits = iter([together.wait])

            def change(before):
                next(waits, lambda: None)()
                return before | {old: new}

            return change_swaps(change)

        with ThreadPoolExecutor() as clients:
            return [clients.submit(swap, *one) for one in swaps]

    for made in at_once("ae", "be", "ce", "de"):
        made.result()
    assert change_swaps(lambda before: before) == dict.fromkeys("abcd", "e")
    refused = [one.exception() for one in at_once("ab", "ac") if one.exception()]
    assert len(refused) == 1
    assert "another client has changed the swaps at the same time; now" in str(refused[0])


LIMITS = {
    "task_retry": {"max_task_retries": 0, "on_max_task_retries": "stop_and_call_human"},
    "safety_and_slo_violation": {
        "max_consecutive_safety_replan": 10,
        "max_consecutive_slo_violation": 100,
        "on_max_violation": "stop_and_call_human",
    },
}
BODIES = {"swing": ("Pendulum-v1", 3), "drive": ("MountainCarContinuous-v0", 2)}


@pytest.mark.slow
def test_a_fleet_file_with_two_action_models_runs_and_each_robot_has_its_own(start, wire, tmp_path):
    data = {"server_cluster": {"num_servers": 1, "gpu_type": "none"}, "robot_fleet": []}
    for task, (env, state) in BODIES.items():
        system1 = {
            "model": f"my/{task}",
            "prompt": task,
            "slo_ms": 60_000,
            "fallback": "stop_and_resend",
        }
        data.setdefault("models", {})[f"my/{task}"] = (
            f"emulated:latency_ms=5,chunk=20,state={state},dim=1"
        )
        (tmp_path / "none.yaml").write_text("/**: {ros__parameters: {guard.tolerance: 0.0}}")
        options = {"adapter_options": {"env_id": env}, "params_file": "none.yaml"}
        data["robot_fleet"].append({"task": task, "num_robots": 1, **options})
        pipeline = {"action_period_ms": 200}
        data[task] = {"pipeline": pipeline, **LIMITS, "components": {"system1": system1}}
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    fleet = read_fleet(file, Known(("sim",)), obstacles)
    for spec in fleet_plan(fleet, tmp_path):
        start(spec)
    server = wire.serving_since()
    operators = {task: Operator(wire, f"{task}_1") for task in BODIES}
    try:
        given = {
            task: one.give(instruction=task, max_actions=60) for task, one in operators.items()
        }
        ended = {task: operators[task].result(future) for task, future in given.items()}
    finally:
        for operator in operators.values():
            operator.close()
    assert {task: result.outcome for task, result in ended.items()} == dict.fromkeys(
        BODIES, "max_actions"
    )
    assert not any(result.refusals for result in ended.values())
    status = status_of(wire, server)
    weights = {one.name: one.policy for one in status.policies}
    last = {r.robot: (r.policy_name, r.policy) for r in wire.fleet[-1].robots}
    assert last == {f"{task}_1": (task, weights[task]) for task in BODIES}
