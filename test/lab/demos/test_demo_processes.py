"""`kairos demo` as a user runs it: real processes, real signals, nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kairos_ros.msg import ActionChunk
from wire import until

from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.testbed_client import TestbedClient
from kairos_ros.lab.testbed.workload import scene_tasks
from kairos_ros.recording.fleet_run import read_bag
from kairos_ros.recording.runs.run_files import load_run
from kairos_ros.recording.runs.run_source import find_runs
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.telemetry.fleet_view import RobotView

pytestmark = pytest.mark.slow

KAIROS = Path(sys.prefix, "bin", "kairos")
QUICK_ENGINE = "emulated:latency_ms=20+2b,chunk=50,dim=4,state=39"
WITHIN_S = 250.0


@dataclass(frozen=True, slots=True)
class Demo:
    process: subprocess.Popen
    folder: Path
    log: Path
    mark: str
    """In the environment of everything that this demo has started."""

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output()}"
            assert time.monotonic() < deadline, f"not {what}:\n{self.output()}"
            time.sleep(0.1)

    def wait_until_it_runs(self) -> None:
        self.wait_for(lambda: "executing" in self.output(), "running")

    def exit_code(self, within_s: float = WITHIN_S) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # it says where it hangs
            time.sleep(1.0)
            threads = Path(f"/proc/{self.process.pid}/task").iterdir()
            print(sorted((thread / "comm").read_text().strip() for thread in threads))
            raise
        finally:
            print(self.output())

    def summary(self) -> dict:
        return json.loads((self.folder / "latest" / "summary.json").read_text())

    def left(self) -> list[str]:
        return [" ".join(command(pid)) for pid in self.pids()]

    def pids(self) -> list[int]:
        return [pid for pid in all_pids() if self.mark in environment(pid)]


def all_pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether a process has not taken a signal yet: it would take another one for the same."""
    (waits,) = re.findall(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(waits, 16) >> (number - 1) & 1)


def command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


@pytest.fixture
def demo(tmp_path) -> Iterator[Callable[..., Demo]]:
    """Starts `kairos demo` with options; whatever of it is left after the test is killed."""
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        mark = f"KAIROS_TEST_MARK={uuid.uuid4().hex}"
        log = tmp_path / "output.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [KAIROS, "demo", "--out", tmp_path / "runs", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | dict([mark.split("=")]) | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                cwd=tmp_path,
            )
        started.append(Demo(process, tmp_path / "runs", log, mark))
        return started[-1]

    yield start
    for one in started:
        for pid in one.pids():
            os.kill(pid, signal.SIGKILL)
        one.process.wait()


def test_two_arms_do_their_tasks_and_the_demo_sums_up(demo):
    run = demo("--robots", "2", "--duration", "15", "--record")
    assert run.exit_code() == 0
    assert run.left() == []
    document = run.summary()
    assert document["schema"] == 1
    assert document["failures"] == []
    assert document["interrupted"] is False
    assert document["configuration"]["robots"] == 2
    summary = document["summary"]
    # how many more they do in this time is the machine's affair
    assert summary["tasks"] == len(document["tasks"]) - summary["unfinished"] >= 2
    assert summary["success"] >= 0.5
    assert 0 <= summary["mid_task_stall_fraction"] <= summary["stall_fraction"] < 1
    assert summary["latency_s"]["p25"] <= summary["latency_s"]["p95"]
    assert summary["mean_horizon"] > 1
    assert summary["rounds_per_task"] >= 1
    assert summary["chunk_latency_s"]["p50"] > 0
    for task in document["tasks"]:
        assert task["actions"] == sum(task["round_executed"])
    assert {span["activity"] for span in document["spans"]} >= {"executing", "idle"}
    assert document["server"]["counters"]["chunks"] >= summary["tasks"]
    assert (run.folder / "latest" / "fleet.png").read_bytes().startswith(b"\x89PNG")
    saved, configuration = load_run(run.folder / "latest")
    assert len(saved.tasks) == len(document["tasks"])
    assert configuration == document["configuration"]
    for part in ("end-to-end latency, P95", "mean executed horizon", "inferences per task"):
        assert part in run.output()
    told = summarise(read_bag(run.folder / "latest" / "bag"))
    assert (told.tasks, told.unfinished) == (summary["tasks"], summary["unfinished"])
    assert told.latency_s.mean == pytest.approx(summary["latency_s"]["mean"])
    assert told.chunk_latency_s.p95 == pytest.approx(summary["chunk_latency_s"]["p95"])
    assert told.mean_horizon == pytest.approx(summary["mean_horizon"])
    assert told.scenes.keys() == summary["scenes"].keys()


