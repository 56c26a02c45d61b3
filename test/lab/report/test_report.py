"""The report: what it says of runs, and that a real browser shows it without any network."""

import json
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from browser import CHROMIUM, visit
from simulated_fleet import simulated_run

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.report import report_command
from kairos_ros.lab.metrics.slo import Slo
from kairos_ros.lab.metrics.stalls import stall_causes
from kairos_ros.lab.report.headline import headline, shared_numbers
from kairos_ros.lab.report.sampling import MOST_ROBOTS, MOST_ROUNDS, sample
from kairos_ros.recording.runs import run_source
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import save_run
from kairos_ros.recording.runs.run_source import NamedRun, find_runs, read_runs
from kairos_ros.recording.runs.summary import summarise

SLO = Slo("system1", 0.5)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium, or run .ci/run as root"
)


@pytest.fixture(scope="module")
def fifo() -> FleetRun:
    return simulated_run(12, 20.0, "fifo", horizon=10)


@pytest.fixture(scope="module")
def ours() -> FleetRun:
    return simulated_run(12, 20.0, "wait_ratio")


@pytest.fixture
def study(tmp_path: Path, fifo: FleetRun, ours: FleetRun) -> Path:
    save_run(tmp_path / "study" / "fifo", fifo, {"scheduling": "fifo", "server": {"batch": 4}})
    save_run(tmp_path / "study" / "ours", ours, {"scheduling": "<wait & ratio>", "seed": 1})
    return tmp_path / "study"


def page_of(folder: Path, page: Path) -> Path:
    report_command([folder], page, 500.0, False)
    return page


def named(name: str, run: FleetRun) -> NamedRun:
    return NamedRun(name, Path(name), run, {})


