"""What Prometheus scrapes from `kairos dashboard`, and what is made of it."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kairos_ros.core.robot_state import RobotState as State
from kairos_ros.dashboard.metrics import metrics
from kairos_ros.dashboard.server import application
from kairos_ros.telemetry.events import EngineReported, Health, RobotReported, RobotScheduled
from kairos_ros.telemetry.fleet_view import FleetView, RobotView

CONFIG = Path(__file__).parents[2] / "config"
RULES, PANELS = CONFIG / "prometheus" / "kairos.rules.yaml", CONFIG / "grafana" / "kairos.json"
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def seen() -> FleetView:
    """Two arms, of which one was last heard ten seconds ago, and an engine."""
    robots = {}
    for name, at_s in (("arm_1", 100.0), ("arm_2", 90.0)):
        status = RobotReported(
            at_s, name, state=State.RUNNING, buffered=12, stalled_s=0.5, tasks_done=3, guarded=2
        )
        robots[name] = RobotView(name, status, RobotScheduled(name, horizon=20, wait_ratio=0.25))
    engine = EngineReported("edge", "edge", "busy", 3, 8, 0.9, 5, 1, "", policy="p", requests=12)
    return FleetView(
        robots=robots,
        engines=(engine,),
        server="s",
        server_heard_s=100.0,
        active=True,
        queue=4,
        counters={"chunks": 40, "refused_deadline": 2},
        health={"kairos: arm_1": Health(100.0, "kairos: arm_1", "", "warn", "", {})},
    )


def samples(view: FleetView, now_s: float) -> dict[tuple[str, tuple[str, ...]], float]:
    page = metrics(view, {"refused_message": 1}, now_s).decode()
    return {
        (sample.name, tuple(of for _, of in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_what_was_said_is_what_is_scraped():
    found = samples(seen(), 101.0)
    assert found["kairos_server_up", ()] == 1
    assert found["kairos_queue_requests", ()] == 4
    assert found["kairos_events_total", ("refused_deadline",)] == 2
    assert found["kairos_engine_load_ratio", ("edge", "p", "edge")] == 0.9
    assert found["kairos_engine_requests_total", ("edge", "p", "edge")] == 12
    assert found["kairos_robot_task_wait_ratio", ("arm_1",)] == 0.25
    assert found["kairos_robot_tasks_total", ("arm_1",)] == 3
    assert found["kairos_robot_state", ("arm_1", "running")] == 1
    assert found["kairos_health_level", ("kairos: arm_1",)] == 1
    assert found["kairos_exporter_refused_messages_total", ("refused_message",)] == 1


def test_of_who_is_silent_nothing_is_told_but_that():
    found = samples(seen(), 101.0)
    assert found["kairos_robot_up", ("arm_2",)] == 0
    assert [name for name, labels in found if "arm_2" in labels] == ["kairos_robot_up"]
    later = samples(seen(), 200.0)
    assert later["kairos_server_up", ()] == 0
    assert later["kairos_health_level", ("kairos: arm_1",)] == 3
    assert not [name for name, _ in later if name.startswith(("kairos_engine", "kairos_queue"))]


def test_a_robot_that_has_left_is_not_one_that_fell_silent():
    view = seen()
    left = RobotReported(90.0, "arm_2", state=State.LEAVING)
    view.robots["arm_2"] = RobotView("arm_2", left)
    assert not [name for name, labels in samples(view, 101.0) if "arm_2" in labels]


def test_an_empty_fleet_has_a_page_too():
    assert samples(FleetView(), 1.0)["kairos_server_up", ()] == 0


def test_whatever_a_message_says_the_page_can_be_read():
    view = seen()
    view.counters = {'a"b\\c\nd': 1}
    view.robots["arm_1"].mode = 'x"} 1\nkairos_server_up 7\n'
    found = samples(view, 101.0)
    assert found["kairos_server_up", ()] == 1
    assert found["kairos_events_total", ('a"b\\c\nd',)] == 1


def test_every_metric_of_the_panels_the_rules_and_the_page_exists():
    told = {name for name, _ in samples(seen(), 101.0)}
    panels = json.loads(PANELS.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    used = set(re.findall(r"\bkairos_\w+", " ".join([*expressions, RULES.read_text()])))
    assert used - told == {"kairos_ros"} & used
    documented = set(re.findall(r"`(kairos_\w+)", PAGE.read_text())) - {"kairos_ros"}
    assert documented == told


def test_rules_are_evaluated_as_often_as_their_alerts_wait():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    seconds = {"s": 1, "m": 60}
    every, *waits = (
        int(text[:-1]) * seconds[text[-1]]
        for text in (group["interval"], *(rule["for"] for rule in group["rules"]))
    )
    assert every <= min(waits)


@pytest.mark.slow
def test_prometheus_reads_page_and_rules(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    subprocess.run([promtool, "check", "rules", RULES], check=True)
    page = metrics(seen(), {}, 101.0)
    subprocess.run([promtool, "check", "metrics"], input=page, check=True)


def test_a_scrape_brings_the_token_as_a_bearer():
    class Seen:
        failure, refused = "", {}

        def read(self, draw):
            return draw(seen())

    async def scrapes() -> None:
        server = httpx.ASGITransport(application(Seen(), "secret", ["*"]))
        async with httpx.AsyncClient(transport=server, base_url="http://cell") as client:
            assert (await client.get("/metrics")).status_code == 403
            wrong = {"Authorization": "Bearer guess"}
            assert (await client.get("/metrics", headers=wrong)).status_code == 403
            page = await client.get("/metrics", headers={"Authorization": "Bearer secret"})
            assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'kairos_robot_up{robot="arm_1"}' in page.text

    asyncio.run(scrapes())
