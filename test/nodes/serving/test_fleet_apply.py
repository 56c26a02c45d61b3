"""A planned fleet of real processes, and its change to other plans while its arms are in tasks."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml
from wire import Operator, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.commands.fleets.planned import apply_command, join_command, status_command
from kairos_ros.core.errors import KairosError
from kairos_ros.host.child_processes import children, command_line
from kairos_ros.planning.planner import ClusterTooSmallError
from kairos_ros.robot.body_log import read_body_log

KAIROS = Path(sys.prefix, "bin", "kairos")
EMULATED = Path(__file__).parents[3] / "config" / "fleets" / "emulated.yaml"
LOAD_S = 6
"""That every engine takes to load: time for whatever happens meanwhile."""
ROBOTS = ("swing_1", "swing_2", "drive_1")
LONGEST_GAP_S = 5.0
"""Between two executed actions while a plan changes, on a machine that is busy with other tests. An
arm that was stopped, or waits for an engine to load, has longer ones."""

pytestmark = pytest.mark.slow


class PlannedFleet:
    """`kairos fleet up --planned`, and what is asked of it."""

    def __init__(self, folder, wire):
        self.folder, self.wire = folder, wire
        self.log = folder / "up.log"
        self.bodies = folder / "bodies"
        (folder / "robot.yaml").write_text(
            yaml.safe_dump({"/**": {"ros__parameters": {
                "guard.tolerance": 0.0, "body_log": str(self.bodies)}}})
        )  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [KAIROS, "fleet", "up", self.file(3), "--planned", "--out", folder],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def file(self, gpus, name="fleet", **changes):
        """The shipped planned fleet with so many slots, and two arms that swing and one that
        drives."""
        data = yaml.safe_load(EMULATED.read_text())
        data["server_cluster"]["num_servers"] = gpus
        for model, where in data["models"].items():
            data["models"][model] = f"{where},load_s={LOAD_S}"
        for group, robots in zip(data["robot_fleet"], (2, 1), strict=True):
            group |= {"num_robots": robots, "params_file": "robot.yaml", "control_rate_hz": 10}
        data |= changes
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return str(path)

    def said(self):
        return self.log.read_text(errors="replace")

    def asks_for(self, file):
        """`kairos fleet apply` as a program of its own."""
        return subprocess.Popen(
            [KAIROS, "fleet", "apply", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def applies(self, file):
        """The same, once the new engines load."""
        process = self.asks_for(file)
        loading = lambda: self.wire.fleet[-1].staged_plan or process.poll() is not None  # noqa: E731
        until(loading, what="for new engines to load")
        return process

    def workers(self):
        """Process ids of engine workers."""
        (server,) = [p for p in children(self.process.pid) if "serving" in command_line(p)]
        return [pid for pid in children(server) if "engine.worker" in command_line(pid)]

    @property
    def plan(self):
        return self.wire.fleet[-1].plan

    def engines(self):
        return {e.engine: e.state for e in self.wire.fleet[-1].engines}

    def gap_s(self, began_s, robots=ROBOTS):
        """The longest time between two executed actions of any of these robots since then."""
        gaps = []
        for robot in robots:
            (log,) = self.bodies.glob(f"{robot}.*")
            times = [e.at_ns / 1e9 for e in read_body_log(log) if e.kind == "act"]
            times = [began_s, *(at for at in times if at > began_s), time.monotonic()]
            gaps += [b - a for a, b in pairwise(times)]
        print(f"longest time between two actions: {max(gaps):.2f} s")  # shown by pytest -rP
        return max(gaps)


def agrees(file=None):
    with pytest.raises(typer.Exit) as ended:
        status_command(file)
    return ended.value.exit_code == 0


@pytest.fixture(scope="module")
def fleet(wire, tmp_path_factory):
    """A fleet whose arms are all in tasks that take longer than these tests."""
    fleet = PlannedFleet(tmp_path_factory.mktemp("fleet"), wire)
    operators = []
    try:
        wire.serving_since()
        for robot in ROBOTS:
            operators.append(Operator(wire, robot))
            operators[-1].give(instruction="go", max_duration_s=600.0)
        until(lambda: all(wire.status_of(r).actions_executed > 10 for r in ROBOTS))
        yield fleet
    finally:
        for operator in operators:
            operator.close()
        fleet.process.send_signal(signal.SIGINT)
        try:
            fleet.process.wait(30.0)
        finally:
            print(fleet.said()[-6000:])


def test_a_planned_fleet_is_as_its_plan_says(fleet, capfd):
    assert set(fleet.engines()) == {
        "gpu0/emulated-swing", "gpu1/emulated-swing", "gpu2/emulated-drive"
    }  # fmt: skip
    # on a busy machine, robots may seem to ask too often for five seconds
    until(agrees, what="for the fleet to agree with its plan")
    assert "plan and fleet agree" in capfd.readouterr().out

    def kept():
        told = fleet.wire.fleet[-1].robots
        return told and not any(one.over_rate for one in told) and told

    robots = {r.robot: r for r in until(kept, what="for robots that keep to their rates")}
    assert robots["drive_1"].planned_engine == "gpu2/emulated-drive"
    for robot in robots.values():
        assert 0.999 < robot.request_period_s / robot.planned_period_s < 1.126
    assert "follows fleet " in fleet.wire.reports["kairos serving: plan"].message


def test_a_model_moves_while_the_arms_go_on(fleet, capfd):
    file = fleet.file(2)
    assert not agrees(file)
    assert "engine gpu2/emulated-drive moves to gpu1" in capfd.readouterr().out
    began_s, before = time.monotonic(), fleet.plan
    apply_command(file)
    said = capfd.readouterr().out
    until(lambda: fleet.plan != before, what="for the state by the new plan")
    assert f"the fleet runs by {fleet.plan} now" in said
    assert fleet.gap_s(began_s) < LONGEST_GAP_S
    until(lambda: agrees(file), what="for the fleet to agree with the file")
    wanted = {"gpu0/emulated-swing", "gpu1/emulated-drive"}
    until(lambda: set(fleet.engines()) == wanted, what=f"for {wanted}")


def test_a_new_engine_that_dies_again_and_again_leaves_the_old_plan(fleet, capfd):
    before, began_s, known = fleet.plan, time.monotonic(), set(fleet.workers())
    file = fleet.file(3)

    def killed():
        new = set(fleet.workers()) - known
        known.update(new)
        for pid in new:
            os.kill(pid, signal.SIGKILL)
        return new

    with ThreadPoolExecutor() as pool:
        apply = pool.submit(apply_command, file)
        for _ in range(2):  # another one follows the first
            until(killed, what="for a new worker")
        assert isinstance(apply.exception(60.0), typer.Exit)
    said = capfd.readouterr().err
    assert "was not applied: gpu2/emulated-swing: the worker was killed by SIGKILL" in said
    assert f"the fleet runs by {before}, as before" in said
    until(lambda: len(fleet.engines()) == 2, what="for the new engine to end")
    assert fleet.plan == before
    assert fleet.gap_s(began_s) < LONGEST_GAP_S


def test_a_replica_is_added_while_the_arms_go_on_and_an_interrupted_apply_changes_nothing(fleet):
    file, before, began_s = fleet.file(3), fleet.plan, time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        apply = fleet.applies(file)
        if number is signal.SIGINT:
            with pytest.raises(KairosError, match="another `kairos fleet apply` changes this"):
                apply_command(file)
        apply.send_signal(number)
        said = apply.communicate(timeout=60)[0].decode()
        until(lambda: not fleet.wire.fleet[-1].staged_plan, what="for the old plan to stay")
        until(lambda: len(fleet.engines()) == 2, what="for the new engine to end")
        assert fleet.plan == before
        if number is not signal.SIGKILL:
            assert apply.returncode == 1
            assert f"the change was called off: it was interrupted; the fleet runs by {before}, " \
                "as before" in said  # fmt: skip
    gone = "called off: whoever asked for it has gone; the fleet runs by"
    until(lambda: gone in fleet.said(), what="for the log")
    until(agrees, what="for the fleet to agree with its plan")
    apply_command(file)
    added = lambda: fleet.engines().get("gpu2/emulated-swing") in ("ready", "busy")  # noqa: E731
    until(added, what="for the state of the new engine")
    until(lambda: agrees(file), what="for the fleet to agree with the file")
    assert fleet.gap_s(began_s) < LONGEST_GAP_S


def test_what_cannot_be_applied_is_refused_before_anything_changes(fleet, capfd):
    before, began_s = fleet.plan, time.monotonic()
    with pytest.raises(ClusterTooSmallError, match="1 GPU is too few"):
        apply_command(fleet.file(1))
    others = [{"task": "swing", "names": ["a"], "adapter_options": {"env_id": "Pendulum-v1"}},
              {"task": "drive", "names": ["b"],
               "adapter_options": {"env_id": "MountainCarContinuous-v0"}}]  # fmt: skip
    with pytest.raises(typer.Exit):
        apply_command(fleet.file(3, "other", robot_fleet=others))
    assert "this is the plan of another fleet" in capfd.readouterr().err
    models = {f"emulated-{k}": f"emulated:chunk=30,dim=1,state={n},load_s=1,offset=1"
              for k, n in (("swing", 3), ("drive", 2))}  # fmt: skip
    with pytest.raises(typer.Exit):
        apply_command(fleet.file(3, models=models))
    assert "tasks that run would get other weights" in capfd.readouterr().err
    assert fleet.plan == before
    assert fleet.gap_s(began_s) < LONGEST_GAP_S
    until(lambda: agrees(fleet.file(3)), what="for the fleet to agree with the file")


def test_robots_come_and_go_with_the_plan_and_nobody_else_stops(fleet):
    data = yaml.safe_load(Path(fleet.file(3)).read_text())["robot_fleet"]
    data[0]["num_robots"] = 1
    data[1]["num_robots"] = 2
    began_s = time.monotonic()
    sessions = {r: fleet.wire.status_of(r).session for r in ("swing_1", "drive_1")}
    apply = fleet.asks_for(fleet.file(3, robot_fleet=data))
    said = ""
    while "robots are served by" not in said:
        said += (line := apply.stdout.readline().decode())
        assert line, said
    apply.send_signal(signal.SIGINT)  # too late
    said += apply.communicate(timeout=60)[0].decode()
    assert apply.returncode == 0
    until(lambda: f"the fleet runs by {fleet.plan} now" in said, what="for the new plan")
    until(lambda: {r.robot for r in fleet.wire.fleet[-1].robots}
          == {"swing_1", "drive_1", "drive_2"}, what="for the robots of the new plan")  # fmt: skip
    assert {r: fleet.wire.status_of(r).session for r in sessions} == sessions
    assert fleet.gap_s(began_s, sessions) < LONGEST_GAP_S
    until(agrees, what="for the fleet to agree with its plan")


def test_a_standby_serves_at_once_and_takes_the_place_of_an_engine_that_stays_down(fleet, capfd):
    cluster = {"num_servers": 4, "hot_standby": 1, "gpu_type": "CPU slot"}
    data = yaml.safe_load(Path(fleet.file(3)).read_text())["robot_fleet"]
    data[0]["num_robots"], data[1]["num_robots"] = 1, 2
    apply_command(fleet.file(3, robot_fleet=data, server_cluster=cluster))
    spare = "gpu3/emulated-drive"
    standing_by = lambda: [name for name, state in fleet.engines().items() if state == "standby"]  # noqa: E731
    until(lambda: standing_by() == [spare], what="for the standby")
    known = set(fleet.workers())
    policy = next(e.policy for e in fleet.wire.fleet[-1].engines if e.engine == spare)
    drives = [
        int(pid) for pid in re.findall(rf"engine\[(\d+)\] INFO serving {policy}", fleet.said())
    ]
    victim = next(pid for pid in drives if pid in known)  # the standby is the newest
    began_s = time.monotonic()

    def repaired():
        """Whatever is started in the place of the victim dies, too."""
        for pid in {victim, *fleet.workers()} - (known - {victim}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return re.search(f"repair: {spare} takes the place of (.*), which stands", fleet.said())

    dead = until(repaired, what="for the standby to take its place")[1]
    assert fleet.gap_s(began_s, ["swing_1", "drive_1"]) < LONGEST_GAP_S
    until(lambda: fleet.engines().get(dead) == "standby", what="for the other one to stand by")
    until(agrees, what="for the fleet to agree with its plan")


def test_a_robot_that_is_started_elsewhere_joins_or_is_told_why_not(fleet, start, capfd):
    """After the test before this one: swing_1, drive_1 and drive_2 are in the plan."""
    began_s, engines = time.monotonic(), fleet.engines().keys()
    body = {"control_rate_hz": 10.0, "adapter_options": ["env_id=MountainCarContinuous-v0"]}
    for name in ("drive_far", "stranger"):
        node = bringup.robot(name, policy="emulated-drive", request_images=False, **body)
        start(replace(node, params_file=fleet.folder / "robot.yaml"))
    drives, strange = Operator(fleet.wire, "drive_far"), Operator(fleet.wire, "stranger")
    try:
        result = drives.result(drives.give(instruction="go", max_actions=30))
        assert (result.outcome, result.actions) == ("max_actions", 30)
        told = {r.robot: r for r in fleet.wire.fleet[-1].robots}["drive_far"]
        assert told.planned_engine.endswith("emulated-drive")
        assert told.planned_period_s > 0
        outcome = strange.result(strange.give(instruction="go", max_actions=30)).outcome
        assert outcome.startswith("refused: its task is not known; name it TASK_NAME")
    finally:
        drives.close()
        strange.close()
    until(lambda: "drive_far joins for drive, served by" in fleet.said(), what="for the log")
    assert fleet.engines().keys() == engines
    assert fleet.gap_s(began_s, ["swing_1", "drive_1"]) < LONGEST_GAP_S
    with pytest.raises(typer.Exit):
        join_command("drive_far")
    assert "drive_far is in the fleet already, served by" in capfd.readouterr().err
    join_command("swing_later")
    assert "swing_later joins for swing, served by" in capfd.readouterr().out
    join_command("lift_it", task="drive", force=True)
    assert "lift_it joins for drive by force" in capfd.readouterr().out
    with pytest.raises(typer.Exit):
        join_command("nobody")
    assert "its task is not known" in capfd.readouterr().err


def test_without_its_serving_node_a_fleet_lets_nobody_join_and_says_so(fleet, capfd):
    (server,) = [p for p in children(fleet.process.pid) if "serving" in command_line(p)]
    os.kill(server, signal.SIGKILL)
    with pytest.raises(typer.Exit) as ended:
        join_command("swing_11")
    assert ended.value.exit_code == 1
    assert "serving was killed by SIGKILL" in capfd.readouterr().err


def test_without_a_planned_fleet_there_is_nothing_to_change():
    with pytest.raises(KairosError, match=r"no planned fleet of this user runs in ROS domain"):
        apply_command(str(EMULATED), namespace="nowhere")
