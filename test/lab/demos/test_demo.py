"""The demo's tasks, view and comparison, without processes."""

import io
import itertools
import json
import math
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.scheduling.policies import BUILTIN as SCHEDULING
from kairos_ros.host.domain import claim_domain, domain_in_use
from kairos_ros.lab.demos.experiment import (
    DemoOptions,
    baseline_horizon,
    calibration,
    scenes,
)
from kairos_ros.lab.metrics.fleet_plot import finding, plot_comparison, plot_fleet
from kairos_ros.lab.testbed.cloud import Cut, Paces, parse_cuts
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.report import (
    RunReport,
    comparison,
    comparison_finding,
    part_latencies,
    write_json,
)
from kairos_ros.lab.testbed.tiers import tier_shares
from kairos_ros.lab.testbed.view import bar, line, render
from kairos_ros.lab.testbed.workload import Arrivals, parse_arrivals, scene_tasks
from kairos_ros.recording.runs.run import FleetRun, Span, TaskRecord
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.telemetry.events import (
    ChunkAnswered,
    EngineReported,
    RobotReported,
    RobotScheduled,
    TaskKey,
)
from kairos_ros.telemetry.fleet_view import RobotView

TASK = TaskRecord(
    number=0,
    robot="arm_1",
    scene="reach-v3",
    seed=1,
    wanted_s=0.0,
    given_s=0.0,
    ended_s=4.0,
    outcome="succeeded",
    success=True,
    duration_s=4.0,
    first_wait_s=0.4,
    stalled_s=1.0,
    actions=90,
    round_latency_s=(0.1, 0.1),
    round_executed=(60, 30),
)
RUN = FleetRun(
    ("arm_1",),
    10.0,
    (TASK, replace(TASK, number=1, success=False, outcome="max_actions")),
    (Span("arm_1", 0.0, 4.0, "executing"), Span("arm_1", 4.0, 10.0, "idle")),
    ((0.0, 10.0),),
)
SET_UP = {
    "scheduling": "wait_ratio",
    "horizon": "static:30",
    "robots": 1,
    "arrivals": "back_to_back",
    "seed": 1,
}


def test_the_baseline_is_tuned_where_the_policy_was_calibrated(tmp_path):
    assert baseline_horizon("") == "static:tuned"
    assert baseline_horizon(str(tmp_path)) == baseline_horizon("emulated:dim=4") == "static:10"


def test_a_round_that_was_given_up_has_no_latency_in_the_document(tmp_path):
    given_up = replace(TASK, round_latency_s=(0.1, math.nan, 0.1), round_executed=(60, 0, 30))
    report = RunReport(SET_UP, replace(RUN, tasks=(given_up,)))
    write_json(tmp_path / "summary.json", report.document())
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["tasks"][0]["round_latency_s"] == [0.1, None, 0.1]
    assert written["summary"]["chunk_latency_s"]["count"] == 2


def test_every_configuration_gets_the_same_tasks():
    one, other = (list(itertools.islice(scene_tasks(list(SCENES), 3, 0.5), 50)) for _ in range(2))
    assert one == other
    assert {job.scene for job in one} == set(SCENES)
    assert len({(job.scene, job.seed) for job in one}) == 50


def test_another_seed_gives_other_scenes_and_other_arrivals():
    one, other = (list(itertools.islice(scene_tasks(["reach-v3"], s, 0.5), 20)) for s in (1, 2))
    assert not {job.seed for job in one} & {job.seed for job in other}
    assert [job.wanted_s for job in one] != [job.wanted_s for job in other]


def test_poisson_tasks_come_at_the_rate_asked_for():
    last = list(itertools.islice(scene_tasks(["reach-v3"], 1, 2.0), 2000))[-1]
    assert last.wanted_s == pytest.approx(1000, rel=0.1)  # 2 standard deviations are 4.5 %