def text_of(html: str) -> str:
    """What a reader sees of the page, roughly."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


@in_a_browser
@pytest.mark.slow
def test_every_figure_is_drawn_without_errors_and_without_network(study: Path, tmp_path: Path):
    seen = visit(page_of(study, tmp_path / "report.html"), tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert 'data-drawn="yes"' in seen.dom
    # latencies 3, timeline 1 of 2, one episode, all chunks, stalls, SLO; two svg layers each
    drawn = re.findall(r'id="(figure-\d+)"[^>]*class="[^"]*js-plotly-plot', seen.dom)
    drawn += re.findall(r'class="[^"]*js-plotly-plot[^"]*" id="(figure-\d+)"', seen.dom)
    assert len(drawn) == 8
    assert seen.dom.count('class="js-line"') >= 12
    assert seen.dom.count('class="point"') > 500
    text = text_of(seen.dom)
    assert "ours: tasks take 0." in text
    assert "task latency, average (s) ∩" in text
    assert "queueing" in text


@in_a_browser
@pytest.mark.slow
def test_the_page_can_be_searched_and_the_run_chosen(study: Path, tmp_path: Path):
    page = page_of(study, tmp_path / "report.html")
    page.write_text(
        page.read_text().replace(
            "</body>",
            """<script>setTimeout(() => {
              const search = document.getElementById("search");
              search.value = "ours robot_03 BUCKET";
              search.dispatchEvent(new Event("input"));
              const chooser = document.querySelector("#timelines select");
              chooser.selectedIndex = 1;
              chooser.dispatchEvent(new Event("change"));
            }, 5000)</script></body>""",
        )
    )
    seen = visit(page, tmp_path)
    assert seen.console == []
    table = seen.dom[seen.dom.index('id="table"') :].split("</table>")[0]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    assert rows
    assert {(row[0], row[2]) for row in rows} == {("ours", "robot_03")}
    timelines = seen.dom[seen.dom.index('id="timelines"') : seen.dom.index('id="horizons"')]
    assert timelines.count("js-plotly-plot") == 2


@in_a_browser
@pytest.mark.slow
def test_the_check_itself_sees_errors_and_requests(tmp_path: Path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><img src='http://example.com/a.png'><script>nothing_here()</script>"
    )
    seen = visit(page, tmp_path)
    assert any("nothing_here" in line for line in seen.console)
    assert "http://example.com/a.png" in seen.requests


@in_a_browser
@pytest.mark.slow
def test_a_run_without_rounds_is_drawn_from_what_robots_did(fifo: FleetRun, tmp_path: Path):
    save_run(tmp_path / "demo", replace(fifo, rounds=()), {})
    seen = visit(page_of(tmp_path / "demo", tmp_path / "report.html"), tmp_path, width=500)
    assert seen.console == []
    assert 'data-drawn="yes"' in seen.dom
    text = text_of(seen.dom)
    assert "Rounds were not recorded" in text
    assert "Decisions" not in text
    assert "12 robots" in text


def test_the_page_refers_to_nothing_outside_itself(study: Path, tmp_path: Path):
    html = page_of(study, tmp_path / "report.html").read_text()
    assert "default-src 'none'" in html
    assert not re.search(r"<(link|img|iframe|script)[^>]*\s(src|href)=", html)
    assert "&lt;wait &amp; ratio&gt;" in html
    assert "<wait" not in html


def test_ratios_are_to_the_first_run_on_the_tasks_that_both_finished(
    fifo: FleetRun, ours: FleetRun
):
    table = headline(
        [named("fifo", fifo), named("ours", ours)], [summarise(fifo), summarise(ours)], SLO
    )
    both = shared_numbers([fifo, ours])
    kept = [
        [t.duration_s for t in run.tasks if t.number in both and t.finished] for run in (fifo, ours)
    ]
    averages = [sum(latencies) / len(latencies) for latencies in kept]
    row = next(row for row in table.rows if row.label == "task latency, average")
    assert [cell.text for cell in row.cells] == [f"{s:.2f}" for s in averages]
    assert row.cells[1].ratio == f"{averages[1] / averages[0]:.2f}×"
    assert row.cells[1].verdict == "better"
    assert f"the {len(both)} tasks that all runs finished" in table.basis
    assert table.finding.startswith(f"ours: tasks take {averages[1] / averages[0]:.2f} times")


def test_runs_of_other_tasks_are_not_compared_task_by_task(fifo: FleetRun):
    other = replace(fifo, tasks=tuple(replace(t, seed=t.seed + 1) for t in fifo.tasks))
    table = headline(
        [named("a", fifo), named("b", other)], [summarise(fifo), summarise(other)], SLO
    )
    assert "too few tasks in common" in table.basis
    assert "1.00 times" in table.finding


def test_a_report_of_a_run_in_which_nothing_finished_says_so(tmp_path: Path):
    save_run(tmp_path / "empty", FleetRun(("arm_1",), 5.0, (), (), ((0.0, 5.0),)), {})
    text = text_of(page_of(tmp_path / "empty", tmp_path / "report.html").read_text())
    assert "1 robots, no task finished" in text
    assert "No robot waited" in text


def test_the_causes_of_stalls_add_up_to_all_stalls(fifo: FleetRun, ours: FleetRun):
    for run in (fifo, ours):
        stalled_s = sum(task.stalled_s for task in run.tasks)
        assert sum(stall_causes(run).values()) == pytest.approx(stalled_s)
    # twelve robots at the capacity of four: what they wait for is the queue
    assert stall_causes(fifo)["queueing"] > 5 * stall_causes(fifo)["compute"]


@pytest.mark.slow
def test_a_large_run_is_sampled_and_says_so():
    large = sample(simulated_run(40, 200.0, "fifo", horizon=10))
    assert len(large.robots) == MOST_ROBOTS
    assert len(large.rounds) == MOST_ROUNDS
    assert {r.robot for r in large.rounds} == set(large.robots)
    assert large.start_s > 0
    assert "12 of 40 robots" in large.note
    assert "1,200 of" in large.note


def test_a_small_run_is_shown_whole(fifo: FleetRun):
    small = sample(replace(fifo, rounds=fifo.rounds[:50]))
    assert len(small.rounds) == 50
    assert small.note == ""


def test_runs_are_found_below_a_folder_once_and_bags_beside_them(study: Path):
    (study / "latest").symlink_to("fifo")
    (study / "bag").mkdir()
    (study / "bag" / "bag_0.mcap").touch()
    found = find_runs([study / "ours", study])
    assert [path.name for path in found] == ["ours", "fifo", "bag"]


def test_runs_are_named_by_what_differs(tmp_path: Path, fifo: FleetRun):
    for load in ("0.5", "0.9"):
        save_run(tmp_path / f"order=fifo,load={load}" / "seed_1", fifo, {})
    assert [run.name for run in read_runs([tmp_path])] == ["load=0.5", "load=0.9"]
    assert [run.name for run in read_runs([tmp_path / "order=fifo,load=0.5"])] == ["seed_1"]


def test_a_recorded_run_is_compared_task_by_task_with_one_that_was_not_recorded(
    fifo: FleetRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seeded = [replace(t, seed=2_000_000 + t.number, wanted_s=t.given_s - 0.5) for t in fifo.tasks]
    told = replace(fifo, tasks=tuple(seeded), rounds=())
    for name in ("recorded", "unrecorded"):
        save_run(tmp_path / name, told, {})
    (tmp_path / "recorded" / "bag").mkdir()
    (tmp_path / "recorded" / "bag" / "bag_0.mcap").touch()
    # a bag knows tasks by their seeds, begins 3 s earlier, and sees when a robot got each
    later = [
        replace(t, number=t.seed, given_s=t.given_s + 3, wanted_s=t.given_s + 3) for t in seeded
    ]
    more = [replace(later[0], seed=0, number=i, task=f"by hand {i}") for i in range(2)]
    bag = replace(fifo, tasks=(*more, *later), open_s=((3.0, 19.0),))
    monkeypatch.setattr(run_source, "_read_bag", lambda path: bag)

    recorded, unrecorded = (named.run for named in read_runs([tmp_path]))
    assert recorded.rounds
    shared = shared_numbers([recorded, unrecorded])
    assert shared == {t.number for t in fifo.tasks if t.finished}
    assert [t.task for t in recorded.tasks if t.number not in {t.number for t in seeded}] == [
        "by hand 0",
        "by hand 1",
    ]
    (start_s, end_s), (told_start_s, told_end_s) = recorded.open_s[0], told.open_s[0]
    assert (start_s, end_s) == pytest.approx((told_start_s + 3, told_end_s + 3))
    assert summarise(recorded).queueing_s.p95 == pytest.approx(0.5)


def test_a_folder_without_runs_and_a_missing_one_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="neither a run"):
        page_of(tmp_path, tmp_path / "report.html")
    with pytest.raises(ConfigError, match="no such file"):
        page_of(tmp_path / "nowhere", tmp_path / "report.html")


def test_rounds_that_were_recorded_in_part_do_not_spoil_the_page(ours: FleetRun, tmp_path: Path):
    times = ("requested_s", "answered_s", "exec_start_s", "exec_end_s", "queued_s", "server_s")
    torn = list(ours.rounds)
    for i in range(0, len(torn), 3):
        torn[i] = replace(torn[i], **{times[i // 3 % len(times)]: math.nan})
    save_run(tmp_path / "run", replace(ours, rounds=tuple(torn)), {})
    html = page_of(tmp_path / "run", tmp_path / "report.html").read_text()
    for name in ("figures", "decision-rows"):
        embedded = re.search(rf'id="{name}">(.*?)</script>', html, re.DOTALL)
        assert embedded
        json.loads(embedded[1], parse_constant=pytest.fail)
    assert "nan" not in text_of(html).lower().split()


def test_hover_texts_cannot_carry_markup(fifo: FleetRun, tmp_path: Path):
    evil = replace(fifo.rounds[0], reason="</script><img src=x onerror=alert(1)>")
    save_run(tmp_path / "run", replace(fifo, rounds=(evil, *fifo.rounds[1:])), {})
    html = page_of(tmp_path / "run", tmp_path / "report.html").read_text()
    assert "<img" not in html[html.index('id="figures"') :]
    figures = re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)
    assert figures
    assert any("&lt;img" in t for f in json.loads(figures[1]).values() for t in f.get("texts", ()))


def test_a_page_tells_tasks_by_policy_where_they_ran_on_several(fifo: FleetRun, tmp_path: Path):
    save_run(tmp_path / "run", fifo, {})
    assert "Policies" not in text_of(page_of(tmp_path / "run", tmp_path / "one.html").read_text())
    policies = ("pick-1", "place-2")
    tasks = tuple(replace(t, policy=policies[i % 2]) for i, t in enumerate(fifo.tasks))
    save_run(tmp_path / "run", replace(fifo, tasks=tasks), {})
    html = page_of(tmp_path / "run", tmp_path / "several.html").read_text()
    for policy in policies:
        assert f"<td>{policy}</td>" in html
