"""`kairos replay` as a user runs it: real processes, real DDS, real signals."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from replay_traces import drawn_trace
from wire import Operator, until

from kairos_ros.bringup.plan import recorder, robot, serving
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.host.child_processes import command_line, descendants
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.recording.extract import extract
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import load_run
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace_file import write_traces
from kairos_ros.serving.options import ServingOptions

pytestmark = pytest.mark.slow

KAIROS = Path(sys.prefix, "bin", "kairos")
WITHIN_S = 150.0
SCENE, INSTRUCTION = "drawer-open-v3", "open the drawer"


@dataclass(frozen=True, slots=True)
class Replay:
    process: subprocess.Popen
    folder: Path
    log: Path

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not re.search(text, self.output()):
            assert self.process.poll() is None, f"ended before {text!r}:\n{self.output()}"
            assert time.monotonic() < deadline, f"no {text!r}:\n{self.output()}"
            time.sleep(0.1)

    def exit_code(self) -> int:
        code = self.process.wait(WITHIN_S)
        print(self.output())
        return code

    def run(self) -> tuple[FleetRun, dict]:
        return load_run(self.folder)


@pytest.fixture
def replay(tmp_path) -> Iterator[Callable[..., Replay]]:
    """Starts `kairos replay` in a ROS domain of its own, unless `env` names one."""
    started: list[Replay] = []

    def start(*options: str | Path, env: dict[str, str] | None = None) -> Replay:
        number = len(started)
        log, folder = tmp_path / f"output_{number}.txt", tmp_path / f"run_{number}"
        own = {k: v for k, v in os.environ.items() if k != "ROS_DOMAIN_ID"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [KAIROS, "replay", "--out", folder, *map(str, options)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=own | {"PYTHONUNBUFFERED": "1", "COLUMNS": "120"} | (env or {}),
                start_new_session=True,
                cwd=tmp_path,
            )
        started.append(Replay(process, folder, log))
        return started[-1]

    yield start
    for one in started:
        left = descendants(one.process.pid) if one.process.poll() is None else []
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        for pid in left:  # they follow by themselves; this is for a test that failed
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def traces(tmp_path) -> Path:
    path = tmp_path / "traces.jsonl"
    write_traces(path, [drawn_trace(i) for i in range(12)])
    return path


def in_this_domain() -> dict[str, str]:
    return {"ROS_DOMAIN_ID": os.environ["ROS_DOMAIN_ID"]}


def test_a_task_replayed_alone_has_the_rounds_that_were_recorded(
    start_for_module, wire, replay, tmp_path
):
    server = start_for_module(serving())
    until(lambda: wire.fleet and wire.fleet[-1].active, WITHIN_S, "for the policy to load")
    body = start_for_module(robot("parity"))
    bag = start_for_module(recorder(tmp_path / "bag"))
    listeners = {"chunk_request": 2, "action_chunk": 2, "task_events": 1}  # with the other end
    until(
        lambda: all(wire.node.count_subscribers(f"/parity/{t}") >= n for t, n in listeners.items()),
        what="for the recorder to find the robot",
    )
    operator = Operator(wire, "parity")
    goal = operator.give(
        instruction=INSTRUCTION, task_kind=SCENE, scene=SCENE, seed=2_000_011, max_actions=200
    )
    result = operator.result(goal)
    operator.close()
    time.sleep(1.0)  # the last messages of the task
    assert bag.stop(signal.SIGINT) == 0
    assert body.stop() == 0
    (recorded,) = extract(tmp_path / "bag").traces
    assert recorded.actions == result.actions > 20
    assert recorded.horizon_policy == "calibrated"

    bag = start_for_module(recorder(tmp_path / "again"))
    until(lambda: "recording" in bag.output(), what="for the recorder")
    live = replay(tmp_path / "bag", "--robots", "1", "--tasks", "2", "--external",
                  env=in_this_domain())  # fmt: skip
    assert live.exit_code() == 0
    assert bag.stop(signal.SIGINT) == 0
    run, configuration = live.run()
    assert configuration["judged"]  # by the server, again, not asked for by length
    assert configuration["policy_id"] == recorded.policy
    assert configuration["parity"]["exact"]
    # of a last round nothing may have been executed: whether its chunk came in time is chance
    done = [r for r in recorded.rounds if r.executed]
    wanted = [(r.round, r.requested_at, r.horizon, r.executed) for r in done]
    for task in run.tasks:
        came = [r for r in run.rounds if r.task == task.task and r.executed]
        assert [(r.round, r.requested_at, r.horizon, r.executed) for r in came] == wanted
        assert (task.actions, task.success) == (result.actions, result.success)
    # a replay can be recorded and replayed like any other run
    again = extract(tmp_path / "again").traces
    assert 1 <= len(again) <= 2  # the recorder may find the robot when its first task has begun
    for trace in again:
        assert (trace.kind, trace.seed, trace.success) == (SCENE, recorded.seed, recorded.success)
        pairs = list(zip((r for r in trace.rounds if r.executed), done, strict=True))
        for one, other in pairs:
            assert (one.requested_at, one.executed) == (other.requested_at, other.executed)
            assert one.horizon == other.horizon
        # a busy machine may have a newer observation fetched
        same = [(one, other) for one, other in pairs if one.observed_at == other.observed_at]
        assert same
        for one, other in same:
            assert np.array_equal(one.state, other.state)
            assert np.allclose(one.chunk, other.chunk, atol=1e-4)  # batches of other sizes
    # the same policy on the same machine; others may use it, too
    assert 0.1 < configuration["parity"]["latency_ratio"] < 10

    foreign = [replace(drawn_trace(i), policy="another") for i in range(2)]
    foreign = [
        replace(t, rounds=tuple(replace(r, state=np.zeros(7, np.float32)) for r in t.rounds))
        for t in foreign
    ]
    write_traces(tmp_path / "foreign.jsonl", foreign)
    refused = replay(tmp_path / "foreign.jsonl", "--external", env=in_this_domain())
    assert refused.exit_code() == 2
    assert "the serving node refuses what was recorded: state has 7 values" in refused.output()
    assert server.stop() == 0


def test_real_time_and_virtual_time_agree(replay, traces):
    """Given the delays that this machine had, rounds queue and batch as in virtual time."""
    robots, tasks, batch = 6, 18, 2
    real = replay(
        traces, "--robots", robots, "--tasks", tasks, "--max-batch", batch, "--scheduling",
        "wait_ratio", "--policy", "emulated:latency_ms=80+20b", "--seed", 5,
    )  # fmt: skip
    assert real.exit_code() == 0
    run, configuration = real.run()
    summary = summarise(run)
    served = [r for r in run.rounds if r.horizon]
    assert np.mean([r.queued_s for r in served]) > 0.02, "nobody queued: this compares nothing"
    late_ms = configuration["robots_side"]["late_p99_ms"]
    # dispatched -> answered: what the engine takes, and the way to its process and back
    base_ms = 1e3 * np.mean([r.server_s - r.queued_s - 0.02 * r.batch_size for r in served])
    network_s = np.mean([r.latency_s - r.server_s for r in served if r.attempts == 1])

    virtual = simulate(
        trace_tasks([drawn_trace(i) for i in range(12)], 5, None, tasks),
        FleetOptions(robots, Rules(accounting="replay"), network_s=network_s),
        ServingOptions(parse_scheduling("wait_ratio"), "static:10", batch_cap=batch),
        [SimEngine("edge", linear_profile(f"{base_ms:.1f}+20b", batch))],
        seed=5,
    )
    expected = summarise(virtual)
    print(f"real {summary.latency_s.mean:.3f} s, virtual {expected.latency_s.mean:.3f} s, "
          f"late {late_ms:.1f} ms, a batch of none {base_ms:.1f} ms, "
          f"network {1e3 * network_s:.1f} ms")  # fmt: skip
    assert base_ms > 80
    if late_ms > 33:
        pytest.skip(
            f"this machine is too busy for real time: control periods began {late_ms:.0f} ms late"
        )
    assert summary.tasks == expected.tasks == tasks
    assert summary.latency_s.mean == pytest.approx(expected.latency_s.mean, rel=0.1)


def test_ctrl_c_ends_a_replay_and_keeps_what_ran(replay, traces):
    live = replay(traces, "--robots", 10, "--rate", 5, "--tasks", 1000,
                  "--policy", "emulated:latency_ms=20+2b")  # fmt: skip
    live.wait_for(r"[1-9]\d* of 1000 tasks done")
    left = descendants(live.process.pid)
    assert len(left) >= 4  # serving node, its engine, two processes of robots
    live.process.send_signal(signal.SIGINT)
    assert live.exit_code() == 0
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
    run, configuration = live.run()
    assert configuration["interrupted"]
    outcomes = {task.outcome for task in run.tasks}
    assert outcomes <= {"succeeded", "canceled"}
    assert "succeeded" in outcomes
    assert summarise(run).success == 1.0
    # Poisson arrivals: told when they were wanted, and given then or later
    assert all(0 < task.wanted_s <= task.given_s for task in run.tasks)
    for name in run.robots:
        spans = [s for s in run.spans if s.robot == name]
        assert spans[0].start_s == 0.0
        assert spans[-1].end_s == run.length_s
        assert all(a.end_s == b.start_s for a, b in pairwise(spans))


def test_a_serving_node_that_dies_ends_the_replay_with_its_last_words(replay, traces):
    live = replay(traces, "--robots", 4, "--tasks", 1000, "--policy", "emulated:latency_ms=20+2b")
    live.wait_for(r"[1-9]\d* of 1000 tasks done")
    server = next(p for p in descendants(live.process.pid) if "serving_node" in command_line(p))
    os.kill(server, signal.SIGKILL)
    assert live.exit_code() == 1
    assert "the serving node ended with exit code -9; its last output" in live.output()
    run, configuration = live.run()
    assert "exit code -9" in configuration["failure"]
    assert summarise(run).tasks > 0


def test_what_cannot_be_replayed_is_told_before_anything_starts(replay, traces, tmp_path):
    (tmp_path / "garbage.jsonl").write_text("no traces\n")
    expected = {
        (tmp_path / "garbage.jsonl",): "garbage.jsonl:1: ",
        (traces, "--policy", "/no/such/policy"): "'/no/such/policy': no LeRobot policy folder",
        (traces, "--policy", "emulated:dim=7"): "have 7|has 7",
        (traces,): "holds no states",
        (traces, "--policy", "emulated:", "--horizon", "nonsense:1"): "nonsense",
    }
    started = [(replay(*options), said) for options, said in expected.items()]
    for one, said in started:
        assert one.exit_code() == 2
        assert re.search(said, one.output())
        assert not one.folder.exists()
