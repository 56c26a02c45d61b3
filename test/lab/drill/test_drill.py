"""`kairos drill` as a user runs it: a fleet of real processes, real faults, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

KAIROS = Path(sys.prefix, "bin", "kairos")
WITHIN_S = 240.0
QUICK_ENGINE = "emulated:latency_ms=20+2b,chunk=50,dim=4,state=39"


class Drill:
    """A drill in a process of its own; whatever it leaves is found by its environment."""

    def __init__(self, folder, *options):
        self.mark = f"KAIROS_TEST_MARK={uuid.uuid4().hex}"
        self.folder, self.log = folder, folder / "output.txt"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [KAIROS, "drill", "--out", folder / "runs", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | dict([self.mark.split("=")]) | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                cwd=folder,
            )

    def wait_for(self, text):
        until = time.monotonic() + WITHIN_S
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.1)

    def exit_code(self):
        code = self.process.wait(WITHIN_S)
        print(self.log.read_text())
        return code

    def document(self):
        (path,) = self.folder.glob("runs/*/drill.json")
        return json.loads(path.read_text())

    def pids(self):
        found = []
        for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            found += [pid] * (self.mark.encode() in environment)
        return found


@pytest.fixture
def drill(tmp_path):
    started = []

    def start(*options):
        started.append(Drill(tmp_path, *options))
        return started[-1]

    yield start
    for one in started:
        for pid in one.pids():
            os.kill(pid, signal.SIGKILL)
        one.process.wait()


def test_two_arms_come_through_three_faults_and_every_action_is_proven(drill):
    run = drill("--robots", "2", "--only", "link_cut,garbage,policy_swap", "--silence-s", "5")
    assert run.exit_code() == 0
    assert run.pids() == []
    document = run.document()
    assert document["passed"] is True
    names = [fault["name"] for fault in document["faults"]]
    assert names == ["link_cut", "garbage", "policy_swap"]
    for fault in document["faults"]:
        assert [robot["robot"] for robot in fault["robots"]] == ["arm_1", "arm_2"]
        for robot in fault["robots"]:
            assert robot["passed"] is True
            assert robot["finished"] == robot["tasks"] >= 1
            assert robot["proven"] > 10
            assert robot["wrong"] == []
            assert {span["activity"] for span in robot["spans"]} >= {"executing"}
    noticed = {check["name"] for check in document["faults"][0]["checks"]}
    assert noticed == {"noticed", "cloud serves again"}
    swapped = document["faults"][2]
    for robot in swapped["robots"]:
        by_type = [policy.partition("-")[0] for policy in robot["policies"].values()]
        assert by_type[0] == by_type[-1] == "flow_mlp"
        assert "emulated" in by_type
    assert len(swapped["window"]["turns"]) == 3
    (folder,) = run.folder.glob("runs/*")
    for picture in ("01_link_cut.png", "02_garbage.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    assert "3 of 3 faults passed" in run.log.read_text()


def test_a_running_fleet_is_drilled_from_outside_and_is_told_what_cannot_be_made_there(
    drill, tmp_path
):
    with (tmp_path / "demo.txt").open("wb") as out:
        demo = subprocess.Popen(
            [KAIROS, "demo", "--robots", "2", "--duration", "600", "--policy", QUICK_ENGINE],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=tmp_path,
        )
    try:
        until = time.monotonic() + WITHIN_S
        while "executing" not in (said := (tmp_path / "demo.txt").read_text()):
            assert time.monotonic() < until, said
            time.sleep(0.2)
        domain = os.environ["ROS_DOMAIN_ID"]
        run = drill("--domain", domain, "--only", "serving_paused,link_cut", "--silence-s", "5")
        assert run.exit_code() == 0
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(WITHIN_S)
    assert "not in a running fleet: link_cut (changes the link)" in run.log.read_text()
    (fault,) = run.document()["faults"]
    assert [check["name"] for check in fault["checks"]] == ["refused and counted"]
    for robot in fault["robots"]:
        assert robot["passed"] is True
        assert robot["proven"] is None
        assert robot["hold_s"] > 2  # nobody was served for 5 s


def test_ctrl_c_ends_a_drill_and_leaves_nothing_running(drill):
    run = drill("--robots", "2", "--quick")
    run.wait_for("robots ready")
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 130
    assert run.pids() == []
    assert "interrupted before 8 of 8 faults" in run.log.read_text()
    assert run.document()["configuration"]["interrupted"] is True


def test_a_fault_that_does_not_exist_is_refused_before_anything_starts(drill):
    run = drill("--only", "meteorite")
    assert run.exit_code() == 2
    assert "there is no fault 'meteorite'" in run.log.read_text()
    assert not list(run.folder.glob("runs/*"))
