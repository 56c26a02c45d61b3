"""What Prometheus scrapes from the programs of a fleet, and what is made of it."""

import asyncio
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kairos_ros.core.calls.call import Caller
from kairos_ros.core.calls.dispatch import dispatch_called
from kairos_ros.core.calls.orders import order_called
from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Answer, Refusal, RequestId
from kairos_ros.core.robot_state import RobotState as State
from kairos_ros.dashboard.metrics import metrics
from kairos_ros.dashboard.server import application
from kairos_ros.doors.clients import Clients, Limits
from kairos_ros.doors.metrics import metrics as doors_metrics
from kairos_ros.doors.native.robot_client import RobotClient
from kairos_ros.engine.worker.link import WorkerLink
from kairos_ros.engine.worker.metrics import WorkerCollector
from kairos_ros.gateway.backend import HttpBackend
from kairos_ros.gateway.gateway import Gateway
from kairos_ros.gateway.metrics import metrics as gateway_metrics
from kairos_ros.telemetry.events import EngineReported, Health, RobotReported, RobotScheduled
from kairos_ros.telemetry.fleet_view import FleetView, RobotView
from kairos_ros.tracing.fleet_traces import Traces
from kairos_ros.tracing.otlp import TraceSender
from kairos_ros.tracing.spans import Service

CONFIG = Path(__file__).parents[2] / "config"
RULES, PANELS = CONFIG / "prometheus" / "kairos.rules.yaml", CONFIG / "grafana" / "kairos.json"
S = 1_000_000_000
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


def traces() -> Traces:
    """One answer was of a server that was not asked, and three spans were not taken."""
    made = Traces(TraceSender("http://127.0.0.1:9"))
    made.sender.dropped["not_taken"] += 3
    made.sender.sent = 12
    made.left_out["other_server"] += 1
    return made


def samples(view: FleetView, now_s: float) -> dict[tuple[str, tuple[str, ...]], float]:
    return read(metrics(view, {"refused_message": 1}, now_s, traces()))