def test_a_free_robot_gets_the_oldest_task_that_has_arrived():
    known = list(itertools.islice(scene_tasks(["reach-v3"], 1, 1.0), 3))
    arrivals = Arrivals(scene_tasks(["reach-v3"], 1, 1.0), poisson=True)
    assert arrivals.take(known[0].wanted_s - 1e-6) is None
    assert arrivals.waiting(known[1].wanted_s) == 2
    assert arrivals.take(known[1].wanted_s) == known[0]
    assert arrivals.take(known[1].wanted_s) == known[1]
    assert arrivals.take(known[1].wanted_s) is None


def test_back_to_back_there_is_always_a_next_task():
    arrivals = Arrivals(scene_tasks(["reach-v3"], 1, None), poisson=False)
    assert arrivals.waiting(1e6) == 0
    assert [arrivals.take(0.0).number for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("text", ["poisson", "poisson:0", "poisson:-1", "poisson:nan", "burst", ""])
def test_arrivals_that_make_no_sense_are_named(text):
    with pytest.raises(ConfigError, match="poisson:RATE"):
        parse_arrivals(text)


def test_only_scenes_that_the_policy_knows_are_played(tmp_path):
    (tmp_path / "config.json").write_text('{"instructions": ["open the drawer", "sing"]}')
    assert scenes(str(tmp_path)) == ["drawer-open-v3"]
    (tmp_path / "config.json").write_text('{"instructions": ["sing"]}')
    with pytest.raises(ConfigError, match="sing"):
        scenes(str(tmp_path))
    (tmp_path / "config.json").write_text('{"type": "pi0"}')
    assert scenes(str(tmp_path)) == list(SCENES)


def robot(name, state=RobotState.IDLE, scheduled=None, **status) -> RobotView:
    return RobotView(name, RobotReported(0.0, name, state=state, **status), scheduled)


def fleet() -> LiveFleet:
    scheduled = RobotScheduled("arm_1", 14, "tail differs", 0.31)
    doing = {"instruction": "open the drawer", "buffered": 15, "control_rate_hz": 30.0}
    doing |= {"round": 12, "stalled_s": 1.5}
    live = LiveFleet(
        {
            "arm_1": robot("arm_1", RobotState.RUNNING, scheduled, **doing),
            "arm_2": robot("arm_2"),
            "arm_3": RobotView("arm_3"),
        },
        (EngineReported("edge", "edge", "busy", 5, 16, 0.37, 812, 1, ""),),
        scheduling="wait_ratio",
        horizon="static:14",
        queue=7,
        counters={"deadline": 1, "old_round": 0},
        phase="3 robots",
        left_s=83.0,
        tasks_waiting=4,
    )
    live.finished.update(arm_1=4, arm_2=2)
    live.successes.update(arm_1=3, arm_2=2)
    live.decisions.append(("arm_1", "bucket 3, 2nd of 7"))
    return live


@pytest.mark.parametrize("width", [100, 130, 160])
def test_the_view_fits_the_terminal_and_shows_what_matters(width):
    console = Console(width=width, height=50, record=True, file=io.StringIO())
    console.print(render(fleet(), width))
    text = console.export_text()
    assert max(len(row) for row in text.splitlines()) <= width
    for part in (
        *("6 tasks done, 5 succeeded", "1:23 left", "wait_ratio", "open the drawer", "12", "31%"),
        *("1.5 s", "3/4", " 5/16", "37%", "7 requests", "bucket 3, 2nd of 7", "deadline 1"),
        *("starting", "4 tasks wait"),
    ):
        assert part in text
    assert "old_round" not in text
    assert ("tail differs" in text) == (width >= 130)


def test_without_a_terminal_one_line_says_the_same():
    assert line(fleet()) == (
        "3 robots: 6 tasks done, 5 succeeded; 1 executing, 0 holding, 4 tasks wait for a robot; "
        "queue 7; edge busy batch 5 load 37%; 83 s left"
    )


def test_a_bar_is_as_full_as_its_share():
    assert [bar(share, 4) for share in (0, 0.5, 1, 7, -1)] == [
        "    ",
        "██  ",
        "████",
        "████",
        "    ",
    ]
    assert bar(1 / 32, 4) == "▏   "


def test_a_comparison_counts_the_shared_tasks_and_gives_ratios():
    slow = replace(RUN, tasks=(replace(TASK, duration_s=8.0, round_executed=(30,) * 3),))
    ours = RunReport(SET_UP, RUN)
    baseline = RunReport({**SET_UP, "scheduling": "fifo"}, slow)
    rows = {row["metric"]: row for row in comparison(ours, baseline)}
    latency = rows["end-to-end latency, average"]
    assert (latency["ours"], latency["baseline"], latency["ratio"]) == (4.0, 8.0, 0.5)
    assert rows["finished per minute"]["ratio"] == 2.0
    assert "same 1 tasks" in comparison_finding(ours, baseline)
    assert "0.50 times as long" in comparison_finding(ours, baseline)


def test_a_comparison_tells_its_parts_apart():
    late = replace(TASK, number=1, given_s=6.0, duration_s=9.0)
    run = replace(RUN, tasks=(TASK, late), open_s=((0.0, 5.0), (5.0, 10.0)))
    calm = replace(run, tasks=(TASK, replace(late, duration_s=4.0)))
    parts = part_latencies(RunReport(SET_UP, run), RunReport(SET_UP, calm))
    assert parts == ([4.0, 9.0], [4.0, 4.0])


CHUNK = ChunkAnswered(
    at_s=1.0,
    key=TaskKey("arm_1", "s", "1"),
    round=3,
    attempt=0,
    refused=False,
    horizon=0,
    chunk_size=0,
    action_dim=0,
    actions=None,
    confidence=np.zeros(0),
    horizon_reason="",
    queued_s=0.0,
    batch_size=1,
    policy="p",
    server="",
    tier="cloud",
    engine="cloud",
    reason="bucket 0 (wait ratio 0.10), 2nd of 2, cloud batch of 1 on cloud (0.21 s there, 0.43 s "
    "at the edge)",
    server_s=0.2,
    compute_s=0.04,
)


def test_cuts_of_the_link_are_read_and_hold_when_they_say():
    assert parse_cuts("") == ()
    assert parse_cuts("20:5,60:2.5") == (Cut(20.0, 5.0), Cut(60.0, 2.5))
    assert [Cut(20.0, 5.0).holds_at(s) for s in (19.9, 20.0, 24.9, 25.0)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("text", ["20", "20:", "a:5", "20:0", "-1:5", "20:nan", "20:5:1", "20:5,"])
def test_cuts_that_are_written_wrongly_are_refused_with_the_form(text):
    with pytest.raises(ConfigError, match="FROM:FOR"):
        parse_cuts(text)


def test_a_paced_policy_keeps_the_calibration_of_its_folder(tmp_path):
    options = DemoOptions(2, 10.0, "back_to_back", 1, "", tmp_path, paces=Paces())
    (file,) = calibration(options).values()
    assert json.loads(Path(file).read_text())["policy_id"]
    assert calibration(replace(options, paces=None)) == {}
    assert calibration(replace(options, policy="emulated:latency_ms=1")) == {}


def test_tiers_share_the_chunks_and_have_their_own_latencies():
    edge = replace(CHUNK, tier="edge", server_s=0.4)
    shares = tier_shares([CHUNK, edge, edge, replace(edge, server_s=0.1)])
    assert [(s.tier, s.chunks, s.share) for s in shares] == [("edge", 3, 0.75), ("cloud", 1, 0.25)]
    assert shares[0].server_s.p50 == 0.4
    assert shares[1].compute_s.mean == pytest.approx(0.04)
    assert tier_shares([]) == []


def with_a_cloud():
    arm = robot("arm_1", RobotState.RUNNING, instruction="push", round=3)
    arm.answer(CHUNK)
    engines = (
        EngineReported("edge", "edge", "busy", 1, 16, 0.8, 9, 0, ""),
        EngineReported("cloud", "cloud", "busy", 1, 16, 0.4, 9, 0, "", 0.105, 20_000.0, 2, 353.0),
    )
    return LiveFleet({"arm_1": arm, "arm_2": robot("arm_2")}, engines, link="CUT, 3 s to go")


def test_the_view_says_where_each_running_chunk_is_from_and_why():
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(render(with_a_cloud(), 160))
    text = console.export_text()
    assert "cloud batch of 1 on cloud (0.21 s there" in text
    assert "rtt 105 ms, over 1000 Mbit/s, 2 in flight" in text
    assert "emulated: CUT, 3 s to go" in text
    assert "1 executing (1 from cloud)" in line(with_a_cloud())


def test_a_chunk_that_is_not_executed_yet_is_not_shown_as_the_running_one():
    arm = robot("arm_1", RobotState.RUNNING, round=3)
    arm.answer(replace(CHUNK, round=3, tier="edge"))
    arm.answer(replace(CHUNK, round=4))
    assert arm.chunk.tier == "edge"
    arm.status = replace(arm.status, round=4)
    assert arm.chunk.tier == "cloud"
    arm.answer(replace(CHUNK, key=TaskKey("arm_1", "s", "2"), round=1))
    assert arm.chunk is None


def test_pictures_are_drawn_also_when_nothing_finished(tmp_path):
    nothing = replace(RUN, tasks=(), spans=())
    for name, run in (("run", RUN), ("nothing", nothing)):
        plot_fleet(tmp_path / f"{name}.png", run, summarise(run), "fifo")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    pair = (RUN, summarise(RUN))
    plot_comparison(tmp_path / "both.png", "same", "fifo", pair, pair)
    assert (tmp_path / "both.png").stat().st_size > 10_000
    assert "2 tasks: 1 succeeded, 4.0 s each, 25.0 % of it waiting" in finding(summarise(RUN), 1)


@pytest.mark.slow
def test_a_claimed_domain_is_one_that_nobody_uses_and_nobody_else_gets():
    domain = claim_domain()
    code = "from kairos_ros.host.domain import _claim; print(_claim({domain}))"
    other = subprocess.run(
        [sys.executable, "-c", code.format(domain=domain)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == "False\n"
    assert 1 <= domain <= 101
    assert not domain_in_use(domain)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 7400 + 250 * domain + 10))
        assert domain_in_use(domain)


def make_demo(*given: str) -> subprocess.CompletedProcess[str]:
    """What `make demo` would run, on one line, without running it."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        ["make", "-n", "demo", *given], cwd=root, capture_output=True, text=True, check=False
    )
    done.stdout = " ".join(done.stdout.replace("\\\n", " ").split())
    return done


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
class TestMakeDemo:
    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ("SCHEDULING=fifo", "kairos demo --scheduling fifo"),
            ("POLICY=models/mine", "kairos demo --policy models/mine"),
            ("POLICY=./fifo", "kairos demo --policy ./fifo"),
            ("POLICY=emulated:latency=80+35b", "kairos demo --policy emulated:latency=80+35b"),
        ],
    )
    @pytest.mark.slow
    def test_policy_is_the_model_and_scheduling_the_scheduling(self, given, told):
        done = make_demo(given)
        assert told in done.stdout
        assert "note:" not in done.stdout

    @pytest.mark.parametrize("name", SCHEDULING)
    @pytest.mark.slow
    def test_policy_with_the_name_of_a_scheduling_policy_is_that_for_one_release(self, name):
        given = f"{name}:x=1"
        done = make_demo(f"POLICY={given}")
        assert f"note: POLICY={given} is taken as SCHEDULING={given}" in done.stdout
        assert f"kairos demo --scheduling {given}" in done.stdout
        assert "--policy" not in done.stdout

    @pytest.mark.slow
    def test_two_scheduling_policies_are_refused(self):
        done = make_demo("POLICY=fifo", "SCHEDULING=admit")
        assert done.returncode == 2
        assert "POLICY is the model now" in done.stderr