def test_a_comparison_gives_both_configurations_the_same_tasks(demo):
    run = demo("--robots", "1", "--duration", "9", "--compare")
    assert run.exit_code(2 * WITHIN_S) == 0  # it loads an engine three times
    assert run.left() == []
    document = run.summary()
    ours, baseline = document["ours"], document["baseline"]
    assert baseline["configuration"]["scheduling"].startswith("fifo")
    assert baseline["configuration"]["horizon"] == "static:tuned"
    assert ours["configuration"]["horizon"] == "auto"
    scenes = [{t["number"]: (t["scene"], t["seed"]) for t in d["tasks"]} for d in (ours, baseline)]
    shared = scenes[0].keys() & scenes[1].keys()
    assert {number >= 5000 for number in shared} == {True, False}  # both halves
    assert all(scenes[0][number] == scenes[1][number] for number in shared)
    ratios = {row["metric"]: row["ratio"] for row in document["comparison"]}
    assert ratios["end-to-end latency, average"] > 0
    for picture in ("fleet.png", "ours.png", "baseline.png"):
        assert (run.folder / "latest" / picture).read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in find_runs([run.folder / "latest"])] == ["baseline", "ours"]


def test_ctrl_c_ends_everything_and_still_sums_up(demo):
    run = demo("--robots", "2", "--duration", "600", "--policy", QUICK_ENGINE)
    run.wait_for(lambda: re.search(r"[12] executing", run.output()), "executing")
    assert len(run.pids()) == 5  # demo, serving node, engine worker, two robots
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 0
    assert run.left() == []
    document = run.summary()
    assert document["interrupted"] is True
    assert document["failures"] == []
    assert {task["outcome"] for task in document["tasks"][-2:]} == {"canceled"}
    assert any(task["actions"] > 0 for task in document["tasks"])


def test_a_cloud_behind_a_link_serves_overflow_and_the_edge_alone_while_it_is_cut(demo):
    run = demo("--robots", "3", "--duration", "600", "--policy", QUICK_ENGINE, "--cloud-cut", "4:4")
    run.wait_for(lambda: "the link to the cloud is CUT for 4 s" in run.output(), "cut")
    run.wait_for(lambda: "the link to the cloud is whole again" in run.output(), "whole")
    lines = run.output().count("from cloud")
    run.wait_for(lambda: run.output().count("from cloud") > lines, "served by the cloud again")
    assert len(run.pids()) == 8  # demo, serving node, edge worker, cloud worker, link, 3 robots
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 0
    assert run.left() == []
    document = run.summary()
    assert document["failures"] == []
    assert "edge 120 ms a batch" in document["configuration"]["paces"]
    edge, cloud = document["tiers"]
    assert (edge["tier"], cloud["tier"]) == ("edge", "cloud")
    assert edge["chunks"] > 5
    assert cloud["chunks"] > 5
    assert cloud["server_s"]["p50"] > 0.1  # the way there and back
    assert document["cloud_request_bytes"] > 39 * 4  # the state, and what names it
    assert "where chunks were computed" in run.output()


def test_a_killed_demo_takes_its_cloud_along(demo):
    run = demo("--robots", "1", "--duration", "600", "--policy", QUICK_ENGINE, "--cloud")
    run.wait_until_it_runs()
    assert any("worker" in " ".join(command(pid)) for pid in run.pids())
    run.process.kill()
    until(lambda: run.left() == [], what="for all of it to end")


CAMERA_ENGINE = f"{QUICK_ENGINE},images=corner2@96x128"