def read(page: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(of for _, of in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
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


def test_spans_that_were_sent_dropped_or_left_out_are_told():
    found = samples(seen(), 101.0)
    assert found["kairos_trace_spans_total", ("sent",)] == 12
    assert found["kairos_trace_spans_total", ("not_taken",)] == 3
    assert found["kairos_trace_spans_total", ("queue_full",)] == 0
    assert found["kairos_trace_left_out_total", ("other_server",)] == 1
    assert b"kairos_trace" not in metrics(seen(), {}, 101.0)  # of a dashboard without --otlp


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


def gateway_page() -> bytes:
    """A safety call was answered in 0.5 s, a plan late after 2 s; a third one waits, on one server
    of two."""
    backends = [HttpBackend("http://gpu-1:1/v1#m"), HttpBackend("http://gpu-2:2/v1#m")]
    options = {"order": order_called("first_come"), "dispatch": dispatch_called("round_robin")}
    gateway = Gateway(backends, places=3, **options)
    one, other = gateway.servers.by_name.values()
    one.instance.models, one.up, other.failed = frozenset("m"), True, 2
    queue, now_ns = gateway.queue, time.monotonic_ns()
    safety = queue.put(Caller("arm_1", "safety"), "m", 10, 0, now_ns - 9 * S)
    plan = queue.put(Caller("arm_1", "system2"), "m", 10, S, now_ns - 8_800_000_000)
    assert len(queue.start(now_ns - 8_500_000_000)) == 2
    queue.answered(safety, now_ns - 8 * S)
    queue.answered(plan, now_ns - 6 * S)
    queue.put(Caller("arm_2", "monitor"), "another", 10, 0, now_ns - 3 * S)
    assert not queue.start(now_ns)
    gateway.refused["timeout"] += 3
    return gateway_metrics(gateway)


def doors_page() -> bytes:
    """One client is here, and one has left after a refusal."""
    clients = Clients(SimpleNamespace(leave=lambda client: None), Limits(clients=5))
    for name in ("arm_1", "arm_2"):
        clients.join(client := RobotClient(name, "here", lambda status: None), lambda _: None)
        client.counters["requests"] += 4
    refused = Refusal(RefusalCode.OVERLOADED, "full", S)
    clients.answered("arm_2", Answer(RequestId("arm_2", client.session, "1", 1, 0), refused))
    clients.leave(client)
    try:
        return doors_metrics(clients, 3, ("kairos", "openpi")).encode()
    finally:
        clients.close()


def worker_page(folder: Path) -> bytes:
    link = WorkerLink(f"ipc://{folder}/worker")
    link.start()
    try:
        link.totals.took("pick", 3, 0.25)
        link.totals.refused(RefusalCode.MALFORMED)
        registry = CollectorRegistry()
        registry.register(WorkerCollector(link))
        return generate_latest(registry)
    finally:
        link.close()


def test_a_gateway_tells_its_queue_its_servers_and_how_calls_stood():
    found = read(gateway_page())
    assert found["kairos_gateway_waiting_calls", ("monitor",)] == 1
    assert 3 <= found["kairos_gateway_oldest_wait_seconds", ("monitor",)] < 60
    assert found["kairos_gateway_oldest_wait_seconds", ("safety",)] == 0
    assert found["kairos_gateway_calls_total", ("safety", "no_objective")] == 1
    assert found["kairos_gateway_calls_total", ("system2", "late")] == 1
    assert found["kairos_gateway_wait_seconds_sum", ("safety",)] == 0.5
    assert found["kairos_gateway_wait_seconds_bucket", ("safety", "0.3")] == 0
    assert found["kairos_gateway_wait_seconds_bucket", ("safety", "1.0")] == 1
    assert found["kairos_gateway_wait_seconds_bucket", ("safety", "+Inf")] == 1
    assert found["kairos_gateway_choices_total", ("gpu-1:1", "obligation")] == 1
    assert found["kairos_gateway_choices_total", ("gpu-1:1", "late")] == 1
    assert found["kairos_gateway_refused_calls_total", ("timeout",)] == 3
    assert found["kairos_gateway_server_up", ("gpu-1:1",)] == 1
    assert found["kairos_gateway_server_up", ("gpu-2:2",)] == 0
    assert found["kairos_gateway_server_failures_total", ("gpu-2:2",)] == 2
    assert found["kairos_gateway_server_places", ("gpu-1:1",)] == 3


def test_doors_count_what_clients_did_that_have_left():
    found = read(doors_page())
    assert found["kairos_doors_clients", ("kairos",)] == 1
    assert found["kairos_doors_clients", ("openpi",)] == 0
    assert found["kairos_doors_events_total", ("kairos", "requests")] == 8
    assert found["kairos_doors_events_total", ("kairos", "refused_overloaded")] == 1
    assert found["kairos_doors_connection_events_total", ("connected",)] == 2
    assert found["kairos_doors_connection_events_total", ("disconnected",)] == 1
    assert found["kairos_doors_connections", ()] == 3


def test_a_worker_tells_what_it_computed_for_everybody(tmp_path):
    found = read(worker_page(tmp_path))
    assert found["kairos_worker_state", ("loading",)] == 1
    assert found["kairos_worker_requests_total", ("pick",)] == 3
    assert found["kairos_worker_compute_seconds_total", ("pick",)] == 0.25
    assert found["kairos_worker_refused_total", ("malformed",)] == 1


def test_every_metric_of_the_panels_the_rules_and_the_page_exists(tmp_path):
    pages = [gateway_page(), doors_page(), worker_page(tmp_path)]
    told = {name for name, _ in samples(seen(), 101.0)}
    told |= {name for page in pages for name, _ in read(page)}
    told |= {"kairos_worker_gpu_memory_bytes"}  # of a process that has some
    panels = json.loads(PANELS.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    expressions += [rule["expr"] for rule in rules]
    assert set(re.findall(r"\bkairos_\w+", " ".join(expressions))) <= told
    documented = set(re.findall(r"`(kairos_\w+)", PAGE.read_text())) - set(Service)
    of_histogram = {
        name.replace("_bucket", end) for name in documented for end in ("_sum", "_count")
    }
    assert documented <= told <= documented | of_histogram


def test_rules_are_evaluated_as_often_as_their_alerts_wait():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    seconds = {"s": 1, "m": 60}
    every, *waits = (
        int(text[:-1]) * seconds[text[-1]]
        for text in (group["interval"], *(rule["for"] for rule in group["rules"]))
    )
    assert every <= min(waits)


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