def test_a_demo_whose_policy_is_refused_says_why_once_and_fails(demo):
    run = demo("--robots", "2", "--duration", "600", "--policy", CAMERA_ENGINE)
    assert run.exit_code() == 1
    assert run.left() == []
    assert (
        "the policy reads pictures, corner2 (96x128), and the arms have no camera" in run.output()
    )
    assert run.output().count("kairos demo: no robot moves: refused: ") == 1
    assert "Traceback" not in run.output()


def test_arms_of_a_demo_see_what_their_policy_asks_for(demo):
    options = ("--policy", CAMERA_ENGINE, "--cameras", "corner2:96x128")
    run = demo("--robots", "1", "--duration", "600", *options)
    run.wait_for(lambda: run.output().count("1 executing") > 2, "executing")  # a line every 5 s
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 0
    assert sum(task["actions"] for task in run.summary()["tasks"]) > 10
    assert "no camera" not in run.output()


def test_ctrl_c_while_the_fleet_starts_leaves_nothing(demo):
    run = demo("--robots", "2")
    run.wait_for(lambda: "robots ready" in run.output(), "starting")
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 0
    assert run.left() == []


def test_a_second_ctrl_c_ends_everything_at_once(demo):
    run = demo("--robots", "2", "--policy", QUICK_ENGINE)
    run.wait_until_it_runs()
    robot = next(pid for pid in run.pids() if "__ns:=/arm_1" in command(pid))
    os.kill(robot, signal.SIGSTOP)  # it will not end when asked
    run.process.send_signal(signal.SIGINT)
    run.wait_for(lambda: not pending(run.process.pid, signal.SIGINT), "told")
    time.sleep(1.0)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 130
    until(lambda: run.left() == [], what="for all of it to end")


def test_a_robot_that_dies_is_reported_and_the_others_go_on(demo):
    run = demo("--robots", "2", "--duration", "600", "--policy", QUICK_ENGINE)
    run.wait_until_it_runs()
    os.kill(next(pid for pid in run.pids() if "__ns:=/arm_2" in command(pid)), signal.SIGKILL)
    run.wait_for(lambda: "arm_2 ended with exit code -9" in run.output(), "noticed")
    before = len(run.output())
    run.wait_for(lambda: "1 executing, 0 holding" in run.output()[before:], "going on")
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code() == 1
    assert run.left() == []
    document = run.summary()
    assert "arm_2 ended with exit code -9" in document["failures"][0]
    outcomes = {task["robot"]: task["outcome"] for task in document["tasks"]}
    assert outcomes == {"arm_1": "canceled", "arm_2": "lost"}
    assert {"robot": "arm_2", "activity": "down"}.items() <= document["spans"][-1].items()


def test_a_server_that_cannot_start_is_reported_with_its_last_words(demo):
    run = demo("--robots", "1", "--policy", "/no/such/policy")
    assert run.exit_code() == 1
    assert "serving ended with exit code 1" in run.output()
    assert "/no/such/policy" in run.output()
    assert run.left() == []


def test_a_robot_whose_last_task_failed_is_free_again_in_the_next_run(monkeypatch):
    monkeypatch.setattr(TestbedClient, "now_s", lambda _: 1.0)  # no time passes
    with TestbedClient(LiveFleet({"arm_1": RobotView("arm_1")})) as client:
        client.begin()
        client.give("arm_1", next(scene_tasks(["reach-v3"], 1, None)))
        client.abandon()
        assert client.free() == []  # for a moment
        client.begin()
        assert client.free() == ["arm_1"]
        assert client.records == []


def test_a_chunk_of_an_unknown_kind_is_dropped_by_whoever_watches_a_fleet():
    with TestbedClient(LiveFleet({"arm_1": RobotView("arm_1")})) as client:
        client.watch_chunks()
        publisher = client.publisher("/arm_1/action_chunk", ActionChunk)
        answer = {"robot": "arm_1", "horizon": 1, "action_dim": 1, "actions": [0.5]}
        end = time.monotonic() + 60
        while not client.chunks:
            assert time.monotonic() < end
            publisher.publish(ActionChunk(kind=9, **answer))
            publisher.publish(ActionChunk(kind=ActionChunk.ACTIONS, **answer))
            client.spin(0.1)
        client.withdraw(publisher)
